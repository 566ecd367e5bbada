// What the runtime tells the profile (tiny/run/profile.h). Nothing costs more than reading a flag
// while none is taken.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "tiny/run/profile.h"

namespace tiny {

class Device;
struct Kernel;

namespace profile_detail {
inline std::atomic<bool> on = false;
}

inline bool profiling() { return profile_detail::on.load(std::memory_order_relaxed); }

// Begins the profile that PROFILE asks for, the first time.
void begin_profile_of_environment();

// A part of the host's work, from here to the end of the scope. `what` must last for ever.
class HostSpan {
 public:
  explicit HostSpan(const char* what, const char* category = "host")
      : what_(profiling() ? what : nullptr), category_(category) {
    if (what_) [[unlikely]]
      begin_ = now();
  }
  ~HostSpan() {
    if (what_) [[unlikely]]
      end();
  }
  HostSpan(const HostSpan&) = delete;
  HostSpan& operator=(const HostSpan&) = delete;

 private:
  static double now();
  void end() const;

  const char* what_;
  const char* category_;
  double begin_ = 0;
};

// Launched between two marks of its device (Device::mark).
void profile_kernel(const Kernel& kernel, const std::string& operations, Device& device,
                    const std::string& device_name, int64_t begin, int64_t end);
// Of a copy to the device, or of its part of a sum that devices make together.
void profile_copy(const std::string& operations, double bytes, Device& device,
                  const std::string& device_name, std::pair<int64_t, int64_t> marks);
// Bytes in use on a device from now on.
void profile_memory(const std::string& device_name, int64_t bytes);

}  // namespace tiny
