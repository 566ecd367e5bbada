// Schedules GEMMs and convolutions on the ordinary arithmetic units of a GPU, operands in memory.
// Each thread computes a tile of results; loads come through L1, which serves a line to all threads
// of a warp at once. A cost model chooses among the tiles.
#pragma once
#include <optional>

#include "codegen/kernel/choice.h"

namespace tiny {

// Nothing where the kernel is no single sum of products, whose operands several results share.
std::optional<Choice> choose_product_options(Node sink, const Target& target);

}  // namespace tiny
