// Explicit im2col for convolutions of a small number of channels, whose windows hold too little
// along any axis for TMA (runtime/layout/convolution/implicit.h). Written out, element by element
// of all pixels' windows, they are a matrix for a plain GEMM, also in the gradient of the weight.
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
