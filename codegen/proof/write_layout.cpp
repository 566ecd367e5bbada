#include "codegen/proof/write_layout.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "codegen/proof/claims/bounds.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

namespace {

using Domain = std::vector<Node>;

struct Limit {
  LinearForm form;  // without a constant, its factors positive; least value 0
  int64_t most;
};

// A store's index and gate as forms of ranges, turned round so that all factors of the index are
// positive.
struct WriteLayout {
  LinearForm index;
  std::vector<LinearFact> facts;  // of the gate
  std::vector<Limit> limits;
};

int64_t greatest(Node range) { return range->vmax; }

// No range of a kernel; the same for the same arguments.
Node new_range(int id, int64_t extent) {
  return make(Op::Range, kIndex, {index(extent)}, RangeArg{id, RangeKind::Device});
}

// --- quotients and remainders of ranges ----------------------------------------------------------

// x / step % count of a range x; count 0: without the remainder.
struct RangeDigit {
  Node range = nullptr;
  int64_t step = 1, count = 0;
};

bool part_of(Node n, RangeDigit& part) {
  if (n->is(Op::Range)) {
    part.range = n;
    return true;
  }
  if ((!n->is(Op::FloorDiv) && !n->is(Op::FloorMod)) || !n->src(1)->is_const()) return false;
  const int64_t by = n->src(1)->int_value();
  if (by <= 0 || !part_of(n->src(0), part) || part.count % by) return false;
  if (n->is(Op::FloorMod)) {
    part.count = by;
  } else {
    part.step *= by;
    part.count /= by;
  }
  return true;
}

// Ranges that quotients and remainders are taken of, as several ranges: the digits of a number.
class Digits {
 public:
  // False where an atom of the form is no range nor part of one.
  bool collect(const LinearForm& form) {
    for (const auto& t : form.terms) {
      RangeDigit part;
      if (exceeds(t.factor, (int64_t{1} << 40) - 1) || !part_of(t.atom, part)) return false;
      auto& steps = steps_[part.range];
      steps.push_back(part.step);
      if (part.count) steps.push_back(part.step * part.count);
    }
    return true;
  }

  // Chooses the digits; false where the steps do not divide each other.
  bool divide() {
    for (auto& [range, steps] : steps_) {
      const int64_t extent = greatest(range) + 1;
      auto& digits = digits_[range];  // none where there is one iteration
      steps.push_back(1);
      steps.push_back(extent);
      std::ranges::sort(steps);
      steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
      while (steps.back() > extent) steps.pop_back();  // a remainder that changes nothing
      for (size_t i = 0; i + 1 < steps.size(); ++i) {
        if (steps[i + 1] % steps[i] || next_ == 32) return false;
        const int64_t count = steps[i + 1] / steps[i];
        digits.push_back({steps.size() == 2 ? range : new_range(next_++, count), steps[i]});
      }
    }
    return true;
  }

  LinearForm applied(const LinearForm& form) const {
    LinearForm out;
    out.constant = form.constant;
    for (const auto& t : form.terms) {
      RangeDigit part;
      part_of(t.atom, part);
      for (const auto& [digit, step] : digits_.at(part.range))
        if (step >= part.step && (part.count == 0 || step < part.step * part.count))
          out.add(digit, t.factor * (step / part.step));
    }
    std::erase_if(out.terms, [](auto& t) { return t.factor == 0; });
    return out;
  }

  Domain applied(const Domain& domain) const {
    Domain out;
    for (Node r : domain) {
      const auto at = digits_.find(r);
      if (at == digits_.end()) out.push_back(r);
      if (at != digits_.end())
        for (const auto& [digit, step] : at->second) out.push_back(digit);
    }
    return out;
  }

 private:
  std::map<Node, std::vector<int64_t>> steps_;
  std::map<Node, std::vector<std::pair<Node, int64_t>>> digits_;
  int next_ = 0;
};

// --- one store -----------------------------------------------------------------------------------

// f(r) with r = greatest - r'
void turn(LinearForm& f, Node range) {
  for (auto& t : f.terms)
    if (t.atom == range) {
      f.constant += t.factor * greatest(range);
      t.factor = -t.factor;
    }
}

int64_t most_of(const LinearForm& f) {  // factors are positive
  int64_t most = f.constant;
  for (const auto& t : f.terms) most += t.factor * greatest(t.atom);
  return most;
}

// Without the lowest terms where they make no difference: 8 x + y <= 79 says x <= 9 of y < 8.
Limit in_larger_units(Limit limit) {
  auto& terms = limit.form.terms;
  while (terms.size() > 1) {
    const auto least =
        std::ranges::min_element(terms, [](auto& a, auto& b) { return a.factor < b.factor; });
    int64_t unit = 0;
    for (auto t = terms.begin(); t != terms.end(); ++t)
      if (t != least) unit = std::gcd(unit, t->factor);
    if (limit.most < 0 || limit.most % unit < least->factor * greatest(least->atom)) break;
    terms.erase(least);
    for (auto& t : terms) t.factor /= unit;
    limit.most /= unit;
  }
  return limit;
}

// Upper limits alone; a fact that bounds from below what could be lower is none of this form.
bool add_limit(WriteLayout& layout, LinearForm form, Bounds b) {
  if (form.terms.empty()) return true;
  if (form.terms[0].factor < 0) {
    for (auto& t : form.terms) t.factor = -t.factor;
    form.constant = -form.constant;
    b = {b.max == kIntMax ? kIntMin : -b.max, b.min == kIntMin ? kIntMax : -b.min};
  }
  for (const auto& t : form.terms)
    if (t.factor < 0) return false;
  const int64_t constant = std::exchange(form.constant, 0);
  if (b.min > kIntMin && b.min > constant) return false;
  if (b.max == kIntMax || b.max - constant >= most_of(form)) return true;
  layout.limits.push_back(in_larger_units({std::move(form), b.max - constant}));
  return true;
}

bool read(const Claim& c, Digits& digits, WriteLayout& out) {
  Assumptions gate;
  gate.assume(c.gate);
  if (!gate.is_linear() || gate.is_contradictory()) return false;
  out.index = gate.linear(c.index);
  out.facts = gate.facts();
  return digits.collect(out.index) && std::ranges::all_of(out.facts, [&](const LinearFact& f) {
           return digits.collect(f.form);
         });
}

bool finish(WriteLayout& layout, const Digits& digits) {
  layout.index = digits.applied(layout.index);
  Domain turned;
  for (const auto& t : layout.index.terms)
    if (t.factor < 0) turned.push_back(t.atom);
  for (Node r : turned) turn(layout.index, r);
  return std::ranges::all_of(layout.facts, [&](const LinearFact& fact) {
    LinearForm form = digits.applied(fact.form);
    for (Node r : turned) turn(form, r);
    return add_limit(layout, std::move(form), fact.bounds);
  });
}

// --- all stores of a buffer ----------------------------------------------------------------------

bool same_terms(const LinearForm& a, const LinearForm& b) {
  return std::equal(a.terms.begin(), a.terms.end(), b.terms.begin(), b.terms.end(),
                    [](auto& x, auto& y) { return x.atom == y.atom && x.factor == y.factor; });
}

struct OffsetDigit {
  int64_t factor, extent;
};

// The digits whose sums the offsets (rising, from 0) are, lowest first; false: they are none.
bool digits_of(std::vector<int64_t> offsets, std::vector<OffsetDigit>& digits) {
  while (offsets.size() > 1) {
    const int64_t step = offsets[1];
    size_t run = 1;
    while (run < offsets.size() && offsets[run] == static_cast<int64_t>(run) * step) ++run;
    if (offsets.size() % run) return false;
    std::vector<int64_t> rest;
    for (size_t i = 0; i < offsets.size(); ++i) {
      if (i % run == 0) rest.push_back(offsets[i]);
      if (offsets[i] != rest.back() + static_cast<int64_t>(i % run) * step) return false;
    }
    digits.push_back({step, static_cast<int64_t>(run)});
    offsets = std::move(rest);
  }
  return true;
}

// Many stores that differ in constants as one, with ranges for what was unrolled.
class Reroll {
 public:
  explicit Reroll(std::vector<WriteLayout> layouts) : layouts_(std::move(layouts)) {}

  bool run(WriteLayout& out, Domain& domain) {
    std::ranges::sort(layouts_, [](const WriteLayout& a, const WriteLayout& b) {
      return a.index.constant < b.index.constant;
    });
    std::vector<int64_t> offsets;
    for (const WriteLayout& l : layouts_) {
      if (!same_terms(l.index, layouts_[0].index)) return false;
      offsets.push_back(l.index.constant - layouts_[0].index.constant);
    }
    std::vector<OffsetDigit> digits;
    if (!digits_of(offsets, digits) || digits.size() > 7) return false;
    // Copies that were unrolled along two ranges may count on as if along one.
    if (with_digits(digits, out, domain)) return true;
    for (size_t k = 0; k < digits.size(); ++k)
      for (int64_t lower = 2; lower < digits[k].extent; ++lower) {
        if (digits[k].extent % lower) continue;
        std::vector<OffsetDigit> finer = digits;
        finer[k].extent = lower;
        finer.push_back({digits[k].factor * lower, digits[k].extent / lower});
        if (with_digits(finer, out, domain)) return true;
      }
    return false;
  }

 private:
  bool with_digits(const std::vector<OffsetDigit>& digits, WriteLayout& out, Domain& domain) {
    digits_ = digits;
    ranges_.clear();
    WriteLayout all;
    all.index = layouts_[0].index;
    for (size_t k = 0; k < digits_.size(); ++k) {
      ranges_.push_back(new_range(32 + static_cast<int>(k), digits_[k].extent));
      all.index.terms.push_back({ranges_[k], digits_[k].factor});
    }
    if (!add_limits(all)) return false;
    out = std::move(all);
    domain.insert(domain.end(), ranges_.begin(), ranges_.end());
    return true;
  }

  bool add_limits(WriteLayout& out) {
    std::vector<LinearForm> forms, seen;
    for (const WriteLayout& l : layouts_)
      for (const Limit& limit : l.limits) forms.push_back(limit.form);
    std::ranges::stable_sort(forms,
                             [](auto& a, auto& b) { return a.terms.size() > b.terms.size(); });
    for (const LinearForm& form : forms) {
      const auto covers = [&](const LinearForm& f) { return scale_of(form, f) != 0; };
      if (std::ranges::any_of(seen, covers)) continue;
      if (!add_limit(out, form)) return false;
      seen.push_back(form);
    }
    return true;
  }

  // By how much the terms of `part` are multiplied in `form`, which has all of them; else 0.
  static int64_t scale_of(const LinearForm& part, const LinearForm& form) {
    int64_t scale = 0;
    for (const auto& t : part.terms) {
      const int64_t factor = form.factor_of(t.atom);
      if (factor == 0 || factor % t.factor || (scale && factor != scale * t.factor)) return 0;
      scale = factor / t.factor;
    }
    return scale;
  }

  // Bounds of `form` that a store's gate implies: it is at most any number of these, which comes to
  // the same where the gate is about its larger terms or counts in larger units. Empty (min > max)
  // where it implies none.
  static Bounds said(const WriteLayout& store, const LinearForm& form) {
    for (const Limit& l : store.limits) {
      const int64_t scale = scale_of(l.form, form);
      if (scale == 0) continue;
      LinearForm rest = form;
      for (const auto& t : l.form.terms)
        std::erase_if(rest.terms, [&](const auto& r) { return r.atom == t.atom; });
      return {scale * l.most + most_of(rest), scale * (l.most + 1) - 1};
    }
    return {1, 0};
  }

  // The limit of `form` falls by a constant from one unrolled store to the next, in some digits.
  bool add_limit(WriteLayout& out, const LinearForm& form) {
    constexpr int64_t kUnits = 16;
    for (int64_t units = 1; units <= kUnits; ++units) {
      LinearForm finer = form;
      for (auto& t : finer.terms) t.factor *= units;
      if (add_finer_limit(out, finer)) return true;
    }
    return false;
  }

  bool add_finer_limit(WriteLayout& out, const LinearForm& form) {
    const int64_t have = out.index.factor_of(form.terms[0].atom), one = form.terms[0].factor;
    if (have % one) return false;
    const int64_t scale = have / one;
    if (scale <= 0) return false;
    for (uint32_t chosen = 0; chosen < 1u << digits_.size(); ++chosen) {
      LinearForm full = form;
      bool divides = true;
      for (size_t k = 0; k < digits_.size(); ++k) {
        if (!(chosen >> k & 1)) continue;
        divides &= digits_[k].factor % scale == 0;
        full.terms.push_back({ranges_[k], digits_[k].factor / scale});
      }
      int64_t most = 0;
      if (!divides || !agree(form, full, most)) continue;
      out.limits.push_back({full, most});
      return true;
    }
    return false;
  }

  bool agree(const LinearForm& form, const LinearForm& full, int64_t& most) const {
    most = kIntMax;
    for (int pass = 0; pass < 2; ++pass)
      for (size_t s = 0; s < layouts_.size(); ++s) {
        int64_t shift = 0;
        auto left = static_cast<int64_t>(s);
        for (size_t k = 0; k < digits_.size(); ++k) {
          shift += full.factor_of(ranges_[k]) * (left % digits_[k].extent);
          left /= digits_[k].extent;
        }
        const Bounds b = said(layouts_[s], form);
        const bool says = b.min <= b.max;
        if (pass == 0 && says) most = std::min(most, b.max + shift);
        if (pass == 1 && (says ? most - shift < b.min : most - shift < most_of(form))) return false;
      }
    return most != kIntMax;
  }

  std::vector<WriteLayout> layouts_;
  std::vector<OffsetDigit> digits_;
  Domain ranges_;  // of the digits
};

// The digits in order, each the product of those below it: their sums count from 0 without a gap.
int64_t counted(std::vector<OffsetDigit> digits) {
  std::erase_if(digits, [](const OffsetDigit& d) { return d.extent == 1; });
  std::ranges::sort(digits, {}, &OffsetDigit::factor);
  int64_t count = 1;
  for (const OffsetDigit& d : digits) {
    if (d.factor != count) return 0;
    count *= d.extent;
  }
  return count;
}

// How many numbers the index counts from 0 on, each once; 0: it is not of this form. Ranges that
// share a limit become one digit.
int64_t counted(const WriteLayout& layout, Domain domain) {
  std::vector<OffsetDigit> digits;
  for (const Limit& limit : layout.limits) {
    std::vector<OffsetDigit> inner;
    const int64_t scale =
        layout.index.factor_of(limit.form.terms[0].atom) / limit.form.terms[0].factor;
    for (const auto& t : limit.form.terms) {
      const auto at = std::ranges::find(domain, t.atom);
      if (at == domain.end() || layout.index.factor_of(t.atom) != scale * t.factor) return 0;
      inner.push_back({t.factor, greatest(t.atom) + 1});
      domain.erase(at);
    }
    const int64_t extent = counted(inner);
    if (extent == 0 || limit.most < 0) return 0;
    digits.push_back({scale, std::min(extent, limit.most + 1)});
  }
  for (Node r : domain) digits.push_back({layout.index.factor_of(r), greatest(r) + 1});
  return layout.index.constant == 0 ? counted(digits) : 0;
}

// --- iterations that are told apart --------------------------------------------------------------

// A summand of an index: an atom, or a sum that the gate limits, times a factor.
struct Stride {
  int64_t factor;  // positive
  Bounds bounds;   // of what is multiplied; where the factor was negative, of its opposite
  std::vector<LinearForm::Term> parallel;  // its terms in the ranges to be told apart
};

constexpr int64_t kLargestBound = int64_t{1} << 40;

// The summands of a store's index, lowest factor first.
class Strides {
 public:
  Strides(const Claim& c, std::span<const Node> ranges) : ranges_(ranges) {
    gate_.assume(c.gate);
    index_ = gate_.linear(c.index);
  }

  // False where a summand has no bounds.
  bool read(std::vector<Stride>& out) {
    LinearForm left = index_;
    for (const LinearFact& fact : std::vector(gate_.facts())) take(fact.form, left, out);
    for (const auto& t : left.terms) out.push_back(place_of(t));
    sort(out);
    return std::ranges::all_of(out, [](const Stride& p) {
      return p.bounds.min > -kLargestBound && p.bounds.max < kLargestBound;
    });
  }
  int64_t constant() const { return index_.constant; }

  // Whether the sum of the places (sorted) and of something that varies by `slack` tells what they
  // contain of the ranges: from the lowest that does on, each steps farther than all below it.
  static bool tell(const std::vector<Stride>& places, int64_t slack) {
    __int128 below = slack;
    bool any = false;
    for (const Stride& p : places) {
      any |= !p.parallel.empty();
      if (any && p.factor <= below) return false;
      below += static_cast<__int128>(p.bounds.max - p.bounds.min) * p.factor;
    }
    return true;
  }

 private:
  static void sort(std::vector<Stride>& places) { std::ranges::sort(places, {}, &Stride::factor); }

  static Stride place(int64_t factor, Bounds b, std::vector<LinearForm::Term> parallel) {
    if (factor > 0) return {factor, b, std::move(parallel)};
    for (auto& t : parallel) t.factor = -t.factor;
    return {-factor, {-b.max, -b.min}, std::move(parallel)};
  }
  Stride place_of(const LinearForm::Term& t) {
    RangeDigit part;
    const bool parallel = part_of(t.atom, part) && contains(ranges_, part.range);
    std::vector<LinearForm::Term> own;
    if (parallel) own.push_back({t.atom, 1});
    return place(t.factor, gate_.bounds(LinearForm{{{t.atom, 1}}, 0}), std::move(own));
  }

  // A sum that the gate limits becomes one place, if it tells its own parts.
  void take(LinearForm sum, LinearForm& left, std::vector<Stride>& out) {
    sum.constant = 0;
    if (sum.terms.size() < 2) return;
    const int64_t scale = left.factor_of(sum.terms[0].atom) / sum.terms[0].factor;
    std::vector<Stride> inner;
    std::vector<LinearForm::Term> parallel;
    for (const auto& t : sum.terms) {
      if (scale == 0 || left.factor_of(t.atom) != scale * t.factor) return;
      inner.push_back(place_of(t));
      if (!inner.back().parallel.empty()) parallel.push_back(t);
    }
    sort(inner);
    if (!tell(inner, 0)) return;
    for (const auto& t : sum.terms)
      std::erase_if(left.terms, [&](auto& l) { return l.atom == t.atom; });
    out.push_back(place(scale, gate_.bounds(sum), std::move(parallel)));
  }

  std::span<const Node> ranges_;
  Assumptions gate_;
  LinearForm index_;
};

// Whether quotients and remainders of a range, each value of which is known, tell its own.
bool covers(Node range, const std::vector<Stride>& places) {
  std::vector<RangeDigit> parts;
  for (const Stride& p : places)
    for (const auto& t : p.parallel)
      if (RangeDigit part; part_of(t.atom, part) && part.range == range) parts.push_back(part);
  std::ranges::sort(parts, [](auto& a, auto& b) { return a.step < b.step; });
  int64_t known = 1;  // the value modulo this
  for (const RangeDigit& p : parts)
    if (known % p.step == 0) known = p.count ? std::max(known, p.step * p.count) : kIntMax;
  return known > greatest(range);
}

// Places with the same factors and the same parallel parts, with the bounds of both.
bool unite(std::vector<Stride>& all, const std::vector<Stride>& more) {
  const auto same = [](const Stride& a, const Stride& b) {
    return a.factor == b.factor && same_terms({a.parallel, 0}, {b.parallel, 0});
  };
  if (!std::equal(all.begin(), all.end(), more.begin(), more.end(), same)) return false;
  for (size_t i = 0; i < all.size(); ++i)
    all[i].bounds = {std::min(all[i].bounds.min, more[i].bounds.min),
                     std::max(all[i].bounds.max, more[i].bounds.max)};
  return true;
}

// Strides without any of the ranges are added to `rest`.
void lump(std::vector<Stride>& places, Bounds& rest) {
  for (const Stride& p : places)
    if (p.parallel.empty())
      rest = {rest.min + p.factor * p.bounds.min, rest.max + p.factor * p.bounds.max};
  std::erase_if(places, [](const Stride& p) { return p.parallel.empty(); });
}

bool told_apart(std::span<const Claim> stores, std::span<const Node> ranges, bool lumped) {
  std::vector<Stride> all;
  Bounds rest{kIntMax, kIntMin};
  for (size_t s = 0; s < stores.size(); ++s) {
    std::vector<Stride> own;
    Strides places(stores[s], ranges);
    if (!places.read(own)) return false;
    Bounds other{places.constant(), places.constant()};
    if (lumped) lump(own, other);
    rest = {std::min(rest.min, other.min), std::max(rest.max, other.max)};
    if (s == 0) all = own;
    if (!unite(all, own)) return false;
  }
  return Strides::tell(all, rest.max - rest.min) &&
         std::ranges::all_of(ranges, [&](Node r) { return covers(r, all); });
}

}  // namespace

bool written_once(std::span<const Claim> stores, std::span<const Domain> domains) {
  std::vector<WriteLayout> layouts(stores.size());
  Digits digits;
  for (size_t i = 0; i < stores.size(); ++i)
    if (!read(stores[i], digits, layouts[i]) || domains[i] != domains[0]) return false;
  if (!digits.divide()) return false;
  for (WriteLayout& l : layouts)
    if (!finish(l, digits)) return false;
  WriteLayout all;
  Domain domain = digits.applied(domains[0]);
  return Reroll(std::move(layouts)).run(all, domain) && counted(all, domain) == stores[0].size;
}

// With what loads give and other loops add as digits of their own, or all of that as one.
bool written_apart(std::span<const Claim> stores, std::span<const Node> ranges) {
  return told_apart(stores, ranges, false) || told_apart(stores, ranges, true);
}

}  // namespace tiny
