// Convolutions of few channels: neighbouring pixels of a window, with their channels filled up, lie
// side by side in memory and are what channels are to the copy engine
// (runtime/layout/convolution/implicit.h). The image is stored once more so, windows are read out
// of it where they overlap.
#pragma once
#include "codegen/target/target.h"
#include "tiny/ir/node.h"

namespace tiny {

// What the gradient of such a convolution's weight reads of the result's gradient: a value, and
// which of its axes had best lie innermost in memory. Nothing for all other products.
struct NeighbourGradient {
  Node point = nullptr;
  int dim = -1;
};
NeighbourGradient find_neighbour_gradient(Node product, const Target& target,
                                          const NodeMap<int>& stored);

// What `product`, a sum of the product of two views, computes, by way of such a product; nullptr
// for all others.
Node with_neighbours(Node product, const Target& target);

}  // namespace tiny
