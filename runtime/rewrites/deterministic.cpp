#include "runtime/rewrites/deterministic.h"

#include <algorithm>

#include "tiny/ir/build.h"
#include "tiny/ir/facts.h"
#include "tiny/ir/sizes.h"
#include "tiny/rewrite/rebuild.h"
#include "tiny/tensor/detail.h"

namespace tiny {

namespace {

constexpr int64_t kBlock = 16;  // elements that a scan folds at once

// --- Segmented scan -----------------------------------------------------------------------------

Tensor combine(Op op, const Tensor& x, const Tensor& y) { return op == Op::Add ? x + y : x * y; }

// x [..., n] with the elements of `value` after its last axis, up to a length of n.
Tensor lengthened(const Tensor& x, int64_t n, int64_t value) {
  std::vector<Padding> pads(x.rank());
  pads.back().after = n - x.shape().back();
  return x.pad(pads, PadMode::Constant, value);
}

// x [..., n] moved one place on, with `value` in front.
Tensor one_later(const Tensor& x, int64_t value) {
  std::vector<Padding> pads(x.rank());
  pads.back() = {1, -1};
  return x.pad(pads, PadMode::Constant, value);
}

// Every place of the last axis folds what stands before it and itself, of its own segment.
Tensor scan_directly(Op op, const Tensor& x, const Tensor& segment) {
  Shape square = to_shape(x.shape());
  square.push_back(square.back());
  const int rank = static_cast<int>(square.size());
  const Tensor i = detail::position(square, rank - 2, kI32);
  const Tensor j = detail::position(square, rank - 1, kI32);
  const Tensor seen = logical_and(j <= i, segment.unsqueeze(-1) == segment.unsqueeze(-2));
  const Tensor terms = where(seen, x.unsqueeze(-2).expand(square), op == Op::Add ? 0 : 1);
  const Node folded = build::reduce(op, terms.node(), uint32_t{1} << (rank - 1));
  return Tensor(build::reshape(folded, x.shape()));
}

// Running sums or products of x [..., n] that start anew in each segment; `segment` ascends. Blocks
// are scanned by themselves, and the totals of their last segments likewise: what a block passes on
// to the next one belongs to the segment that it ends with.
Tensor segmented_scan(Op op, const Tensor& x, const Tensor& segment) {
  const int64_t n = x.shape().back();
  if (n <= kBlock) return scan_directly(op, x, segment);
  const int64_t blocks = ceil_div(n, kBlock);
  const auto split = [&](const Tensor& t, int64_t fill) {
    return lengthened(t, blocks * kBlock, fill).unflatten(-1, {blocks, kBlock});
  };
  const Tensor s = split(segment, int_max(segment.dtype()));
  const Tensor inside = scan_directly(op, split(x, 0), s);
  const Tensor total = inside.select(-1, kBlock - 1).contiguous();
  const Tensor last = s.select(-1, kBlock - 1).contiguous();
  const Tensor before = one_later(segmented_scan(op, total, last).contiguous(), 0).unsqueeze(-1);
  const Tensor goes_on = s == one_later(last, -1).unsqueeze(-1);
  const Tensor y = where(goes_on, combine(op, before, inside), inside);
  return y.flatten(-2, -1).narrow(-1, 0, n);
}

// --- Scatter ------------------------------------------------------------------------------------

// A Scatter seen as rows of values that only meet values of their own row: along an axis of the
// values that is an index itself (`own`) positions differ. The axes of a row come last.
struct Rows {
  Node base, values;
  std::vector<Node> indices;
  std::vector<int> own;    // axes of the values...
  std::vector<int> owned;  // ... and the axis of the base that each one indexes
  Shape sizes;             // of the own axes
  int64_t length = 1;      // of a row
};

Rows rows_of(Node scatter) {
  Rows r{scatter->src(0), scatter->src(1), {}, {}, {}, {}, 1};
  r.indices.assign(scatter->srcs().begin() + 2, scatter->srcs().end());
  const Ints shape = r.values->shape();
  for (int v = 0; v < r.values->rank; ++v) {
    int found = -1;
    for (size_t d = 0; d < r.indices.size() && shape[v] > 1; ++d)
      if (r.indices[d] == build::iota(shape, v, r.indices[d]->dtype)) found = static_cast<int>(d);
    if (found < 0) {
      r.length *= shape[v];
      continue;
    }
    r.own.push_back(v);
    r.owned.push_back(found);
    r.sizes.push_back(shape[v]);
  }
  // Some axis of the base has to be left to number the elements of a row by.
  if (r.own.size() == r.indices.size()) {
    r.length *= r.sizes.back();
    r.own.pop_back();
    r.owned.pop_back();
    r.sizes.pop_back();
  }
  return r;
}

// x in the shape of the values as [own axes..., row].
Tensor as_rows(const Rows& r, const Tensor& x) {
  Shape order(r.own.begin(), r.own.end()), shape;
  for (int v : r.own) shape.push_back(x.shape()[v]);
  for (int v = 0; v < x.rank(); ++v)
    if (!contains(r.own, v)) order.push_back(v);
  shape.push_back(r.length);
  return x.permute(order).reshape(shape);
}

bool is_owned(const Rows& r, int axis) { return contains(r.owned, axis); }

// The elements within a row's part of the base, numbered; `count` of them, which also stands for
// all that lie outside. Axes along which nothing varies have size 1.
Tensor element_numbers(const Rows& r, int64_t& count) {
  Tensor number = Tensor::full({}, 0, kI64), inside = Tensor::full({}, true);
  count = 1;
  for (int d = 0; d < r.base->rank; ++d) {
    if (is_owned(r, d)) continue;
    const int64_t size = r.base->shape()[d];
    Tensor i(r.indices[d]);
    for (int v : r.own)
      if (!varies(i.node(), v)) i = i.narrow(v, 0, 1);
    inside = logical_and(inside, logical_and(i >= 0, i < size));
    number = number * size + i.to(kI64);
    count *= size;
  }
  number = where(inside, number, count);
  return as_rows(r, count < INT32_MAX ? number.to(kI32) : number);
}

// An index for each axis of the base from the numbers of elements [own axes..., row].
std::vector<Node> base_indices(const Rows& r, const Tensor& number) {
  std::vector<Node> out(r.base->rank);
  Tensor rest = number.to(kI64);
  for (size_t k = 0; k < r.owned.size(); ++k)
    out[r.owned[k]] = build::iota(number.shape(), static_cast<int>(k), kI64);
  int first = 0;
  while (is_owned(r, first)) ++first;
  for (int d = r.base->rank - 1; d >= 0; --d) {
    if (is_owned(r, d)) continue;
    const int64_t size = std::max<int64_t>(r.base->shape()[d], 1);
    // Indices outside have to stay there: the first index keeps the remainder of the others.
    out[d] = (d == first ? rest : mod(rest, size)).node();
    rest = floor_div(rest, size);
  }
  return out;
}

bool depends_on_order(const ScatterArg& how, DType t) {
  if (how.unique) return false;
  return how.op == Op::Assign || (t.is_float() && (how.op == Op::Add || how.op == Op::Mul));
}

Node ordered(Node scatter) {
  LabelScope label(scatter->label);
  const Op op = scatter->arg<ScatterArg>().op;
  const Rows r = rows_of(scatter);
  if (r.length == 1) return build::scatter(r.base, r.values, r.indices, {op, true});
  int64_t count = 0;
  const Tensor number = element_numbers(r, count).contiguous();
  const Tensor order = number.argsort(-1).contiguous();
  Shape shape = r.sizes;
  shape.push_back(r.length);
  const Tensor sorted = number.gather(-1, order).contiguous().expand(shape);
  const DType wide = op == Op::Assign ? r.values->dtype : detail::compute_dtype(r.values->dtype);
  Tensor values = as_rows(r, Tensor(r.values)).gather(-1, order.expand(shape)).to(wide);
  if (op != Op::Assign) values = segmented_scan(op, values.contiguous(), sorted);
  // A segment's result stands at its end.
  const Tensor next = lengthened(sorted.narrow(-1, 1, r.length - 1), r.length, -1);
  const Tensor target = where(sorted != next, sorted, count).contiguous();
  return build::scatter(r.base, values.to(r.values->dtype).contiguous().node(),
                        base_indices(r, target), {op, true});
}

}  // namespace

std::vector<Node> with_ordered_scatters(std::span<const Node> roots) {
  const NodeMap<Node> done = rebuild(roots, [](Node, Node now) {
    const bool changes =
        now->op == Op::Scatter && depends_on_order(now->arg<ScatterArg>(), now->dtype);
    return changes ? ordered(now) : now;
  });
  return replaced_by(done, roots);
}

}  // namespace tiny
