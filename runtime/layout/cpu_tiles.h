// Packs GEMM operands for the matrix units of CPUs (codegen/options/mma.h): each fragment's
// elements contiguous in memory, padded with zeros, or whole rows where they are. A convolution is
// written out as im2col.
#pragma once
#include "codegen/target/target.h"
#include "tiny/ir/node.h"

namespace tiny {

// `reduce`, a sum over the product right below it, with such operands. nullptr where no unit takes
// them, or storing them once more is not little beside the product.
Node with_tiles(Node reduce, const Target& target);

}  // namespace tiny
