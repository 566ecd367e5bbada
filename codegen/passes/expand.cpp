#include "codegen/passes/passes.h"

#include <algorithm>

#include "codegen/kernel/access.h"
#include "codegen/kernel/linear.h"
#include "codegen/options/fragments.h"
#include "codegen/options/mma.h"
#include "tiny/base/error.h"
#include "tiny/rewrite/algebra.h"
#include "tiny/rewrite/rebuild.h"

namespace tiny {

namespace {

std::vector<Node> with_kind(Node sink, RangeKind wanted) {
  std::vector<Node> out;
  for (Node n : topological(sink))
    if (n->op == Op::Range && kind(n) == wanted) out.push_back(n);
  std::ranges::sort(out, {}, range_id);
  return out;
}

// `n` for each value of the range, simplified.
std::vector<Node> copies(Node n, Node range) {
  std::vector<Node> out;
  for (int64_t i = 0; i < extent(range); ++i) {
    NodeMap<Node> map;
    map[range] = index(i);
    out.push_back(simplify(substitute(n, map)));
  }
  return out;
}

// A product that is a term of a sum is rounded with it. Nothing else is contracted: a value that is
// computed in several places, to be compared perhaps, has the same bits in all of them.
Node combine(Op op, Node a, Node b) {
  const auto added = [&](Node n) { return op == Op::Add && is_added_product(n); };
  if (added(b)) return make(Op::MulAdd, a->dtype, {b->src(0), b->src(1), a});
  if (added(a)) return make(Op::MulAdd, a->dtype, {a->src(0), a->src(1), b});
  return make(op, a->dtype, {a, b});
}

// The same element of the sum of two products of fragments: one is added to the other by its unit.
Node added_fragments(Node a, Node b) {
  const auto elements = [](Node mma) { return mma->srcs().first(mma->num_src - 1); };
  std::vector<Node> srcs(elements(b).begin(), elements(b).end());
  const DType all = a->dtype.vec(mma_results(a));
  srcs.push_back(make(Op::Mma, all, elements(a), a->payload));
  srcs.push_back(a->srcs().back());
  return make(Op::Mma, a->dtype, srcs, b->payload);
}

// Pairwise, so that the chain of dependent operations is short.
Node combine(Op op, std::vector<Node> parts) {
  const auto is_fragment = [](Node n) { return n->op == Op::Mma; };
  if (op == Op::Add && std::ranges::all_of(parts, is_fragment)) {
    for (size_t i = 1; i < parts.size(); ++i) parts[0] = added_fragments(parts[0], parts[i]);
    return parts[0];
  }
  while (parts.size() > 1) {
    std::vector<Node> half;
    for (size_t i = 0; i + 1 < parts.size(); i += 2)
      half.push_back(combine(op, parts[i], parts[i + 1]));
    if (parts.size() % 2) half.push_back(parts.back());
    parts = std::move(half);
  }
  return parts[0];
}

// Products one by one, each rounded with the sum of those before: half the operations, where other
// sums beside it hide the latency.
Node combine_in_turn(const std::vector<Node>& parts) {
  Node sum = parts[0];
  for (size_t i = 1; i < parts.size(); ++i) sum = combine(Op::Add, sum, parts[i]);
  return sum;
}

Node unroll_reduce(Node n, bool in_turn = false);

// A GPU's thread that computes several results at once has enough to do while one sum waits for its
// last term: terms are added one by one, in a loop that the compiler unrolls. Registers are dearer
// than that wait, and a sum for each copy would take many. `open`: ranges that stores depend on.
bool adds_in_turn(Node reduce, const std::vector<Node>& unrolled, uint64_t open) {
  constexpr int64_t kEnough = 4;  // cycles from one addition to the next that needs it
  const int64_t sums = reduce->dtype.lanes * iterations_of(unrolled, reduce->ranges);
  if (reduce->src(0)->op == Op::Mma && mma_unit(reduce->src(0)).warpgroup) return false;
  for (Node r : reduce->srcs().subspan(1)) {
    if (kind(r) != RangeKind::Unroll) continue;
    if (open & r->ranges) return false;
    // A loop would compute again in each sum what all of them are made of.
    for (Node inner : all_of(reduce->src(0), Op::Reduce))
      if (inner->ranges & r->ranges) return false;
    for (Node inner : all_of(reduce->src(0), Op::Mma))
      if (inner != reduce->src(0) && (inner->ranges & r->ranges)) return false;
  }
  return sums >= kEnough;
}

// Threads combine what is left when each has combined its own.
Node threads_last(Node n, bool in_turn) {
  std::vector<Node> own{n->src(0)}, threads{nullptr};
  for (Node r : n->srcs().subspan(1)) (is_of_grid(r) ? threads : own).push_back(r);
  if (own.size() == 1 || threads.size() == 1) return n;
  threads[0] = make(Op::Reduce, n->dtype, own, n->payload);
  if (!in_turn) threads[0] = unroll_reduce(threads[0]);
  return make(Op::Reduce, n->dtype, threads, n->payload);
}

Node unroll_reduce(Node n, bool in_turn) {
  for (uint32_t i = 1; i < n->num_src; ++i) {
    Node r = n->src(static_cast<int>(i));
    if (kind(r) != RangeKind::Unroll) continue;
    std::vector<Node> rest(n->srcs().begin() + 1, n->srcs().end());
    rest.erase(rest.begin() + (i - 1));
    std::vector<Node> parts = copies(n->src(0), r);
    if (n->src(0)->op == Op::Mma && n->arg<OpArg>().op == Op::Add) {  // one fragment for all
      std::vector<Node> srcs{combine(Op::Add, std::move(parts))};
      srcs.insert(srcs.end(), rest.begin(), rest.end());
      return rest.empty() ? srcs[0] : unroll_reduce(with_sources(n, srcs));
    }
    for (Node& part : parts) {
      std::vector<Node> srcs{part};
      srcs.insert(srcs.end(), rest.begin(), rest.end());
      if (!rest.empty()) part = unroll_reduce(make(Op::Reduce, n->dtype, srcs, n->payload));
    }
    if (in_turn && rest.empty() && n->arg<OpArg>().op == Op::Add && is_added_product(parts.back()))
      return combine_in_turn(parts);
    return combine(n->arg<OpArg>().op, std::move(parts));
  }
  return n;
}

}  // namespace

Node unroll(Node sink, const Target& target) {
  const std::vector<Node> unrolled = with_kind(sink, RangeKind::Unroll);
  const bool chain = target.kind == Target::Kind::Cpu && is_chain(sink, target);
  const Node reduced = rebuild(sink, [&](Node, Node now) {
    if (now->op == Op::Reduce) {
      const bool in_turn =
          target.kind == Target::Kind::Gpu && adds_in_turn(now, unrolled, sink->ranges);
      now = threads_last(now, in_turn);
      if (!in_turn) now = unroll_reduce(now, chain);
    }
    return now;
  });
  std::vector<Node> stores(reduced->srcs().begin(), reduced->srcs().end());
  for (Node r : unrolled) {
    std::vector<Node> next;
    for (Node s : stores) {
      if (s->ranges & r->ranges) {
        for (Node c : copies(s, r)) next.push_back(c);
      } else {
        next.push_back(s);
      }
    }
    stores = std::move(next);
  }
  return make(Op::Sink, kVoid, stores);
}

namespace {

Node widen(Node n, int lanes) {
  if (n->dtype.lanes == lanes) return n;
  if (n->is_const()) return make(Op::Const, n->dtype.vec(lanes), {}, n->payload);
  return make(Op::Broadcast, n->dtype.vec(lanes), {n});
}

Node in_turn(Node a, Node b) {
  std::vector<int64_t> lanes;
  for (int i = 0; i < a->dtype.lanes; ++i) lanes.insert(lanes.end(), {i, i + a->dtype.lanes});
  return make(Op::Shuffle, a->dtype.vec(2 * a->dtype.lanes), {a, b}, Ints(lanes));
}

// The gate of elements from..from + lanes - 1, of those that `gate` counts along r: every second.
// Where it does not depend on them, it holds for what lies between them as well.
Node at_every_second(Node gate, Node r, int64_t from) {
  if (!(gate->ranges & r->ranges)) return gate;
  Node element = index_add(r, index(from));
  Node even = make(Op::Eq, kBool, {index_mod(element, 2), index(0)});
  return make(Op::And, kBool, {substitute(gate, r, index_div(element, 2)), even});
}

// All lanes combined to one; the upper half of products by MulAdd.
Node folded(Node value, OpArg op) {
  const DType t = value->dtype, half = t.vec(t.lanes / 2);
  if (op.op != Op::Add || !is_added_product(value) || t.lanes % 2)
    return make(Op::Fold, t.one(), {value}, op);
  const auto lanes = [&](Node x, int from) {
    std::vector<int64_t> picks;
    for (int i = 0; i < half.lanes; ++i) picks.push_back(from + i);
    return make(Op::Shuffle, half, {x, x}, Ints(picks));
  };
  const Node a = value->src(0), b = value->src(1);
  const Node low = make(Op::Mul, half, {lanes(a, 0), lanes(b, 0)});
  const Node sum = make(Op::MulAdd, half, {lanes(a, half.lanes), lanes(b, half.lanes), low});
  return half.lanes == 1 ? sum : make(Op::Fold, t.one(), {sum}, op);
}

class Vectorizer {
 public:
  Vectorizer(Node sink, const std::vector<Node>& ranges, const Target& target)
      : target_(target), fold_first_(target.kind == Target::Kind::Gpu), open_(sink->ranges) {
    mask_ = mask_of(ranges);
    ranges_ = ranges;
    for (Node store : all_of(sink, Op::Store)) written_.push_back(store->src(0)->ints()[0]);
  }

  Node operator()(Node n) {
    if (Node* r = done_.find(n)) return *r;
    Node r = expanded(n);
    done_[n] = r;
    return r;
  }

 private:
  Node range_of(Node n) {
    for (Node r : ranges_)
      if (n->ranges & r->ranges) {
        expect((n->ranges & mask_) == r->ranges, "two vector ranges reach one node");
        return r;
      }
    return nullptr;
  }

  Node expanded(Node n) {
    if (n->op == Op::Reduce) return reduce(n);
    if (n->op == Op::Prefix && kind(n->src(1)) == RangeKind::Vector) return prefix(n);
    if (is_running(n)) return running(n);
    if (n->op == Op::Stage) return stage(n);
    if (n->op == Op::Sink) return rebuilt(n);  // stores may have vector ranges of their own
    Node r = range_of(n);
    if (!r) return rebuilt(n);
    const int lanes = static_cast<int>(extent(r));
    if (n == r) return make(Op::Ramp, kIndex.vec(lanes));
    if (n->op == Op::Load || n->op == Op::Store) return access(n, r, lanes);
    if (n->op == Op::Mma) return elements(n, r, lanes);
    if (n->dtype == kIndex && n->op != Op::Cast) return affine(n, r, lanes);
    return elementwise(n, lanes);
  }

  Node rebuilt(Node n) {
    std::vector<Node> srcs;
    for (Node s : n->srcs()) srcs.push_back((*this)(s));
    return with_sources(n, srcs);
  }

  Node elementwise(Node n, int lanes) {
    std::vector<Node> srcs;
    for (Node s : n->srcs()) srcs.push_back(widen((*this)(s), lanes));
    return make(n->op, n->dtype.vec(lanes), srcs, n->payload);
  }

  // base + factor * range, where the range occurs nowhere else; false otherwise.
  static bool split(Node at, Node r, Node& base, int64_t& factor) {
    Sum s = to_sum(at);
    factor = 0;
    for (auto& t : s.terms) {
      if (t.atom == r)
        factor = std::exchange(t.factor, 0);
      else if (t.atom->ranges & r->ranges)
        return false;
    }
    base = from_sum(s);
    return true;
  }

  Node affine(Node n, Node r, int lanes) {
    Node base = nullptr;
    int64_t factor = 0;
    if (!split(n, r, base, factor)) return elementwise(n, lanes);
    Node steps = make(Op::Ramp, kIndex.vec(lanes));
    if (factor != 1) steps = make(Op::Mul, steps->dtype, {steps, constant(steps->dtype, factor)});
    if (base->is_const(0)) return steps;
    return make(Op::Add, steps->dtype, {widen((*this)(base), lanes), steps});
  }

  // Neighbours among the results of an Mma; its operands are no part of the vector, but those of a
  // CPU are in one, as all of its elements.
  Node elements(Node n, Node r, int lanes) {
    std::vector<Node> srcs;
    for (Node s : n->srcs()) {
      const bool stays = (s->ranges & r->ranges) && (s->dtype == kIndex || !mma_unit(n).group);
      srcs.push_back(stays ? s : (*this)(s));
    }
    int64_t factor = 0;
    expect(split(srcs.back(), r, srcs.back(), factor) && factor == 1, "an Mma along another range");
    return make(Op::Mma, n->dtype.vec(lanes), srcs, n->payload);
  }

  // A step of one (or minus one) is a plain vector load or store; any other a gather or scatter.
  Node access(Node n, Node r, int lanes) {
    const bool load = n->op == Op::Load;
    if (!load && joins_stores(target_))
      if (Node joined = joined_stores(n, r, lanes)) return joined;
    if (load && n->num_src == 2)
      if (Node c = lanes & (lanes - 1) ? nullptr : column(n, r, lanes)) return c;
    if (load && (n->num_src == 2 || loads_with_masks(target_)))
      if (Node e = every_second(n, r, lanes)) return e;
    Node base = nullptr;
    int64_t factor = 0;
    const bool linear = split(n->src(1), r, base, factor);
    const bool plain = linear && (factor == 1 || factor == -1) && !is_gated_combining(n, r, factor);
    std::vector<Node> srcs{(*this)(n->src(0))};
    if (plain)
      srcs.push_back((*this)(factor == 1 ? base : index_add(base, index(1 - lanes))));
    else
      srcs.push_back(widen((*this)(n->src(1)), lanes));
    const bool reverse = plain && factor == -1;
    const auto turned = [&](Node v) {
      return reverse && v->dtype.lanes > 1 ? make(Op::Reverse, v->dtype, {v}) : v;
    };
    if (!load) srcs.push_back(turned(widen((*this)(n->src(2)), lanes)));
    const int gate = load ? 2 : 3;
    if (static_cast<int>(n->num_src) > gate) srcs.push_back(turned((*this)(n->src(gate))));
    const DType t = load ? n->dtype.vec(lanes) : kVoid;
    Node r2 = make(n->op, t, srcs, n->payload);
    return load ? turned(r2) : r2;
  }

  // Every second element: two vectors that end with the last one wanted, and a shuffle. Of memory
  // that the kernel writes, those between are another iteration's.
  Node every_second(Node n, Node r, int lanes) {
    Node base = nullptr;
    int64_t factor = 0;
    const int64_t slot = n->src(0)->ints()[0];
    if (contains(written_, slot)) return nullptr;
    if (!split(n->src(1), r, base, factor) || factor != 2) return nullptr;
    const auto part = [&](int64_t from) {
      std::vector<Node> srcs{n->src(0), (*this)(index_add(base, index(from)))};
      if (n->num_src > 2) srcs.push_back((*this)(at_every_second(n->src(2), r, from)));
      return make(Op::Load, n->dtype.vec(lanes), srcs);
    };
    std::vector<int64_t> picks;
    for (int i = 0; i < lanes; ++i) picks.push_back(2 * i < lanes ? 2 * i : 2 * i + 1);
    return make(Op::Shuffle, n->dtype.vec(lanes), {part(0), part(lanes - 1)}, Ints(picks));
  }

  // Elements some apart, between which the copies of an unrolled range put theirs: one store.
  Node joined_stores(Node n, Node r, int lanes) {
    Node base = nullptr;
    int64_t factor = 0;
    if (n->num_src > 3 || std::holds_alternative<OpArg>(n->payload)) return nullptr;
    if (!split(n->src(1), r, base, factor) || (factor != 2 && factor != 4)) return nullptr;
    if (!all_of(n->src(2), Op::Reduce).empty()) return nullptr;
    for (const auto& t : to_sum(base).terms) {
      Node u = t.atom;
      if (u->op != Op::Range || kind(u) != RangeKind::Unroll || t.factor != 1 ||
          extent(u) != factor)
        continue;
      std::vector<Node> parts;
      for (Node copy : copies(n->src(2), u)) parts.push_back(widen((*this)(copy), lanes));
      for (; parts.size() > 1; parts.resize(parts.size() / 2))
        for (size_t i = 0; i < parts.size() / 2; ++i)
          parts[i] = in_turn(parts[i], parts[i + parts.size() / 2]);
      Node from = index_add(base, index_mul(u, -1));
      return make(Op::Store, kVoid, {(*this)(n->src(0)), (*this)(from), parts[0]}, n->payload);
    }
    return nullptr;
  }

  // A square tile of 2^n rows that lies across: rows are loaded whole, along the unrolled range,
  // and the vector that is wanted is a column.
  Node column(Node n, Node r, int lanes) {
    Node base = nullptr;
    int64_t factor = 0;
    if (!split(n->src(1), r, base, factor) || factor == 1 || factor == -1) return nullptr;
    for (const auto& t : to_sum(base).terms) {
      Node u = t.atom;
      if (u->op != Op::Range || kind(u) != RangeKind::Unroll || t.factor != 1 || extent(u) != lanes)
        continue;
      if (fold_first_ && !(open_ & u->ranges)) continue;  // a sum may stay a loop along it
      std::vector<Node> srcs;
      Node from = index_add(base, index_mul(u, -1));
      for (int i = 0; i < lanes; ++i)
        srcs.push_back(make(Op::Load, n->dtype.vec(lanes),
                            {n->src(0), (*this)(index_add(from, index(i * factor)))}));
      srcs.push_back(u);
      return make(Op::Column, n->dtype.vec(lanes), srcs);
    }
    return nullptr;
  }

  // A store that combines is plain where it runs for all lanes or for none, in order.
  static bool is_gated_combining(Node n, Node r, int64_t factor) {
    if (!std::holds_alternative<OpArg>(n->payload)) return false;
    return factor != 1 || (n->num_src > 3 && (n->src(3)->ranges & r->ranges));
  }

  // Lanes that lie next to each other in the buffer are put there together, others one by one.
  Node stage(Node n) {
    std::vector<Node> srcs{(*this)(n->src(0)), n->src(1), (*this)(n->src(2))};
    Node along = nullptr;
    for (Node r : n->srcs().subspan(3)) {
      expect(kind(r) != RangeKind::Vector || !along, "a stage closes two vector ranges");
      if (kind(r) == RangeKind::Vector)
        along = r;
      else
        srcs.push_back(r);
    }
    if (along) {
      Node base = nullptr;
      int64_t factor = 0;
      srcs[0] = widen(srcs[0], static_cast<int>(extent(along)));
      if (split(n->src(1), along, base, factor) && factor == 1) srcs[1] = base;
    }
    srcs[1] = (*this)(srcs[1]);
    return with_sources(n, srcs);
  }

  Node reduce(Node n) {
    Node value = (*this)(n->src(0)), closed = nullptr;
    std::vector<Node> srcs{value};
    for (Node r : n->srcs().subspan(1)) {
      if (kind(r) == RangeKind::Vector) {
        expect(!closed, "a reduction closes two vector ranges");
        closed = r;
      } else {
        srcs.push_back(r);
      }
    }
    if (closed && range_of(n->src(0)) && range_of(n->src(0)) != closed) {
      // Lanes of another range, each as often as the closed one has iterations.
      const Op op = n->arg<OpArg>().op;
      for (int64_t i = 1; i < extent(closed); ++i)
        srcs[0] = make(op, value->dtype, {srcs[0], value});
      value = srcs[0];
      closed = nullptr;
    }
    if (closed) srcs[0] = value = widen(value, static_cast<int>(extent(closed)));
    if (closed && fold_first_) {
      srcs[0] = value = folded(value, n->arg<OpArg>());
      closed = nullptr;
    }
    Node r = srcs.size() == 1 ? value : make(Op::Reduce, value->dtype, srcs, n->payload);
    return closed ? make(Op::Fold, r->dtype.one(), {r}, n->payload) : r;
  }

  Node running(Node n) {
    Node value = (*this)(n->src(0));
    std::vector<Node> srcs(n->srcs().begin(), n->srcs().end());
    srcs[0] = value;
    return make(Op::Prefix, value->dtype, srcs, n->payload);
  }

  // Moved on by one lane, then added to itself moved on by 1, 2, 4, ... lanes.
  Node prefix(Node n) {
    const int lanes = static_cast<int>(extent(n->src(1)));
    const Op op = n->arg<OpArg>().op;
    const Node none = widen(identity(op, n->dtype), lanes);
    const auto moved = [&](Node x, int by) {
      std::vector<int64_t> picks;
      for (int i = 0; i < lanes; ++i) picks.push_back(i < by ? i : lanes + i - by);
      return make(Op::Shuffle, x->dtype, {none, x}, Ints(picks));
    };
    Node sum = moved(widen((*this)(n->src(0)), lanes), 1);
    for (int by = 1; by < lanes; by *= 2) sum = make(op, sum->dtype, {sum, moved(sum, by)});
    return sum;
  }

  const Target& target_;
  std::vector<Node> ranges_;
  uint64_t mask_ = 0;
  bool fold_first_;               // lanes are folded before they are accumulated
  uint64_t open_;                 // ranges that stores depend on
  std::vector<int64_t> written_;  // slots
  NodeMap<Node> done_;
};

}  // namespace

// Not in C: no compiler's vectors of twice as many lanes are every compiler's.
bool joins_stores(const Target& target) {
  return target.kind == Target::Kind::Cpu && target.language == Target::Language::LlvmIr;
}

Node vectorized(Node n, Node range, const Target& target) {
  return Vectorizer(make(Op::Sink, kVoid, std::span<const Node>()), {range}, target)(n);
}

Node vectorize(Node sink, const Target& target) {
  const std::vector<Node> ranges = with_kind(sink, RangeKind::Vector);
  if (ranges.empty()) return sink;
  // A GPU's vectors are loads and stores; its arithmetic is scalar, so folding costs nothing.
  Vectorizer vectorizer(sink, ranges, target);
  for (Node n : topological(sink)) vectorizer(n);  // leaves first: recursion stays shallow
  return vectorizer(sink);
}

}  // namespace tiny
