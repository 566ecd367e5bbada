// NVIDIA's driver as the table of devices/gpu/driver.h, found in libcuda.so.1 when a CUDA device is
// first asked for. cuda.h is not needed to build.
#pragma once
#include <string>

#include "devices/gpu/driver.h"

namespace tiny {

// The driver, opened and initialised at the first call. Throws DeviceError with the reason why
// there is none, or no GPU.
const GpuDriver& cuda_driver();
std::string cuda_missing_reason();  // empty when there is a driver and a GPU

// How versions are written: 12040 is "12.4".
std::string cuda_version_text(int version);

}  // namespace tiny
