// One AMD GPU as a device, through the HIP runtime; kernels are compiled by hiprtc, by an
// installed clang or by LLVM in this process (AMD_COMPILER). Tested on a library that stands in for
// the runtime's and on emulators: no AMD GPU has run it yet.
#pragma once
#include "devices/gpu/gpu.h"

namespace tiny {

class HipDevice : public GpuDevice {
 public:
  // Throws DeviceError without runtime, GPU or compiler, Error for a number that no GPU has.
  explicit HipDevice(int index);

  std::string compiler_id() const override;
  std::string compile(const Source& source) override;

  // By RCCL alone.
  std::string missing_for_all_reduce(SumBy by, DType dtype) override;
  std::shared_ptr<PendingAllReduce> all_reduce(std::span<const AllReduce> sums) override;

 private:
  std::string binary_origin() const override;
};

// "hiprtc", "clang" or "llvm": AMD_COMPILER, or the first that is there, hiprtc where it knows the
// architecture. llvm takes LLVM IR, the others HIP. Throws DeviceError where there is none, with
// what to install.
std::string amd_compiler(const std::string& arch);

// The code object of a kernel: HIP by that compiler, LLVM IR by LLVM.
std::string compile_amd(const Source& source, const std::string& arch);

}  // namespace tiny
