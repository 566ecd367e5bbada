// A program's memory: of each device and its owners, and of objects that are kept to be used again.
// All caches are bounded; where a device has no memory left, values that can be made again are
// freed before anything fails.
#pragma once
#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "tiny/ir/dtype.h"

namespace tiny {

struct DeviceMemory {
  std::string device;
  int64_t buffers = 0;       // with memory
  int64_t live_bytes = 0;    // of these
  int64_t cached_bytes = 0;  // freed, and kept for the next buffer
  int64_t peak_bytes = 0;    // most that were ever live
};

// A block of device memory.
struct MemoryHolder {
  std::string device;
  int64_t bytes = 0;
  DType dtype;
  int64_t elements = 0;
  std::string owner;    // "tensor", "schedule" while one runs, "Jit"
  std::string made_by;  // the user's operations, "conv2d, relu"
};

struct MemoryReport {
  std::vector<DeviceMemory> devices;
  size_t nodes = 0;       // of tensor graphs, with those that schedules and kernels are kept under
  size_t schedules = 0;   // kept
  size_t kernels = 0;     // loaded
  size_t captures = 0;    // of a Jit
  size_t recordings = 0;  // lists of launches for replay: a graph each where a device has them
  size_t events = 0;      // of GPUs
  size_t file_handles = 0;  // of the process; 0 where the system does not say
  std::vector<MemoryHolder> largest;
};

// Frees what nobody refers to, then counts. `largest`: how many of the largest blocks to list.
MemoryReport memory_report(size_t largest = 10);

// The environment's MEMORY_LIMIT in bytes: what each device may hold of live and of cached memory;
// 0: no limit. Error for text that is no size.
int64_t memory_limit();

// As a table for people.
std::string to_text(const MemoryReport& report);
std::ostream& operator<<(std::ostream& out, const MemoryReport& report);

// Gives back to the system what is kept to be used again: freed blocks, schedules, kernels that no
// capture of a Jit holds (on disk they stay), memory of captures for intermediate values. Later
// steps make it again. Not to be called inside a function that a Jit captures.
void clear_caches();

}  // namespace tiny
