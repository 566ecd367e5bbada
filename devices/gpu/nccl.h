// NCCL, and AMD's RCCL, which has the same functions; each is opened at its first use, nothing of
// it is needed to build. Functions, types and numbers: NCCL 2 API reference.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "devices/gpu/driver.h"
#include "tiny/ir/dtype.h"

namespace tiny {

// One sum over GPUs: `from` and `to` by GPU; null in `to` where it is not wanted.
struct NcclSum {
  std::vector<const void*> from;
  std::vector<void*> to;
  DType dtype;
  size_t count = 0;
};

using NcclComm = struct NcclCommTag*;

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

  // Between processes, each with one GPU, which is the current one of the thread. A process makes
  // the name of a group and the others get it from there; join returns when all have joined.
  virtual std::string new_group() const = 0;
  virtual NcclComm join(const std::string& group, int count, int number) const = 0;
  // The part of number `own` of the group.
  virtual void sum_own(NcclComm comm, size_t own, GpuStream stream,
                       std::span<const NcclSum> sums) const = 0;
  virtual std::string failure(NcclComm comm) const = 0;  // of what was started; empty: none
  // Ends what was started, on any thread; the group is of no use after it.
  virtual void abandon(NcclComm comm) const = 0;
};

const Nccl& nccl();
const Nccl& rccl();

}  // namespace tiny
