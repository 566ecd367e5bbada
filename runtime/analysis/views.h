// Views of a tensor graph: the value below movement operations, and the leaves of a kernel.
#pragma once
#include <span>

#include "tiny/ir/node.h"

namespace tiny {

// The node below all movement.
Node base_of(Node n);

// The movement of `root` above its base on top of another node, perhaps of another dtype.
Node moved(Node root, Node base, Node onto);

// The movement of `x` on top of the 16-bit floats that it makes f32; null where it is something
// else.
Node as_halves(Node x);

// Neither computed nor stored by a kernel: what is there before, and what costs nothing.
bool is_leaf(Node n);

// A sum whose operands are broadcast: a matrix product or a convolution. Terms beyond the length
// of an axis are selected away. `term`: what is summed, an element for each product.
bool is_product_term(Node term);
inline bool is_product(Node reduce) { return is_product_term(reduce->src(0)); }

// An Assign's old value is a place, not a value that is read.
std::span<const Node> used_sources(Node n);

// A node's representative: itself, its values where it has been computed, its source where the node
// only matters to gradients.
Node resolved(Node n);

}  // namespace tiny
