#include <algorithm>
#include <limits>

#include "codegen/kernel/access.h"
#include "codegen/kernel/lengths.h"
#include "codegen/options/mma.h"
#include "codegen/passes/passes.h"
#include "tiny/ir/facts.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

namespace {

// Whether a node depends on Variables alone: small, and computed before any loop.
bool is_known_before(Node n) {
  const auto is_large = [](int64_t v) { return std::abs(v) > std::numeric_limits<int32_t>::max(); };
  if (n->vmin == kIntMin || is_large(n->vmin) || is_large(n->vmax)) return false;
  const std::vector<Node> below = topological(n);
  return std::none_of(below.begin(), below.end(), [](Node s) { return s->op == Op::Reduce; });
}

// The iteration of `range` from which on the condition fails, whatever ranges inside do, if that is
// known when the kernel runs and not before; where sums go along, also by the block. (a < b) is (a
// - b < 0): with a - b = factor * range + rest that holds for range < ceil(-rest / factor), and for
// the smallest rest at the longest.
Node end_of(Node condition, Node range, bool by_block) {
  if (condition->op != Op::Lt && condition->op != Op::Le) return nullptr;
  Node a = condition->src(0), b = condition->src(1);
  if (!a->dtype.is_int() && a->dtype != kIndex) return nullptr;
  const Sum sum = difference(a, b);
  int64_t factor = 0;
  bool depends_on_a_value = false;
  Node end = index(condition->op == Op::Le ? 1 - sum.constant : -sum.constant);
  for (const Sum::Term& t : sum.terms) {
    if (t.atom == range) {
      factor = t.factor;
    } else if (by_block && t.atom->op == Op::Range && kind(t.atom) == RangeKind::Block) {
      end = index_add(end, index_mul(t.atom, -t.factor));
      depends_on_a_value = true;
    } else if (t.atom->ranges) {
      if (t.atom->ranges & range->ranges) return nullptr;
      const int64_t least = t.factor > 0 ? t.atom->vmin : t.atom->vmax;
      if (least == kIntMin || std::abs(least) > std::numeric_limits<int32_t>::max()) return nullptr;
      end = index_add(end, index(-least * t.factor));
    } else {
      if (!is_known_before(t.atom)) return nullptr;
      end = index_add(end, index_mul(t.atom, -t.factor));
      depends_on_a_value = true;
    }
  }
  if (factor <= 0 || !depends_on_a_value) return nullptr;
  return index_div(index_add(end, index(factor - 1)), factor);
}

Node end_of(const std::vector<Node>& conditions, Node range, bool by_block) {
  for (Node c : conditions)
    if (Node end = end_of(c, range, by_block)) return end;
  return nullptr;
}

Node greater(Node a, Node b) { return a == b ? a : make(Op::Max, kIndex, {a, b}); }

// The iteration from which on the value is what leaves a reduction by `op` as it is; nullptr where
// that is not known. Terms that go along with a maximum have a scale of one there, and a product
// of fragments is zero where its first operand's elements are.
Node end_of_value(Node n, Op op, Node range, bool by_block) {
  if (n->op == Op::Roll || (n->op == Op::Reduce && n->arg<OpArg>().op == op))
    return end_of_value(n->src(0), op, range, by_block);
  if (n->op != Op::Mma || op != Op::Add) return end_of(conditions_of(n, op), range, by_block);
  Node end = nullptr;
  for (int i = 0; i < mma_unit(n).a_count(); ++i) {
    Node own = end_of_value(n->src(i), op, range, by_block);
    if (!own) return nullptr;
    end = end ? greater(end, own) : own;
  }
  return end;
}

// The iteration from which on no reduction or store in the range's loop runs, as arithmetic on
// values that are known before it; nullptr where some runs in all iterations.
Node end_of_loop(Node sink, Node range) {
  Node end = nullptr;
  const std::vector<Node> all = topological(sink);
  const auto goes_along = [&](Node n) { return is_running(n) && n->src(1) == range; };
  const bool by_block = std::any_of(all.begin(), all.end(), goes_along);
  for (Node n : all) {
    Node own = nullptr;
    if (n->op == Op::Reduce || goes_along(n)) {
      const auto reduced = n->srcs().subspan(1);
      if (std::find(reduced.begin(), reduced.end(), range) == reduced.end()) continue;
      own = end_of_value(n->src(0), n->arg<OpArg>().op, range, by_block);
    } else if (n->op == Op::Store && (n->ranges & range->ranges)) {
      std::vector<Node> gates;
      if (n->num_src > 3) add_conditions(n->src(3), gates);
      own = end_of(gates, range, by_block);
    } else {
      continue;
    }
    if (!own) return nullptr;
    end = end ? greater(end, own) : own;
  }
  return end;
}

bool is_loop(Node range, const Target& target) {
  const RangeKind k = kind(range);
  return k == RangeKind::Loop || k == RangeKind::Reduce ||
         (k == RangeKind::Core && target.kind == Target::Kind::Cpu);
}

}  // namespace

Node end_loops(Node sink, const Target& target) {
  const bool may_end = !all_of(sink, Op::Bound).empty() || !all_of(sink, Op::Roll).empty();
  if (!may_end || !all_of(sink, Op::Matrix).empty()) return sink;
  NodeMap<Node> now;
  for (Node range : all_of(sink, Op::Range)) {
    if (!is_loop(range, target)) continue;
    Node end = end_of_loop(sink, range);
    if (!end) continue;
    if (end->vmin < 0) end = make(Op::Max, kIndex, {end, index(0)});
    if (end->vmax > extent(range)) end = make(Op::Min, kIndex, {end, index(extent(range))});
    now[range] = make(Op::Range, kIndex, {end}, range->payload);
  }
  std::vector<Node> srcs;
  for (Node n : topological(sink)) {
    if (now.contains(n)) continue;
    srcs.clear();
    for (Node s : n->srcs()) srcs.push_back(*now.find(s));
    now[n] = with_sources(n, srcs);
  }
  return *now.find(sink);
}

}  // namespace tiny
