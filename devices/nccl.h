// NVIDIA's library of collectives, and AMD's RCCL, which has the same functions; each is opened at
// its first use, nothing of it is needed to build. Functions, types and numbers: NCCL 2 API
// reference.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "devices/gpu_driver.h"
#include "tiny/dtype.h"

namespace tiny {

// One sum over GPUs: `from` and `to` by GPU; null in `to` where it is not wanted.
struct NcclSum {
  std::vector<const void*> from;
  std::vector<void*> to;
  DType dtype;
  size_t count = 0;
};

class Nccl {
 public:
  virtual ~Nccl() = default;

  // Why it cannot add up values of this dtype: empty where it can.
  virtual std::string missing_reason(DType dtype) const = 0;
  virtual std::string version() const = 0;  // "2.27.3 from FILE"; throws DeviceError without it

  // Adds up on streams of these GPUs, in the order of each stream. All sums are started at once.
  // Communicators of a list of GPUs are made at its first use. Throws DeviceError.
  virtual void sum(const std::vector<int>& ordinals, const std::vector<GpuStream>& streams,
                   std::span<const NcclSum> sums) const = 0;
};

const Nccl& nccl();
const Nccl& rccl();

}  // namespace tiny
