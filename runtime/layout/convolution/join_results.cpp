#include "runtime/layout/convolution/join_results.h"

#include "codegen/wgmma/tile.h"
#include "runtime/analysis/operand.h"
#include "runtime/layout/convolution/implicit.h"
#include "tiny/ir/build.h"

namespace tiny {

namespace {

constexpr int64_t kMin = 8, kColumns = 32;  // results of a window; of a tile
constexpr int64_t kMinPixels = int64_t{1} << 14;

// The axes that the results of a window have, of the product's; empty where it is no convolution.
std::vector<int> axes_of_results(Node n, const std::vector<ProductOperand>& operands, int with,
                                 const std::vector<Node>& ranges) {
  const ProductAxes axes = axes_of(n, operands, ranges);
  if (!axes.is_whole || !axes.batch.empty()) return {};
  const std::vector<int>& own = axes.own[1 - with];
  const int64_t results = size_of(n->src(0)->shape(), own);
  const int64_t pixels = size_of(n->src(0)->shape(), axes.own[with]);
  const bool fits = results >= kMin && results < kColumns && pixels >= kMinPixels;
  return fits ? own : std::vector<int>{};
}

// The map for other axes: -1 is one that nothing moves along.
AffineMap of_axes(const AffineMap& map, size_t rank, const std::vector<int>& axes) {
  AffineMap out{map.pad, map.padded, {}};
  for (size_t at = 0; at < map.map.size(); at += rank + 1) {
    out.map.push_back(map.map[at]);
    for (int axis : axes)
      out.map.push_back(axis < 0 ? 0 : map.map[at + 1 + static_cast<size_t>(axis)]);
  }
  return out;
}

struct Found {
  ProductOperand operands[2];
  AffineMap maps[2];
  int with = 0;
  std::vector<int> results;
};

std::optional<Found> find(Node n, const Target& target) {
  const OwnRanges own(n->src(0)->shape());
  const std::vector<Node>& ranges = own.ranges;
  std::vector<ProductOperand> operands;
  for (Node s : n->src(0)->srcs()) operands.push_back(follow_halves(s, ranges, {}));
  for (const ProductOperand& o : operands)
    if (!is_affine(o) || !has_window_unit(target, o.point->dtype)) return {};
  if (!pads_alone(operands)) return {};
  Found f;
  f.with = has_windows(operands[0]) ? 0 : 1;
  if (!has_windows(operands[f.with]) || has_windows(operands[1 - f.with])) return {};
  f.results = axes_of_results(n, operands, f.with, ranges);
  for (size_t i : {0, 1}) {
    f.maps[i] = affine_map(operands[i], ranges);
    f.operands[i].point = operands[i].point;
  }
  return f.results.empty() ? std::nullopt : std::optional(f);
}

}  // namespace

Node JoinedResults::restored(Node results) const {
  Shape bounds;
  for (int i = 0; i < results->rank; ++i)
    bounds.insert(bounds.end(), {0, i + 1 == results->rank ? count : results->shape()[i]});
  return build::permute(build::reshape(build::shrink(results, bounds), sizes), order);
}

std::optional<JoinedResults> join_results(Node n, const Target& target) {
  if (target.kind != Target::Kind::Gpu || !target.has_wgmma) return {};
  const std::optional<Found> f = find(n, target);
  if (!f) return {};
  const Ints shape = n->src(0)->shape();
  const size_t rank = shape.size(), with = static_cast<size_t>(f->with);
  JoinedResults out;
  out.count = 1;
  std::vector<int> kept, summed, weight;
  Shape joined, memory, back;
  uint32_t axes = 0;
  out.order.resize(rank);
  for (int axis = 0; axis < static_cast<int>(rank); ++axis) {
    if (contains(f->results, axis)) continue;
    if (is_reduced(n, axis)) axes |= uint32_t{1} << kept.size();
    if (is_reduced(n, axis) && shape[axis] > 1) summed.push_back(axis);
    out.order[axis] = static_cast<int64_t>(kept.size());
    out.sizes.push_back(is_reduced(n, axis) ? 1 : shape[axis]);
    kept.push_back(axis);
    joined.push_back(shape[axis]);
  }
  for (int axis : f->results) {
    out.order[axis] = static_cast<int64_t>(out.sizes.size());
    out.sizes.push_back(shape[axis]);
    out.count *= shape[axis];
  }
  joined.push_back(kColumns);
  // The other operand lies in memory with the results innermost, then zeros.
  weight = summed;
  weight.insert(weight.end(), f->results.begin(), f->results.end());
  for (int axis : weight) memory.push_back(shape[axis]);
  Node w =
      affine_view(f->operands[1 - with].point, of_axes(f->maps[1 - with], rank, weight), memory);
  memory.resize(summed.size());
  memory.push_back(out.count);
  Shape pads(2 * memory.size(), 0);
  pads.back() = kColumns - out.count;
  w = build::contiguous(build::pad(build::reshape(w, memory), pads));
  for (size_t i = 0; i <= summed.size(); ++i) {
    back.push_back(0);
    for (int axis : kept) back.push_back(i < summed.size() && axis == summed[i]);
    back.push_back(i == summed.size());
  }
  kept.push_back(-1);
  const DType wide = n->src(0)->dtype;
  Node windows = affine_view(f->operands[with].point, of_axes(f->maps[with], rank, kept), joined);
  Node mul = build::binary(Op::Mul, build::cast(windows, wide),
                           build::cast(build::affine(w, joined, back), wide));
  out.product = make(Op::ReduceAxis, n->dtype, {mul}, ReduceArg{Op::Add, axes});
  return find_window_product(out.product, target) ? std::optional(out) : std::nullopt;
}

}  // namespace tiny
