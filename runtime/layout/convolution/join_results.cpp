#include "runtime/layout/convolution/join_results.h"

#include "runtime/layout/convolution/implicit.h"
#include "runtime/layout/convolution/window_axes.h"
#include "tiny/ir/build.h"

namespace tiny {

namespace {

constexpr int64_t kMin = 8, kColumns = 32;  // results of a window; of a tile
constexpr int64_t kMinPixels = int64_t{1} << 14;

// The axes that the results of a window have, of the product's; empty where it is no convolution.
std::vector<int> axes_of_results(const GraphContraction& c, int with) {
  if (with < 0) return {};
  const ContractionAxes axes = c.axes();
  if (!axes.is_whole || !axes.batch.empty()) return {};
  const std::vector<int>& own = axes.own[1 - with];
  const int64_t results = c.size(own), pixels = c.size(axes.own[with]);
  const bool fits = results >= kMin && results < kColumns && pixels >= kMinPixels;
  return fits ? own : std::vector<int>{};
}

}  // namespace

Node JoinedResults::restored(Node results) const {
  Node own = first_of_axis(results, static_cast<int>(results->rank) - 1, count);
  return build::permute(build::reshape(own, sizes), order);
}

std::optional<JoinedResults> join_results(Node n, const Target& target) {
  if (!target.has_wgmma) return {};
  const GraphContraction c(n, FollowHalves{});
  const int with = operand_of_windows(c, target);
  const std::vector<int> results = axes_of_results(c, with);
  if (results.empty()) return {};
  const ArenaScope lasting(Arena::global());
  const Ints shape = c.product->shape();
  JoinedResults out;
  out.count = 1;
  const std::vector<int> summed = c.axes().k;
  std::vector<int> kept, weight = summed;
  Shape joined, back;
  uint32_t axes = 0;
  out.order.resize(shape.size());
  for (int axis = 0; axis < c.rank(); ++axis) {
    if (contains(results, axis)) continue;
    if (c.is_summed(axis)) axes |= uint32_t{1} << kept.size();
    out.order[axis] = static_cast<int64_t>(kept.size());
    out.sizes.push_back(c.is_summed(axis) ? 1 : shape[axis]);
    kept.push_back(axis);
    joined.push_back(shape[axis]);
  }
  for (int axis : results) {
    out.order[axis] = static_cast<int64_t>(out.sizes.size());
    out.sizes.push_back(shape[axis]);
    out.count *= shape[axis];
  }
  joined.push_back(kColumns);
  // The other operand lies in memory with the results innermost, then zeros.
  weight.insert(weight.end(), results.begin(), results.end());
  Shape memory = c.extents(weight);
  Node w = c.view(1 - with, weight, memory);
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
  const DType wide = c.product->dtype;
  Node mul = build::binary(Op::Mul, build::cast(c.view(with, kept, joined), wide),
                           build::cast(build::affine(w, joined, back), wide));
  out.product = make(Op::ReduceAxis, n->dtype, {mul}, ReduceArg{Op::Add, axes});
  return find_window_product(out.product, target) ? std::optional(out) : std::nullopt;
}

}  // namespace tiny
