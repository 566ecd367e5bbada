// The one text form of a graph: a line a node, sources before users, names in order of the walk,
// so that two dumps of the same graph are the same text.
//   %3 Add f32 (2,3) %1 %2
#pragma once
#include <span>
#include <string>

#include "tiny/ir/node.h"

namespace tiny {

std::string to_text(Node root);
std::string to_text(std::span<const Node> roots);

// An index expression as one line of arithmetic: "r0*64+r1". For messages and comments.
std::string to_expression(Node n);

// The user's operation that made a node, else its op: "conv2d", "relu_grad", "add".
std::string operation_of(Node n);

const char* name_of(RangeKind kind);

}  // namespace tiny
