#include "devices/remote.h"

#include "tiny/base/error.h"

namespace tiny {

namespace {

class Nothing : public Recording {
  void set_args(size_t, const std::vector<void*>&) override {}
  void launch() override {}
};

}  // namespace

void RemoteDevice::download(void*, const void*, size_t bytes) {
  throw Error(cat("a value of ", bytes, " bytes is on rank ", rank,
                  " alone: bring it to this one "
                  "with to(), in all processes"));
}

std::unique_ptr<Recording> RemoteDevice::record(std::vector<LaunchItem>) {
  return std::make_unique<Nothing>();
}

std::string RemoteDevice::missing_for_all_reduce(SumBy by, DType dtype) {
  if (by != SumBy::Library) return "GPUs of other processes add up by a library alone";
  return own_.missing_for_all_reduce(by, dtype);
}

}  // namespace tiny
