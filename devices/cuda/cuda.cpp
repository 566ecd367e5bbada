#include "devices/cuda/cuda.h"

#include <iostream>

#include "devices/cuda/driver.h"
#include "devices/cuda/nvrtc.h"
#include "tiny/base/env.h"

namespace tiny {
namespace {

constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_...

// Volatile twice: for the C++ compiler and for that of PTX, since what is read is of no use.
constexpr const char* kReader = R"(
extern "C" __global__ void read_memory(const uint2* at, const uint2* end) {
  for (at += blockIdx.x * blockDim.x + threadIdx.x; at < end; at += gridDim.x * blockDim.x)
    asm volatile("{ .reg .b32 a, b; ld.volatile.global.v2.b32 {a, b}, [%0]; }" ::"l"(at));
}
)";

}  // namespace

CudaDevice::CudaDevice(int index) : GpuDevice(cuda_driver(), index) {
  if (!nvrtc_available()) throw DeviceError("CUDA: " + nvrtc_missing_reason());
  const GpuAttributes& known = driver_.attributes;
  target_.kind = Target::Kind::Gpu;
  target_.language = Target::Language::Cuda;
  target_.arch = cuda_arch(attribute(kMajor), attribute(kMinor));
  target_.vector_bytes = 16;       // bytes of a thread's largest load
  target_.vector_registers = 255;  // of 32 bits, the most that a thread can have
  target_.cores = attribute(known.multiprocessors);
  target_.l2_bytes = attribute(known.l2_bytes);
  target_.has_f16 = true;
  target_.has_bf16 = attribute(kMajor) >= 8;
  target_.has_wgmma = target_.arch == "sm_90a" && driver_.tensor_map && driver_.window_map;
  const int capability = 10 * attribute(kMajor) + attribute(kMinor);
  target_.has_f8_mma = capability >= 89 && nvrtc_is_at_least(12, 4);  // PTX ISA 8.4
  starts_early_ = capability >= 90 && driver_.graph_add_edges && env_int("EARLY_LAUNCH");
  target_.warp = attribute(known.warp);
  target_.most_threads = attribute(known.most_threads);
  target_.shared_bytes = attribute(known.shared_bytes);
  if (env_int("DEBUG") >= 1)
    std::cerr << cat(name_, ": ", target_.arch, ", ", target_.cores,
                     " multiprocessors, driver for CUDA ", cuda_version_text(driver_.version),
                     ", NVRTC ", nvrtc_version(), "\n");
}

std::string CudaDevice::binary_origin() const {
  return cat("NVRTC ", nvrtc_version(), " for a driver that knows CUDA ",
             cuda_version_text(driver_.version), " (NVRTC_LIBRARY chooses another one)");
}

std::string CudaDevice::compiler_id() const { return cat(nvrtc_id(), " ", target_.arch); }

std::string CudaDevice::compile(const Source& source) {
  expect(source.language == Source::Language::Cuda, "CUDA: kernel ", source.entry,
         " is not CUDA C++");
  std::string log;
  std::string binary = compile_cuda(source.text, target_.arch, &log, source.entry);
  if (env_int("DEBUG") >= 3) {
    const CudaResources used = cuda_resources(log);
    std::cerr << cat("resources ", source.entry, ": ", used.registers, " registers, ",
                     used.stack_bytes, " bytes of stack, ", used.spill_bytes, " bytes spilled\n");
  }
  return binary;
}

Program* CudaDevice::memory_reader() {
  if (!reader_)
    reader_ = load(compile({"read_memory", kReader, Source::Language::Cuda}), "read_memory");
  return reader_.get();
}

bool cuda_available() { return cuda_missing_reason().empty() && nvrtc_available(); }

}  // namespace tiny
