// Views of a tensor graph: the value below movement operations, and what is a leaf of a kernel.
#pragma once
#include <span>

#include "tiny/ir/node.h"

namespace tiny {

// The node below all movement.
Node base_of(Node n);

// Neither computed nor stored by a kernel: what is there before, and what costs nothing.
bool is_leaf(Node n);

// An Assign's old value is a place, not a value that is read.
std::span<const Node> used_sources(Node n);

// What a node stands for: itself, its values where it has been computed, its source where the node
// only matters to gradients.
Node resolved(Node n);

}  // namespace tiny
