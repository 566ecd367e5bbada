#include "runtime/device/device.h"

#include <chrono>

namespace tiny {

namespace {

class LaunchList : public Recording {
 public:
  LaunchList(Device& device, std::vector<LaunchItem> items)
      : device_(device), items_(std::move(items)) {}

  void set_args(size_t item, const std::vector<void*>& args) override {
    items_.at(item).args = args;
  }
  void launch() override {
    for (const LaunchItem& i : items_) device_.launch(*i.program, i.size, i.args);
  }

 private:
  Device& device_;
  std::vector<LaunchItem> items_;
};

}  // namespace

double Device::launch_timed(std::span<const LaunchItem> items) {
  synchronize();
  const auto start = std::chrono::steady_clock::now();
  for (const LaunchItem& i : items) launch(*i.program, i.size, i.args);
  synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::unique_ptr<Recording> Device::record(std::vector<LaunchItem> items) {
  return std::make_unique<LaunchList>(*this, std::move(items));
}

int64_t Device::mark() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

double Device::time_of(int64_t mark) { return static_cast<double>(mark) * 1e-9; }

bool Device::copy_from(Device&, void*, const void*, size_t) { return false; }

}  // namespace tiny
