#include "tiny/rewrite/algebra.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "tiny/base/error.h"
#include "tiny/ir/facts.h"

namespace tiny {

namespace {

void add_term(Sum& s, Node atom, int64_t factor) {
  for (auto& t : s.terms)
    if (t.atom == atom) {
      t.factor += factor;
      return;
    }
  s.terms.push_back({atom, factor});
}

void collect(Sum& s, Node n, int64_t factor) {
  if (n->is_const()) {
    s.constant += factor * n->int_value();
  } else if (n->op == Op::Add || n->op == Op::Sub) {
    collect(s, n->src(0), factor);
    collect(s, n->src(1), n->op == Op::Add ? factor : -factor);
  } else if (n->op == Op::Neg) {
    collect(s, n->src(0), -factor);
  } else if (n->op == Op::Mul && n->src(1)->is_const()) {
    collect(s, n->src(0), factor * n->src(1)->int_value());
  } else if (n->op == Op::Mul && n->src(0)->is_const()) {
    collect(s, n->src(1), factor * n->src(0)->int_value());
  } else {
    add_term(s, n, factor);
  }
}

void drop_zeros(Sum& s) {
  std::erase_if(s.terms, [](const Sum::Term& t) { return t.factor == 0; });
}

// Products of two divisors may leave int64: then there is nothing to combine.
bool product_fits(int64_t a, int64_t b) {
  int64_t ignored;
  return !__builtin_mul_overflow(a, b, &ignored);
}

bool is_div_of(Node n, Node x, int64_t d) {
  return n->op == Op::FloorDiv && n->src(0) == x && n->src(1)->is_const() &&
         n->src(1)->int_value() == d;
}

// a * (x / d) + b * (x % d) with a = b * d is b * x; and (x / d % e) * d + x % d is x % (d * e).
bool recombine(Sum& s) {
  for (size_t i = 0; i < s.terms.size(); ++i) {
    Node mod = s.terms[i].atom;
    if (mod->op != Op::FloorMod || !mod->src(1)->is_const()) continue;
    Node x = mod->src(0);
    const int64_t d = mod->src(1)->int_value(), b = s.terms[i].factor;
    for (size_t j = 0; j < s.terms.size(); ++j) {
      if (j == i || !product_fits(b, d) || s.terms[j].factor != b * d) continue;
      Node other = s.terms[j].atom;
      const bool inner =
          other->op == Op::FloorMod && other->src(1)->is_const() && is_div_of(other->src(0), x, d);
      if (!inner && !is_div_of(other, x, d)) continue;
      if (inner && !product_fits(d, other->src(1)->int_value())) continue;
      Node whole = inner ? index_mod(x, d * other->src(1)->int_value()) : x;
      s.terms.erase(s.terms.begin() + static_cast<ptrdiff_t>(std::max(i, j)));
      s.terms.erase(s.terms.begin() + static_cast<ptrdiff_t>(std::min(i, j)));
      collect(s, whole, b);
      return true;
    }
  }
  return false;
}

Bounds bounds_of(const Sum& s) {
  Node n = from_sum(s);
  return {n->vmin, n->vmax};
}

Node raw(Op op, Node a, Node b) {
  return make(op, is_comparison(op) ? kBool.vec(a->dtype.lanes) : a->dtype, {a, b});
}

// Splits a sum into the part that `d` divides and the rest, whose constant lies in [0, d).
void split(const Sum& s, int64_t d, Sum& whole, Sum& rest) {
  for (const auto& t : s.terms) {
    const int64_t r = t.factor % d;
    if (r) rest.terms.push_back({t.atom, r});
    if (t.factor != r) whole.terms.push_back({t.atom, t.factor - r});
  }
  rest.constant = floor_mod(s.constant, d);
  whole.constant = s.constant - rest.constant;
}

Sum divided(Sum s, int64_t d) {
  for (auto& t : s.terms) t.factor /= d;
  s.constant = floor_div(s.constant, d);
  return s;
}

// A divisor g of d, 1 < g < d, such that s = g * t + r with 0 <= r < g; 0 where there is none.
int64_t common_factor(const Sum& s, int64_t d, Sum& t, Sum& r) {
  for (const auto& candidate : s.terms) {
    const int64_t g = std::gcd(candidate.factor, d);
    if (g <= 1 || g >= d) continue;
    t = r = {};
    split(s, g, t, r);
    const Bounds b = bounds_of(r);
    if (b.min >= 0 && b.max < g) return g;
  }
  return 0;
}

// x / d and x % d for constant d > 0, from x as a sum.
Node divide(Node x, int64_t d) {
  if (d == 1) return x;
  const Sum s = to_sum(x);
  Sum whole, rest;
  split(s, d, whole, rest);
  const Bounds b = bounds_of(rest);
  const int64_t k = floor_div(b.min, d);
  if (b.min > kIntMin && b.max < kIntMax && floor_div(b.max, d) == k) {
    whole.constant += k * d;
    return from_sum(divided(whole, d));
  }
  if (!whole.terms.empty() || whole.constant) {
    Sum q = divided(whole, d);
    collect(q, divide(from_sum(rest), d), 1);
    return from_sum(q);
  }
  Sum t, r;
  if (const int64_t g = common_factor(rest, d, t, r)) return divide(from_sum(divided(t, g)), d / g);
  Node y = from_sum(rest);
  const bool inner = y->op == Op::FloorDiv && y->src(1)->is_const() && y->src(1)->vmin > 0;
  if (inner && product_fits(y->src(1)->int_value(), d))
    return divide(y->src(0), y->src(1)->int_value() * d);
  if (y->op == Op::FloorMod && y->src(1)->is_const() && y->src(1)->int_value() % d == 0 &&
      y->src(1)->vmin > 0)  // x % (d * e) / d = x / d % e
    return index_mod(divide(y->src(0), d), y->src(1)->int_value() / d);
  return raw(Op::FloorDiv, y, index(d));
}

// Modulo d, c * (y % m) is c * y where d divides c * m.
Sum without_inner_mod(const Sum& s, int64_t d) {
  Sum out;
  out.constant = s.constant;
  for (const auto& t : s.terms) {
    const bool mod = t.atom->op == Op::FloorMod && t.atom->src(1)->is_const();
    if (mod && product_fits(t.factor, t.atom->src(1)->int_value()) &&
        (t.factor * t.atom->src(1)->int_value()) % d == 0)
      collect(out, t.atom->src(0), t.factor);
    else
      add_term(out, t.atom, t.factor);
  }
  return out;
}

Node modulo(Node x, int64_t d) {
  if (d == 1) return index(0);
  Sum whole, rest;
  split(without_inner_mod(to_sum(x), d), d, whole, rest);
  Bounds b = bounds_of(rest);
  const int64_t k = floor_div(b.min, d);
  if (b.min > kIntMin && b.max < kIntMax && floor_div(b.max, d) == k) {
    rest.constant -= k * d;
    return from_sum(rest);
  }
  Sum t, r;
  if (const int64_t g = common_factor(rest, d, t, r)) {
    Sum out = r;
    collect(out, modulo(from_sum(divided(t, g)), d / g), g);
    return from_sum(out);
  }
  return raw(Op::FloorMod, from_sum(rest), index(d));
}

// x / d < c is x < c * d, and c < x / d is (c + 1) * d - 1 < x; nullptr for any other sum.
Node compare_quotient(const Sum& s, int64_t limit) {
  if (s.terms.size() != 1) return nullptr;
  const auto [y, factor] = s.terms[0];
  if (y->op != Op::FloorDiv || !y->src(1)->is_const() || y->src(1)->vmin <= 0) return nullptr;
  const int64_t d = y->src(1)->int_value();
  if (factor == 1) return less(y->src(0), index(limit * d));
  if (factor == -1) return less(index((1 - limit) * d - 1), y->src(0));
  return nullptr;
}

// g * u + r < limit is u < q where every r there can be gives the same q: u as a sum, and q.
// Nothing where there is no such g.
std::optional<std::pair<Sum, int64_t>> without_small_terms(const Sum& s, int64_t limit) {
  for (const auto& candidate : s.terms) {
    const int64_t g = std::abs(candidate.factor);
    Sum whole, rest;
    for (const auto& t : s.terms) (t.factor % g ? rest : whole).terms.push_back(t);
    if (g == 1 || rest.terms.empty()) continue;
    const Bounds b = bounds_of(rest);
    if (b.min == kIntMin || b.max == kIntMax) continue;
    const int64_t q = floor_div(limit - 1 - b.min, g) + 1;
    if (q == floor_div(limit - 1 - b.max, g) + 1) return {{divided(whole, g), q}};
  }
  return {};
}

// a < b with all terms on the left, constants on the right, divided by the factors' gcd.
Node compare_less(Node a, Node b) {
  Sum s = to_sum(a);
  const Sum right = to_sum(b);
  for (const auto& t : right.terms) add_term(s, t.atom, -t.factor);
  drop_zeros(s);
  int64_t limit = right.constant - s.constant;  // sum of terms < limit
  s.constant = 0;
  int64_t g = 0;
  for (const auto& t : s.terms) g = std::gcd(g, t.factor);
  if (g == 0) return constant(kBool, static_cast<int64_t>(0 < limit));
  s = divided(s, g);
  limit = -floor_div(-limit, g);
  if (const auto part = without_small_terms(s, limit))
    return compare_less(from_sum(part->first), index(part->second));
  Node left = from_sum(s);
  if (Node r = compare_quotient(s, limit)) return r;
  Node r = raw(Op::Lt, left, index(limit));
  if (r->vmin == r->vmax) return constant(kBool, r->vmin);
  // All factors negative reads better, and meets its like, the other way round: c < x.
  if (std::ranges::all_of(s.terms, [](auto& t) { return t.factor < 0; })) {
    for (auto& t : s.terms) t.factor = -t.factor;
    r = raw(Op::Lt, index(-limit), from_sum(s));
  }
  return r;
}

}  // namespace

Sum to_sum(Node n) {
  Sum s;
  collect(s, n, 1);
  drop_zeros(s);
  return s;
}

Node from_sum(const Sum& given) {
  Sum s = given;
  drop_zeros(s);
  while (recombine(s)) drop_zeros(s);
  std::ranges::sort(s.terms, [](const Sum::Term& a, const Sum::Term& b) {
    if (a.atom->ranges != b.atom->ranges) return a.atom->ranges < b.atom->ranges;
    return a.atom->id < b.atom->id;
  });
  Node out = nullptr;
  for (const auto& t : s.terms) {
    Node term = t.factor == 1 ? t.atom : raw(Op::Mul, t.atom, index(t.factor));
    out = out ? raw(Op::Add, out, term) : term;
  }
  if (!out) return index(s.constant);
  return s.constant ? raw(Op::Add, out, index(s.constant)) : out;
}

Node index(int64_t value) { return constant(kIndex, value); }
Node index_add(Node a, Node b) {
  Sum s = to_sum(a);
  collect(s, b, 1);
  return from_sum(s);
}
Node index_mul(Node a, int64_t factor) {
  Sum s;
  collect(s, a, factor);
  return from_sum(s);
}
Node index_div(Node a, int64_t d) {
  expect(d > 0, "index_div by ", d);
  return divide(a, d);
}
Node index_mod(Node a, int64_t d) {
  expect(d > 0, "index_mod by ", d);
  return modulo(a, d);
}
Node less(Node a, Node b) { return compare_less(a, b); }
Node both(Node a, Node b) {
  if (!a || a->is_const(1)) return b;
  if (!b || b->is_const(1) || a == b) return a;
  return make(Op::And, a->dtype, {a, b});
}

namespace {

using namespace pat;

bool is_index(Node n) { return n->dtype == kIndex; }
bool is_integral(Node n) { return n->dtype.is_int() || n->dtype.is_bool(); }
bool is_bool(Node n) { return n->dtype.is_bool(); }
// Bounds at the ends of int64 say nothing: a product of indices may lie beyond.
bool is_bounded(Node n) { return n->vmin > kIntMin && n->vmax < kIntMax; }
bool fits(Node n, DType t) {
  return is_bounded(n) && n->vmin >= int_min(t) && n->vmax <= int_max(t);
}
// x >= y by their bounds, which end at the largest i64: a u64 may lie beyond.
bool is_at_least(Node x, Node y) {
  return x->vmin >= y->vmax && (y->dtype.scalar != Scalar::U64 || y->vmax < kIntMax);
}
bool has_point_bounds(Node n) {
  return is_integral(n) && n->vmin == n->vmax && is_bounded(n) && !n->is_const() && n->rank == 0 &&
         n->op != Op::Range && n->op != Op::Param;
}
bool compares_index(Node n) { return n->src(0)->dtype == kIndex; }
bool is_positive_const(Node n) { return n->is_const() && n->vmin > 0; }

OpSet elementwise_ops() {
  OpSet set;
  for (int i = 0; i < kOps; ++i)
    if (is_elementwise(static_cast<Op>(i))) set.set(i);
  return set;
}

// Machine integers that come from Index values and do not wrap are computed as Index values.
Node as_index(Node n) {
  if (n->is_const()) return index(n->int_value());
  const bool from_index = n->op == Op::Cast && n->src(0)->dtype == kIndex;
  return from_index ? n->src(0) : nullptr;
}

Node widen(const Match& m) {
  Node n = m.root;
  const DType t = n->src(0)->dtype;
  if (!t.is_int() || t.lanes != 1 || t == kIndex) return nullptr;
  if (n->op == Op::Neg) {
    Node x = as_index(n->src(0)), negative = x ? index_mul(x, -1) : nullptr;
    return x && fits(negative, t) ? make(Op::Cast, t, {negative}) : nullptr;
  }
  Node a = as_index(n->src(0)), b = as_index(n->src(1));
  if (!a || !b) return nullptr;
  // Of numbers that wrap, sums and products alone are those of the exact ones, wrapped.
  const bool wraps_alike = n->op == Op::Add || n->op == Op::Sub || n->op == Op::Mul;
  if (!wraps_alike && (!fits(a, t) || !fits(b, t))) return nullptr;
  const bool divides = n->op == Op::FloorDiv || n->op == Op::FloorMod;
  if (divides && b->vmin <= 0) return nullptr;  // left to the machine
  if (is_comparison(n->op)) return make(n->op, kBool, {a, b});
  Node wide = simplify(make(n->op, kIndex, {a, b}));
  if (!fits(wide, n->dtype)) return nullptr;
  return make(Op::Cast, n->dtype, {wide});
}

}  // namespace

const RuleTable& fold_rules() {
  static const RuleTable& table = *new RuleTable({
      {"fold constants", any_of(elementwise_ops()),
       [](const Match& m) { return fold_constants(m.root); }},
      {"a value with one bound is a constant", Pattern{}.when(has_point_bounds),
       [](const Match& m) { return constant(m.root->dtype, m.root->vmin); }},
      {"x + 0 = x", node(Op::Add, any(0).when(is_integral), number(0)),
       [](const Match& m) { return m[0]; }},
      {"x - 0 = x", node(Op::Sub, any(0), number(0)), [](const Match& m) { return m[0]; }},
      {"x * 1 = x", node(Op::Mul, any(0), number(1)), [](const Match& m) { return m[0]; }},
      {"x / 1 = x", node(op_set(Op::Div, Op::FloorDiv, Op::TruncDiv), {any(0), number(1)}),
       [](const Match& m) { return m[0]; }},
      {"x * 0 = 0", node(Op::Mul, any(0).when(is_integral), number(0)),
       [](const Match& m) { return constant(m.root->dtype, 0); }},
      {"-(-x) = x", node(Op::Neg, node(Op::Neg, any(0))), [](const Match& m) { return m[0]; }},
      {"cast to the same dtype", any_of(op_set(Op::Cast, Op::Bitcast)),
       [](const Match& m) -> Node {
         return m.root->dtype == m.root->src(0)->dtype ? m.root->src(0) : nullptr;
       }},
      {"cast of an Index and back",
       node(Op::Cast, node(Op::Cast, any(0).when(is_index))).when(is_index),
       [](const Match& m) -> Node {
         Node inner = m.root->src(0);
         if (!inner->dtype.is_int()) return nullptr;
         return fits(m[0], inner->dtype) ? m[0] : nullptr;
       }},
      {"integers from indices are computed as indices",
       any_of(op_set(Op::Neg, Op::Add, Op::Sub, Op::Mul, Op::FloorDiv, Op::FloorMod, Op::Max,
                     Op::Min, Op::Lt, Op::Le, Op::Eq, Op::Ne)),
       widen},
      {"max(x, y) by bounds", node(Op::Max, any(0).when(is_integral), any(1)),
       [](const Match& m) -> Node {
         if (is_at_least(m[0], m[1])) return m[0];
         return is_at_least(m[1], m[0]) ? m[1] : nullptr;
       }},
      {"min(x, y) by bounds", node(Op::Min, any(0).when(is_integral), any(1)),
       [](const Match& m) -> Node {
         if (is_at_least(m[1], m[0])) return m[0];
         return is_at_least(m[0], m[1]) ? m[1] : nullptr;
       }},
  });
  return table;
}

namespace {

bool is_inverted(Node n) {
  return n->op == Op::Eq || n->op == Op::Ne ||
         ((n->op == Op::Lt || n->op == Op::Le) &&
          (n->src(0)->dtype.is_int() || is_index(n->src(0))));
}

// Where a comparison does not hold: of equality, or of integers.
Node inverse(Node n) {
  if (n->op == Op::Eq || n->op == Op::Ne)
    return make(n->op == Op::Eq ? Op::Ne : Op::Eq, n->dtype, {n->src(0), n->src(1)});
  return make(n->op == Op::Lt ? Op::Le : Op::Lt, n->dtype, {n->src(1), n->src(0)});
}

bool is_above_none(Node n) { return !n->is_const(-INFINITY); }

// A comparison that has an inverse.
Pattern inverted(int capture) {
  return node(op_set(Op::Eq, Op::Ne, Op::Lt, Op::Le), {any(0), any(1)})
      .as(capture)
      .when(is_inverted);
}

bool are_equal(Node a, Node b) {
  return a == b || (a->dtype.is_float() && a->float_value() == b->float_value());
}
bool is_nan(Node n) { return n->dtype.is_float() && std::isnan(n->float_value()); }

}  // namespace

const RuleTable& logic_rules() {
  static const RuleTable& table = *new RuleTable({
      {"x & true = x", node(Op::And, any(0).when(is_bool), number(1)),
       [](const Match& m) { return m[0]; }},
      {"x & false = false", node(Op::And, any(0).when(is_bool), number(0)),
       [](const Match& m) { return constant(m.root->dtype, 0); }},
      {"x | false = x", node(Op::Or, any(0).when(is_bool), number(0)),
       [](const Match& m) { return m[0]; }},
      {"x | true = true", node(Op::Or, any(0).when(is_bool), number(1)),
       [](const Match& m) { return constant(m.root->dtype, 1); }},
      {"x & x = x | x = x", node(op_set(Op::And, Op::Or), {any(0), any(0)}),
       [](const Match& m) { return m[0]; }},
      {"x & (x & y) = x & y", node(Op::And, any(0), node(Op::And, any(0), any(1)).as(2)),
       [](const Match& m) { return m[2]; }},
      {"x ^ false = x", node(Op::Xor, any(0).when(is_bool), number(0)),
       [](const Match& m) { return m[0]; }},
      {"where of a constant condition", node(Op::Where, constant(2), any(0), any(1)),
       [](const Match& m) { return m[2]->int_value() ? m[0] : m[1]; }},
      {"where with equal branches", node(Op::Where, any(1), any(0), any(0)),
       [](const Match& m) { return m[0]; }},
      {"where(c, true, false) = c", node(Op::Where, any(0), number(1), number(0)).when(is_bool),
       [](const Match& m) { return m[0]; }},
      {"where(c, -infinity, x) = where(not c, x, -infinity)",
       node(Op::Where, inverted(2), number(-INFINITY), any(3).when(is_above_none)),
       [](const Match& m) {
         const Node none = m.root->src(1);
         return make(Op::Where, m.root->dtype, {inverse(m[2]), m[3], none});
       }},
      {"(where(c, a, b) = a) = c",
       node(Op::Eq, node(Op::Where, inverted(2), constant(3), constant(4)), constant(3)),
       [](const Match& m) { return are_equal(m[3], m[4]) || is_nan(m[3]) ? nullptr : m[2]; }},
      {"(where(c, a, b) = b) = not c",
       node(Op::Eq, node(Op::Where, inverted(2), constant(3), constant(4)), constant(4)),
       [](const Match& m) {
         return are_equal(m[3], m[4]) || is_nan(m[4]) ? nullptr : inverse(m[2]);
       }},
      {"where(a, where(b, x, y), y) = where(a & b, x, y)",
       node(Op::Where, any(0), node(Op::Where, any(1), any(2), any(3)), any(3)),
       [](const Match& m) {
         return make(Op::Where, m.root->dtype,
                     {make(Op::And, m[0]->dtype, {m[0], m[1]}), m[2], m[3]});
       }},
      {"where(a, where(a, x, y), z) = where(a, x, z)",
       node(Op::Where, any(0), node(Op::Where, any(0), any(1), any(2)), any(3)),
       [](const Match& m) {
         return make(Op::Where, m.root->dtype, {m[0], m[1], m[3]});
       }},
  });
  return table;
}

const RuleTable& index_rules() {
  static const RuleTable& table = *new RuleTable({
      {"collect the terms of a sum",
       any_of(op_set(Op::Add, Op::Sub, Op::Neg, Op::Mul)).when(is_index),
       [](const Match& m) { return from_sum(to_sum(m.root)); }},
      {"divide a sum",
       node(Op::FloorDiv, any(0), constant(1).when(is_positive_const)).when(is_index),
       [](const Match& m) { return divide(m[0], m[1]->int_value()); }},
      {"remainder of a sum",
       node(Op::FloorMod, any(0), constant(1).when(is_positive_const)).when(is_index),
       [](const Match& m) { return modulo(m[0], m[1]->int_value()); }},
      {"compare sums", node(Op::Lt, any(0), any(1)).when(compares_index),
       [](const Match& m) { return compare_less(m[0], m[1]); }},
      {"a <= b is a < b + 1", node(Op::Le, any(0), any(1)).when(compares_index),
       [](const Match& m) { return compare_less(m[0], index_add(m[1], index(1))); }},
      {"a == c with terms on the left",
       node(op_set(Op::Eq, Op::Ne), {any(0), any(1)}).when(compares_index),
       [](const Match& m) -> Node {
         if (m[1]->is_const()) return nullptr;
         Sum s = to_sum(m[0]);
         collect(s, m[1], -1);
         drop_zeros(s);
         const int64_t c = -std::exchange(s.constant, 0);
         return raw(m.root->op, from_sum(s), index(c));
       }},
  });
  return table;
}

const RuleTable& simplify_rules() {
  static const RuleTable& table = *new RuleTable({&fold_rules(), &logic_rules(), &index_rules()});
  return table;
}

namespace {

// An element that a store adds or multiplies to is updated in each iteration of its loops: updates
// that a rule has found to be equal are a reduction now.
Node with_repeats(Node before, Node after) {
  std::vector<Node> stores;
  for (uint32_t i = 0; i < before->num_src; ++i) {
    const Node was = before->src(static_cast<int>(i)), is = after->src(static_cast<int>(i));
    stores.push_back(is);
    const OpArg* how = std::get_if<OpArg>(&is->payload);
    const uint64_t lost = was->ranges & ~is->ranges;
    if (!how || (how->op != Op::Add && how->op != Op::Mul) || !lost) continue;
    std::vector<Node> sum{is->src(2)}, srcs(is->srcs().begin(), is->srcs().end());
    for (Node n : topological(was))
      if (n->op == Op::Range && (n->ranges & lost)) sum.push_back(n);
    srcs[2] = make(Op::Reduce, sum[0]->dtype, sum, OpArg{how->op});
    stores.back() = make(Op::Store, kVoid, srcs, is->payload);
  }
  return make(Op::Sink, kVoid, stores);
}

}  // namespace

Node simplify(Node n) {
  const Node out = rewrite(n, simplify_rules());
  if (n->op != Op::Sink || out == n) return out;
  expect(out->num_src == n->num_src, "stores that a rule has dropped");
  const Node whole = with_repeats(n, out);
  return whole == out ? out : simplify(whole);
}

}  // namespace tiny
