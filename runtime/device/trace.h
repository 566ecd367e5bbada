// Spans of the host's work and memory in use, for the profile (tiny/run/profile.h). Declared below
// all that is traced; runtime/launch/profile.cpp records them. Nothing costs more than reading a
// flag while no profile is taken.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>

namespace tiny {

namespace profile_detail {
inline std::atomic<bool> on = false;
}

inline bool profiling() { return profile_detail::on.load(std::memory_order_relaxed); }

// Begins the profile that PROFILE asks for, the first time.
void begin_profile_of_environment();

// Of a clock that never goes back.
double steady_seconds();

// A part of the host's work, from here to the end of the scope. `what` must last for ever.
class HostSpan {
 public:
  explicit HostSpan(const char* what, const char* category = "host")
      : what_(profiling() ? what : nullptr), category_(category) {
    if (what_) [[unlikely]]
      begin_ = steady_seconds();
  }
  ~HostSpan() {
    if (what_) [[unlikely]]
      end();
  }
  HostSpan(const HostSpan&) = delete;
  HostSpan& operator=(const HostSpan&) = delete;

 private:
  void end() const;

  const char* what_;
  const char* category_;
  double begin_ = 0;
};

// Bytes in use on a device from now on.
void profile_memory(const std::string& device_name, int64_t bytes);

}  // namespace tiny
