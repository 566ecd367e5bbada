// Graphs without their buffers, in which the graphs of two training steps are the same node.
#pragma once
#include <span>
#include <vector>

#include "runtime/analysis/views.h"
#include "tiny/ir/node.h"

namespace tiny {

// A graph with its Buffers replaced by Params: slot i stands for buffers[i].
struct Normalized {
  std::vector<Node> roots;
  std::vector<Node> buffers;
};
Normalized normalize(std::span<const Node> roots);

}  // namespace tiny
