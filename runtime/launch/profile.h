// Kernels and copies, for the profile (tiny/run/profile.h).
#pragma once
#include <cstdint>
#include <string>
#include <utility>

#include "runtime/device/trace.h"
#include "tiny/run/profile.h"

namespace tiny {

class Device;
struct Kernel;

// Launched between two marks of its device (Device::mark).
void profile_kernel(const Kernel& kernel, const std::string& operations, Device& device,
                    const std::string& device_name, int64_t begin, int64_t end);
// Notes a copy to the device, or its part of an all-reduce.
void profile_copy(const std::string& operations, double bytes, Device& device,
                  const std::string& device_name, std::pair<int64_t, int64_t> marks);

}  // namespace tiny
