// Kernels on devices that let them have few buffers (Target::most_buffers).
#pragma once
#include <set>
#include <vector>

#include "tiny/ir/node.h"

namespace tiny {

// What a value's kernel reads, for values in the order of a graph.
class FewBuffers {
 public:
  // The values below `n`, not stored yet, that have to be for its kernel to read no more than
  // `most` buffers: those that read most first. (Merging kernels counts for itself.)
  std::vector<Node> too_large(Node n, int most, const NodeMap<char>& stored);

 private:
  NodeMap<std::set<Node>> reads_;
};

}  // namespace tiny
