#include "devices/absent.h"

#include "tiny/base/error.h"

namespace tiny {

namespace {

class Nothing : public Recording {
  void set_args(size_t, const std::vector<void*>&) override {}
  void launch() override {}
};

}  // namespace

void AbsentDevice::download(void*, const void*, size_t bytes) {
  throw Error(cat("a value of ", bytes, " bytes is on rank ", rank,
                  " alone: bring it to this one "
                  "with to(), in all processes"));
}

std::unique_ptr<Recording> AbsentDevice::record(std::vector<LaunchItem>) {
  return std::make_unique<Nothing>();
}

std::string AbsentDevice::missing_for_sums(SumBy by, DType dtype) {
  if (by != SumBy::Library) return "GPUs of other processes add up by a library alone";
  return own_.missing_for_sums(by, dtype);
}

}  // namespace tiny
