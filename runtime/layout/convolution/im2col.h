// Convolutions of few channels: their windows hold too little along any axis for the copy engine
// (runtime/layout/convolution/implicit.h). Written out, an element of the windows of all pixels
// after the other, they are a matrix that products on matrix units read, and so do gradients of the
// weight.
#pragma once
#include "codegen/target/target.h"
#include "tiny/ir/node.h"

namespace tiny {

// `product`, a sum of the product of two views, with its windows written out where that pays;
// nullptr for all others.
Node with_columns(Node product, const Target& target);

// The axis of such a product's results, those of a convolution, that is best innermost in memory;
// -1 of all others.
int columns_axis(Node product, const Target& target);

}  // namespace tiny
