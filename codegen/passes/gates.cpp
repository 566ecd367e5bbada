#include "codegen/passes/passes.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "codegen/kernel/access.h"
#include "codegen/kernel/lengths.h"
#include "codegen/kernel/linear.h"
#include "codegen/options/fragments.h"
#include "tiny/rewrite/algebra.h"
#include "tiny/rewrite/rebuild.h"
#include "tiny/rewrite/rewrite.h"

namespace tiny {

namespace {

// All that must hold, in an order that does not depend on how it was put together.
std::vector<Node> conditions(Node gate) {
  std::vector<Node> out;
  add_conditions(gate, out);
  std::erase_if(out, [](Node c) { return c->is_const(1); });
  std::ranges::sort(out, {}, &NodeData::id);
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

// A value that is selected, by which conditions, and the constant elsewhere.
struct Selected {
  Node value;
  std::vector<Node> conditions;
};

// x, or x selected among -infinity.
Selected selected(Node x) {
  if (x->op == Op::Where && x->src(2)->is_const(-INFINITY))
    return {x->src(1), conditions(x->src(0))};
  return {x, {}};
}

// c of exp2(c (x - m)), c > 0, with x and m; nothing for other values.
struct Exponential {
  Node x, m, factor;
};
std::optional<Exponential> exponential(Node n) {
  if (n->op != Op::Exp2 || n->src(0)->op != Op::Mul) return {};
  Node product = n->src(0), difference = product->src(0), factor = product->src(1);
  if (difference->is_const()) std::swap(difference, factor);
  if (difference->op != Op::Sub || !factor->is_const() || !(factor->float_value() > 0)) return {};
  return Exponential{difference->src(0), difference->src(1), factor};
}

bool is_infinite(Node test, Node of) {  // of == -infinity, or either infinity
  if (test->op == Op::Or) return is_infinite(test->src(0), of) && is_infinite(test->src(1), of);
  return test->op == Op::Eq && test->src(0) == of && test->src(1)->is_const() &&
         std::isinf(test->src(1)->float_value());
}

// The largest of the values that m is: itself, or with 0 instead of an infinity.
Node maximum(Node m) {
  if (m->op == Op::Where && m->src(1)->is_const(0) && is_infinite(m->src(0), m->src(2)))
    m = m->src(2);
  return m->op == Op::Reduce && m->arg<OpArg>().op == Op::Max ? m : nullptr;
}

bool closes_same(Node a, Node b) {
  const auto x = a->srcs().subspan(1), y = b->srcs().subspan(1);
  return std::is_permutation(x.begin(), x.end(), y.begin(), y.end());
}

// A sum of exponentials that leaves some out, with the selected x of its maximum: where that is
// -infinity the exponential is 0. (Where m is an infinity or NaN, the sum is NaN or infinite both
// ways.) nullptr for any other reduction.
Node with_selected(Node reduce) {
  Node where = reduce->src(0);
  if (reduce->arg<OpArg>().op != Op::Add || where->op != Op::Where || !where->src(2)->is_const(0))
    return nullptr;
  const auto e = exponential(where->src(1));
  Node most = e ? maximum(e->m) : nullptr;
  if (!most || !closes_same(reduce, most)) return nullptr;
  Selected x = selected(e->x);
  const Selected all = selected(most->src(0));
  for (Node c : conditions(where->src(0)))
    if (!contains(x.conditions, c)) x.conditions.push_back(c);
  if (x.value != all.value || x.conditions.size() != all.conditions.size() ||
      !std::is_permutation(x.conditions.begin(), x.conditions.end(), all.conditions.begin()))
    return nullptr;
  Node difference = make(Op::Sub, e->x->dtype, {most->src(0), e->m});
  Node value = make(Op::Mul, difference->dtype, {difference, e->factor});
  std::vector<Node> srcs(reduce->srcs().begin(), reduce->srcs().end());
  srcs[0] = make(Op::Exp2, value->dtype, {value});
  return with_sources(reduce, srcs);
}

// Sums of exp2(c (x - m)) without the terms that are too small to count.
Node flush_exponentials(Node sink) {
  NodeMap<int> users;
  const std::vector<Node> all = topological(sink);
  for (Node n : all)
    for (Node s : n->srcs()) ++users[s];
  NodeMap<Node> map;
  for (Node n : all) {
    if (n->op != Op::Reduce || n->arg<OpArg>().op != Op::Add || users[n->src(0)] > 1) continue;
    const auto e = n->src(0)->dtype == kF32 ? exponential(n->src(0)) : std::nullopt;
    Node most = e ? maximum(e->m) : nullptr;
    if (!most || most->src(0) != e->x || !closes_same(n, most)) continue;
    Node x = n->src(0)->src(0);
    Node small = make(Op::Lt, kBool, {x, constant(kF32, kMinNormalExponent)});
    map[n->src(0)] = make(Op::Where, kF32, {small, constant(kF32, 0), n->src(0)});
  }
  return substitute(sink, map);
}

// A factor c for c x - c m: the product c m is rounded, by as much as 2^-24 of itself, which is the
// exponent of x = m. Where m is so large (a mask of -1e9 or of the least f32 that hides a whole
// row) that any x below it is away by 32 or more, 1 is as good a factor and m times it is exact.
Node safe_factor(Node c, Node m) {
  Node large = make(Op::Le, kBool, {constant(kF32, 0x1p56), make(Op::Mul, kF32, {m, m})});
  return make(Op::Where, kF32, {large, constant(kF32, 1), c});
}

// The exponent of a term that goes along with its maximum, x - m with x = c s, in as few operations
// as there can be: c' s + m', rounded once, and selections outside. nullptr where it is none.
Node fast_power(Node exponent) {
  Node factor = nullptr, difference = exponent;
  if (difference->op == Op::Mul && difference->src(1)->is_const()) {
    factor = difference->src(1);
    difference = difference->src(0);
  }
  if (difference->op != Op::Sub || difference->dtype != kF32) return nullptr;
  if (factor && !(factor->float_value() > 0)) return nullptr;
  const auto scaled = [&](Node n) { return factor ? make(Op::Mul, kF32, {n, factor}) : n; };
  const Selected x = selected(difference->src(0));
  Node value = nullptr, negative = make(Op::Neg, kF32, {scaled(difference->src(1))});
  if (x.value->op == Op::Mul && x.value->src(1)->is_const()) {
    const double c = x.value->src(1)->float_value() * (factor ? factor->float_value() : 1);
    value = make(Op::MulAdd, kF32, {x.value->src(0), constant(kF32, c), negative});
  } else if (factor) {
    factor = safe_factor(factor, difference->src(1));
    negative = make(Op::Neg, kF32, {make(Op::Mul, kF32, {difference->src(1), factor})});
    value = make(Op::MulAdd, kF32, {x.value, factor, negative});
  } else {
    value = make(Op::Add, kF32, {x.value, negative});
  }
  Node power = make(Op::Exp2, kF32, {value});
  Node small = make(Op::Lt, kBool, {value, constant(kF32, kMinNormalExponent)});
  Node out = make(Op::Where, kF32, {small, constant(kF32, 0), power});
  if (x.conditions.empty()) return out;
  return make(Op::Where, kF32, {difference->src(0)->src(0), out, constant(kF32, 0)});
}

bool is_flushed(Node where) {
  return where->op == Op::Where && where->src(1)->is_const(0) && where->src(0)->op == Op::Lt &&
         where->src(0)->src(1)->is_const(kMinNormalExponent);
}

// A position as a float, for the elements of a thread: that of the first one and what the others
// are away, both of which are exact in f32 as their sum is. Conversions of integers take as long as
// exponentials. nullptr for any other value.
Node position_in_parts(Node cast) {
  constexpr int64_t kExact = int64_t{1} << 24;
  const auto is_exact = [](Node n) { return n->vmin >= -kExact && n->vmax <= kExact; };
  if (cast->op != Op::Cast || cast->dtype != kF32) return nullptr;
  Node position = cast->src(0);
  while (position->op == Op::Cast && position->dtype.is_int() && is_exact(position))
    position = position->src(0);
  if (position->dtype != kIndex || !is_exact(position)) return nullptr;
  Sum first = to_sum(position), away;
  const auto rest = std::ranges::stable_partition(first.terms, [](const Sum::Term& t) {
    const RangeKind k = t.atom->op == Op::Range ? kind(t.atom) : RangeKind::Loop;
    return k != RangeKind::Unroll && k != RangeKind::Vector;
  });
  away.terms.assign(rest.begin(), rest.end());
  first.terms.erase(rest.begin(), rest.end());
  away.constant = std::exchange(first.constant, 0);
  if (first.terms.empty() || (away.terms.empty() && away.constant == 0)) return nullptr;
  Node a = from_sum(first), b = from_sum(away);
  if (!is_exact(a) || !is_exact(b)) return nullptr;
  return make(Op::Add, kF32, {make(Op::Cast, kF32, {a}), make(Op::Cast, kF32, {b})});
}

// u of where(u < 0, u, -u), which is -|u| but for the sign of zero; else nullptr.
Node of_negative_size(Node n) {
  if (n->op != Op::Where || n->src(0)->op != Op::Lt || n->src(2)->op != Op::Neg) return nullptr;
  Node u = n->src(1), test = n->src(0);
  return n->src(2)->src(0) == u && test->src(0) == u && test->src(1)->is_const(0) ? u : nullptr;
}

// x or x times a constant, with -|u| in x's place as the extremum that processors have, where the
// sign of zero tells nothing.
Node negative_size(Node x) {
  if (x->op == Op::Mul && x->src(1)->is_const()) {
    Node size = negative_size(x->src(0));
    return size == x->src(0) ? x : make(Op::Mul, x->dtype, {size, x->src(1)});
  }
  Node u = of_negative_size(x);
  return u ? make(Op::Min, u->dtype, {u, make(Op::Neg, u->dtype, {u})}) : x;
}

// Factors and divisors that are constants as one factor.
Node with_one_factor(Node n) {
  double factor = 1;
  Node x = n;
  for (; (x->op == Op::Mul || x->op == Op::Div) && x->src(1)->is_const(); x = x->src(0))
    factor *= x->op == Op::Mul ? x->src(1)->float_value() : 1 / x->src(1)->float_value();
  const bool is_normal = std::isnormal(static_cast<float>(factor));
  return x != n && is_normal ? make(Op::Mul, kF32, {x, constant(kF32, factor)}) : n;
}

// What is made of scores, as caps and sigmoids, with no more digits than sums of narrow numbers
// have: exponentials without the tiny ones, and constants that are multiplied with, all at once.
// What is rounded to bf16 and read as f32, not as an operand, is not rounded.
Node fast_scores(Node sink) {
  return simplify(rebuild(sink, [](Node, Node now) {
    if (now->dtype != kF32) return now;
    if (now->op == Op::Cast && now->src(0)->op == Op::Cast && now->src(0)->dtype == kBF16 &&
        now->src(0)->src(0)->dtype == kF32)
      return now->src(0)->src(0);
    if (Node parts = position_in_parts(now)) return parts;
    if (now->op == Op::Exp2 && !fast_power(now->src(0))) {
      Node x = negative_size(now->src(0));
      Node small = make(Op::Lt, kBool, {x, constant(kF32, kMinNormalExponent)});
      return make(Op::Where, kF32, {small, constant(kF32, 0), make(Op::Exp2, kF32, {x})});
    }
    return with_one_factor(now);
  }));
}

// Products and the sums that they are terms of at once, beside scores.
Node with_added_products(Node sink) {
  return rebuild(sink, [](Node, Node now) {
    if (now->dtype != kF32 || (now->op != Op::Add && now->op != Op::Sub)) return now;
    const bool less = now->op == Op::Sub;
    Node a = now->src(0), b = now->src(1);
    const auto negative = [&](Node n) { return less ? make(Op::Neg, kF32, {n}) : n; };
    if (is_added_product(a)) return make(Op::MulAdd, kF32, {a->src(0), a->src(1), negative(b)});
    if (is_added_product(b)) return make(Op::MulAdd, kF32, {negative(b->src(0)), b->src(1), a});
    return now;
  });
}

// Exponentials in chains of products, whose terms are no more than 1: what is less than a normal
// number is left out.
Node fast_exponentials(Node sink, const Target& target) {
  if (!is_chain(sink, target)) return sink;
  if (target.kind == Target::Kind::Gpu) sink = fast_scores(sink);
  NodeMap<Node> map;
  for (Node n : all_of(sink, Op::Exp2))
    if (n->dtype == kF32)
      if (Node fast = fast_power(n->src(0))) map[n] = fast;
  sink = substitute(sink, map);
  return target.kind == Target::Kind::Gpu ? simplify(with_added_products(sink)) : sink;
}

// k of a constant that is k log2(e) rounded, k a power of two or the negative of one; else 0.
double multiple_of_log2e(Node c) {
  int exponent = 0;
  const double k = std::frexp(c->float_value() / std::numbers::log2e, &exponent);
  const double slack = c->dtype == kF32 ? 0x1p-24 : 0x1p-52;
  return std::abs(std::abs(k) - 0.5) <= slack || std::abs(std::abs(k) - 1) <= slack
             ? std::ldexp(std::round(2 * k) / 2, exponent)
             : 0;
}

// Exp of k x for Exp2 of x times k log2(e).
Node exact_exponential(Node power) {
  Node t = power->op == Op::Exp2 ? power->src(0) : nullptr;
  if (!t || t->op != Op::Mul || !t->src(1)->is_const()) return nullptr;
  const DType type = power->dtype;
  const double k = multiple_of_log2e(t->src(1));
  if (k == 0) return nullptr;
  return make(Op::Exp, type, {make(Op::Mul, type, {t->src(0), constant(type, k)})});
}

// -|u| times a positive number.
bool is_never_positive(Node x) {
  if (x->op == Op::Mul && x->src(1)->is_const() && x->src(1)->float_value() > 0) x = x->src(0);
  const bool is_least =
      x->op == Op::Min && x->src(1)->op == Op::Neg && x->src(1)->src(0) == x->src(0);
  return is_least || of_negative_size(x);
}

// Whether the last bits of a power of two are no part of what `user` makes of it: what is at most 1
// beside the maximum of its row, or added to a number, and casts to 16 bits.
bool needs_few_bits(Node power, Node user) {
  if (user->op == Op::Cast) return user->dtype.is_float() && user->dtype.size() == 2;
  if (is_flushed(user) && user->src(2) == power) return true;
  if (const auto e = exponential(power); e && maximum(e->m)) return true;
  const bool added = user->op == Op::Add || user->op == Op::Sub;
  return added && (user->src(0)->is_const() || user->src(1)->is_const()) &&
         is_never_positive(power->src(0));
}

// Exponentials to the last bits, where these count.
Node exact_exponentials(Node sink) {
  NodeMap<bool> exact;
  for (Node n : topological(sink))
    for (Node s : n->srcs())
      if (s->op == Op::Exp2 && (s->dtype == kF32 || s->dtype == kF64) && !needs_few_bits(s, n))
        exact[s] = true;
  return rebuild(sink, [&](Node old, Node now) {
    Node better = exact.contains(old) ? exact_exponential(now) : nullptr;
    return better ? better : now;
  });
}

bool is_positive(Node c) {
  if (c->op == Op::Where) return is_positive(c->src(1)) && is_positive(c->src(2));
  return c->is_const() && c->float_value() > 0;
}

// Not -infinity: m itself where it is known to be none.
Node finite(Node m) {
  if (m->op == Op::Where && m->src(1)->is_const(0) && is_infinite(m->src(0), m->src(2))) return m;
  Node none = make(Op::Eq, kBool, {m, constant(kF32, -INFINITY)});
  return make(Op::Where, kF32, {none, constant(kF32, 0), m});
}

// Whether a value is made of an extremum that the kernel itself finds.
bool has_extremum(Node m) {
  if (m->op == Op::Reduce || m->op == Op::Prefix) return m->arg<OpArg>().op == Op::Max;
  return is_elementwise(m->op) && std::ranges::any_of(m->srcs(), has_extremum);
}

// k x - k m for a power of which the condition tells whether it is 0: of x that is selected, and
// -infinity elsewhere, as it is for its maximum m. nullptr where m is another number.
Node masked_exponent(Node value, Node condition) {
  if (value->op != Op::MulAdd && value->op != Op::Add) return nullptr;
  Node negative = value->srcs().back(), factor = value->op == Op::MulAdd ? value->src(1) : nullptr;
  if (negative->op != Op::Neg || (factor && !is_positive(factor))) return nullptr;
  Node m = negative->src(0), x = value->src(0);
  if (!has_extremum(m)) return nullptr;
  std::vector<Node> factors;
  for (; m->op == Op::Mul; m = m->src(0)) {
    if (!is_positive(m->src(1))) return nullptr;
    factors.push_back(m->src(1));
  }
  m = finite(m);
  for (size_t i = factors.size(); i-- > 0;) m = make(Op::Mul, kF32, {m, factors[i]});
  std::vector<Node> srcs(value->srcs().begin(), value->srcs().end());
  srcs.front() = make(Op::Where, kF32, {condition, x, constant(kF32, -INFINITY)});
  srcs.back() = make(Op::Neg, kF32, {m});
  return with_sources(value, srcs);
}

// The gates of loads in the words of the selections of what is loaded.
Node name_gates(Node sink) {
  NodeMap<Node> map;
  for (Node n : topological(sink)) {
    Node load = n->op == Op::Where ? gated_load(n->src(1)) : nullptr;
    if (!load || map.contains(load) || n->src(0) == load->src(2)) continue;
    if (conditions(n->src(0)) == conditions(load->src(2)))
      map[load] = make(Op::Load, load->dtype, {load->src(0), load->src(1), n->src(0)});
  }
  return substitute(sink, map);
}

bool is_implied(Node one, const std::vector<Node>& by) {
  return std::ranges::any_of(by, [&](Node n) { return is_implied(one, n); });
}

// The conditions without those that others imply; as it is where there are none of these.
Node without_implied(Node gate) {
  const std::vector<Node> all = conditions(gate);
  std::vector<Node> left = all;
  for (size_t i = left.size(); i-- > 0;) {
    std::vector<Node> rest = left;
    rest.erase(rest.begin() + static_cast<ptrdiff_t>(i));
    if (is_implied(left[i], rest)) left = std::move(rest);
  }
  if (left.size() == all.size()) return gate;
  Node out = nullptr;
  for (Node c : left) out = both(out, c);
  return out;
}

bool is_zero(Node n) {  // and not -0
  return n->is_const(0) && !(n->dtype.is_float() && std::signbit(n->float_value()));
}

// Vectors of a CPU are loaded without the lanes that a gate leaves out, and with zeros there: no
// selection of zeros is needed behind that. What is left is as few conditions as possible.
Node with_few_conditions(Node sink) {
  return rebuild(sink, [](Node, Node now) {
    if (now->op == Op::Load && now->num_src > 2) {
      Node gate = without_implied(now->src(2));
      return make(Op::Load, now->dtype, {now->src(0), now->src(1), gate});
    }
    Node load = now->op == Op::Where && is_zero(now->src(2)) ? now->src(1) : nullptr;
    if (!load || load->op != Op::Load || load->num_src < 3) return now;
    const std::vector<Node> given = conditions(load->src(2)), asked = conditions(now->src(0));
    const bool all = std::ranges::all_of(asked, [&](Node c) { return is_implied(c, given); });
    return all ? load : now;
  });
}

}  // namespace

Node masked_powers(Node sink, const Target& target) {
  if (target.kind != Target::Kind::Gpu || !is_chain(sink, target)) return sink;
  return rebuild(sink, [](Node, Node now) {
    if (now->op != Op::Where || now->dtype != kF32 || !is_zero(now->src(2)) ||
        !is_flushed(now->src(1)) || now->src(1)->src(2)->op != Op::Exp2)
      return now;
    Node value = masked_exponent(now->src(1)->src(2)->src(0), now->src(0));
    if (!value) return now;
    Node small = make(Op::Lt, kBool, {value, constant(kF32, kMinNormalExponent)});
    return make(Op::Where, kF32, {small, constant(kF32, 0), make(Op::Exp2, kF32, {value})});
  });
}

Node lower_gates(Node sink, const Target& target) {
  sink = name_gates(rebuild(sink, [](Node, Node now) {
    Node better = now->op == Op::Reduce ? with_selected(now) : nullptr;
    return better ? better : now;
  }));
  sink = exact_exponentials(fast_exponentials(without_guards(sink), target));
  return target.kind == Target::Kind::Gpu ? flush_exponentials(sink) : with_few_conditions(sink);
}

}  // namespace tiny
