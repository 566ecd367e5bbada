#include "codegen/kernel/lengths.h"

#include <algorithm>
#include <cmath>

#include "codegen/kernel/access.h"
#include "codegen/kernel/linear.h"
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
  if (n->op == Op::Neg && !wraps(n)) return index_mul(index_of(n->src(0)), -1);
  const bool exact = n->op == Op::Add || n->op == Op::Sub || n->op == Op::Mul || n->op == Op::Min ||
                     n->op == Op::Max || n->op == Op::FloorDiv;
  if (exact && !wraps(n)) return make(n->op, kIndex, {index_of(n->src(0)), index_of(n->src(1))});
  return make(Op::Cast, kIndex, {n});
}

Conditions common(const Conditions& a, const Conditions& b) {
  Conditions out;
  for (Node n : a)
    if (contains(b, n)) out.push_back(n);
  return out;
}

}  // namespace

void add_conditions(Node gate, Conditions& out) {
  if (gate->op == Op::And && gate->dtype.is_bool())
    for (Node s : gate->srcs()) add_conditions(s, out);
  else
    out.push_back(gate);
}

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
      if (zero && op == Op::Add)
        for (int i : {0, 1})
          if (n->src(i)->is_const() && n->dtype.is_float() &&
              std::isfinite(n->src(i)->float_value()))
            return conditions_of(n->src(1 - i), op);
      [[fallthrough]];
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
  if (std::ranges::none_of(order, [](Node n) { return n->op == Op::Bound; })) return false;
  return std::ranges::any_of(order, [&](Node n) {
    if (!is_comparison(n->op) || !(n->ranges & range->ranges)) return false;
    const std::vector<Node> below = topological(n);
    return std::ranges::any_of(below, [](Node s) { return s->op == Op::Bound; });
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

}  // namespace tiny
