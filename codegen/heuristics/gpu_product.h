// Products on the ordinary arithmetic units of a GPU: matrix products and convolutions whose
// operands lie in memory. Each thread computes a tile of results; what it reads comes through the
// first cache, which serves a line to all threads of a warp at once. Of all tiles that are worth
// considering the one with the shortest estimated time is taken.
#pragma once
#include <optional>

#include "codegen/kernel/choice.h"

namespace tiny {

// Nothing where the kernel is no single sum of products, whose operands several results share.
std::optional<Choice> choose_product_options(Node sink, const Target& target);

}  // namespace tiny
