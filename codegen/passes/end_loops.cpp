#include <algorithm>
#include <limits>
#include <utility>

#include "codegen/kernel/access.h"
#include "codegen/kernel/lengths.h"
#include "codegen/options/fragments.h"
#include "codegen/options/mma.h"
#include "codegen/passes/passes.h"
#include "tiny/ir/facts.h"
#include "tiny/rewrite/algebra.h"
#include "tiny/rewrite/rebuild.h"
#include "tiny/rewrite/rewrite.h"

namespace tiny {

namespace {

// Whether a node depends on Variables alone: small, and computed before any loop.
bool is_known_before(Node n) {
  const auto is_large = [](int64_t v) { return std::abs(v) > std::numeric_limits<int32_t>::max(); };
  if (n->vmin == kIntMin || is_large(n->vmin) || is_large(n->vmax)) return false;
  const std::vector<Node> below = topological(n);
  return std::ranges::none_of(below, [](Node s) { return s->op == Op::Reduce; });
}

// Of kernels that go on in chains: what a block of the grid has as its own, or a core's turn; also
// numbers in memory that it reads by those alone.
bool is_of_turn(Node n) {
  if (!n->ranges) return false;
  const std::vector<Node> below = topological(n);
  return std::ranges::all_of(below, [](Node s) {
    return s->op != Op::Reduce && s->op != Op::Stage &&
           (s->op != Op::Range || kind(s) == RangeKind::Core || kind(s) == RangeKind::Block);
  });
}

// What else bounds a loop than Variables: in chains of products the block, or the core's turn, and
// a factor that is 0, whatever the other one is (fragments.h: as matrix units have it).
struct Known {
  bool by_block = false;
  bool in_words = false;  // on a CPU: operands of units are two numbers each
};

// Iterations of a range outside of which nothing happens; nullptr: to its end, from its first.
struct Span {
  Node begin = nullptr, end = nullptr;
};

// n where nothing of a loop or a thread is in it, else the least that it is there, or the largest;
// nullptr where that is not known. What is read from memory is a length or a place: no more than a
// tensor can have.
Node bound_of(Node n, bool largest, Known known) {
  constexpr int64_t kMax = int64_t{1} << 40;
  if (known.by_block && is_of_turn(n)) {
    const bool is_read = n->vmin < -kMax || n->vmax > kMax;
    if (!is_read) return n;
    Node low = make(Op::Max, n->dtype, {n, constant(n->dtype, -kMax)});
    return make(Op::Min, n->dtype, {low, constant(n->dtype, kMax)});
  }
  if (!n->ranges) return is_known_before(n) ? n : nullptr;
  const auto both = [&](bool first, bool second) -> Node {
    Node a = bound_of(n->src(0), first, known), b = bound_of(n->src(1), second, known);
    return a && b ? make(n->op, n->dtype, {a, b}) : nullptr;
  };
  switch (n->op) {
    case Op::Add:
    case Op::Min:
    case Op::Max: return both(largest, largest);
    case Op::Sub: return both(largest, !largest);
    case Op::Mul:
      if (n->src(1)->is_const()) return both(largest == (n->src(1)->int_value() >= 0), largest);
      break;
    case Op::FloorDiv:
      if (n->src(1)->is_const() && n->src(1)->int_value() > 0) return both(largest, largest);
      break;
    case Op::Cast:
      if (n->src(0)->dtype.is_int() || n->src(0)->dtype == kIndex)
        if (Node x = bound_of(n->src(0), largest, known)) return make(Op::Cast, n->dtype, {x});
      break;
    default: break;
  }
  const int64_t most = largest ? n->vmax : n->vmin;
  const bool is_large = most == kIntMin || std::abs(most) > std::numeric_limits<int32_t>::max();
  return is_large ? nullptr : constant(n->dtype, most);
}

// The same sum is below 0 where that of the number that is divided is.
void multiply_out(Sum& sum, Node range) {
  Sum::Term* divided = nullptr;
  for (Sum::Term& t : sum.terms)
    if (t.atom->ranges & range->ranges) {
      const bool is_floor = t.atom->op == Op::FloorDiv && t.atom->src(1)->is_const() &&
                            t.atom->src(1)->int_value() > 0 && std::abs(t.factor) == 1;
      if (divided || !is_floor) return;
      divided = &t;
    }
  if (!divided) return;
  const Node inner = divided->atom->src(0);
  const int64_t by = divided->atom->src(1)->int_value(), sign = divided->factor;
  std::erase_if(sum.terms, [&](const Sum::Term& t) { return &t == divided; });
  for (Sum::Term& t : sum.terms) t.factor *= by;
  sum.constant = sum.constant * by + (sign < 0 ? by - 1 : 0);
  Node rest = index_add(from_sum(sum), index_mul(inner, sign));
  sum = to_sum(rest);
}

// All iterations where a number is below 0, none elsewhere.
Span span_where_below_0(Node n, Node range) {
  Node below =
      make(Op::Min, kIndex, {make(Op::Max, kIndex, {index_mul(n, -1), index(0)}), index(1)});
  const int64_t all = range->src(0)->vmax;
  return {index_add(index(all), index_mul(below, -all)), index_mul(below, all)};
}

void widen(Span& all, const Span& own, bool any);
void narrow(Span& all, const Span& own);

// The iterations in which a condition may hold, whatever ranges inside do, if that is known when
// the kernel runs and not before; in chains of products also by the block. (a < b) is (a - b < 0):
// with a - b = factor * range + rest that holds for range < ceil(-rest / factor), and for the
// smallest rest at the longest; with a negative factor from there on.
Span span_of(Node condition, Node range, Known known) {
  if (known.by_block && (condition->op == Op::Or || condition->op == Op::And)) {
    Span out = span_of(condition->src(0), range, known);
    const Span other = span_of(condition->src(1), range, known);
    if (condition->op == Op::Or)
      widen(out, other, true);
    else
      narrow(out, other);
    return out;
  }
  if (condition->op != Op::Lt && condition->op != Op::Le) return {};
  Node a = condition->src(0), b = condition->src(1);
  if (!a->dtype.is_int() && a->dtype != kIndex) return {};
  Sum sum = difference(a, b);
  if (condition->op == Op::Le) --sum.constant;
  if (known.by_block) multiply_out(sum, range);
  int64_t factor = 0;
  bool depends_on_a_value = false;
  Node rest = index(sum.constant);
  for (const Sum::Term& t : sum.terms) {
    if (t.atom == range) {
      factor = t.factor;
      continue;
    }
    if (t.atom->ranges & range->ranges) return {};
    Node least = bound_of(t.atom, t.factor < 0, known);
    if (!least) return {};
    depends_on_a_value |= !least->is_const();
    rest = index_add(rest, index_mul(least, t.factor));
  }
  if (!depends_on_a_value && !known.by_block) return {};
  if (factor == 0) return depends_on_a_value ? span_where_below_0(rest, range) : Span{};
  const int64_t size = std::abs(factor);
  if (factor < 0) return {index_div(index_add(rest, index(size)), size), nullptr};
  return {nullptr, index_div(index_add(index_mul(rest, -1), index(size - 1)), size)};
}

// Those in which all may hold, of what is known when the kernel runs.
void narrow(Span& all, const Span& own) {
  const auto joined = [](Op op, Node a, Node b) {
    if (!b || b->is_const()) return a;
    return !a || a == b ? b : make(op, kIndex, {a, b});
  };
  all = {joined(Op::Max, all.begin, own.begin), joined(Op::Min, all.end, own.end)};
}

Span span_of(const std::vector<Node>& conditions, Node range, Known known) {
  Span out;
  for (Node c : conditions) narrow(out, span_of(c, range, known));
  return out;
}

// What both may need; `any` is false for the first.
void widen(Span& all, const Span& own, bool any) {
  const auto joined = [&](Op op, Node a, Node b) {
    if (!any) return b;
    return !a || !b ? nullptr : a == b ? a : make(op, kIndex, {a, b});
  };
  all = {joined(Op::Min, all.begin, own.begin), joined(Op::Max, all.end, own.end)};
}

// The 16-bit floats of a word (codegen/options/pairs.cpp); none for what is none.
std::vector<Node> halves_of(Node word) {
  if (word->op != Op::Or || word->dtype.scalar != Scalar::U32) return {};
  std::vector<Node> out;
  for (Node n : {word->src(0), word->src(1)}) {
    if (n->op == Op::Shl) n = n->src(0);
    if (n->op != Op::Cast || n->src(0)->op != Op::Bitcast) return {};
    out.push_back(n->src(0)->src(0));
  }
  return out;
}

// The iterations outside of which a value is what leaves a reduction by `op` as it is. Terms that
// go along with a maximum have a scale of one there, and a product of fragments is zero where its
// first operand's elements are.
Span span_of_value(Node n, Op op, Node range, Known known) {
  if (n->op == Op::Roll || (n->op == Op::Reduce && n->arg<OpArg>().op == op))
    return span_of_value(n->src(0), op, range, known);
  if (n->op == Op::Where && known.by_block && n->src(2) == identity(op, n->dtype)) {
    std::vector<Node> own;
    add_conditions(n->src(0), own);
    Span out = span_of(own, range, known);
    narrow(out, span_of_value(n->src(1), op, range, known));
    return out;
  }
  if (n->op == Op::Cast && op == Op::Add && known.by_block && n->src(0)->dtype.is_float())
    return span_of_value(n->src(0), op, range, known);
  if (n->op == Op::Mul && op == Op::Add && known.by_block) {
    const Span a = span_of_value(n->src(0), op, range, known);
    return a.begin || a.end ? a : span_of_value(n->src(1), op, range, known);
  }
  if (n->op != Op::Mma || op != Op::Add) return span_of(conditions_of(n, op), range, known);
  Span out;
  std::vector<Node> first(n->srcs().begin(), n->srcs().begin() + mma_a_count(n));
  if (known.in_words && (first = halves_of(n->src(1))).empty()) return out;
  for (size_t i = 0; i < first.size(); ++i)
    widen(out, span_of_value(first[i], op, range, known), i > 0);
  if (adds_fragment(n)) widen(out, span_of_value(n->srcs().back(), op, range, known), true);
  return out;
}

// The iterations in which any reduction or store in the range's loop runs.
Span span_of_loop(Node sink, Node range, Known known) {
  Span out;
  bool any = false;
  for (Node n : topological(sink)) {
    Span own;
    if (n->op == Op::Reduce || (is_running(n) && n->src(1) == range)) {
      const auto reduced = n->srcs().subspan(1);
      if (!contains(reduced, range)) continue;
      own = span_of_value(n->src(0), n->arg<OpArg>().op, range, known);
    } else if (n->op == Op::Store && (n->ranges & range->ranges)) {
      std::vector<Node> gates;
      if (n->num_src > 3) add_conditions(n->src(3), gates);
      own = span_of(gates, range, known);
    } else {
      continue;
    }
    widen(out, own, std::exchange(any, true));
    if (!out.begin && !out.end) return {};
  }
  return out;
}

// Whether this source is a range that the node closes.
bool closes_source(Node n, size_t i) {
  return ((n->op == Op::Reduce || n->op == Op::Prefix) && i > 0) || (n->op == Op::Stage && i > 2);
}

bool is_loop(Node range, const Target& target) {
  const RangeKind k = kind(range);
  return k == RangeKind::Loop || k == RangeKind::Reduce ||
         (k == RangeKind::Core && target.kind == Target::Kind::Cpu);
}

// A comparison of integers with extrema as those with each: loops end by them.
Node without_extrema(Node n) {
  if ((n->op != Op::Lt && n->op != Op::Le) ||
      (!n->src(0)->dtype.is_int() && n->src(0)->dtype != kIndex))
    return n;
  for (int i : {0, 1}) {
    Node x = n->src(i);
    if (x->op != Op::Min && x->op != Op::Max) continue;
    const auto part = [&](int j) {
      Node a = i ? n->src(0) : x->src(j), b = i ? x->src(j) : n->src(1);
      return without_extrema(make(n->op, kBool, {a, b}));
    };
    return make((x->op == Op::Max) == (i == 0) ? Op::And : Op::Or, kBool, {part(0), part(1)});
  }
  return n;
}

// How many iterations the loops of a kernel have, at most, with a range at `value`.
double iterations_at(const std::vector<Node>& loops, Node range, int64_t value) {
  double out = 0;
  for (Node loop : loops)
    out += static_cast<double>(simplify(substitute(loop->src(0), range, index(value)))->vmax);
  return out;
}

// Blocks begin in the order of their numbers: ranges of blocks run backwards where their last
// iterations have the longer loops.
Node with_longest_first(Node sink) {
  std::vector<Node> loops, blocks;
  for (Node r : all_of(sink, Op::Range)) {
    if (r->src(0)->ranges) loops.push_back(r);
    if (kind(r) == RangeKind::Block) blocks.push_back(r);
  }
  for (Node b : blocks) {
    const int64_t last = extent(b) - 1;
    if (iterations_at(loops, b, 0) < iterations_at(loops, b, last))
      sink = substitute(sink, b, index_add(index_mul(b, -1), index(last)));
  }
  return sink;
}

}  // namespace

bool ends_by_block(Node sink, const Target& target) {
  const Node ended = end_loops(simplify(lower_gates(sink, target)), target);
  const std::vector<Node> ranges = all_of(ended, Op::Range);
  return std::ranges::any_of(ranges, [](Node r) { return r->src(0)->ranges != 0; });
}

Node end_loops(Node sink, const Target& target) {
  const bool chain = is_chain(sink, target);
  if (chain) sink = simplify(rebuild(sink, [](Node, Node now) { return without_extrema(now); }));
  if ((!chain && all_of(sink, Op::Bound).empty()) || !all_of(sink, Op::Matrix).empty()) return sink;
  NodeMap<Node> now, loops;  // a range where it is a value, and where it is closed
  for (Node range : all_of(sink, Op::Range)) {
    if (!is_loop(range, target)) continue;
    Span span = span_of_loop(sink, range, {chain, chain && target.kind == Target::Kind::Cpu});
    if (!chain) span.begin = nullptr;
    if (!span.begin && !span.end) continue;
    Node extent = span.end ? span.end : index(range->src(0)->vmax);
    if (span.begin) {
      if (span.begin->vmin < 0) span.begin = make(Op::Max, kIndex, {span.begin, index(0)});
      if (extent->vmax > range->src(0)->vmax)
        extent = make(Op::Min, kIndex, {extent, range->src(0)});
      extent = index_add(extent, index_mul(span.begin, -1));
    }
    if (extent->vmin < 0) extent = make(Op::Max, kIndex, {extent, index(0)});
    if (extent->vmax > range->src(0)->vmax) extent = make(Op::Min, kIndex, {extent, range->src(0)});
    Node loop = make(Op::Range, kIndex, {extent}, range->payload);
    loops[range] = now[range] = loop;
    if (span.begin)
      now[range] =
          make(Op::Min, kIndex, {index_add(loop, span.begin), index(range->src(0)->vmax - 1)});
  }
  std::vector<Node> srcs;
  for (Node n : topological(sink)) {
    if (now.contains(n)) continue;
    srcs.clear();
    for (size_t i = 0; i < n->num_src; ++i) {
      Node s = n->src(static_cast<int>(i));
      const Node* loop = closes_source(n, i) ? loops.find(s) : nullptr;
      srcs.push_back(loop ? *loop : *now.find(s));
    }
    now[n] = with_sources(n, srcs);
  }
  return target.kind == Target::Kind::Gpu ? with_longest_first(*now.find(sink)) : *now.find(sink);
}

}  // namespace tiny
