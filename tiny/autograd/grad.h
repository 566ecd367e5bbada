// Gradients of tensor graphs: one backward rule per operation, applied from the loss downwards.
#pragma once
#include <span>
#include <vector>

#include "tiny/ir/node.h"

namespace tiny {

// d(loss) / d(target) for each target, given the gradient of the loss itself (`seed`, in its shape
// and dtype). A Leaf is found by its id, any other target as the node that it is. A target that the
// loss does not depend on gets zeros. Gradients have the dtype of their node.
std::vector<Node> gradients(Node loss, std::span<const Node> targets, Node seed);

// The leaves below a node that a gradient can reach, one node for each id.
std::vector<Node> grad_leaves(Node loss);

}  // namespace tiny
