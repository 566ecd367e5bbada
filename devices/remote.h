// RemoteDevice: a device of another process. All processes schedule its work, its owner alone
// computes it. It has addresses but no memory.
#pragma once
#include <atomic>

#include "runtime/device/device.h"

namespace tiny {

class RemoteDevice : public Device {
 public:
  // `own`: this process's, to which the other one is taken to be alike: schedules must not depend
  // on who makes them.
  RemoteDevice(Device& own, int owner) : own_(own) {
    rank = owner;
    is_remote = true;
  }
  const Target& target() const override { return own_.target(); }
  void* alloc(size_t bytes) override {
    constexpr size_t kAlignment = 256;
    const size_t size = (bytes / kAlignment + 1) * kAlignment;
    return reinterpret_cast<void*>(next_.fetch_add(size));
  }
  void free(void*, size_t) override {}
  void upload(void*, const void*, size_t) override {}
  void download(void* to, const void*, size_t bytes) override;
  void copy(void*, const void*, size_t) override {}
  std::string compiler_id() const override { return "absent"; }
  std::string compile(const Source&) override { return {}; }
  std::unique_ptr<Program> load(const std::string&, const std::string&) override {
    return std::make_unique<Program>();
  }
  void launch(Program&, const LaunchSize&, const std::vector<void*>&) override {}
  void synchronize() override {}
  std::unique_ptr<Recording> record(std::vector<LaunchItem> items) override;
  std::string missing_for_all_reduce(SumBy by, DType dtype) override;
  std::shared_ptr<PendingAllReduce> all_reduce(std::span<const AllReduce> sums) override {
    return own_.all_reduce(sums);
  }

 private:
  Device& own_;
  static inline std::atomic<uintptr_t> next_{uintptr_t{1} << 60};  // no real memory is there
};

}  // namespace tiny
