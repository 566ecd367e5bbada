#include "runtime/analysis/axis_map.h"

#include <algorithm>

namespace tiny {

namespace {

AxisMap reshaped(const AxisMap& axes, Ints from, Ints to) {  // axes of `from`, wanted for `to`
  AxisMap out(to.size(), kNone);
  size_t i = 0, j = 0;
  while (i < from.size() || j < to.size()) {
    if (j < to.size() && to[j] == 1) {
      ++j;
      continue;
    }
    if (i < from.size() && from[i] == 1) {
      ++i;
      continue;
    }
    if (i < from.size() && j < to.size() && from[i] == to[j]) {
      out[j++] = axes[i++];
      continue;
    }
    // Axes are split or merged here: the groups of both sides that cover the same elements.
    int64_t a = i < from.size() ? from[i++] : 1, b = j < to.size() ? to[j] : 1;
    const size_t first = j++;
    while (a != b) {
      if (a < b && i < from.size())
        a *= from[i++];
      else if (j < to.size())
        b *= to[j++];
      else
        break;
    }
    for (size_t k = first; k < std::min(j, to.size()); ++k)
      if (to[k] != 1) out[k] = kOther;
  }
  return out;
}

}  // namespace

AxisMap through_movement(Node n, const AxisMap& axes) {
  const Ints from = n->src(0)->shape(), arg = n->ints();
  AxisMap out(from.size(), kNone);
  if (n->op == Op::Reshape) return reshaped(axes, n->shape(), from);
  if (n->op == Op::Affine) return AxisMap(from.size(), kOther);
  for (size_t i = 0; i < from.size(); ++i) {
    switch (n->op) {
      case Op::Permute: out[arg[i]] = axes[i]; break;
      case Op::Expand: out[i] = from[i] == 1 ? kNone : axes[i]; break;
      default: out[i] = from[i] == n->shape()[i] && n->op != Op::Flip ? axes[i] : kOther;
    }
  }
  return out;
}

}  // namespace tiny
