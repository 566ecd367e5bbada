// Runs what tensors ask for: schedule, compile, allocate, launch. Also the definitions of the seam
// that tiny/tensor.h declares.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "runtime/buffer.h"
#include "runtime/schedule.h"
#include "tiny/tensor.h"

namespace tiny {

// Runs a schedule on its inputs; gives the buffer of each result (nullptr where it has none).
std::vector<std::shared_ptr<Buffer>> run(const Schedule& s,
                                         std::span<const std::shared_ptr<Buffer>> inputs);

// The node of a buffer, and the movement of `root` above its base on top of another node.
Node buffer_node(const std::shared_ptr<Buffer>& b);
Node moved(Node root, Node base, Node onto);

// The buffer behind a node that has values and is no more than a reshape of it; else nullptr.
std::shared_ptr<Buffer> whole_buffer(Node n);

// What exists right now: for tests that watch for leaks. Frees what nobody refers to first.
struct Live {
  size_t nodes = 0;
  int64_t buffers = 0;
  int64_t bytes = 0;
};
Live live();

}  // namespace tiny
