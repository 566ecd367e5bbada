// Sums that become halves after movement become halves before it: their kernels write half as much.
#pragma once
#include <span>
#include <vector>

#include "tiny/ir/node.h"

namespace tiny {

// The graph with the casts to halves right above the sums, where movement that cuts axes up or
// joins them lies between: the loops of the sum are not those of the cast, and it would be stored
// as wide as it is added up. Only of sums with no other reader. Gives each node as it is then.
NodeMap<Node> narrow_sums(std::span<const Node> roots);

}  // namespace tiny
