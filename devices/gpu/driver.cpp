#include "devices/gpu/driver.h"

#include "runtime/device/device.h"

namespace tiny {
namespace {

// Errors that a kernel causes and that show at some later call: illegal address, timeout, assert,
// 714 to 718 illegal instructions and their like, launch failed. After them every call of the
// process fails in the same way.
bool may_be_of_a_kernel(int status) {
  return status == kGpuIllegalAddress || status == 702 || status == 710 ||
         (status >= 714 && status <= kGpuLaunchFailed);
}

}  // namespace

std::string GpuDriver::error(int status) const {
  const char *name = nullptr, *text = nullptr;
  if (error_name == nullptr || error_name(status, &name) != kGpuSuccess || !name)
    name = "unknown error";
  if (error_string == nullptr || error_string(status, &text) != kGpuSuccess || !text)
    text = "the driver has no text for it";
  return cat(name, " (", status, "): ", text);
}

std::string GpuDriver::later_error(int status) const {
  if (!may_be_of_a_kernel(status)) return error(status);
  return error(status) +
         "; this may stem from a kernel that was launched earlier: CHECK=1 waits after each launch "
         "and names it. This process cannot use the GPU any more";
}

GpuEvent make_event(const GpuDriver& driver, unsigned flags) {
  GpuEvent event = nullptr;
  driver.check(driver.event_create(&event, flags), "create an event");
  ++Device::live_events;
  return event;
}

void destroy_event(const GpuDriver& driver, GpuEvent event) {
  if (!event) return;
  driver.event_destroy(event);
  --Device::live_events;
}

}  // namespace tiny
