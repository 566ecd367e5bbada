// For C < 16: folds the kernel's width into the channel axis (padded to 8) so that TMA im2col
// (runtime/layout/convolution/implicit.h) sees enough contiguous channels. The image is copied into
// that layout, where windows overlap.
#pragma once
#include "codegen/target/target.h"
#include "tiny/ir/node.h"

namespace tiny {

// The result's gradient as the gradient of such a convolution's weight reads it: a value, and the
// axis that had best lie innermost in memory. Nothing for all other products.
struct NeighbourGradient {
  Node point = nullptr;
  int dim = -1;
};
NeighbourGradient find_neighbour_gradient(Node product, const Target& target,
                                          const NodeMap<int>& stored);

// `product`, a sum of the product of two views, with folded pixels; nullptr for all others.
Node with_neighbours(Node product, const Target& target);

}  // namespace tiny
