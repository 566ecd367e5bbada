// Chains of products on a CPU whose unit adds products of pairs (AVX-512 BF16): the lanes of a
// vector are rows of the scores, and what is summed comes as words of two 16-bit floats. Those of
// the first product's rows and of the values stand in stages; weights become words in registers.
#include <algorithm>

#include "codegen/kernel/access.h"
#include "codegen/options/fragments.h"
#include "codegen/options/stage.h"
#include "tiny/base/error.h"
#include "tiny/base/text.h"
#include "tiny/rewrite/algebra.h"
#include "tiny/rewrite/rewrite.h"

namespace tiny {

namespace {

// The bits of two 16-bit floats, the first in the lower half.
Node word(Node low, Node high) {
  const auto bits = [](Node x) { return make(Op::Cast, kU32, {make(Op::Bitcast, kU16, {x})}); };
  Node shifted = make(Op::Shl, kU32, {bits(high), constant(kU32, 16)});
  return make(Op::Or, kU32, {bits(low), shifted});
}

class Pairs {
 public:
  Pairs(Node sink, const ProductChain& chain)
      : sink_(sink), chain_(chain), id_(next_range_id(sink)), slot_(next_stage_slot(sink)) {}

  Node run() {
    NodeMap<Node> map;
    Node columns = make_range(extent(chain_.n) / 2, id_++, kind(chain_.n));
    for (const auto& p : chain_.inner) {
      Node step = make_range(extent(p.summed) / 2, range_id(p.summed), RangeKind::Reduce);
      Node rows = staged(word_of(p.a, p.summed, step), step, chain_.m);
      Node all = make(Op::Load, kU32.vec(chain_.unit->columns),
                      {rows->src(0), simplify(substitute(rows->src(1), chain_.m, index(0)))});
      map[p.reduce] = sum_of(p, pair_of(p, step), all, step);
    }
    // Sources first: weights are made of scores and of sums that are done.
    for (Node n : topological(sink_)) {
      const auto at = std::ranges::find(chain_.outer, n, &ProductChain::Product::reduce);
      const Node* to = map.find(n);
      done_[n] = at != chain_.outer.end() ? outer(*at, columns) : rebuilt(to ? *to : n);
    }
    return simplify(*done_.find(sink_));
  }

 private:
  static Node twice(Node step, int64_t more) { return index_add(index_mul(step, 2), index(more)); }

  static Node word_of(Node x, Node summed, Node step) {
    return simplify(
        word(substitute(x, summed, twice(step, 0)), substitute(x, summed, twice(step, 1))));
  }

  // A word of each row, read where it lies if that is in one piece.
  Node pair_of(const ProductChain::Product& p, Node step) {
    Node x = p.b;
    if (x->op == Op::Load && x->num_src == 2 && stride(x, range_id(p.summed)) == 1)
      return make(Op::Load, x->dtype.vec(2),
                  {x->src(0), simplify(substitute(x->src(1), p.summed, twice(step, 0)))});
    return staged(word_of(x, p.summed, step), chain_.n, step);
  }

  Node staged(Node words, Node outer, Node inner) {
    StageTile tile;
    tile.ranges = {outer, inner};
    return staged_value(words, tile, slot_--, id_);
  }

  Node sum_of(const ProductChain::Product& p, Node a, Node b, Node step) const {
    Node product = make(Op::Mma, kF32, {a, b, chain_.m}, mma_payload(*chain_.unit));
    std::vector<Node> srcs{product, step};
    for (Node r : p.reduce->srcs().subspan(1))
      if (r != p.summed) srcs.push_back(r);
    return make(Op::Reduce, kF32, srcs, p.reduce->payload);
  }

  Node outer(const ProductChain::Product& p, Node columns) {
    Node weights = now(p.a);
    const auto at = [&](int64_t more) {
      return with_free_ranges(weights, {{chain_.n, twice(columns, more)}});
    };
    Node values = staged(word_of(p.b, chain_.n, columns), columns, p.across);
    return sum_of(p, values, word(at(0), at(1)), columns);
  }

  Node rebuilt(Node n) {
    std::vector<Node> srcs;
    for (Node s : n->srcs()) srcs.push_back(now(s));
    return with_sources(n, srcs);
  }
  // A node below the sink, or one that was put together of such nodes.
  Node now(Node n) {
    if (Node* known = done_.find(n)) return *known;
    Node out = rebuilt(n);
    return done_[n] = out;
  }

  Node sink_;
  const ProductChain& chain_;
  int id_, slot_;
  NodeMap<Node> done_;
};

}  // namespace

std::string pairs_problem(const ProductChain& chain) {
  if (!chain.unit || chain.unit->rows != 1 || chain.unit->sum != kF32)
    return "no unit of pairs for these operands";
  const auto fits = [](Node r, int64_t size) {
    return r->src(0)->is_const() && extent(r) % size == 0;
  };
  bool whole = extent(chain.m) == chain.unit->columns && fits(chain.n, 2);
  for (const auto& p : chain.inner) whole &= fits(p.summed, 2);
  return whole ? "" : cat("not a vector of ", chain.unit->columns, " rows, or no pairs");
}

Node use_pairs(Node sink, const ProductChain& chain) { return Pairs(sink, chain).run(); }

}  // namespace tiny
