// Masks of attention that are read from memory, or made of numbers that are: which tiles of scores
// they leave something of is worked out before.
#pragma once
#include <span>

#include "runtime/analysis/node_targets.h"

namespace tiny {

// Where a chain of products (runtime/fusion/chain.h) on a GPU masks its scores by what positions
// alone do not tell, as the numbers of packed documents or a matrix of bools, the mask is also
// reduced to tiles of kMaskTile x kMaskTile positions: the first and the last tile of each row of
// tiles (and column) that it leaves open, and whether it hides nothing of a tile. The mask that is
// applied says so as well, in words that loops begin and end by (codegen/passes/end_loops.cpp) and
// that let open tiles go without it (codegen/passes/whole_tiles.cpp). Like a block mask in memory
// of [rows / 128, columns / 128], it is worth its kernels where several heads share the mask.
// `order`: all nodes below the roots, sources first. Gives each as it is then, none where there is
// no such mask.
constexpr int64_t kMaskTile = 128;
NodeMap<Node> mask_tiles(std::span<const Node> roots, std::span<const Node> order,
                         const NodeTargets& targets);

// `condition`, of bools with rows and columns as its last axes, and the same with its tiles.
Node with_tiles(Node condition, int64_t tile);

}  // namespace tiny
