// Op::After in the scheduler: orders a read of memory behind the computation of another value. It
// keeps a recomputation (tiny/autograd/recompute.h) apart from the first computation, and late.
#pragma once
#include <vector>

#include "tiny/ir/node.h"

namespace tiny {

// The value that an After stands for (any other node: itself).
Node behind(Node n);

// Brings the first source of every After below the movement on it, so that it is what has memory;
// roots that are an After become what is behind it. Gives the nodes as they are then, none where
// there is no After.
NodeMap<Node> put_afters_on_memory(std::vector<Node>& roots, std::vector<Node>& stored);

}  // namespace tiny
