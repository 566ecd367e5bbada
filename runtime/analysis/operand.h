// Operands of a contraction in the tensor graph: the index and mask of each element, in terms of
// one range for each axis of the contraction.
#pragma once
#include <span>
#include <vector>

#include "tiny/ir/node.h"

namespace tiny {

// An operand: the element of `point` at the indices `at` (in terms of one range for each axis of
// the contraction), zero where the gate does not hold.
struct ProductOperand {
  Node point = nullptr;
  std::vector<Node> at;
  Node gate = nullptr;
  int casts = 0;
};

inline bool is_reduced(Node reduce, int axis) { return reduce->arg<ReduceArg>().axes >> axis & 1; }
inline bool is_view(Node n) { return is_movement(n->op) || n->op == Op::Cast; }

// A range for each axis, zero for those of size 1, in an arena of their own, which is current while
// they are in scope.
struct OwnRanges {
  explicit OwnRanges(Ints shape);

  Arena arena;
  ArenaScope scope{arena};
  std::vector<Node> ranges;
};

// The last axis of more than one element.
inline int last_axis(Ints shape) {
  int axis = static_cast<int>(shape.size()) - 1;
  while (axis > 0 && shape[axis] == 1) --axis;
  return axis;
}

// Whether a view, with its casts, has every element of what it is made of, and nothing else: no
// windows, no padding and no part, but what lies by heads and is read by rows.
bool only_reorders(Node view);

// Follows movement and at most one cast down to memory or to something computed. A reshape on top
// of memory stays: it tells the axes apart.
ProductOperand follow(Node top, const std::vector<Node>& ranges);

// Follows views down as far as 16-bit floats lie in memory, or would, such that all indices are
// sums of ranges: to one of `stops`, or the last value that is read without a gate where that is
// asked for.
struct FollowHalves {
  const NodeMap<int>* stops = nullptr;
  bool without_gate = false;
};
ProductOperand follow_halves(Node top, const std::vector<Node>& ranges, const FollowHalves& how);

// A product worth its own layout, one whose operands are each used many times, as Mul of two
// views right below the reduction; nullptr for any other reduction, and where it is of integers but
// for `integers`. Padding of a product becomes padding of its factors.
Node with_product_on_top(Node reduce, bool integers = false);

// Whether all indices are sums of ranges.
bool is_affine(const ProductOperand& o);

// Whether the product is zero just where one of its factors would be, were each padded with zeros
// to its own bounds.
bool pads_alone(const std::vector<ProductOperand>& operands);

// How the operand's memory is walked when an axis of the product advances.
struct Walk {
  enum Kind { None, Contiguous, Movable, Irregular } kind = Irregular;
  int dim = -1;  // of the point: the only one that moves, by one, for Contiguous and Movable
};

Walk walk_of(const ProductOperand& o, Node range);

// Whether several ranges walk along a dimension and do more than count it together; along any.
bool is_window(const ProductOperand& o, int dim);
bool has_windows(const ProductOperand& o);

// An operand's point, padded, as build::affine reads it.
struct AffineMap {
  std::vector<int64_t> pad;  // before and after each axis
  bool padded = false;
  std::vector<int64_t> map;
};
AffineMap affine_map(const ProductOperand& o, const std::vector<Node>& ranges);
Node affine_view(Node x, const AffineMap& map, Ints shape);

// `x` with axis `dim` innermost in memory, in panels of `width` where it is wider; seen from
// outside nothing has moved.
Node packed(Node x, int dim, int64_t width);

}  // namespace tiny
