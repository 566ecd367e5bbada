#include "codegen/options/roll.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "codegen/kernel/contraction.h"
#include "codegen/kernel/linear.h"
#include "codegen/kernel/option.h"
#include "tiny/base/text.h"
#include "tiny/rewrite/algebra.h"
#include "tiny/rewrite/rewrite.h"

namespace tiny {

namespace {

Op op_of(Node reduce) { return reduce->arg<OpArg>().op; }
Node one(DType t) { return constant(t, 1); }
Node times(Node a, Node b) {
  return a->is_const(1) ? b : b->is_const(1) ? a : make(Op::Mul, a->dtype, {a, b});
}
Node to_dtype(Node n, DType t) { return n->dtype == t ? n : make(Op::Cast, t, {n}); }

// A term as a function of one reduction; the others of the same loop are variables of their own.
class Term {
 public:
  Term(Node r, const std::vector<Node>& all) : r_(r) {
    for (Node n : all)
      if (n != r) uses_[n] = 0;
    uses_[r] = 1;
  }

  bool uses(Node n) {
    if (const char* known = uses_.find(n)) return *known;
    bool any = false;
    for (Node s : n->srcs()) any |= uses(s);
    uses_[n] = any;
    return any;
  }

  // f of n = f u, where u depends on r and on nothing of the loop, and f not on r; nullptr where n
  // is no such product. Exponentials stay: their factors may be too large.
  Node without(Node n, DType t, Node& u) {
    u = one(t);
    if (!uses(n)) return n;
    if (n == r_) {
      u = to_dtype(n, t);
      return one(n->dtype);
    }
    Node x = nullptr, y = nullptr, uy = nullptr;
    const auto first = [&] { return (x = without(n->src(0), t, u)) != nullptr; };
    switch (n->op) {
      case Op::Mul:
      case Op::Div:
        if (!first() || !(y = without(n->src(1), t, uy))) return nullptr;
        u = n->op == Op::Mul ? times(u, uy) : uy->is_const(1) ? u : make(Op::Div, t, {u, uy});
        return n->op == Op::Mul ? times(x, y)
               : y->is_const(1) ? x
                                : make(Op::Div, n->dtype, {x, y});
      case Op::Cast:
        if (!n->dtype.is_float() || !n->src(0)->dtype.is_float() || !first()) return nullptr;
        return to_dtype(x, n->dtype);
      case Op::Neg: return first() ? make(Op::Neg, n->dtype, {x}) : nullptr;
      case Op::Recip:
      case Op::Sqrt:
        if (!first() || (n->op == Op::Sqrt && !x->is_const(1))) return nullptr;
        u = make(n->op, t, {u});
        return x->is_const(1) ? x : make(n->op, n->dtype, {x});
      case Op::Where:
        if (uses(n->src(0)) || !n->src(2)->is_const(0) || !(x = without(n->src(1), t, u)))
          return nullptr;
        if (!selects_some(n->src(0))) selected_ = both(selected_, n->src(0));
        return make(Op::Where, n->dtype, {n->src(0), x, n->src(2)});
      case Op::Add:
        if (!is_of_row(n) || has_exponential(n)) return nullptr;
        u = to_dtype(n, t);
        return one(n->dtype);
      default: return nullptr;
    }
  }

  // The terms that are selected where that may be none of a sum: 0 times a u that is infinite would
  // be NaN; nullptr where some term of each sum is.
  Node selected() const { return selected_; }

  // What a term that was computed with r = before is multiplied by to be that of r = now; nullptr
  // where there is no such factor.
  Node correction(Node n, Node before, Node now) {
    if (!uses(n)) return one(r_->dtype);
    switch (n->op) {
      case Op::Mul: {
        Node x = correction(n->src(0), before, now), y = correction(n->src(1), before, now);
        return x && y ? times(x, y) : nullptr;
      }
      case Op::Neg: return correction(n->src(0), before, now);
      case Op::Cast:
        return n->dtype.is_float() && n->src(0)->dtype.is_float()
                   ? correction(n->src(0), before, now)
                   : nullptr;
      case Op::Add:
      case Op::Sub: {
        Node x = correction(n->src(0), before, now), y = correction(n->src(1), before, now);
        return x == y ? x : nullptr;
      }
      case Op::Where:
        return !uses(n->src(0)) && n->src(2)->is_const(0) ? correction(n->src(1), before, now)
                                                          : nullptr;
      case Op::Reduce: return op_of(n) == Op::Add ? correction(n->src(0), before, now) : nullptr;
      case Op::Exp2: {
        Node w = slope(n->src(0));
        if (!w || n->dtype != r_->dtype) return nullptr;
        // An extremum beside another value is that value before the first iteration.
        Node first = reference_->op == Op::Max ? replaced(reference_, before) : before;
        Node step = make(Op::Sub, r_->dtype, {replaced(reference_, now), first});
        return make(Op::Exp2, n->dtype, {times(w, step)});
      }
      default: return nullptr;
    }
  }

  Node replaced(Node n, Node now) { return substitute(n, r_, now); }

 private:
  // Whether the same terms of each sum are selected, by their numbers alone, as in a last tile.
  bool selects_some(Node condition) const {
    return !(condition->ranges & ~reduced_ranges(r_)) && all_of(condition, Op::Load).empty() &&
           condition->vmax == 1;
  }

  // Whether all iterations of the loop have the same one.
  bool is_of_row(Node n) const { return !(n->ranges & reduced_ranges(r_)); }
  bool has_exponential(Node n) {
    if (!uses(n) || n == r_) return false;
    return n->op == Op::Exp2 ||
           std::ranges::any_of(n->srcs(), [&](Node s) { return has_exponential(s); });
  }

  bool grows_with_r(Node n) const {
    if (n->op == Op::Mul && n->src(1)->is_const() && n->src(1)->float_value() > 0) n = n->src(0);
    return n == r_;
  }

  // r, r with 0 instead of an infinity, or the larger of r and another value of the row.
  bool is_reference(Node n) {
    if (n == r_) return true;
    if (n->op == Op::Max)
      for (int i : {0, 1})
        if (grows_with_r(n->src(i)) && !uses(n->src(1 - i)) && is_of_row(n->src(1 - i)))
          return true;
    return n->op == Op::Where && n->src(1)->is_const(0) && n->src(2) == r_ && is_of_r(n->src(0));
  }
  bool is_of_r(Node n) {
    if (n->op == Op::Or) return is_of_r(n->src(0)) && is_of_r(n->src(1));
    return n->op == Op::Eq && n->src(0) == r_ && n->src(1)->is_const();
  }

  // w of n = w r + rest, where w does not depend on r.
  Node slope(Node n) {
    if (!uses(n)) return constant(r_->dtype, 0);
    if (is_reference(n)) {
      if (reference_ && reference_ != n) return nullptr;
      reference_ = n;
      return one(r_->dtype);
    }
    switch (n->op) {
      case Op::Add:
      case Op::Sub: {
        Node a = slope(n->src(0)), b = slope(n->src(1));
        if (!a || !b) return nullptr;
        if (b->is_const(0)) return a;
        if (n->op == Op::Add && a->is_const(0)) return b;
        return make(n->op, r_->dtype, {a, b});
      }
      case Op::Neg: {
        Node a = slope(n->src(0));
        return a ? make(Op::Neg, r_->dtype, {a}) : nullptr;
      }
      case Op::Mul:
        for (int i : {0, 1})
          if (!uses(n->src(1 - i)))
            if (Node a = slope(n->src(i))) return times(a, n->src(1 - i));
        return nullptr;
      default: return nullptr;
    }
  }

  Node r_, reference_ = nullptr, selected_ = nullptr;
  NodeMap<char> uses_;
};

// x and c of x times a positive number c, below selections of it or of what an extremum begins
// with; nullptr for any other value.
Node unscaled(Node n, Op op, Node& c) {
  if (n->op == Op::Where && n->src(2) == identity(op, n->dtype)) {
    Node x = unscaled(n->src(1), op, c);
    return x ? make(Op::Where, n->dtype, {n->src(0), x, n->src(2)}) : nullptr;
  }
  if (n->op != Op::Mul || !n->dtype.is_float()) return nullptr;
  for (int i : {0, 1}) {
    c = n->src(i);
    const double factor = c->is_const() ? c->float_value() : 0;
    if (factor > 0 && std::isfinite(factor)) return n->src(1 - i);
  }
  return nullptr;
}

// The largest of values times a positive number is the largest value, times it: rounding keeps
// order, so that no bit changes.
Node unscale_extrema(Node sink, Node range) {
  for (bool changed = true; changed;) {
    changed = false;
    for (Node n : reductions_along(sink, range_id(range))) {
      const bool is_extremum = op_of(n) == Op::Max || op_of(n) == Op::Min;
      Node c = nullptr, x = is_extremum ? unscaled(n->src(0), op_of(n), c) : nullptr;
      if (!x || changed) continue;
      std::vector<Node> srcs(n->srcs().begin(), n->srcs().end());
      srcs[0] = x;
      sink = substitute(sink, n, make(Op::Mul, n->dtype, {with_sources(n, srcs), c}));
      changed = true;
    }
  }
  return sink;
}

// What -infinity is added to is selected away, so that the loop ends by it: as elsewhere NaN and
// +infinity do not matter where a mask hides them.
Node select_instead(Node sink) {
  NodeMap<Node> map;
  for (Node n : all_of(sink, Op::Add))
    for (int i : {0, 1}) {
      Node added = n->src(i);
      if (n->dtype.is_float() && added->op == Op::Where && added->src(1)->is_const(0) &&
          added->src(2)->is_const(-INFINITY))
        map[n] = make(Op::Where, n->dtype, {added->src(0), n->src(1 - i), added->src(2)});
    }
  return map.size() ? simplify(substitute(sink, map)) : sink;
}

// Factors that depend on other sums of the loop alone, in front of the sum.
Node hoist(Node sink, Node range) {
  for (bool changed = true; changed;) {
    changed = false;
    const std::vector<Node> all = reductions_along(sink, range_id(range));
    for (Node n : all)
      for (Node d : all) {
        Term term(d, all);
        if (changed || n == d || op_of(n) != Op::Add || !term.uses(n->src(0))) continue;
        Node u = nullptr, f = term.without(n->src(0), n->dtype, u);
        if (!f || (u->ranges & range->ranges)) continue;
        std::vector<Node> srcs(n->srcs().begin(), n->srcs().end());
        srcs[0] = f;
        Node sum = times(with_sources(n, srcs), u);
        if (Node selected = term.selected()) {
          srcs[0] = selected;
          Node any = make(Op::Reduce, kBool, srcs, OpArg{Op::Max});
          sum = make(Op::Where, n->dtype, {any, sum, constant(n->dtype, 0)});
        }
        sink = substitute(sink, n, sum);
        changed = true;
      }
  }
  return sink;
}

// x, and 0 for what a reduction begins with: where nothing was seen yet, or nothing but that.
Node finite(Node x, Op op) {
  Node none = identity(op, x->dtype);
  return make(Op::Where, x->dtype, {make(Op::Eq, kBool, {x, none}), constant(x->dtype, 0), x});
}

// A reduction while the loop goes on.
struct Running {
  Node before = nullptr, now = nullptr, reference = nullptr;
};

// Whether all of a place's values in one iteration of the range are smaller than those of the
// iterations before, and none is 0. `reduced`: all ranges of the reduction of places.
bool falls_along(Node place, Node range, std::span<const Node> reduced) {
  if (place->vmin < 1) return false;
  while (place->op == Op::Cast && !place->dtype.is_float()) place = place->src(0);
  if (place->dtype != kIndex) return false;
  int64_t step = 0, within = 0;
  for (const Sum::Term& t : to_sum(place).terms) {
    if (t.atom == range) {
      step = -t.factor;
    } else if (contains(reduced, t.atom)) {
      within += std::abs(t.factor) * (extent(t.atom) - 1);
    } else if (t.atom->ranges & range->ranges) {
      return false;
    }
  }
  return step > within;
}

// The extremum r of r = x, or of that beside "x is NaN", which is where it lies; nullptr for any
// other condition.
Node extremum_at(Node hit) {
  const auto of = [](Node equal) -> Node {
    for (int i : {0, 1})
      if (equal->op == Op::Eq && equal->src(i)->op == Op::Reduce &&
          equal->src(i)->src(0) == equal->src(1 - i))
        return equal->src(i);
    return nullptr;
  };
  if (hit->op != Op::Or) return of(hit);
  for (int i : {0, 1})
    if (Node r = of(hit->src(i)), nan = hit->src(1 - i);
        r && nan->op == Op::Ne && nan->src(0) == nan->src(1) && nan->src(0) == r->src(0))
      return r;
  return nullptr;
}

class Roller {
 public:
  Roller(Node sink, Node range) : range_(range), all_(reductions_along(sink, range_id(range))) {}

  // The reductions as they are when the loop has ended; empty where one cannot go along.
  std::optional<NodeMap<Node>> run(std::string& why) {
    NodeMap<Node> out;
    for (Node n : all_) {
      if (Node place = position(n)) {
        out[n] = place;
        continue;
      }
      Node scale = one(n->dtype);
      NodeMap<Node> known;
      for (Node d : all_) {
        const Running* r = running_.find(d);
        Term term(d, all_);
        if (d == n || !term.uses(n->src(0))) continue;
        if (!r) {
          why = "a position is used in the loop that finds it";
          return {};
        }
        const bool is_extremum = op_of(d) == Op::Max || op_of(d) == Op::Min;
        Node c = is_extremum && op_of(n) == Op::Add && n->dtype == d->dtype
                     ? term.correction(n->src(0), r->before, r->reference)
                     : nullptr;
        if (!c || (c->ranges & ~(d->ranges | range_->ranges))) {
          why = cat("a reduction by ", op_of(n), " has no correction for one by ", op_of(d));
          return {};
        }
        Node same = make(Op::Eq, kBool, {r->before, r->now});
        scale = times(scale, make(Op::Where, n->dtype, {same, one(n->dtype), c}));
        known[d] = r->reference;
      }
      out[n] = rolled(n, substitute(n->src(0), known), scale);
    }
    return out;
  }

 private:
  // Where an extremum is, R = max of (x = r ? f : 0) with a positive f that falls along the loop,
  // so that the first of equals stays: where r changes, the place in that iteration, else what was
  // found. In f32, which is exact to 2^24. nullptr for any other reduction.
  Node position(Node n) {
    const Node value = n->src(0);
    if (op_of(n) != Op::Max || n->dtype.is_float() || value->op != Op::Where ||
        !value->src(2)->is_const(0))
      return nullptr;
    const Node d = extremum_at(value->src(0));
    const Running* r = d ? running_.find(d) : nullptr;
    const auto reduced = n->srcs().subspan(1);
    if (!r || !std::ranges::equal(reduced, d->srcs().subspan(1)) || value->src(1)->vmax > 1 << 24 ||
        !falls_along(value->src(1), range_, reduced))
      return nullptr;
    Node same = make(Op::Eq, kBool, {r->before, r->now});
    if (d->dtype.is_float())
      same = make(Op::Or, kBool, {same, make(Op::Ne, kBool, {r->before, r->before})});
    // Before the first iteration nothing was found, whatever an extremum begins with.
    same = make(Op::And, kBool, {same, make(Op::Lt, kBool, {index(0), range_})});
    Node place = make(Op::Cast, kF32, {inner(n, substitute(value, d, r->now))});
    place = make(Op::Where, kF32, {same, constant(kF32, 0.0), place});
    Node kept = make(Op::Where, kF32, {same, constant(kF32, 1.0), constant(kF32, 0.0)});
    Node found = make(Op::Roll, kF32, {place, kept});
    return to_dtype(make(Op::Reduce, kF32, {found, range_}, OpArg{Op::Add}), n->dtype);
  }

  // The part of a reduction in one iteration.
  Node inner(Node n, Node value) const {
    std::vector<Node> srcs{value};
    for (Node r : n->srcs().subspan(1))
      if (r != range_) srcs.push_back(r);
    return srcs.size() == 1 ? value : make(Op::Reduce, n->dtype, srcs, n->payload);
  }

  Node rolled(Node n, Node value, Node scale) {
    Node part = inner(n, value);
    Node term = scale->is_const(1) ? part : make(Op::Roll, n->dtype, {part, scale});
    Node before = make(Op::Prefix, n->dtype, {term, range_}, n->payload);
    Node now = make(op_of(n), n->dtype, {before, part});
    running_[n] = {before, now, finite(now, op_of(n))};
    return make(Op::Reduce, n->dtype, {term, range_}, n->payload);
  }

  Node range_;
  std::vector<Node> all_;
  NodeMap<Running> running_;
};

}  // namespace

Node roll(Node sink, int axis, std::string& why) {
  Node range = find_range(sink, axis);
  if (!range || kind(range) != RangeKind::Reduce) {
    why = cat("r", axis, " is no loop of reductions");
    return nullptr;
  }
  for (Node n : topological(sink))
    if (n->op == Op::Prefix || n->op == Op::Roll) {
      why = "a scan, or a loop that is rolled already";
      return nullptr;
    }
  sink = hoist(unscale_extrema(select_instead(simplify(sink)), range), range);
  if (sink->ranges & range->ranges) {
    why = cat("results of each iteration of r", axis, " are stored");
    return nullptr;
  }
  const auto all = Roller(sink, range).run(why);
  return all ? simplify(substitute(sink, *all)) : nullptr;
}

}  // namespace tiny
