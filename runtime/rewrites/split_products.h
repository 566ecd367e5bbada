// One sum over several products is a sum for each of them.
#pragma once
#include <span>

#include "tiny/ir/node.h"

namespace tiny {

// sum(a b + c d) becomes sum(a b) + sum(c d) where these are matrix products: what matrix units and
// tiles take is one product. Gradients of a value that several products read are such sums, since
// it is broadcast once for all of them. `order`: all nodes, sources first. Gives each as it is
// then, none where there is no such sum.
NodeMap<Node> split_products(std::span<const Node> order);

}  // namespace tiny
