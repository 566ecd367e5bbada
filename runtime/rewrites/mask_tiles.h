// Masks of attention that are read from memory, or made of numbers that are: which tiles of scores
// they leave something of is worked out before.
#pragma once
#include <span>

#include "runtime/analysis/node_targets.h"

namespace tiny {

constexpr int64_t kMaskTile = 128;  // positions along rows and columns

// Where a chain of products (runtime/fusion/chain.h) on a GPU masks its scores by what positions
// alone do not tell, as the numbers of packed documents or a matrix of bools, the mask is reduced
// to tiles of kMaskTile x kMaskTile positions by kernels of its own, before the chain: the first
// and the last tile of each row of tiles (and column) that it leaves open, and whether it hides
// nothing of a tile. The mask that is applied says so as well, in words that loops begin and end by
// (codegen/passes/end_loops.cpp) and that let whole tiles go without it
// (codegen/passes/whole_tiles.cpp); its elements are read as words of 32 bools. Only of large
// scores of which several heads share the mask. `order`: all nodes below the roots, sources first.
// Gives each as it is then, none where there is no such mask.
NodeMap<Node> mask_tiles(std::span<const Node> roots, std::span<const Node> order,
                         const NodeTargets& targets);

// The same bools as `mask` (rows and columns are its last axes), by what is known of its tiles of
// `tile` x `tile` positions, a multiple of 32, and by words of its elements.
Node with_tiles(Node mask, int64_t tile);

}  // namespace tiny
