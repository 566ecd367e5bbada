// Graphs a second time: other nodes for the same values, so that these are computed twice.
#pragma once
#include <span>
#include <vector>

#include "tiny/ir/node.h"

namespace tiny {

struct Recomputed {
  Node value;
  std::vector<Node> fresh;  // nodes that differ from those of the first time, sources before users
};

// `value` made anew from `inputs` and from memory, all of which it reads once `before` has been
// computed. What is no input and has no memory is made anew too, unless it comes from leaves alone;
// leaves stay as they are.
Recomputed recomputed(Node value, std::span<const Node> inputs, Node before);

}  // namespace tiny
