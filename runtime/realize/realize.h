// Realizes tensors: schedule, compile, allocate, launch. Also the definitions of the seam that
// tiny/tensor/tensor.h declares.
#pragma once
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "runtime/device/buffer.h"
#include "runtime/schedule/schedule.h"
#include "tiny/tensor/tensor.h"

namespace tiny {

// Held while tensors are realized or read, or a Jit is called: threads take turns there, and build
// graphs meanwhile.
std::recursive_mutex& runtime_mutex();

// Runs a schedule on its inputs; gives the buffer of each result (nullptr where it has none).
std::vector<std::shared_ptr<Buffer>> run(const Schedule& s,
                                         std::span<const std::shared_ptr<Buffer>> inputs);

// Counts of live objects: for tests that watch for leaks. Frees unreferenced ones first.
struct Live {
  size_t nodes = 0;
  int64_t buffers = 0;
  int64_t bytes = 0;
};
Live live();

}  // namespace tiny
