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

// Recomputes `value` from `inputs` and from memory, all of which it reads once `before` has been
// computed. Nodes that are no inputs and have no memory are recomputed too, unless they come from
// leaves alone; leaves stay as they are.
Recomputed recomputed(Node value, std::span<const Node> inputs, Node before);

}  // namespace tiny
