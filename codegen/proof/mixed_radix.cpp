#include "codegen/proof/mixed_radix.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "codegen/proof/claims/bounds.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

namespace {

constexpr int64_t kLargest = int64_t{1} << 40;
constexpr int kFirstId = 40;  // of the ranges that are made here

int64_t extent_of(Node range) { return range->vmax + 1; }

// floor(number / step), or that modulo `count` where it is not 0; the number is a sum of ranges.
struct Quotient {
  LinearForm number;
  int64_t step = 1, count = 0;

  // The number matters modulo this; 0: all of it does.
  int64_t period() const { return count ? step * count : 0; }
};

class Parser {
 public:
  explicit Parser(Assumptions& gate) : gate_(gate) {}

  // A sum of which one term at most is a quotient, whose number takes in the others:
  // r0*18 + (r0*2 + r1)/7 is (r0*128 + r1)/7.
  std::optional<Quotient> sum(const LinearForm& f) {
    Quotient out;
    const LinearForm::Term* quotient = nullptr;
    LinearForm rest;
    rest.constant = f.constant;
    for (const auto& t : f.terms) {
      if (exceeds(t.factor, kLargest - 1)) return {};
      if (t.atom->is(Op::Range))
        rest.add(t.atom, t.factor);
      else if (std::exchange(quotient, &t) || t.factor != 1)
        return {};
    }
    if (!quotient) return Quotient{rest};
    std::optional<Quotient> part = atom(quotient->atom);
    if (!part || (part->count && (!rest.terms.empty() || rest.constant))) return {};
    part->number.add(rest, part->step);
    return part;
  }

  std::optional<Quotient> atom(Node n) {
    if (n->is(Op::Range)) return Quotient{{{{n, 1}}, 0}};
    if ((!n->is(Op::FloorDiv) && !n->is(Op::FloorMod)) || !n->src(1)->is_const()) return {};
    const int64_t by = n->src(1)->int_value();
    if (by <= 0 || by >= kLargest) return {};
    std::optional<Quotient> part = sum(gate_.linear(n->src(0)));
    if (!part || part->count % by || part->step >= kLargest) return {};
    if (n->is(Op::FloorMod)) {
      part->count = by;
    } else {
      part->step *= by;
      part->count /= by;
    }
    return part;
  }

 private:
  Assumptions& gate_;
};

// An access before it is rewritten: its index and what its gate says, as sums of parts.
struct DigitForm {
  struct Term {
    Quotient part;
    int64_t factor;
  };
  struct Fact {
    Quotient part;
    Bounds bounds;
  };
  std::vector<Term> terms;
  int64_t constant = 0;
  std::vector<Fact> facts;
};

std::optional<DigitForm> read(const Claim& c) {
  Assumptions gate;
  gate.assume(c.gate);
  if (!gate.is_linear() || gate.is_contradictory()) return {};
  Parser parser(gate);
  DigitForm out;
  const LinearForm index = gate.linear(c.index);
  out.constant = index.constant;
  for (const auto& t : index.terms) {
    auto part = parser.atom(t.atom);
    if (!part || exceeds(t.factor, kLargest - 1)) return {};
    out.terms.push_back({*std::move(part), t.factor});
  }
  for (const LinearFact& f : std::vector(gate.facts())) {
    LinearForm form = f.form;
    Bounds b = f.bounds;
    if (!form.terms.empty() && form.terms[0].factor < 0) {
      LinearForm opposite;
      opposite.add(form, -1);
      form = opposite;
      b = {b.max == kIntMax ? kIntMin : -b.max, b.min == kIntMin ? kIntMax : -b.min};
    }
    auto part = parser.sum(form);
    if (!part) return {};
    out.facts.push_back({*std::move(part), b});
  }
  return out;
}

// Ranges as digits of one number, lowest first. Below the range `place` there may be a digit that
// no range counts, but copies of an access do: r1 + r2*5120, r1 below 1024, in five copies.
class RangeNumber {
 public:
  RangeNumber(std::vector<Node> ranges, int id, size_t place = 0, int64_t copies = 1)
      : ranges_(std::move(ranges)), id_(id), copies_(copies) {
    for (size_t i = 0; i < ranges_.size(); ++i) {
      if (i == place) {
        unit_ = count_;
        count_ *= copies;
      }
      factors_.push_back(count_);
      last_ += (extent_of(ranges_[i]) - 1) * count_;
      count_ *= extent_of(ranges_[i]);
    }
    if (copies == 1) unit_ = count_;
  }

  int64_t count() const { return count_; }
  int64_t last() const { return last_; }      // the largest of one copy
  int64_t unit() const { return unit_; }      // from one copy to the next
  int64_t copies() const { return copies_; }  // that it counts
  bool contains(Node r) const { return tiny::contains(ranges_, r); }
  bool touches(const Quotient& p) const {
    return std::ranges::any_of(p.number.terms, [&](auto& t) { return contains(t.atom); });
  }

  // A part as one of this number, and multiples of ranges that are to be taken off.
  struct Converted {
    int64_t step = 1, count = 0, offset = 0;
    LinearForm less;
  };

  // Nothing where it is none.
  std::optional<Converted> converted(const Quotient& p) const {
    size_t low = ranges_.size(), high = 0;
    for (size_t i = 0; i < ranges_.size(); ++i) {
      if (!p.number.factor_of(ranges_[i])) continue;
      low = std::min(low, i);
      high = i;
    }
    const auto as_is = aligned(p);
    if (as_is && as_is->less.terms.empty()) return as_is;
    // Of the upper ranges alone: r0/98 is (r0*128 + r1)/(128*98).
    Quotient q{LinearForm(), p.step * factors_[low], p.count};
    q.number.add(p.number, factors_[low]);
    for (size_t i = 0; i < low; ++i) q.number.add(ranges_[i], factors_[i]);
    const auto upper = aligned(q);
    if (upper && upper->less.terms.empty()) return upper;
    // Of lower ranges: what the number is modulo the upper ones.
    if (!q.count && !q.number.constant && high + 1 < ranges_.size() &&
        factors_[high + 1] % q.step == 0) {
      q.count = factors_[high + 1] / q.step;
      if (const auto lower = aligned(q)) return lower;
    }
    return as_is;
  }

  Node range(int64_t extent) const {
    return make(Op::Range, kIndex, {index(extent)}, RangeArg{id_, RangeKind::Device});
  }

 private:
  // Its number may differ from this one by multiples of its step, or of its period.
  std::optional<Converted> aligned(const Quotient& p) const {
    if (p.step >= kLargest) return {};
    Converted out{p.step, p.count, p.number.constant, {}};
    for (size_t i = 0; i < ranges_.size(); ++i) {
      const int64_t gap = factors_[i] - p.number.factor_of(ranges_[i]);
      if (gap % (p.count ? p.period() : p.step)) return {};
      if (gap && !p.count) out.less.add(ranges_[i], gap / p.step);
    }
    return out;
  }

  std::vector<Node> ranges_;
  std::vector<int64_t> factors_;
  int64_t count_ = 1, last_ = 0, unit_ = 1;
  int id_;
  int64_t copies_;
};

bool is_plain(const Quotient& p) {
  return p.number.terms.size() == 1 && p.number.terms[0].factor == 1 && p.step == 1 && !p.count;
}

// Ranges that occur together in a quotient or a remainder.
std::vector<std::vector<Node>> clusters_of(const std::vector<DigitForm>& forms) {
  std::vector<std::vector<Node>> out;
  const auto join = [&](const Quotient& p) {
    if (is_plain(p)) return;
    std::vector<Node> all;
    for (const auto& t : p.number.terms) all.push_back(t.atom);
    for (size_t i = 0; i < out.size();) {
      const bool meets = std::ranges::any_of(out[i], [&](Node r) { return contains(all, r); });
      if (!meets) {
        ++i;
        continue;
      }
      all.insert(all.end(), out[i].begin(), out[i].end());
      out.erase(out.begin() + static_cast<ptrdiff_t>(i));
    }
    std::ranges::sort(all, {}, &NodeData::id);
    all.erase(std::unique(all.begin(), all.end()), all.end());
    if (!all.empty()) out.push_back(all);
  };
  for (const DigitForm& s : forms) {
    for (const auto& t : s.terms) join(t.part);
    for (const auto& f : s.facts) join(f.part);
  }
  return out;
}

// The order of the ranges in which every part is one of their number.
std::optional<RangeNumber> number_of(std::vector<Node> ranges, const std::vector<DigitForm>& forms,
                                     int id) {
  if (ranges.size() > 4) return {};
  std::ranges::sort(ranges, {}, &NodeData::id);
  const auto counts_all = [&](const RangeNumber& number) {
    const auto fits = [&](const Quotient& p) {
      return !number.touches(p) || is_plain(p) || number.converted(p);
    };
    return number.count() < kLargest && std::ranges::all_of(forms, [&](const DigitForm& s) {
             return std::ranges::all_of(s.terms, [&](auto& t) { return fits(t.part); });
           });
  };
  do {
    if (const RangeNumber number(ranges, id); counts_all(number)) return number;
    for (size_t place = 1; forms.size() > 1 && place < ranges.size(); ++place) {
      const RangeNumber number(ranges, id, place, static_cast<int64_t>(forms.size()));
      if (counts_all(number)) return number;
    }
  } while (std::next_permutation(ranges.begin(), ranges.end(),
                                 [](Node a, Node b) { return a->id < b->id; }));
  return {};
}

// One summand of a rewritten index: floor((number + offset) / step) % count * factor.
struct NumberDigit {
  int64_t factor, step, count, offset;
};

struct Counted {
  std::vector<NumberDigit> digits;  // highest factor first
  int64_t most = kIntMax;           // of the number, by the gate
};

// Takes out of the form what is of the number; its other terms stay.
std::optional<Counted> take(DigitForm& s, const RangeNumber& number) {
  Counted out;
  LinearForm plain;  // factors of the ranges themselves
  std::vector<DigitForm::Term> other;
  const auto digit = [&](const RangeNumber::Converted& c, int64_t factor) {
    if (!c.count) s.constant += factor * floor_div(c.offset, c.step);
    const int64_t offset = floor_mod(c.offset, c.count ? c.step * c.count : c.step);
    out.digits.push_back({factor, c.step, c.count, offset});
  };
  for (auto& t : s.terms) {
    if (!number.touches(t.part)) {
      other.push_back(t);
    } else if (is_plain(t.part)) {
      plain.add(t.part.number, t.factor);
    } else {
      const auto c = *number.converted(t.part);
      plain.add(c.less, -t.factor);
      digit(c, t.factor);
    }
  }
  for (const auto& t : plain.terms)
    if (t.factor) digit(*number.converted({{{{t.atom, 1}}, 0}}), t.factor);
  std::vector<DigitForm::Fact> facts;
  for (auto& f : s.facts) {
    if (!number.touches(f.part)) {
      facts.push_back(f);
      continue;
    }
    const auto c = number.converted(f.part);
    if (!c || c->count || !c->less.terms.empty()) return {};
    // floor((number + offset) / step) within the bounds; the number is not negative
    if (f.bounds.min > floor_div(c->offset, c->step)) return {};
    if (f.bounds.max < kLargest)
      out.most = std::min(out.most, (f.bounds.max + 1) * c->step - 1 - c->offset);
  }
  s.terms = std::move(other);
  s.facts = std::move(facts);
  std::ranges::sort(out.digits, [](const NumberDigit& a, const NumberDigit& b) {
    return std::tie(b.factor, b.step, b.count) < std::tie(a.factor, a.step, a.count);
  });
  return out;
}

int64_t value(const NumberDigit& d, int64_t number) {
  const int64_t q = floor_div(number + d.offset, d.step);
  return d.factor * (d.count ? floor_mod(q, d.count) : q);
}

// The offset of a copy's number, from where it begins among the elements: digits of the base, whose
// own offsets are 0. Nothing where the copy is no such.
std::optional<int64_t> offset_of(const Counted& copy, int64_t constant, const Counted& base,
                                 int64_t base_constant) {
  if (copy.digits.size() != base.digits.size()) return {};
  int64_t begin = constant - base_constant, offset = 0;
  for (const NumberDigit& d : copy.digits) begin += value(d, 0);
  for (const NumberDigit& d : base.digits) {
    if (d.factor <= 0) return {};
    offset += begin / d.factor * d.step;
    begin %= d.factor;
  }
  if (begin) return {};
  for (size_t i = 0; i < base.digits.size(); ++i) {
    const NumberDigit &a = copy.digits[i], &b = base.digits[i];
    if (std::tie(a.factor, a.step, a.count) != std::tie(b.factor, b.step, b.count)) return {};
    if (floor_mod(offset - a.offset, a.count ? a.step * a.count : a.step)) return {};
    if (!a.count) constant -= a.factor * (floor_div(offset, a.step));
  }
  if (constant != base_constant) return {};
  return offset;
}

Node quotient(Node n, int64_t by) {
  return by == 1 ? n : make(Op::FloorDiv, kIndex, {n, index(by)});
}

Node sum_of(const LinearForm& f) {
  Node sum = f.constant ? index(f.constant) : nullptr;
  for (const auto& t : f.terms) {
    Node n = t.factor == 1 ? t.atom : make(Op::Mul, kIndex, {t.atom, index(t.factor)});
    sum = sum ? make(Op::Add, kIndex, {sum, n}) : n;
  }
  return sum ? sum : index(0);
}

Node to_node(const Quotient& p) {
  Node q = quotient(sum_of(p.number), p.step);
  return p.count ? make(Op::FloorMod, kIndex, {q, index(p.count)}) : q;
}

Node and_also(Node a, Node b) { return a ? make(Op::And, kBool, {a, b}) : b; }

class MixedRadixRewriter {
 public:
  MixedRadixRewriter(std::vector<Claim>& claims, std::vector<std::vector<Node>>& domains)
      : claims_(claims), domains_(domains) {}

  bool run() {
    for (const Claim& c : claims_) {
      auto s = read(c);
      if (!s) return false;
      forms_.push_back(*std::move(s));
    }
    for (const auto& ranges : clusters_of(forms_)) {
      const auto number = number_of(ranges, forms_, kFirstId + static_cast<int>(numbers_));
      if (!number || !count(*number, ranges)) return false;
      if (++numbers_ == 8) return false;
    }
    return numbers_ > 0;
  }

  void write() {
    for (size_t i = 0; i < forms_.size(); ++i) {
      const DigitForm& s = forms_[i];
      LinearForm at;
      at.constant = s.constant;
      for (const auto& t : s.terms) at.add(to_node(t.part), t.factor);
      Node gate = nullptr;
      for (const auto& f : s.facts) {
        Node n = to_node(f.part);
        if (f.bounds.min != kIntMin)
          gate = and_also(gate, make(Op::Le, kBool, {index(f.bounds.min), n}));
        if (f.bounds.max != kIntMax)
          gate = and_also(gate, make(Op::Le, kBool, {n, index(f.bounds.max)}));
      }
      claims_[i].index = sum_of(at);
      claims_[i].gate = gate;
    }
    claims_.resize(forms_.size());
    domains_.resize(forms_.size());
  }

 private:
  // The parts of the number as parts of a range of its own; all copies as one.
  bool count(const RangeNumber& number, const std::vector<Node>& ranges) {
    std::vector<Counted> counted;
    for (DigitForm& s : forms_) {
      auto c = take(s, number);
      if (!c) return false;
      counted.push_back(*std::move(c));
    }
    const bool copied = std::ranges::any_of(counted, [](const Counted& c) {
      return std::ranges::any_of(c.digits, [](auto& d) { return d.offset != 0; });
    });
    int64_t total = number.count();
    if (!copied && number.copies() > 1) return false;
    if (copied) {
      if (!continue_each_other(counted, number)) return false;
      if (number.copies() == 1) total *= static_cast<int64_t>(forms_.size());
      counted.resize(1);
      forms_.resize(1);
      domains_.resize(1);
      claims_.resize(1);
    }
    // A number that all gates limit alike ends there.
    const int64_t most = std::min(total - 1, counted[0].most);
    const bool same =
        std::ranges::all_of(counted, [&](const Counted& c) { return c.most == counted[0].most; });
    Node all = number.range(same && most >= 0 ? most + 1 : total);
    for (size_t i = 0; i < forms_.size(); ++i) {
      const LinearForm whole{{{all, 1}}, 0};
      for (const NumberDigit& d : counted[i].digits)
        forms_[i].terms.push_back({Quotient{whole, d.step, d.count}, d.factor});
      if (counted[i].most < all->vmax)
        forms_[i].facts.push_back({Quotient{whole}, {kIntMin, counted[i].most}});
      auto& domain = domains_[i];
      const size_t erased = std::erase_if(domain, [&](Node r) { return number.contains(r); });
      if (erased != ranges.size()) return false;
      domain.push_back(all);
    }
    return true;
  }

  // The copies' numbers begin where those of the one before end, or lie between them; what the
  // gates let through is a beginning of them all. The first becomes all of them.
  bool continue_each_other(std::vector<Counted>& counted, const RangeNumber& number) {
    const auto is_base = [](const Counted& c) {
      return std::ranges::all_of(c.digits, [](auto& d) { return d.offset == 0; });
    };
    // The base is the copy that begins lowest.
    std::optional<size_t> base;
    for (size_t i = 0; i < counted.size(); ++i)
      if (is_base(counted[i]) && (!base || forms_[i].constant < forms_[*base].constant)) base = i;
    if (!base) return false;
    std::vector<int64_t> offsets;
    int64_t most = kIntMax;
    for (size_t i = 0; i < counted.size(); ++i) {
      if (domains_[i] != domains_[*base] || !same_rest(forms_[i], forms_[*base])) return false;
      const auto offset =
          offset_of(counted[i], forms_[i].constant, counted[*base], forms_[*base].constant);
      if (!offset) return false;
      offsets.push_back(*offset);
      if (counted[i].most < number.last()) most = std::min(most, counted[i].most + *offset);
    }
    for (size_t i = 0; i < counted.size(); ++i) {
      // Each gate is what the common end leaves of its copy.
      const int64_t own = std::min(counted[i].most, number.last());
      if (own != std::min(number.last(), most == kIntMax ? kIntMax : most - offsets[i]))
        return false;
    }
    std::ranges::sort(offsets);
    for (size_t i = 0; i < offsets.size(); ++i)
      if (offsets[i] != static_cast<int64_t>(i) * number.unit()) return false;
    counted[*base].most = most;
    std::swap(counted[0], counted[*base]);
    std::swap(forms_[0], forms_[*base]);
    std::swap(claims_[0], claims_[*base]);
    std::swap(domains_[0], domains_[*base]);
    return true;
  }

  static bool same_rest(const DigitForm& a, const DigitForm& b) {
    const auto same_part = [](const Quotient& x, const Quotient& y) {
      return to_node(x) == to_node(y);
    };
    return std::equal(a.terms.begin(), a.terms.end(), b.terms.begin(), b.terms.end(),
                      [&](auto& x, auto& y) {
                        return x.factor == y.factor && same_part(x.part, y.part);
                      }) &&
           std::equal(a.facts.begin(), a.facts.end(), b.facts.begin(), b.facts.end(),
                      [&](auto& x, auto& y) {
                        return x.bounds.min == y.bounds.min && x.bounds.max == y.bounds.max &&
                               same_part(x.part, y.part);
                      });
  }

  std::vector<Claim>& claims_;
  std::vector<std::vector<Node>>& domains_;
  std::vector<DigitForm> forms_;
  size_t numbers_ = 0;
};

}  // namespace

void count_numbers(std::vector<Claim>& claims, std::vector<std::vector<Node>>& domains) {
  std::vector<Claim> counted = claims;
  std::vector<std::vector<Node>> over = domains;
  MixedRadixRewriter rewriter(counted, over);
  if (!rewriter.run()) return;
  rewriter.write();
  claims = std::move(counted);
  domains = std::move(over);
}

}  // namespace tiny
