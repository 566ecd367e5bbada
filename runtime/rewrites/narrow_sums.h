// Moves casts to 16-bit floats from behind movement to right above the sum: the kernel writes half
// as much.
#pragma once
#include <span>
#include <vector>

#include "tiny/ir/node.h"

namespace tiny {

// Replaces each node of the graph by one with the casts to 16-bit floats right above the sums,
// where movement that cuts axes up or joins them lies between: the loops of the sum are not those
// of the cast, and the sum would be stored in its accumulator's dtype. Only of sums with no other
// reader. `order`: all nodes, sources first. Gives each as it is then, none without such casts.
NodeMap<Node> narrow_sums(std::span<const Node> roots, std::span<const Node> order);

}  // namespace tiny
