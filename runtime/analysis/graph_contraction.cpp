#include "runtime/analysis/graph_contraction.h"

#include "runtime/analysis/views.h"

namespace tiny {

GraphContraction::GraphContraction(Node sum)
    : GraphContraction(sum, base_of(sum->src(0))->srcs()) {}

GraphContraction::GraphContraction(Node sum, std::span<const Node> views)
    : OwnRanges(base_of(sum->src(0))->shape()), reduce(sum), product(base_of(sum->src(0))) {
  for (Node v : views) operands.push_back(follow(v, ranges));
}

GraphContraction::GraphContraction(Node sum, const FollowHalves& how)
    : GraphContraction(sum, std::span<const Node>()) {
  for (Node s : product->srcs()) operands.push_back(follow_halves(s, ranges, how));
}

Shape GraphContraction::extents(const std::vector<int>& axes) const {
  Shape out;
  for (int axis : axes) out.push_back(extent(axis));
  return out;
}

ContractionAxes GraphContraction::axes() const {
  ContractionAxes out;
  for (int i = 0; i < rank(); ++i) {
    if (extent(i) == 1) continue;
    const bool in_a = moves(0, i), in_b = moves(1, i);
    if (is_summed(i) ? !in_a || !in_b : !in_a && !in_b)
      out.is_whole = false;
    else
      (is_summed(i) ? out.k : in_a && in_b ? out.batch : out.own[in_a ? 0 : 1]).push_back(i);
  }
  return out;
}

int GraphContraction::summed_axis() const {
  int found = -1;
  for (int i = 0; i < rank(); ++i) {
    if (!is_summed(i) || extent(i) == 1) continue;
    if (found >= 0) return -1;
    found = i;
  }
  return found;
}

Node GraphContraction::view(int operand, const std::vector<int>& axes, Ints shape) const {
  const AffineMap all = map(operand);
  AffineMap some{all.pad, all.padded, {}};
  for (auto at = all.map.begin(); at < all.map.end(); at += rank() + 1) {
    some.map.push_back(*at);
    for (int axis : axes) some.map.push_back(axis < 0 ? 0 : at[axis + 1]);
  }
  return affine_view(operands[operand].point, some, shape);
}

std::vector<int64_t> GraphContraction::map_of(const std::vector<int>& axes) const {
  std::vector<int64_t> out;
  for (int axis : axes) {
    out.push_back(0);
    for (int i = 0; i < rank(); ++i) out.push_back(i == axis);
  }
  return out;
}

}  // namespace tiny
