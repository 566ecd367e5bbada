#include "codegen/passes/passes.h"

#include <algorithm>

#include "codegen/kernel/access.h"
#include "codegen/kernel/lengths.h"
#include "codegen/kernel/linear.h"
#include "codegen/kernel/option.h"
#include "tiny/rewrite/algebra.h"
#include "tiny/rewrite/rebuild.h"

namespace tiny {

namespace {

constexpr int64_t kMin = 32;  // shorter triangles: each place sums what it sees

// A sum of `term` over those iterations of q for which q <= r, or r <= q (`backwards`).
struct Triangle {
  Node sum = nullptr, term = nullptr, q = nullptr, r = nullptr;
  bool backwards = false;
};

// Finds r of such a condition.
bool find_other(Node condition, Triangle& t) {
  if (condition->op != Op::Lt && condition->op != Op::Le) return false;
  const Node a = condition->src(0), b = condition->src(1);
  if (a->dtype != kIndex && !a->dtype.is_int()) return false;
  const Sum sum = difference(a, b);  // condition: sum <= 0, or sum < 0
  if (sum.terms.size() != 2 || sum.constant != (condition->op == Op::Le ? 0 : -1)) return false;
  for (int i : {0, 1}) {
    const Sum::Term &mine = sum.terms[i], &other = sum.terms[1 - i];
    if (mine.atom != t.q || other.atom->op != Op::Range || mine.factor * other.factor != -1)
      continue;
    t.r = other.atom;
    t.backwards = mine.factor < 0;
    return t.r->src(0) == t.q->src(0) && kind(t.r) == RangeKind::Loop;
  }
  return false;
}

// Whether a reduction in the term goes along the range as well: another place in it is no place of
// that one.
bool reduces(Node term, Node range) {
  const std::vector<Node> all = all_of(term, Op::Reduce);
  return std::ranges::any_of(all, [&](Node n) { return closes(n, range); });
}

Triangle find_triangle(Node sink) {
  const bool has_scans = !all_of(sink, Op::Prefix).empty();
  for (Node n : all_of(sink, Op::Reduce)) {
    Triangle t{n, nullptr, n->src(1)};
    if (n->num_src != 2 || extent(t.q) <= kMin || !t.q->src(0)->is_const()) continue;
    for (Node c : conditions_of(n->src(0), n->arg<OpArg>().op)) {
      if (!find_other(c, t) || (t.backwards && has_scans)) continue;
      t.term = simplify(substitute(n->src(0), c, constant(c->dtype, 1)));
      if (!(t.term->ranges & t.r->ranges) && !reduces(t.term, t.q)) return t;
    }
  }
  return {};
}

Node combined(Op op, Node a, Node b) { return a ? make(op, a->dtype, {a, b}) : b; }

Node over(Op what, Node value, std::span<const Node> ranges, const OpArg& how) {
  if (ranges.empty()) return value;
  std::vector<Node> srcs{value};
  srcs.insert(srcs.end(), ranges.begin(), ranges.end());
  return make(what, value->dtype, srcs, how);
}

// The sum over the iterations before this one. Of unrolled ones each is named: threads then sum
// once for each, and all copies share the sums.
Node before(Node value, Node range, const OpArg& how, int id) {
  const Node none = identity(how.op, value->dtype);
  const auto there = [&](Node q) {
    const Node term = simplify(substitute(value, range, q));
    return make(Op::Where, value->dtype, {less(q, range), term, none});
  };
  if (kind(range) != RangeKind::Unroll) {
    const Node q = make(Op::Range, kIndex, {range->src(0)}, RangeArg{id, RangeKind::Reduce});
    return over(Op::Reduce, there(q), {&q, 1}, how);
  }
  Node sum = nullptr;
  for (int64_t i = 0; i + 1 < extent(range); ++i) sum = combined(how.op, sum, there(index(i)));
  return sum ? sum : none;
}

Node split(Node prefix, int& next_id) {
  const OpArg how = prefix->arg<OpArg>();
  const auto ranges = prefix->srcs().subspan(1);
  Node sum = nullptr;
  for (size_t i = 0; i < ranges.size(); ++i) {
    const Node value = over(Op::Reduce, prefix->src(0), ranges.subspan(i + 1), how);
    const bool has_own =
        kind(ranges[i]) == RangeKind::Thread || kind(ranges[i]) == RangeKind::Vector;
    sum = combined(how.op, sum,
                   has_own ? over(Op::Prefix, value, ranges.subspan(i, 1), how)
                           : before(value, ranges[i], how, next_id++));
  }
  return sum;
}

}  // namespace

Node find_scans(Node sink) {
  for (Triangle t = find_triangle(sink); t.sum; t = find_triangle(sink)) {
    const OpArg how = t.sum->arg<OpArg>();
    // From its end on, what comes after comes before.
    const Node at = t.backwards ? index_add(index(extent(t.r) - 1), index_mul(t.r, -1)) : t.r;
    const Node value = simplify(substitute(t.term, t.q, at));
    const Node prefix = make(Op::Prefix, value->dtype, {value, t.r}, how);
    NodeMap<Node> map;
    map[t.r] = at;
    map[t.sum] = make(how.op, value->dtype, {prefix, value});
    sink = simplify(substitute(sink, map));
  }
  return sink;
}

Node split_scans(Node sink) {
  int next_id = next_range_id(sink);
  return rebuild(sink, [&](Node n, Node now) {
    return n->op == Op::Prefix && !is_running(now) ? split(now, next_id) : now;
  });
}

}  // namespace tiny
