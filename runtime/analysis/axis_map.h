// Maps the axes of a value to those of the kernel that reads it, through movement.
#pragma once
#include <vector>

#include "tiny/ir/node.h"

namespace tiny {

// Where the element that a node is asked for comes from, per axis: an axis of the kernel's output,
// nothing (size 1, or the same element for all), or something that is neither.
constexpr int kNone = -1, kOther = -2;
using AxisMap = std::vector<int>;

// Of the source of a movement, given those of the node itself.
AxisMap through_movement(Node n, const AxisMap& axes);

}  // namespace tiny
