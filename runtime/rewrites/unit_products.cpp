#include "runtime/rewrites/unit_products.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "runtime/analysis/operand.h"
#include "runtime/analysis/views.h"
#include "runtime/fusion/chain.h"
#include "tiny/ir/build.h"
#include "tiny/ir/sizes.h"
#include "tiny/rewrite/rebuild.h"

namespace tiny {

namespace {

constexpr int64_t kAligned = 8;                     // 16-bit floats in 16 bytes
constexpr int64_t kManyResults = int64_t{1} << 22;  // worth other strides of what reads them

// A factor that is broadcast to the product's shape, of 16-bit floats as wide ones.
bool is_broadcast_half(Node factor) {
  return factor->op == Op::Expand && only_reorders(factor) && as_halves(factor) != nullptr;
}

// `factor` for a product with `size` elements along `axis`, zeros where there were none: from a
// copy that has them, as TMA boxes need.
Node grown(Node factor, int axis, int64_t size) {
  Node x = factor->src(0);
  Shape shape = to_shape(factor->shape());
  if (const int64_t own = x->shape()[axis]; own > 1) {
    Shape pad(2 * static_cast<size_t>(x->rank), 0);
    pad[2 * static_cast<size_t>(axis) + 1] = size - own;
    x = build::cast(build::contiguous(build::pad(as_halves(x), pad)), kF32);
  }
  shape[axis] = size;
  return build::expand(x, shape);
}

bool is_for_units(Node reduce) {
  Node mul = reduce->src(0);
  return mul->op == Op::Mul && is_product(reduce) &&
         std::ranges::all_of(mul->srcs(), is_broadcast_half);
}

// What is reduced on the way to the results of the graph, with element-wise operations and movement
// between: it is stored in memory of the plan's own.
NodeMap<char> reduced_again(std::span<const Node> roots, std::span<const Node> order) {
  NodeMap<char> is_root, again;
  for (Node r : roots) is_root[base_of(r)] = is_root[r] = 1;
  for (size_t i = order.size(); i-- > 0;) {
    Node n = order[i];
    const char* above = again.find(n);
    const bool passes = is_elementwise(n->op) || is_movement(n->op);
    const char now = n->op == Op::ReduceAxis                   ? 1
                     : passes && above && !is_root.contains(n) ? *above
                                                               : 0;
    for (Node s : n->srcs()) again[s] |= now;
  }
  for (Node r : roots) again[base_of(r)] = 0;
  return again;
}

Node with_aligned_rows(Node reduce) {
  Node mul = reduce->src(0);
  const int axis = last_axis(reduce->shape());
  const int64_t columns = reduce->shape()[axis];
  const int64_t size = round_up(columns, kAligned);
  if (size == columns || numel(reduce->shape()) < kManyResults || !is_for_units(reduce))
    return reduce;
  int own = 0;
  for (Node s : mul->srcs()) own += s->src(0)->shape()[axis] > 1;
  if (own != 1) return reduce;
  Node product =
      build::binary(Op::Mul, grown(mul->src(0), axis, size), grown(mul->src(1), axis, size));
  Shape bounds;
  for (int64_t n : reduce->shape()) bounds.insert(bounds.end(), {0, n});
  return build::shrink(with_sources(reduce, std::span(&product, 1)), bounds);
}

// Of a factor with elements of its own along some axes: along which, and the rows that it has
// alone.
bool has_own(Node factor, int axis) { return factor->src(0)->shape()[axis] > 1; }
int64_t own_rows(Node reduce, Node factor, Node other) {
  int64_t rows = 1;
  for (int i = 0; i < reduce->rank; ++i)
    if (has_own(factor, i) && !has_own(other, i)) rows *= factor->shape()[i];
  return rows;
}

// With as many rows, or terms, as the smallest tile has, where there are nearly as many: a thread
// for each result takes many times as long (measurements.md: padded tiles).
Node with_padded_tiles(Node reduce) {
  constexpr int64_t kFewRows = 4, kMuch = int64_t{1} << 26;
  if (!is_for_units(reduce) || reduce->src(0)->lengths) return reduce;
  Node factors[2] = {reduce->src(0)->src(0), reduce->src(0)->src(1)};
  const Shape shape = to_shape(reduce->src(0)->shape());
  int64_t terms = 1;
  for (int i = 0; i < reduce->rank; ++i) terms *= shape[i] / reduce->shape()[i];
  Shape bounds;
  for (int i = 0; i < reduce->rank; ++i) {
    const int64_t size = shape[i];
    bounds.insert(bounds.end(), {0, reduce->shape()[i]});
    if (size <= 1 || size >= kAligned) continue;
    const bool own[2] = {has_own(factors[0], i), has_own(factors[1], i)};
    const bool reduced = reduce->shape()[i] == 1;
    const int one = own[0] ? 0 : 1;
    const bool fill =
        reduced ? own[0] && own[1] && terms == size && numel(reduce->shape()) >= kManyResults
                : own[0] != own[1] && size >= kFewRows && numel(shape) >= kMuch &&
                      own_rows(reduce, factors[one], factors[1 - one]) == size;
    if (fill)
      for (Node& f : factors) f = grown(f, i, kAligned);
  }
  if (factors[0] == reduce->src(0)->src(0) && factors[1] == reduce->src(0)->src(1)) return reduce;
  Node product = build::binary(Op::Mul, factors[0], factors[1]);
  return build::shrink(with_sources(reduce, std::span(&product, 1)), bounds);
}

// The last axis along which a factor has elements of its own.
int64_t row_of(Node factor) { return factor->src(0)->shape()[last_axis(factor->src(0)->shape())]; }

// The first axis of two neighbours that are summed, along which both factors have their own
// elements; -1 where there are none.
int summed_neighbours(Node reduce) {
  const auto summed = [&](int i) {
    return (reduce->arg<ReduceArg>().axes >> i & 1) &&
           std::ranges::all_of(reduce->src(0)->srcs(),
                               [&](Node s) { return s->src(0)->shape()[i] == s->shape()[i]; });
  };
  for (int i = 0; i + 1 < reduce->rank; ++i)
    if (summed(i) && summed(i + 1)) return i;
  return -1;
}

Shape merged(Ints shape, int axis) {
  Shape out = to_shape(shape);
  out[axis] *= out[static_cast<size_t>(axis) + 1];
  out.erase(out.begin() + axis + 1);
  return out;
}

Shape sizes(Node n) {
  Shape out = to_shape(n->shape());
  std::erase(out, 1);
  return out;
}

Node with_one_sum(Node reduce) {
  if (!is_for_units(reduce)) return reduce;
  Node mul = reduce->src(0);
  const auto is_odd = [](Node s) { return row_of(s) % kAligned != 0; };
  if (std::ranges::none_of(mul->srcs(), is_odd)) return reduce;
  Node now = reduce;
  for (int i; (i = summed_neighbours(now)) >= 0;) {
    std::vector<Node> factors;
    for (Node s : now->src(0)->srcs()) {
      Node x = build::reshape(as_halves(s->src(0)), merged(s->src(0)->shape(), i));
      if (sizes(x) != sizes(base_of(x)) && base_of(x)->op != Op::Param) x = build::contiguous(x);
      factors.push_back(build::expand(build::cast(x, kF32), merged(s->shape(), i)));
    }
    const uint32_t axes = now->arg<ReduceArg>().axes, below = (uint32_t{1} << i) - 1;
    const uint32_t above = axes >> (i + 2) << (i + 1);
    now = build::reduce(Op::Add, build::binary(Op::Mul, factors[0], factors[1]),
                        (axes & below) | uint32_t{1} << i | above);
  }
  return now == reduce ? reduce : build::reshape(now, reduce->shape());
}

}  // namespace

NodeMap<Node> unit_products(std::span<const Node> roots, std::span<const Node> order,
                            const NodeTargets& targets) {
  const auto is_on_unit = [&](Node n) {
    return n->op == Op::ReduceAxis && n->arg<ReduceArg>().op == Op::Add && targets.of(n).has_wgmma;
  };
  if (std::ranges::none_of(order, is_on_unit)) return NodeMap<Node>();
  const NodeMap<char> again = reduced_again(roots, order);
  // Those of chains are not stored, whose rows need no alignment.
  std::optional<Chains> chains;
  const auto is_of_chain = [&](Node n) {
    if (!chains) chains = find_chains(roots, order, {}, targets);
    return chains->sums.contains(n);
  };
  return rebuild_all(order, [&](Node n, Node now) {
    if (!is_on_unit(now)) return now;
    const LabelScope label(n->label);
    Node product = with_one_sum(now);
    if (product != now) return product;
    product = with_padded_tiles(now);
    if (product != now) return is_of_chain(n) ? now : product;
    const char* is_read = again.find(n);
    if (!is_read || !*is_read) return now;
    product = with_aligned_rows(now);
    return product != now && is_of_chain(n) ? now : product;
  });
}

}  // namespace tiny
