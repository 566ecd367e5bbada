// Rows that were joined are reduced part by part.
#pragma once
#include <span>

#include "tiny/ir/node.h"

namespace tiny {

// Where a few values are joined to rows of a product's results (Tensor::cat), reductions of what is
// made of both, element by element, are combined of those of the parts, and parts of it are made of
// a part: a softmax of scores with a sink beside them reads rows of the scores alone, as chains of
// products do. `order`: all nodes, sources first. Gives each as it is then, none where there is no
// such row.
NodeMap<Node> split_joined(std::span<const Node> order);

}  // namespace tiny
