// One NVIDIA GPU as a device; kernels are compiled by NVRTC. Driver and compiler are libraries that
// are opened when a device is.
#pragma once
#include "devices/gpu/gpu.h"

namespace tiny {

class CudaDevice : public GpuDevice {
 public:
  // Throws DeviceError without driver, GPU or NVRTC, Error for a number that no GPU has.
  explicit CudaDevice(int index);

  std::string compiler_id() const override;
  std::string compile(const Source& source) override;

  // By flags: a kernel on each GPU that waits for the others; the library is NCCL.
  std::string missing_for_all_reduce(SumBy by, DType dtype) override;
  std::shared_ptr<PendingAllReduce> all_reduce(std::span<const AllReduce> sums) override;
  std::vector<std::vector<LaunchItem>> all_reduce_launches(
      std::span<const AllReduce> sums) override;

 private:
  struct Together;  // all_reduce.cpp

  std::string binary_origin() const override;
  Program* memory_reader() override;
  Program& sum_program(DType dtype, size_t gpus);

  std::unique_ptr<Program> reader_;  // of memory_reader()
  std::map<std::pair<Scalar, size_t>, std::unique_ptr<Program>> sums_;
};

// The kernel that so many GPUs add up with, together, for a dtype that it knows:
// sum_together(batch).
Source cuda_sum_source(DType dtype, size_t gpus);

// Whether there is a driver, a GPU and NVRTC. Opens the libraries, costs next to nothing where the
// driver's is absent.
bool cuda_available();

}  // namespace tiny
