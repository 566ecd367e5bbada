// A kernel graph as a linear program: loops nested in the order of range ids, each value computed
// in the outermost loop that it can be, reductions and stores that can share a loop in one.
#pragma once
#include "codegen/kernel/linear.h"

namespace tiny {

Linear linearize(Node sink, std::string name);

}  // namespace tiny
