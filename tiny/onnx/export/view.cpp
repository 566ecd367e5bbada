#include "tiny/onnx/export/view.h"

#include <algorithm>

#include "tiny/rewrite/algebra.h"

namespace tiny::onnx {

namespace {

using Indices = std::vector<Node>;  // for each axis of a node, over ranges of the result's axes

// Indices of a shape as those of another one with the same elements.
Indices reshaped_indices(Ints shape, const Indices& at, Ints other) {
  const Shape strides = strides_of(shape), inner = strides_of(other);
  Node flat = index(0);
  for (size_t d = 0; d < at.size(); ++d) flat = index_add(flat, index_mul(at[d], strides[d]));
  Indices out;
  for (size_t d = 0; d < other.size(); ++d)
    out.push_back(index_mod(index_div(flat, inner[d]), other[d]));
  return out;
}

// The indices in the source of the view n; empty where zeros of a Pad may be read.
Indices source_indices(Node n, const Indices& at) {
  const Ints from = n->src(0)->shape(), arg = n->op == Op::Limit ? Ints() : n->ints();
  Indices out(from.size(), nullptr);
  if (n->op == Op::Reshape) return reshaped_indices(n->shape(), at, from);
  if (n->op == Op::Affine) {
    const int64_t* next = arg.data() + 1 + n->rank;
    for (Node& source : out) {
      source = index(*next++);
      for (const Node axis : at) source = index_add(source, index_mul(axis, *next++));
    }
    return out;
  }
  for (size_t d = 0; d < from.size(); ++d) {
    switch (n->op) {
      case Op::Permute: out[arg[d]] = at[d]; break;
      case Op::Expand: out[d] = from[d] == n->shape()[d] ? at[d] : index(0); break;
      case Op::Stride: out[d] = index_mul(at[d], arg[d]); break;
      case Op::Shrink: out[d] = index_add(at[d], index(arg[2 * d])); break;
      case Op::Pad:
        out[d] = index_add(at[d], index(-arg[2 * d]));
        if (out[d]->vmin < 0 || out[d]->vmax >= from[d]) return {};
        break;
      default:  // Flip
        out[d] = arg[d] != 0 ? index_add(index(from[d] - 1), index_mul(at[d], -1)) : at[d];
    }
  }
  return out;
}

// The indices as a map; nothing where one of them is no sum of multiples of ranges.
std::optional<IndexMap> as_map(Node source, const Indices& at, const Shape& shape,
                               const Indices& ranges) {
  IndexMap map{source, shape, {}, {}};
  for (const Node axis : at) {
    const Sum sum = to_sum(axis);
    map.offsets.push_back(sum.constant);
    map.factors.emplace_back(shape.size(), 0);
    for (const Sum::Term& term : sum.terms) {
      const auto found = std::ranges::find(ranges, term.atom);
      if (found == ranges.end()) return std::nullopt;
      map.factors.back()[found - ranges.begin()] = term.factor;
    }
  }
  return map;
}

}  // namespace

std::vector<size_t> IndexMap::axes_of(size_t source_axis) const {
  std::vector<size_t> out;
  for (size_t a = 0; a < shape.size(); ++a)
    if (factors[source_axis][a] != 0 && shape[a] > 1) out.push_back(a);
  return out;
}

std::optional<size_t> IndexMap::plain_axis(size_t source_axis) const {
  const auto axes = axes_of(source_axis);
  if (axes.size() != 1 || offsets[source_axis] != 0) return std::nullopt;
  const bool is_whole =
      factors[source_axis][axes[0]] == 1 && shape[axes[0]] == source->shape()[source_axis];
  return is_whole ? std::optional(axes[0]) : std::nullopt;
}

bool IndexMap::is_separable() const {
  std::vector<int> uses(shape.size(), 0);
  for (size_t d = 0; d < factors.size(); ++d)
    for (const size_t a : axes_of(d)) ++uses[a];
  return std::ranges::all_of(uses, [](int count) { return count <= 1; });
}

IndexMap index_map(Node n, const KnownViews& known) {
  Arena arena;  // of the index arithmetic
  const ArenaScope scope(arena);
  const Shape shape = to_shape(n->shape());
  Indices ranges;
  for (size_t a = 0; a < shape.size(); ++a)
    ranges.push_back(shape[a] > 1 ? make(Op::Range, kIndex, {index(shape[a])},
                                         RangeArg{static_cast<int>(a), RangeKind::Loop})
                                  : index(0));
  Indices at = ranges;
  IndexMap best = *as_map(n, at, shape, ranges);
  const bool is_empty = numel(shape) == 0;
  for (Node x = n; !is_empty && is_movement(x->op) && x->realized == nullptr; x = x->src(0)) {
    if (x->op == Op::Limit || x->op == Op::Whole) break;
    if (x->op == Op::Reshape && x->src(0)->op == Op::Buffer) {
      const Node view = known(x->src(0));
      if (view == nullptr || view == x) break;
      at = reshaped_indices(x->shape(), at, view->shape());
      if (auto map = as_map(view, at, shape, ranges)) best = *std::move(map);
      break;
    }
    at = source_indices(x, at);
    if (at.empty() && x->src(0)->rank > 0) break;
    if (auto map = as_map(x->src(0), at, shape, ranges)) best = *std::move(map);
  }
  return best;
}

}  // namespace tiny::onnx
