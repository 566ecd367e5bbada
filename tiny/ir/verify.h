// The forms that a graph takes between a user's tensors and source text, and which nodes are legal
// in each. Run after every pass when CHECK=1 and in tests: a pass that leaves something behind is
// found where it happens.
#pragma once
#include "tiny/ir/node.h"

namespace tiny {

enum class Form {
  Tensor,   // the graph that users build
  Kernel,   // loads, stores, ranges; scalars
  Vector,   // vectors in place of vector ranges
  Machine,  // no Index dtype, no unrolled ranges, nothing that the target lacks
};

// Throws Bug naming `pass` and the node.
void verify(Node root, Form form, const char* pass);

}  // namespace tiny
