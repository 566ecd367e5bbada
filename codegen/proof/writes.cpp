#include "codegen/proof/writes.h"

#include <algorithm>

#include "codegen/kernel/access.h"
#include "codegen/proof/claims/bounds.h"
#include "codegen/proof/mixed_radix.h"
#include "codegen/proof/solver/smt.h"
#include "codegen/proof/write_layout.h"
#include "tiny/base/error.h"
#include "tiny/ir/print.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

namespace {

bool is_parallel(Node range) { return kind(range) == RangeKind::Core || is_of_grid(range); }

// --- all iterations one by one -------------------------------------------------------------------

// An expression of a claim as a list of operations on numbers.
class Calculator {
 public:
  // False where the expression has an opaque leaf.
  bool add(Node n) {
    if (slots_.contains(n)) return true;
    if (is_opaque(n)) return false;
    Step step{n, {0, 0, 0}};
    if (!n->is(Op::Range))
      for (uint32_t i = 0; i < n->num_src; ++i) {
        if (!add(n->src(static_cast<int>(i)))) return false;
        step.from[i] = slots_[n->src(static_cast<int>(i))];
      }
    slots_[n] = steps_.size();
    steps_.push_back(step);
    values_.push_back(n->is_const() ? n->int_value() : 0);
    return true;
  }
  void set(Node range, int64_t value) {
    if (const size_t* slot = slots_.find(range)) values_[*slot] = value;
  }
  int64_t value(Node n) const { return values_[*slots_.find(n)]; }

  void run() {
    for (size_t i = 0; i < steps_.size(); ++i) {
      const Step& s = steps_[i];
      if (s.node->is(Op::Range) || s.node->is_const()) continue;
      values_[i] = result(s.node, values_[s.from[0]], values_[s.from[1]], values_[s.from[2]]);
    }
  }

 private:
  struct Step {
    Node node;
    size_t from[3];
  };

  static int64_t result(Node n, int64_t a, int64_t b, int64_t c) {
    switch (n->op) {
      case Op::Add: return a + b;
      case Op::Sub: return a - b;
      case Op::Mul: return a * b;
      case Op::FloorDiv: return floor_div(a, b);
      case Op::FloorMod: return floor_mod(a, b);
      case Op::Max: return std::max(a, b);
      case Op::Min: return std::min(a, b);
      case Op::Lt: return a < b;
      case Op::Le: return a <= b;
      case Op::Eq: return a == b;
      case Op::Ne: return a != b;
      case Op::And: return a & b;
      case Op::Or: return a | b;
      case Op::Xor: return a ^ b;
      case Op::Where: return a ? b : c;
      case Op::Cast: return n->dtype == kIndex ? a : constant(n->dtype, a)->int_value();
      default: throw Bug(cat("writes: ", n->op, " is no operation of a claim"));
    }
  }

  std::vector<Step> steps_;
  std::vector<int64_t> values_;
  NodeMap<size_t> slots_;
};

class WriteWalk {
 public:
  WriteWalk(std::span<const Claim> stores, std::span<const std::vector<Node>> domains)
      : stores_(stores), domains_(domains), times_(static_cast<size_t>(stores[0].size)) {}

  // Nothing where an index is not followed.
  std::optional<Finding> run() {
    for (size_t s = 0; s < stores_.size(); ++s)
      if (!visit(s, [&](int64_t at, const auto&) { times_[at] += times_[at] < 2; })) return {};
    for (size_t i = 0; i < times_.size(); ++i)
      if (times_[i] != 1) return problem(static_cast<int64_t>(i), times_[i]);
    return Finding{Verdict::Proved, Method::Walk, ""};
  }

 private:
  template <class F> bool visit(size_t s, F f) {
    const Claim& c = stores_[s];
    const std::vector<Node>& ranges = domains_[s];
    Calculator calculator;
    if (!calculator.add(c.index) || (c.gate && !calculator.add(c.gate))) return false;
    std::vector<int64_t> at(ranges.size());
    for (;;) {
      for (size_t i = 0; i < at.size(); ++i) calculator.set(ranges[i], at[i]);
      calculator.run();
      const int64_t element = calculator.value(c.index);
      const bool writes = !c.gate || calculator.value(c.gate);
      if (writes && element >= 0 && element < c.size) f(element, at);
      size_t i = 0;
      while (i < at.size() && ++at[i] == extent(ranges[i])) at[i++] = 0;
      if (i == at.size()) return true;
    }
  }

  Finding problem(int64_t element, int times) {
    const std::string what =
        cat("element ", element, " of ", stores_[0].size, " of buffer ", stores_[0].slot());
    if (times == 0) return {Verdict::Wrong, Method::Walk, what + " is never written"};
    std::string text;
    int found = 0;
    for (size_t s = 0; s < stores_.size(); ++s)
      visit(s, [&](int64_t at, const std::vector<int64_t>& values) {
        if (at != element || ++found > 2) return;
        if (found == 2) text += " and ";
        std::string point;
        for (size_t i = 0; i < values.size(); ++i)
          point += cat(i ? ", " : "", domains_[s][i] == stores_[s].lane ? "lane " : "",
                       domains_[s][i] == stores_[s].lane
                           ? cat(values[i])
                           : cat('r', range_id(domains_[s][i]), '=', values[i]));
        text += point.empty() ? "a store without loops" : point;
      });
    return {Verdict::Wrong, Method::Walk, cat(text, " both write ", what)};
  }

  std::span<const Claim> stores_;
  std::span<const std::vector<Node>> domains_;
  std::vector<uint8_t> times_;
};

// --- the check -----------------------------------------------------------------------------------

class Writes {
 public:
  Writes(std::span<const Claim> stores, Node sink, const ProofSettings& settings,
         int64_t& steps_left)
      : stores_(stores), settings_(settings), steps_left_(steps_left) {
    for (Node n : topological(sink))
      if (n->is(Op::Range))
        ranges_.push_back(make(Op::Range, kIndex, {index(extent(n))}, n->payload));
    std::ranges::sort(ranges_, {}, range_id);
    for (const Claim& c : stores) domains_.push_back(domain_of(c));
  }

  Finding run() {
    if (is_ordered()) return separate();
    if (written_once(stores_, domains_)) return {};
    std::vector<Claim> numbered(stores_.begin(), stores_.end());
    std::vector<std::vector<Node>> over = domains_;
    count_numbers(numbered, over);
    if (written_once(numbered, over)) return {};
    if (iterations() <= static_cast<double>(settings_.iterations))
      if (auto found = WriteWalk(stores_, domains_).run()) return *found;
    return once_by_solver();
  }

 private:
  // The enclosing ranges of the store, also those that only its value depends on.
  std::vector<Node> domain_of(const Claim& c) const {
    std::vector<Node> domain;
    for (Node r : ranges_)
      if (c.access->ranges >> range_id(r) & 1) domain.push_back(r);
    if (c.lane) domain.push_back(c.lane);
    return domain;
  }

  // The kernel combines with what is there, or runs a loop in order because elements may coincide.
  bool is_ordered() const {
    const int slot = stores_[0].slot();
    if (slot >= 0 && slot < 64 && (settings_.scattered >> slot & 1)) return true;
    for (size_t i = 0; i < stores_.size(); ++i) {
      if (std::holds_alternative<OpArg>(stores_[i].access->payload)) return true;
      for (Node r : domains_[i])
        if (kind(r) == RangeKind::Reduce) return true;
    }
    return false;
  }

  double iterations() const {
    double sum = static_cast<double>(stores_[0].size);
    for (const auto& domain : domains_) sum += iterations_of<double>(domain);
    return sum;
  }

  Finding unproved(const char* why) const {
    std::string text = cat("writes of buffer ", stores_[0].slot(), " of ", stores_[0].size, ":");
    for (size_t i = 0; i < stores_.size() && i < 3; ++i)
      text += cat(i ? "; " : " ", to_expression(stores_[i].index),
                  stores_[i].gate ? " where " + to_expression(stores_[i].gate) : "");
    return {Verdict::Unproved, Method::None, cat(text, ": ", why)};
  }

  // No iterations of stores s and t that differ in a range of `which` (empty: no two at all) write
  // the same element.
  Finding differ(size_t s, size_t t, const std::vector<Node>& which) const {
    if (!has_solver()) return unproved("there is no solver");
    if (steps_left_ <= 0) return unproved("no steps left");
    const SmtText question = question_of(s, t, which);
    const SmtAnswer answer = solve(question, steps_left_);
    steps_left_ -= answer.steps;
    if (answer.decision == Decision::Unknown) return unproved("the solver gave up");
    if (answer.decision == Decision::Sometimes) return example(s, t, question, answer.values);
    return {Verdict::Proved, Method::Solver, ""};
  }

  SmtText question_of(size_t s, size_t t, const std::vector<Node>& which) const {
    SmtText q;
    const Claim &a = stores_[s], &b = stores_[t];
    q.assert_that(cat("(= ", q.term(a.index, 0), " ", q.term(b.index, 1), ")"));
    if (a.gate) q.assert_that(q.term(a.gate, 0));
    if (b.gate) q.assert_that(q.term(b.gate, 1));
    std::string differ = "(or false";
    for (Node r : which) differ += cat(" (distinct ", q.term(r, 0), " ", q.term(r, 1), ")");
    if (!which.empty() || s == t) q.assert_that(differ + ")");
    return q;
  }

  // The solver's example is one of the machine where it says nothing of memory.
  Finding example(size_t s, size_t t, const SmtText& q, const std::vector<int64_t>& values) const {
    Point points[2];
    std::string text[2];
    for (size_t i = 0; i < values.size(); ++i) {
      const auto& v = q.variables()[i];
      if (!v.leaf->is(Op::Range)) return unproved("it depends on what memory holds");
      points[v.copy].ranges[range_id(v.leaf)] = values[i];
      text[v.copy] += cat(text[v.copy].empty() ? "" : ", ", 'r', range_id(v.leaf), '=', values[i]);
    }
    const auto a = element(stores_[s], points[0]), b = element(stores_[t], points[1]);
    if (!a || a != b) return unproved("the solver's example does not hold in the machine");
    return {Verdict::Wrong, Method::Solver,
            cat(text[0], " and ", text[1], " both write element ", *a, " of ", stores_[0].size,
                " of buffer ", stores_[0].slot())};
  }

  static std::optional<int64_t> element(const Claim& c, const Point& p) {
    const int lane = c.lane ? static_cast<int>(p.ranges[range_id(c.lane)]) : 0;
    if (c.access->num_src > 3 && evaluate(c.access->src(3), lane, p) != 1) return {};
    auto at = evaluate(c.access->src(1), lane, p);
    if (at && c.access->src(1)->dtype.lanes == 1) *at += lane;
    return at;
  }

  // Injective, and as many writes as elements: then each is written once.
  Finding once_by_solver() const {
    double count = 0;
    for (size_t i = 0; i < stores_.size(); ++i) {
      count += iterations_of<double>(domains_[i]);
      if (stores_[i].gate) return unproved("of no known shape, and not small enough to be walked");
    }
    if (stores_.size() > 16) return unproved("many stores of no known shape");
    for (size_t s = 0; s < stores_.size(); ++s)
      for (size_t t = s; t < stores_.size(); ++t) {
        const Finding f = differ(s, t, s == t ? domains_[s] : std::vector<Node>());
        if (f.verdict != Verdict::Proved) return f;
      }
    if (count == static_cast<double>(stores_[0].size)) return {Verdict::Proved, Method::Solver, ""};
    return {Verdict::Wrong, Method::Solver,
            cat(count, " elements of ", stores_[0].size, " of buffer ", stores_[0].slot(),
                " are written")};
  }

  // Parallel iterations have elements of their own.
  Finding separate() const {
    const bool combines = std::ranges::all_of(
        stores_, [](const Claim& c) { return std::holds_alternative<OpArg>(c.access->payload); });
    if (combines && settings_.atomic) return {};
    std::vector<Node> parallel;
    for (Node r : ranges_)
      if (is_parallel(r)) parallel.push_back(r);
    for (const auto& domain : domains_)
      for (Node r : parallel)
        if (!contains(domain, r))
          return {Verdict::Wrong, Method::Bounds,
                  cat("all iterations of r", range_id(r), " write the same elements of buffer ",
                      stores_[0].slot())};
    if (parallel.empty() || written_apart(stores_, parallel)) return {};
    for (size_t s = 0; s < stores_.size(); ++s)
      for (size_t t = s; t < stores_.size(); ++t)
        if (const Finding f = differ(s, t, parallel); f.verdict != Verdict::Proved) return f;
    return {Verdict::Proved, Method::Solver, ""};
  }

  std::span<const Claim> stores_;
  const ProofSettings settings_;
  int64_t& steps_left_;
  std::vector<Node> ranges_;
  std::vector<std::vector<Node>> domains_;  // by store
};

}  // namespace

Finding prove_writes(std::span<const Claim> stores, Node sink, const ProofSettings& settings,
                     int64_t& steps_left) {
  return Writes(stores, sink, settings, steps_left).run();
}

}  // namespace tiny
