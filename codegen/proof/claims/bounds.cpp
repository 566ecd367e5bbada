#include "codegen/proof/claims/bounds.h"

#include <algorithm>
#include <numeric>

#include "codegen/proof/claims/claim.h"

namespace tiny {

namespace {

// Saturating: the ends of int64 stand for infinity.
int64_t saturated(__int128 v) {
  if (v <= kIntMin) return kIntMin;
  return v >= kIntMax ? kIntMax : static_cast<int64_t>(v);
}
bool is_infinite(int64_t v) { return v == kIntMin || v == kIntMax; }

int64_t scaled(int64_t v, int64_t f) {
  if (f == 0) return 0;
  if (is_infinite(v)) return (v < 0) == (f < 0) ? kIntMax : kIntMin;
  return saturated(static_cast<__int128>(v) * f);
}
Bounds scaled(Bounds b, int64_t f) {
  return f < 0 ? Bounds{scaled(b.max, f), scaled(b.min, f)}
               : Bounds{scaled(b.min, f), scaled(b.max, f)};
}
Bounds added(Bounds a, Bounds b) {
  const auto sum = [](int64_t x, int64_t y, int64_t none) {
    return x == none || y == none ? none : saturated(static_cast<__int128>(x) + y);
  };
  return {sum(a.min, b.min, kIntMin), sum(a.max, b.max, kIntMax)};
}
Bounds meet(Bounds a, Bounds b) { return {std::max(a.min, b.min), std::min(a.max, b.max)}; }
Bounds join(Bounds a, Bounds b) { return {std::min(a.min, b.min), std::max(a.max, b.max)}; }
bool is_empty(Bounds b) { return b.min > b.max; }

// Of x / d for d > 0, towards minus infinity.
int64_t divided(int64_t v, int64_t d) { return is_infinite(v) ? v : floor_div(v, d); }
Bounds divided(Bounds b, int64_t d) { return {divided(b.min, d), divided(b.max, d)}; }
// All x with lo <= f * x <= hi.
Bounds solved(Bounds b, int64_t f) {
  if (f < 0) return solved(scaled(b, -1), -f);
  return {is_infinite(b.min) ? b.min : -floor_div(-b.min, f), divided(b.max, f)};
}

Bounds remainder(Bounds x, int64_t d) {
  if (!is_infinite(x.min) && !is_infinite(x.max) && floor_div(x.min, d) == floor_div(x.max, d))
    return {floor_mod(x.min, d), floor_mod(x.max, d)};
  return {0, d - 1};
}

bool is_divisor(Node n) { return n->is_const() && n->vmin > 0; }
bool negates(Node n, Node& of) {  // x == false, x ^ true and the like, for a bool x
  if (!n->is(Op::Xor)) return false;
  for (int i = 0; i < 2; ++i)
    if (n->src(i)->is_const(1)) return of = n->src(1 - i), true;
  return false;
}

// f - factor * g
LinearForm without(const LinearForm& f, const LinearForm& g, int64_t factor) {
  LinearForm out;
  out.constant = f.constant - factor * g.constant;
  auto a = f.terms.begin(), b = g.terms.begin();
  while (a != f.terms.end() || b != g.terms.end()) {
    const bool first = b == g.terms.end() || (a != f.terms.end() && a->atom->id < b->atom->id);
    if (first) {
      out.terms.push_back(*a++);
      continue;
    }
    const bool same = a != f.terms.end() && a->atom == b->atom;
    const int64_t left = (same ? a->factor : 0) - factor * b->factor;
    if (left) out.terms.push_back({b->atom, left});
    a += same;
    ++b;
  }
  return out;
}

constexpr int64_t kLargest = int64_t{1} << 40;  // factors beyond it are not combined

}  // namespace

int64_t LinearForm::factor_of(Node atom) const {
  for (const Term& t : terms)
    if (t.atom == atom) return t.factor;
  return 0;
}

void LinearForm::add(Node atom, int64_t factor) {
  const auto at = std::lower_bound(terms.begin(), terms.end(), atom,
                                   [](auto& t, Node n) { return t.atom->id < n->id; });
  if (at != terms.end() && at->atom == atom)
    at->factor += factor;
  else
    terms.insert(at, {atom, factor});
}

void LinearForm::add(const LinearForm& form, int64_t factor) {
  constant += factor * form.constant;
  for (const Term& t : form.terms) add(t.atom, factor * t.factor);
}

void Assumptions::add_terms(LinearForm& sum, Node n, int64_t factor) {
  const auto product = [&](int64_t c, int64_t& out) {
    constexpr int64_t kLarge = int64_t{1} << 60;
    return !__builtin_mul_overflow(factor, c, &out) && !exceeds(out, kLarge);
  };
  int64_t f = 0;
  if (n->is_const() && product(n->int_value(), f) && !__builtin_add_overflow(sum.constant, f, &f)) {
    sum.constant = f;
    return;
  }
  if (n->is(Op::Add) || n->is(Op::Sub)) {
    add_terms(sum, n->src(0), factor);
    return add_terms(sum, n->src(1), n->is(Op::Add) ? factor : -factor);
  }
  for (int i = 0; n->is(Op::Mul) && i < 2; ++i)
    if (n->src(i)->is_const() && product(n->src(i)->int_value(), f))
      return f ? add_terms(sum, n->src(1 - i), f) : void();
  if (Node cast = wrapping_cast(n)) {
    const Bounds b = of(cast->src(0));
    if (fits(b.min, b.max, cast->dtype)) return add_terms(sum, cast->src(0), factor);
  }
  sum.add(n, factor);
}

LinearForm Assumptions::linear(Node n) {
  LinearForm sum;
  add_terms(sum, n, 1);
  std::erase_if(sum.terms, [](auto& t) { return t.factor == 0; });
  return sum;
}

Bounds Assumptions::plain(const LinearForm& form) {
  Bounds b{form.constant, form.constant};
  for (const auto& t : form.terms) b = added(b, scaled(of_atom(t.atom), t.factor));
  return b;
}

// Facts of several terms are taken out of the sum one by one where that leaves fewer terms.
Bounds Assumptions::bounds(const LinearForm& form) {
  Bounds best = plain(form);
  LinearForm rest = form;
  Bounds taken{0, 0};
  for (const LinearFact& fact : facts_) {
    if (fact.form.terms.size() < 2) continue;
    const auto& [atom, factor] = fact.form.terms[0];
    const int64_t have = rest.factor_of(atom);
    if (have == 0 || have % factor || exceeds(have, kLargest)) continue;
    LinearForm next = without(rest, fact.form, have / factor);
    if (next.terms.size() >= rest.terms.size()) continue;
    taken = added(taken, scaled(fact.bounds, have / factor));
    rest = std::move(next);
    best = meet(best, added(taken, plain(rest)));
  }
  return best;
}

Bounds Assumptions::of(Node n) {
  if (is_contradictory_) return {1, 0};
  if (const Bounds* b = done_.find(n)) return *b;
  const Bounds node = done_[n] = {n->vmin, n->vmax};  // where a fact leads back to n
  Bounds b = n->dtype.is_bool() ? of_condition(n) : meet(node, bounds(linear(n)));
  return done_[n] = b;
}

Bounds Assumptions::of_atom(Node n) {
  if (const Bounds* b = atoms_.find(n)) return *b;
  Bounds b{n->vmin, n->vmax};
  if (const Bounds* known = known_.find(n)) b = meet(b, *known);
  atoms_[n] = b;
  return atoms_[n] = opened(n, b);
}

// An atom of which `b` is known, by what it is computed from.
Bounds Assumptions::opened(Node n, Bounds b) {
  switch (n->op) {
    case Op::FloorDiv:
      return is_divisor(n->src(1)) ? meet(b, divided(of(n->src(0)), n->src(1)->vmin)) : b;
    case Op::FloorMod:
      return is_divisor(n->src(1)) ? meet(b, remainder(of(n->src(0)), n->src(1)->vmin)) : b;
    case Op::Where: return meet(b, of_where(n));
    case Op::Max:
    case Op::Min: {
      const Bounds x = of(n->src(0)), y = of(n->src(1));
      if (n->is(Op::Max)) return meet(b, {std::max(x.min, y.min), std::max(x.max, y.max)});
      return meet(b, {std::min(x.min, y.min), std::min(x.max, y.max)});
    }
    case Op::Cast:
      if (n->src(0)->dtype.is_bool()) return meet(b, of(n->src(0)));
      if (Node cast = wrapping_cast(n)) {
        const Bounds x = of(cast->src(0));
        if (fits(x.min, x.max, cast->dtype)) return meet(b, x);
      }
      return b;
    default: return b;
  }
}

// Each branch under its condition. The facts may be about this very value: then it is not opened
// again. Where several are open, or many were, conditions count no more: that costs too much.
Bounds Assumptions::of_where(Node n) {
  if (open_.contains(n)) return {n->vmin, n->vmax};
  if (open_.size() == 2 || splits_ > 40) return join(of(n->src(1)), of(n->src(2)));
  ++splits_;
  const Bounds condition = of(n->src(0));
  Bounds out{kIntMax, kIntMin};
  for (int holds = 0; holds < 2; ++holds) {
    if (condition.min > holds || condition.max < holds) continue;
    Assumptions inner = *this;
    inner.open_[n] = 1;
    inner.assume(n->src(0), holds);
    const Bounds b = inner.bounds(n->src(holds ? 1 : 2));
    splits_ = inner.splits_;
    if (!is_empty(b)) out = join(out, b);
  }
  return out;
}

Bounds Assumptions::of_condition(Node n) {
  const Bounds unknown{n->vmin, n->vmax};
  Node inner = nullptr;
  if (negates(n, inner)) return added({1, 1}, scaled(of(inner), -1));
  if (n->is(Op::And) || n->is(Op::Or)) {
    const Bounds a = of(n->src(0)), b = of(n->src(1));
    if (n->is(Op::And)) return meet(unknown, {std::min(a.min, b.min), std::min(a.max, b.max)});
    return meet(unknown, {std::max(a.min, b.min), std::max(a.max, b.max)});
  }
  if (!is_comparison(n->op) || n->src(0)->dtype != kIndex) return unknown;
  const Bounds d = bounds(without(linear(n->src(0)), linear(n->src(1)), 1));
  const bool zero = d.min == 0 && d.max == 0, never = d.min > 0 || d.max < 0;
  switch (n->op) {
    case Op::Lt: return {d.max < 0, d.min < 0};
    case Op::Le: return {d.max <= 0, d.min <= 0};
    case Op::Eq: return {zero, !never};
    default: return {never, !zero};
  }
}

Bounds Assumptions::bounds(Node n) {
  if (n->dtype == kIndex)
    for (const auto& t : linear(n).terms)
      if (t.atom->is(Op::FloorDiv) && is_divisor(t.atom->src(1))) derive(t.atom);
  return of(n);
}

// With x = d * (x / d) + x % d, facts about x are facts about the quotient, whose factors may have
// a common divisor that those about x have not.
void Assumptions::derive(Node quotient) {
  Node x = quotient->src(0);
  if (!x->is(Op::Range) || derived_.contains(quotient)) return;
  derived_[quotient] = 1;
  const Bounds rest = of(make(Op::FloorMod, kIndex, {x, quotient->src(1)}));
  for (const LinearFact& fact : std::vector<LinearFact>(facts_)) {
    const int64_t factor = fact.form.factor_of(x);
    if (factor == 0 || fact.form.terms.size() < 2 || exceeds(factor, kLargest)) continue;
    LinearForm form;
    for (const auto& t : fact.form.terms)
      if (t.atom != x) add_terms(form, t.atom, t.factor);
    add_terms(form, quotient, factor * quotient->src(1)->vmin);
    add_fact(form, added(fact.bounds, scaled(rest, -factor)));
  }
}

void Assumptions::assume(Node condition, bool holds) {
  if (!condition) return;
  Node inner = nullptr;
  const Op all = holds ? Op::And : Op::Or;
  if (condition->is(all) && condition->dtype.is_bool()) {
    assume(condition->src(0), holds);
    assume(condition->src(1), holds);
  } else if (negates(condition, inner)) {
    assume(inner, !holds);
  } else if (is_comparison(condition->op) && condition->src(0)->dtype == kIndex) {
    add_comparison(condition, holds);
  } else if (condition->is_const()) {
    if ((condition->int_value() != 0) != holds) add_fact({}, {1, 1});
  } else {
    is_linear_ = false;
  }
}

void Assumptions::add_comparison(Node n, bool holds) {
  LinearForm form = without(linear(n->src(0)), linear(n->src(1)), 1);
  const bool equal = n->is(Op::Eq) ? holds : n->is(Op::Ne) && !holds;
  if (n->is(Op::Lt)) return add_fact(form, holds ? Bounds{kIntMin, -1} : Bounds{0, kIntMax});
  if (n->is(Op::Le)) return add_fact(form, holds ? Bounds{kIntMin, 0} : Bounds{1, kIntMax});
  if (equal) return add_fact(form, {0, 0});
  // Unequal: an end of the interval may be cut off.
  const Bounds b = bounds(form);
  if (b.min == 0) return add_fact(form, {1, kIntMax});
  if (b.max == 0) return add_fact(form, {kIntMin, -1});
  is_linear_ = false;
}

// Facts have no constant, a positive first factor, and factors without a common divisor.
void Assumptions::add_fact(LinearForm form, Bounds b) {
  b = added(b, {-form.constant, -form.constant});
  form.constant = 0;
  int64_t divisor = 0;
  for (const auto& t : form.terms) divisor = std::gcd(divisor, t.factor);
  if (!form.terms.empty() && form.terms[0].factor < 0) divisor = -divisor;
  if (divisor) b = solved(b, divisor);
  for (auto& t : form.terms) t.factor /= divisor;
  for (LinearFact& f : facts_) {
    const bool same =
        std::equal(f.form.terms.begin(), f.form.terms.end(), form.terms.begin(), form.terms.end(),
                   [](auto& x, auto& y) { return x.atom == y.atom && x.factor == y.factor; });
    if (!same) continue;
    f.bounds = meet(f.bounds, b);
    return refine();
  }
  facts_.push_back({std::move(form), b});
  std::ranges::stable_sort(facts_, [](const LinearFact& x, const LinearFact& y) {
    return x.form.terms.size() > y.form.terms.size();
  });
  refine();
}

// Bounds of each fact's atoms one by one, given the others; and of the fact itself.
void Assumptions::refine() {
  done_ = atoms_ = NodeMap<Bounds>();
  for (int round = 0; round < 2; ++round) {
    for (LinearFact& f : facts_) {
      f.bounds = meet(f.bounds, plain(f.form));
      is_contradictory_ |= is_empty(f.bounds);
      for (const auto& t : f.form.terms) {
        LinearForm others = f.form;
        std::erase_if(others.terms, [&](auto& o) { return o.atom == t.atom; });
        const Bounds rest = plain(others);
        Bounds now = solved(added(f.bounds, scaled(rest, -1)), t.factor);
        if (const Bounds* before = known_.find(t.atom)) now = meet(*before, now);
        known_[t.atom] = now;
        is_contradictory_ |= is_empty(now);
      }
    }
    done_ = atoms_ = NodeMap<Bounds>();
  }
}

}  // namespace tiny
