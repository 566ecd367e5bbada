#include "codegen/proof/access_order.h"

#include <algorithm>
#include <map>

#include "codegen/kernel/access.h"
#include "codegen/options/stage.h"
#include "codegen/passes/passes.h"
#include "codegen/proof/claims/bounds.h"
#include "codegen/proof/solver/smt.h"
#include "codegen/wgmma/tile.h"
#include "tiny/base/error.h"
#include "tiny/ir/print.h"
#include "tiny/rewrite/algebra.h"
#include "tiny/rewrite/rewrite.h"

namespace tiny {

namespace {

// Where accesses stand in the text of the program: a load last, a store first.
class AccessText {
 public:
  explicit AccessText(Node sink) {
    const Linear program = linearize(sink, "k");
    for (size_t i = 0; i < program.body.size(); ++i) {
      Node n = program.body[i];
      if (n->is(Op::Fetch)) n = n->src(0)->src(2);
      if (n->is(Op::Load) || (n->is(Op::Store) && !at_.contains(n))) at_[n] = i;
    }
  }
  const size_t* find(Node access) const { return at_.find(access); }

 private:
  NodeMap<size_t> at_;
};

// An element that a lane accesses, and the gate: nullptr, always.
using Element = std::pair<Node, Node>;

std::vector<Element> elements(const Claim& c) {
  std::vector<Element> out;
  const auto of_lane = [&](Node n, int64_t i) {
    return n && c.lane ? simplify(substitute(n, c.lane, index(i))) : n;
  };
  for (int64_t i = 0; i < (c.lane ? extent(c.lane) : 1); ++i) {
    Node gate = of_lane(c.gate, i);
    if (gate && gate->vmax == 0) continue;
    if (gate && gate->vmin == 1) gate = nullptr;
    out.emplace_back(c.size == 1 ? index(0) : of_lane(c.index, i), gate);
  }
  return out;
}

// The loads and stores of one buffer. A store of another iteration may run before a load or after
// it, one of the same iteration stands before or behind it in the text.
class Order {
 public:
  Order(const AccessText& text, std::span<const Claim> claims, const std::vector<Claim>& stores,
        bool shares_values, int64_t& steps_left)
      : text_(text), claims_(claims), shares_values_(shares_values), steps_left_(steps_left) {
    for (const Claim& s : stores) {
      const size_t* at = text.find(s.access);
      if (!at) continue;
      stores_.emplace_back(s, *at);
      for (const Element& e : elements(s)) {
        written_[e] = *at;
        if (s.gate) gated_[e.first] = {s.gate, *at};
      }
    }
    for (const Claim& c : claims)
      if (c.is_store() && !is_stage(c.access->src(0))) uses_.emplace_back(c, nodes_below(c.access));
  }

  Finding of(const Claim& load) {
    const size_t* at = text_.find(load.access);
    if (!at) return {};
    bool is_replaced = true;  // each element, by the iteration that reads it
    for (const Element& e : elements(load)) {
      auto store = written_.find({e.first, nullptr});
      if (store == written_.end()) store = written_.find(e);
      if (store == written_.end() && is_replaced_where_used(load, e.first, *at)) continue;
      is_replaced &= store != written_.end();
      if (store != written_.end() && store->second < *at)
        return {Verdict::Wrong, Method::Walk,
                cat("element ", to_expression(e.first), " of buffer ", load.slot(),
                    " is read after it is written")};
    }
    if (is_replaced) return {Verdict::Proved, Method::Walk, ""};
    for (const auto& [store, where] : stores_)
      if (const Finding f = meet(load, store, where < *at); f.verdict != Verdict::Proved) return f;
    return {Verdict::Proved, Method::Solver, ""};
  }

 private:
  // A range that is extended reads its last element again, by a Min (codegen/options/apply.cpp),
  // where the stores of what it reads are gated. So without the Min the element is one that is
  // replaced.
  bool is_replaced_where_used(const Claim& load, Node element, size_t where) {
    if (shares_values_) return false;
    NodeMap<Node> open;
    for (Node n : all_of(element, Op::Min))
      if (n->src(1)->is_const()) open[n] = n->src(0);
    if (!open.size()) return false;
    const auto* store = gated_.find(simplify(substitute(element, open)));
    if (!store || store->second < where) return false;
    for (const auto& [use, below] : uses_) {
      if (!below.contains(load.access)) continue;
      if (use.gate != store->first) return false;
      for (const Element& e : elements(use)) {
        Assumptions in_use;
        in_use.assume(e.second);
        for (Node n : all_of(element, Op::Min))
          if (n->src(1)->is_const() && in_use.bounds(n->src(0)).max > n->src(1)->int_value())
            return false;
      }
    }
    return true;
  }

  static NodeMap<char> nodes_below(Node n) {
    NodeMap<char> out;
    for (Node x : topological(n)) out[x] = 1;
    return out;
  }

  // Whether a load whose value is used reads what a store writes, in an iteration that differs in
  // a range of the store, or, where the store stands first, in any.
  Finding meet(const Claim& load, const Claim& store, bool stands_first) {
    const std::vector<Node> ranges = ranges_of(store);
    if (!stands_first && ranges.empty()) return {};
    const std::string what = cat("element ", to_expression(load.index), " of buffer ", load.slot(),
                                 " is read, and ", to_expression(store.index), " written by ",
                                 stands_first ? "an earlier statement" : "another iteration");
    const auto open = [&](const char* why) {
      return Finding{Verdict::Unproved, Method::None, cat(what, ": ", why)};
    };
    if (!has_solver()) return open("there is no solver");
    if (steps_left_ <= 0) return open("no steps left");
    const SmtText q = question_of(load, store, stands_first, ranges);
    const SmtAnswer answer = solve(q, steps_left_);
    steps_left_ -= answer.steps;
    if (answer.decision == Decision::Never) return {};
    if (answer.decision == Decision::Unknown) return open("the solver gave up");
    std::string point;
    for (size_t i = 0; i < answer.values.size(); ++i) {
      if (!q.variables()[i].leaf->is(Op::Range)) return open("it depends on what memory holds");
      point += cat(i ? ", " : "", q.variables()[i].name, '=', answer.values[i]);
    }
    return {Verdict::Wrong, Method::Solver, cat(what, " at ", point)};
  }

  // Copy 0 is the iteration of the load, copy 1 that of the store.
  SmtText question_of(const Claim& load, const Claim& store, bool stands_first,
                      const std::vector<Node>& ranges) {
    SmtText q;
    q.assert_that(cat("(= ", q.term(load.index, 0), " ", q.term(store.index, 1), ")"));
    if (load.gate) q.assert_that(q.term(load.gate, 0));
    if (store.gate) q.assert_that(q.term(store.gate, 1));
    if (const std::string used = is_used(q); !used.empty()) q.assert_that(used);
    std::string differ;
    for (Node r : ranges) differ += cat(" (distinct ", q.term(r, 0), " ", q.term(r, 1), ")");
    if (!stands_first) q.assert_that(cat("(or false", differ, ")"));
    const auto variables = q.variables();
    for (const auto& a : variables)
      for (const auto& b : variables)  // a Variable has one value
        if (a.leaf->is(Op::Bound) && a.leaf == b.leaf && a.copy < b.copy)
          q.assert_that(cat("(= ", a.name, " ", b.name, ")"));
    return q;
  }

  // One of an iteration's stores takes place. Empty where threads may use each other's values.
  std::string is_used(SmtText& q) const {
    if (shares_values_) return "";
    std::string used;
    for (const Claim& c : claims_) {
      if (!c.is_store() || is_stage(c.access->src(0))) continue;
      if (!c.gate) return "";
      if (!c.lane) {
        used += cat(" ", q.term(c.gate, 0));
        continue;
      }
      for (int64_t i = 0; i < extent(c.lane); ++i)
        used += cat(" ", q.term(substitute(c.gate, c.lane, index(i)), 0));
    }
    return used.empty() ? "" : cat("(or", used, ")");
  }

  static std::vector<Node> ranges_of(const Claim& store) {
    std::vector<Node> out;
    for (Node n : topological(store.access))
      if (n->is(Op::Range) && (store.access->ranges >> range_id(n) & 1))
        out.push_back(make(Op::Range, kIndex, {index(extent(n))}, n->payload));
    return out;
  }

  const AccessText& text_;
  std::span<const Claim> claims_;
  const bool shares_values_;
  std::vector<std::pair<Claim, size_t>> stores_;       // and where in the text
  std::map<Element, size_t> written_;                  // and where
  NodeMap<std::pair<Node, size_t>> gated_;             // elements of stores with a gate, and where
  std::vector<std::pair<Claim, NodeMap<char>>> uses_;  // stores, and what they depend on
  int64_t& steps_left_;
};

// Whether a thread may use what another has loaded: through shared memory, a matrix unit or a
// reduction over threads.
bool shares_values(Node sink) {
  const auto is_over_threads = [](Node n) {
    return (n->is(Op::Reduce) || n->is(Op::Prefix)) &&
           std::any_of(n->srcs().begin() + 1, n->srcs().end(),
                       [](Node r) { return r->is(Op::Range) && is_of_grid(r); });
  };
  for (Node n : topological(sink))
    if (n->is(Op::Stage) || n->is(Op::Mma) || n->is(Op::Matrix) || is_over_threads(n)) return true;
  return false;
}

}  // namespace

std::vector<Finding> prove_order(Node sink, std::span<const Claim> claims, int64_t& steps_left) {
  std::map<int, std::vector<Claim>> loads, stores;
  for (const Claim& c : claims)
    if (!is_stage(c.access->src(0))) (c.is_store() ? stores : loads)[c.slot()].push_back(c);
  std::vector<Finding> out;
  for (Node m : all_of(sink, Op::Matrix)) {
    const MatrixTile tile(m);
    for (const MatrixOperand* o : {&tile.a, &tile.b})
      if (stores.count(o->map.slot))
        out.push_back({Verdict::Wrong, Method::Walk,
                       cat("TMA reads buffer ", o->map.slot, ", which is written")});
  }
  std::erase_if(loads, [&](const auto& l) { return !stores.count(l.first); });
  if (loads.empty()) return out;
  const AccessText text(sink);
  for (const auto& [slot, of] : loads) {
    Order order(text, claims, stores[slot], shares_values(sink), steps_left);
    for (const Claim& load : of) {
      out.push_back(order.of(load));
      if (out.back().verdict != Verdict::Proved) break;
    }
  }
  return out;
}

}  // namespace tiny
