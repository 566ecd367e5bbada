// AMD's HIP runtime as the table of devices/gpu/driver.h, found in libamdhip64.so when a HIP device
// is first asked for. hip_runtime_api.h is not needed to build.
#pragma once
#include <string>
#include <vector>

#include "devices/gpu/driver.h"

namespace tiny {

// The runtime, opened and initialised at the first call. Throws DeviceError with the reason why
// there is none, or no GPU.
const GpuDriver& hip_driver();
std::string hip_missing_reason();  // empty when there is a runtime and a GPU

// "gfx90a" of "gfx90a:sramecc+:xnack-": code without the features runs with and without them.
std::string hip_arch(int ordinal);

// The runtime's library, null where there is none: old ones have hiprtc's functions too.
void* hip_library();
int hip_version();  // 60042131 for HIP 6.0; 0 without a library

// How versions are written: 60042131 is "6.0".
std::string hip_version_text(int version);

// Where a library of ROCm may lie: "lib" + name + ".so" with the endings of several versions.
std::vector<std::string> rocm_files(const std::string& name);

}  // namespace tiny
