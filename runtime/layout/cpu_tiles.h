// The operands of products as the matrix units of CPUs take them (codegen/options/mma.h): each
// fragment's elements one after the other in memory, filled up with zeros, or whole rows where they
// are. A convolution's windows are stored one by one.
#pragma once
#include "codegen/target/target.h"
#include "tiny/ir/node.h"

namespace tiny {

// `reduce`, a sum over the product right below it, with such operands. nullptr where no unit takes
// them, or storing them once more is not little beside the product.
Node with_tiles(Node reduce, const Target& target);

}  // namespace tiny
