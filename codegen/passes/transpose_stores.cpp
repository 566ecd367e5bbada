#include <bit>

#include "codegen/kernel/access.h"
#include "codegen/options/fragments.h"
#include "codegen/passes/passes.h"
#include "tiny/rewrite/algebra.h"
#include "tiny/rewrite/rewrite.h"

namespace tiny {

namespace {

// A vector whose lanes are stored `step` elements apart, from `base` on.
struct Scattered {
  Node base = nullptr;
  int64_t step = 0;
};

// The index as Vectorizer makes it: steps of all lanes, added to what they share.
std::optional<Scattered> scattered(Node at) {
  if (at->op != Op::Add || at->src(0)->op != Op::Broadcast) return {};
  Node steps = at->src(1);
  if (steps->op != Op::Mul || steps->src(0)->op != Op::Ramp || !steps->src(1)->is_const())
    return {};
  return Scattered{at->src(0)->src(0), steps->src(1)->int_value()};
}

// The unrolled range along which the index advances by one.
Node dense_range(Node base) {
  for (const auto& t : to_sum(base).terms)
    if (t.factor == 1 && t.atom->op == Op::Range && kind(t.atom) == RangeKind::Unroll)
      return t.atom;
  return nullptr;
}

// Lanes of two vectors by turns, in two vectors.
std::pair<Node, Node> by_turns(Node a, Node b) {
  const int lanes = a->dtype.lanes;
  const auto half = [&](int from) {
    std::vector<int64_t> picks;
    for (int i = from; i < from + lanes / 2; ++i) picks.insert(picks.end(), {i, i + lanes});
    return make(Op::Shuffle, a->dtype, {a, b}, Ints(picks));
  };
  return {half(0), half(lanes / 2)};
}

// All first lanes of the vectors, then all second ones, ...; as many as a power of two.
std::vector<Node> transposed(const std::vector<Node>& rows) {
  std::vector<std::vector<Node>> parts;  // each of several vectors, one behind the other
  for (Node row : rows) parts.push_back({row});
  while (parts.size() > 1) {
    const size_t half = parts.size() / 2;
    for (size_t i = 0; i < half; ++i) {
      std::vector<Node> both;
      for (size_t k = 0; k < parts[i].size(); ++k) {
        const auto [low, high] = by_turns(parts[i][k], parts[i + half][k]);
        both.insert(both.end(), {low, high});
      }
      parts[i] = std::move(both);
    }
    parts.resize(half);
  }
  return parts[0];
}

// `count` lanes of a vector.
Node lanes_of(Node v, int64_t from, int count) {
  if (count == v->dtype.lanes) return v;
  std::vector<int64_t> picks;
  for (int64_t i = from; i < from + count; ++i) picks.push_back(i);
  return make(Op::Shuffle, v->dtype.vec(count), {v, v}, Ints(picks));
}

// One lane of what is computed of positions alone; nullptr for anything else.
Node lane_of(Node n, int lane) {
  if (n->dtype.lanes == 1) return n;
  const DType t = n->dtype.one();
  if (n->op == Op::Ramp) return constant(t, lane);
  if (n->op == Op::Broadcast) return n->src(0);
  if (n->is_const()) return make(Op::Const, t, {}, n->payload);
  if (!is_elementwise(n->op)) return nullptr;
  std::vector<Node> srcs;
  for (Node s : n->srcs())
    if (Node one = lane_of(s, lane))
      srcs.push_back(one);
    else
      return nullptr;
  return simplify(make(n->op, t, srcs, n->payload));
}

// The stores of a store's lanes, each along the unrolled range; nothing for those that are not so.
// `chain`: a kernel of which some rows may be missing.
std::vector<Node> stores_along(Node store, const Target& target, bool chain) {
  constexpr int64_t kMin = 4;  // elements together
  const DType t = store->src(2)->dtype;
  const bool fits = t.scalar == Scalar::F32 || (t.size() < 4 && t.scalar != Scalar::Bool);
  if (!fits || std::holds_alternative<OpArg>(store->payload)) return {};
  const std::vector<Node> loads = all_of(store->src(2), Op::Load);
  const auto is_own = [&](Node load) { return load->src(0) == store->src(0); };
  if (std::ranges::any_of(loads, is_own)) return {};  // proofs compare one element with another
  const auto to = scattered(store->src(1));
  Node u = to ? dense_range(to->base) : nullptr;
  if (!u || extent(u) < kMin || !std::has_single_bit(t.lanes)) return {};
  if (extent(u) > t.lanes && (gate_of(store) || extent(u) % t.lanes)) return {};
  Node gate = store->num_src > 3 ? store->src(3) : nullptr;
  const bool of_lanes = gate && gate->dtype.lanes > 1;
  if (of_lanes && (!chain || (gate->ranges & u->ranges) || !lane_of(gate, 0))) return {};
  const int rows = static_cast<int>(extent(u)),
            whole = static_cast<int>(std::bit_ceil(static_cast<uint64_t>(extent(u))));
  std::vector<Node> values;
  for (int i = 0; i < whole; ++i)
    values.push_back(simplify(substitute(store->src(2), u, index(std::min(i, rows - 1)))));
  const std::vector<Node> all = transposed(values);
  Node along = make(Op::Range, kIndex, {index(rows)}, RangeArg{range_id(u), RangeKind::Vector});
  if (gate && !of_lanes) gate = vectorized(simplify(substitute(gate, u, along)), along, target);
  std::vector<Node> out;
  const int each = std::min(rows, int{t.lanes});
  for (int lane = 0; lane < t.lanes; ++lane)
    for (int row = 0; row < rows; row += each) {
      const int64_t at = int64_t{lane} * whole + row;
      std::vector<Node> srcs{
          store->src(0),
          simplify(substitute(index_add(to->base, index(lane * to->step)), u, index(row))),
          lanes_of(all[static_cast<size_t>(at / t.lanes)], at % t.lanes, each)};
      if (gate) srcs.push_back(of_lanes ? lane_of(gate, lane) : gate);
      out.push_back(make(Op::Store, kVoid, srcs, store->payload));
    }
  return out;
}

}  // namespace

Node transpose_stores(Node sink, const Target& target) {
  if (!joins_stores(target)) return sink;
  const bool chain = is_chain(sink, target);
  std::vector<Node> stores;
  for (Node store : sink->srcs()) {
    const std::vector<Node> rows = stores_along(store, target, chain);
    if (rows.empty())
      stores.push_back(store);
    else
      stores.insert(stores.end(), rows.begin(), rows.end());
  }
  return with_sources(sink, stores);
}

}  // namespace tiny
