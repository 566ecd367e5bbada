#include "runtime/rewrites/scatter_rows.h"

#include <algorithm>
#include <array>

#include "runtime/fusion/materialize.h"
#include "tiny/ir/build.h"
#include "tiny/ir/facts.h"
#include "tiny/rewrite/rebuild.h"
#include "tiny/tensor/detail.h"

namespace tiny {

namespace {

// `count` rows of `width` elements that are added to a table of `places` rows. They are the last
// `axes` of values and base.
struct ScatteredRows {
  int axes = 0;
  int64_t count = 1, places = 1, width = 1;
};

// Whether the values' axis `v` is the base's axis `d`, and where a row goes does not depend on it.
bool is_within_row(Node scatter, int v, int d) {
  const Ints shape = scatter->src(1)->shape();
  if (shape[v] != scatter->shape()[d]) return false;
  for (int i = 0; i < scatter->rank; ++i) {
    Node index = scatter->src(i + 2);
    if (i == d ? index != build::iota(shape, v, index->dtype) : varies(index, v)) return false;
  }
  return true;
}

ScatteredRows scattered_rows_of(Node scatter) {
  const Ints values = scatter->src(1)->shape(), base = scatter->shape();
  ScatteredRows r;
  int v = static_cast<int>(values.size()), d = static_cast<int>(base.size());
  while (v > 0 && d > 1 && is_within_row(scatter, v - 1, d - 1)) {
    r.width *= base[--d];
    --v;
    ++r.axes;
  }
  while (v > 0) r.count *= values[--v];
  while (d > 0) r.places *= base[--d];
  return r;
}

// The number that all elements are, a constant; nullptr where there may be several.
Node number_of(Node n) {
  while (is_movement(n->op) && n->op != Op::Pad) n = n->src(0);
  if (n->op != Op::Cast) return n->is_const() ? n : nullptr;
  Node from = number_of(n->src(0));
  return from ? build::cast(from, n->dtype) : nullptr;
}

bool adds_rows(Node n, const ScatteredRows& r) {
  const auto how = n->arg<ScatterArg>();
  return how.op == Op::Add && !how.unique && !n->dtype.is_bool() && r.axes > 0 &&
         r.count < INT32_MAX && r.places < INT32_MAX && numel(n->shape()) > 0 && r.count > 0 &&
         number_of(n->src(0));
}

// For each row the number of its place, outside the table for what lies outside: [count].
Tensor places_of(Node scatter, const ScatteredRows& r) {
  Tensor place, inside;
  const int axes = scatter->rank - r.axes;
  for (int d = 0; d < axes; ++d) {
    Tensor i(scatter->src(d + 2));
    for (int k = 1; k <= r.axes; ++k) i = i.narrow(-k, 0, 1);
    i = i.reshape({r.count});
    if (axes == 1) return i;
    const int64_t size = scatter->shape()[d];
    const Tensor within = logical_and(i >= 0, i < size);
    inside = d == 0 ? within : logical_and(inside, within);
    place = d == 0 ? i.to(kI32) : place * size + i.to(kI32);
  }
  return where(inside, place, r.places);
}

Tensor looked_up(const Tensor& x, const Tensor& place) {
  Node at = place.node();
  return Tensor(build::gather(x.node(), {&at, 1}));
}

// Indices for rows of this shape, [rows, width].
std::array<Node, 2> row_indices(const Tensor& place, const Shape& shape) {
  return {place.unsqueeze(1).expand(shape).node(), build::iota(shape, 1, kI32)};
}

// Rows of x [n, width]; zeros where the place lies outside.
Tensor rows_at(const Tensor& x, const Tensor& place) {
  const auto at = row_indices(place, {place.numel(), x.shape()[1]});
  return Tensor(build::gather(x.node(), at));
}

Tensor scattered(Op op, const Tensor& base, const Tensor& values, const Tensor& place) {
  const auto at = row_indices(place, to_shape(values.shape()));
  return Tensor(build::scatter(base.node(), values.node(), at, {op, false}));
}

Node written(Node scatter, const ScatteredRows& r) {
  LabelScope label(scatter->label);
  const int64_t n = r.count;
  const Tensor rows = Tensor(scatter->src(1)).reshape({n, r.width});
  const Tensor place = places_of(scatter, r), row = detail::position(Shape{n}, 0, kI32);
  // Of each place the last row + 1 and n - the first: both are the greatest, and 0 where none is.
  const Tensor ends = scattered(Op::Max, Tensor::zeros({r.places, 2}, kI32),
                                Tensor::stack({row + 1, n - row}, 1), place);
  const Tensor end = ends.select(1, 0), begin = ends.select(1, 1);
  const Tensor last = end - 1, first = n - begin;
  const Tensor base(build::full(Shape{r.places, r.width}, number_of(scatter->src(0))));
  const Tensor table =
      base + (rows_at(rows, last) + rows_at(rows, where(first == last, -1, first)));
  const Tensor is_left =
      logical_and(looked_up(end, place) != row + 1, looked_up(begin, place) != n - row);
  const Tensor sum =
      scattered(Op::Add, table, rows_at(rows, where(is_left, row, -1)), where(is_left, place, -1));
  return build::reshape(sum.node(), scatter->shape());
}

// Whether rows can be read where they are needed, without a kernel that computes them before.
bool is_there(Node values, const NodeMap<int>& users) {
  Node n = values;
  for (; is_movement(n->op); n = n->src(0))
    if (*users.find(n) > 1) return true;
  if (is_leaf(n) || !is_elementwise(n->op) || *users.find(n) > 1) return true;
  NodeMap<char> stored, seen;
  for (Node s : topological(std::span(&n, 1)))
    if (!is_elementwise(s->op) && !is_movement(s->op)) stored[s] = 1;
  Cost cost;
  add_cost(n, numel(n->shape()), stored, seen, cost);
  return is_computed_at_places(n, cost);
}

// Saves a read and a write of the table for each row that is not scattered; costs two more launches
// and two numbers for each row and index. A table that L2 holds saves neither, and of one with few
// filled rows most is zeros both ways (measurements.md: scatter_rows).
bool is_worth_it(Node scatter, const ScatteredRows& r, const Target& target) {
  constexpr int64_t kRow = 1024;        // bytes, beside which two numbers are little
  constexpr int64_t kSaved = 64 << 20;  // bytes, 16 us of an H200
  constexpr int64_t kSparse = 4;        // places of each row
  if (target.language != Target::Language::Cuda) return false;  // measured there alone
  const int64_t row = r.width * scatter->dtype.size();
  return row >= kRow && row * r.places > target.l2_bytes && r.places <= kSparse * r.count &&
         2 * row * std::min(r.count, 2 * r.places) >= kSaved;
}

}  // namespace

Node written_rows(Node scatter) {
  const ScatteredRows r = scattered_rows_of(scatter);
  return adds_rows(scatter, r) ? written(scatter, r) : nullptr;
}

std::vector<Node> with_written_rows(std::span<const Node> roots, const NodeTargets& targets) {
  const auto may_change = [&](Node n) {
    if (n->op != Op::Scatter) return false;
    const ScatteredRows r = scattered_rows_of(n);
    return adds_rows(n, r) && is_worth_it(n, r, targets.of(n));
  };
  const std::vector<Node> order = topological(roots);
  if (std::ranges::none_of(order, may_change)) return {roots.begin(), roots.end()};
  const NodeMap<int> users = count_users(roots);
  const NodeMap<Node> done = rebuild_all(order, [&](Node before, Node now) {
    const bool changes = may_change(now) && is_there(before->src(1), users);
    return changes ? written(now, scattered_rows_of(now)) : now;
  });
  return replaced_by(done, roots);
}

}  // namespace tiny
