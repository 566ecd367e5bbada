// Facts of a node that follow from its operation, sources and payload: shape, device, whether a
// gradient is wanted, bounds of integers, ranges it depends on. Computed once, by Arena::make.
#pragma once
#include "tiny/ir/node.h"

namespace tiny {

struct Bounds {
  int64_t min, max;
};

inline constexpr int64_t kIntMin = INT64_MIN, kIntMax = INT64_MAX;

// Shape of the node's value; sources and payload must be legal (tensor.h checks the user's input).
Shape infer_shape(const NodeData& n);

// Per axis the node that says how many elements count, empty where all elements of all axes do. Of
// a tensor with such lengths, dims are the bounds that its memory is made for, and elements beyond
// a length are unspecified: no operation here lets one of them reach an element that counts. Throws
// Error for operations that would.
std::vector<Node> infer_lengths(const NodeData& n, Ints shape);

// Least and greatest value of an integer or bool node. Index arithmetic does not overflow; machine
// integers that might wrap get their dtype's full span.
Bounds infer_bounds(const NodeData& n);

uint64_t infer_ranges(const NodeData& n);
int infer_device(const NodeData& n);  // throws Error where sources are on different devices

// Whether a tensor's elements differ along an axis, as far as its form says. Not kept: it walks
// through the sources.
bool varies(Node root, int axis);

int64_t floor_div(int64_t a, int64_t b);  // towards minus infinity, b != 0
int64_t floor_mod(int64_t a, int64_t b);

}  // namespace tiny
