#include "codegen/kernel/lengths.h"

#include <algorithm>
#include <limits>

#include "codegen/kernel/access.h"
#include "codegen/kernel/linear.h"
#include "tiny/ir/facts.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

namespace {

using Conditions = std::vector<Node>;  // all of which hold

bool wraps(Node n) { return n->vmin == int_min(n->dtype) || n->vmax == int_max(n->dtype); }

// An integer as exact Index arithmetic.
Node index_of(Node n) {
  if (n->dtype == kIndex) return n;
  if (n->is_const()) return index(n->int_value());
  if (n->op == Op::Cast && n->src(0)->dtype.is_int() && !wraps(n)) return index_of(n->src(0));
  const bool sum = n->op == Op::Add || n->op == Op::Sub || n->op == Op::Mul;
  if (sum && !wraps(n)) return make(n->op, kIndex, {index_of(n->src(0)), index_of(n->src(1))});
  return make(Op::Cast, kIndex, {n});
}

void add_conditions(Node gate, Conditions& out) {
  if (gate->op == Op::And && gate->dtype.is_bool())
    for (Node s : gate->srcs()) add_conditions(s, out);
  else
    out.push_back(gate);
}

Conditions common(const Conditions& a, const Conditions& b) {
  Conditions out;
  for (Node n : a)
    if (std::find(b.begin(), b.end(), n) != b.end()) out.push_back(n);
  return out;
}

// Whether a node depends on Variables alone: small, and computed before any loop.
bool is_known_before(Node n) {
  const auto is_large = [](int64_t v) { return std::abs(v) > std::numeric_limits<int32_t>::max(); };
  if (n->vmin == kIntMin || is_large(n->vmin) || is_large(n->vmax)) return false;
  const std::vector<Node> below = topological(n);
  return std::none_of(below.begin(), below.end(), [](Node s) { return s->op == Op::Reduce; });
}

// The iteration of `range` from which on the condition fails, whatever ranges inside do, if that is
// known when the kernel runs and not before. (a < b) is (a - b < 0): with a - b = factor * range +
// rest that holds for range < ceil(-rest / factor), and for the smallest rest at the longest.
Node end_of(Node condition, Node range) {
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

Node end_of(const Conditions& conditions, Node range) {
  for (Node c : conditions)
    if (Node end = end_of(c, range)) return end;
  return nullptr;
}

Node greater(Node a, Node b) { return a == b ? a : make(Op::Max, kIndex, {a, b}); }

}  // namespace

Conditions conditions_of(Node n, Op op) {
  const bool zero = identity(op, n->dtype)->is_const(0);
  Conditions out;
  switch (n->op) {
    case Op::Where:
      if (n->src(2) != identity(op, n->dtype))
        return common(conditions_of(n->src(1), op), conditions_of(n->src(2), op));
      out = conditions_of(n->src(1), op);
      add_conditions(n->src(0), out);
      return out;
    case Op::Load:
      if (zero && n->num_src > 2) add_conditions(n->src(2), out);
      return out;
    case Op::Reduce: return n->arg<OpArg>().op == op ? conditions_of(n->src(0), op) : out;
    case Op::Cast:
    case Op::Neg: return zero && op == Op::Add ? conditions_of(n->src(0), op) : out;
    // 0 times something is 0 where the other is 0 too: not NaN, not infinite.
    case Op::Mul:
    case Op::Add:
    case Op::Sub:
      if (!zero || op != Op::Add) return out;
      return common(conditions_of(n->src(0), op), conditions_of(n->src(1), op));
    default: return out;
  }
}

Sum difference(Node a, Node b) {
  return to_sum(simplify(make(Op::Sub, kIndex, {index_of(a), index_of(b)})));
}

bool has_length(Node sink, Node range) {
  const std::vector<Node> order = topological(sink);
  if (std::none_of(order.begin(), order.end(), [](Node n) { return n->op == Op::Bound; }))
    return false;
  return std::any_of(order.begin(), order.end(), [&](Node n) {
    if (!is_comparison(n->op) || !(n->ranges & range->ranges)) return false;
    const std::vector<Node> below = topological(n);
    return std::any_of(below.begin(), below.end(), [](Node s) { return s->op == Op::Bound; });
  });
}

bool selects_by_length(Node n) {
  constexpr size_t kMaxNodes = 64;  // such conditions are small, others may be whole graphs
  if (n->op != Op::Where) return false;
  std::vector<Node> found{n->src(0)};
  for (size_t i = 0; i < found.size() && found.size() < kMaxNodes; ++i) {
    if (found[i]->op == Op::Bound) return true;
    found.insert(found.end(), found[i]->srcs().begin(), found[i]->srcs().end());
  }
  return false;
}

Node end_of_loop(Node sink, Node range) {
  Node end = nullptr;
  for (Node n : topological(sink)) {
    Node own = nullptr;
    if (n->op == Op::Reduce) {
      const auto reduced = n->srcs().subspan(1);
      if (std::find(reduced.begin(), reduced.end(), range) == reduced.end()) continue;
      own = end_of(conditions_of(n->src(0), n->arg<OpArg>().op), range);
    } else if (n->op == Op::Store && (n->ranges & range->ranges)) {
      Conditions gates;
      if (n->num_src > 3) add_conditions(n->src(3), gates);
      own = end_of(gates, range);
    } else {
      continue;
    }
    if (!own) return nullptr;
    end = end ? greater(end, own) : own;
  }
  return end;
}

}  // namespace tiny
