#include "test/unit/rule_proof.h"

#include <algorithm>
#include <functional>
#include <map>
#include <random>

#include "codegen/proof/prove.h"
#include "test/unit/bit_text.h"
#include "tiny/base/error.h"
#include "tiny/ir/facts.h"
#include "tiny/ir/print.h"
#include "tiny/rewrite/algebra.h"

namespace tiny::test {

std::vector<std::vector<DType>> sources_of(Op op, DType t) {
  std::vector<std::vector<DType>> out;
  const std::vector<DType> any(std::begin(kDTypes), std::end(kDTypes));
  const bool bits = op == Op::And || op == Op::Or || op == Op::Xor;
  if (is_comparison(op)) {
    for (DType s : any)
      if (t.is_bool()) out.push_back({s, s});
  } else if (op == Op::Where) {
    out.push_back({kBool, t, t});
  } else if (op == Op::Cast) {
    for (DType s : any) out.push_back({s});
  } else if (op == Op::Neg) {
    if (!t.is_bool()) out.push_back({t});
  } else if (op == Op::Add || op == Op::Sub || op == Op::Mul ||
             (op >= Op::FloorDiv && op <= Op::TruncMod)) {
    if (!t.is_bool()) out.push_back({t, t});
  } else if (op == Op::Shl || op == Op::Shr) {
    if (!t.is_bool() && t != kIndex) out.push_back({t, t});
  } else if (op == Op::Max || op == Op::Min || (bits && t != kIndex)) {
    out.push_back({t, t});
  }
  return out;
}

namespace {

// All graphs of dtype t that a pattern matches, with leaves for what it captures or leaves open and
// small numbers for constants.
class Schemes {
 public:
  // `each_power`: of two, for the machine's divisions.
  static std::vector<Node> of(const Pattern& p, DType t, bool each_power) {
    Schemes all;
    all.each_power_ = each_power;
    std::vector<Node> out;
    for (const Partial& s : all.one(p, t, {})) out.push_back(s.node);
    return out;
  }

 private:
  struct Partial {
    Node node = nullptr;
    std::map<int, Node> captured;
  };

  std::vector<Partial> one(const Pattern& p, DType t, const Partial& before) {
    std::vector<Partial> out;
    const std::function<void(Partial)> keep = [&](Partial s) {
      if (s.node->dtype != t) return;
      if (p.capture >= 0) s.captured[p.capture] = s.node;
      out.push_back(std::move(s));
    };
    if (const auto known = before.captured.find(p.capture);
        p.capture >= 0 && known != before.captured.end()) {
      keep({known->second, before.captured});
    } else if (p.value) {
      keep({constant(t, static_cast<int64_t>(*p.value)), before.captured});
    } else if (p.ops.none()) {
      keep({leaf(t, p.capture >= 0 ? p.capture : next_++), before.captured});
    } else {
      for (int i = 0; i < kOps; ++i)
        if (p.ops.test(static_cast<size_t>(i))) operation(static_cast<Op>(i), p, t, before, keep);
    }
    return out;
  }

  void operation(Op op, const Pattern& p, DType t, const Partial& before,
                 const std::function<void(Partial)>& keep) {
    if (op == Op::Const) {
      for (int64_t v : {-3, -2, -1, 0, 3, 6, 7, 100})
        if (v >= int_min(t) && v <= int_max(t)) keep({constant(t, v), before.captured});
      for (int k = 0; k < 63 && int64_t{1} << k <= int_max(t); ++k)
        if (k < 5 || each_power_ || (t != kIndex && k % 15 < 2))
          keep({constant(t, int64_t{1} << k), before.captured});
      return;
    }
    for (const std::vector<DType>& dtypes : sources_of(op, t)) {
      std::vector<std::pair<std::vector<Node>, Partial>> lists{{{}, before}};
      for (size_t i = 0; i < dtypes.size(); ++i) {
        decltype(lists) longer;
        for (const auto& [srcs, so_far] : lists) {
          // Of an operation with any sources, the last may be a number too: divisors.
          std::vector<Partial> next;
          if (p.any_sources) {
            const int at = 20 + static_cast<int>(i);
            next.push_back({leaf(dtypes[i], at), so_far.captured});
            if (dtypes[i].is_int() && dtypes[i] != kIndex)
              next.push_back({make(Op::Cast, dtypes[i], {leaf(kIndex, at)}), so_far.captured});
            if (i > 0)
              operation(Op::Const, Pattern{}, dtypes[i], so_far,
                        [&](Partial c) { next.push_back(std::move(c)); });
          } else {
            next = one(p.sources[i], dtypes[i], so_far);
          }
          for (Partial& n : next) {
            std::vector<Node> list = srcs;
            list.push_back(n.node);
            longer.emplace_back(std::move(list), std::move(n));
          }
        }
        lists = std::move(longer);
      }
      for (const auto& [srcs, done] : lists) keep({make(op, t, srcs), done.captured});
    }
  }

  int next_ = 10;
  bool each_power_ = false;
};

template <class Condition> bool any_below(Node n, Condition condition) {
  if (condition(n)) return true;
  if (n->is(Op::Load)) return false;  // a leaf
  const auto srcs = n->srcs();
  return std::any_of(srcs.begin(), srcs.end(), [&](Node s) { return any_below(s, condition); });
}

bool has_index(Node n) {
  return any_below(n, [](Node x) { return x->dtype == kIndex; });
}

bool has_unknown_product(Node n) {
  return any_below(
      n, [](Node x) { return x->is(Op::Mul) && !x->src(0)->is_const() && !x->src(1)->is_const(); });
}

bool has_wide_division(Node n) {
  return any_below(n, [](Node x) {
    return x->op >= Op::FloorDiv && x->op <= Op::TruncMod && x->dtype.bits() > 8;
  });
}

// --- verdicts ------------------------------------------------------------------------------------

// Whether two graphs over leaves have the same value for all values of these: why not, or nothing.
std::string difference(Node before, Node after) {
  const std::string text =
      cat(before->dtype, " ", to_expression(before), " became ", to_expression(after));
  if (after->dtype != before->dtype) return cat(text, " of ", after->dtype);
  if (before == after) return "";
  if (has_index(before) || has_index(after)) {
    const Finding f = prove_equal(before, after, 1000 * kSolverSteps);
    return f.verdict == Verdict::Proved ? "" : cat(name_of(f.verdict), ": ", f.text);
  }
  BitText bits(has_wide_division(after));  // shifts are divisions, and say what these are
  const std::string a = bits(before), b = bits(after);
  const std::string differs = cat("(and true", bits.assumed(), " (distinct ", a, " ", b, "))");
  const std::string leaves = bits.leaves();
  const Decision d =
      decide(leaves.empty() ? differs : cat("(exists (", leaves, ") ", differs, ")"));
  return d == Decision::Never ? "" : cat(d == Decision::Unknown ? "open: " : "wrong: ", text);
}

Node fired(const Rule& rule, Node n) {
  Match m;
  m.root = n;
  if (!n || !match(rule.pattern, n, m)) return nullptr;
  Node after = rule.apply(m);
  return after == n ? nullptr : after;
}

// Something of the dtype that may stand for a leaf.
Node some(DType t, std::mt19937_64& random) {
  const auto below = [&](uint64_t n) { return static_cast<int64_t>(random() % n); };
  const auto range = [&](int id, int64_t extent) {
    return make(Op::Range, kIndex, {index(extent)}, RangeArg{id, RangeKind::Loop});
  };
  if (t == kIndex) {
    Node r = range(static_cast<int>(below(3)), 2 + below(9));
    switch (below(6)) {
      case 0: return index(below(9) - 4);
      case 1: return index_add(index_mul(r, below(7) - 3), index(below(5)));
      case 2: return make(Op::FloorDiv, kIndex, {r, index(3)});
      case 3: return make(Op::FloorMod, kIndex, {leaf(kIndex, 9), index(4)});
      case 4: return make(Op::Max, kIndex, {r, leaf(kIndex, 9)});
      default: return r;
    }
  }
  if (below(5) == 0) return constant(t, below(2));
  if (t.is_bool()) {
    if (below(2)) return make(Op::Lt, kBool, {some(kIndex, random), some(kIndex, random)});
    return make(below(2) ? Op::And : Op::Or, kBool, {leaf(kBool, 8), leaf(kBool, 9)});
  }
  if (below(2)) return make(Op::Cast, t, {some(kIndex, random)});
  return make(below(2) ? Op::Mul : Op::Max, t, {leaf(t, 8), constant(t, below(4))});
}

// With every leaf replaced; numbers below 20 are captures.
Node with_leaves(Node n, const std::function<Node(Node)>& replacement) {
  if (n->is(Op::Load)) return replacement(n);
  std::vector<Node> srcs;
  for (Node s : n->srcs()) srcs.push_back(with_leaves(s, replacement));
  return srcs.empty() ? n : make(n->op, n->dtype, srcs, n->payload);
}

// Whether the rule does to graphs with anything in place of the leaves what it does to the leaves.
bool is_blind(const Rule& rule, Node scheme, std::mt19937_64& random) {
  Node after = fired(rule, scheme);
  for (int i = 0; i < 12; ++i) {
    NodeMap<Node> chosen;
    const auto replacement = [&](Node n) {
      if (!chosen.contains(n)) chosen[n] = some(n->dtype, random);
      return *chosen.find(n);
    };
    Node n = with_leaves(scheme, replacement), found = fired(rule, n);
    if (!found) continue;
    if (!after || found != with_leaves(after, replacement)) return false;
  }
  return true;
}

// Forms of an index that rules look into.
std::vector<Node> forms(Node any) {
  const int64_t far[] = {-(int64_t{1} << 50), int64_t{1} << 50};  // no form leaves int64
  Node x = make(Op::Bound, kIndex, {any}, Ints(far));
  const auto div = [](Node a, int64_t d) { return make(Op::FloorDiv, kIndex, {a, index(d)}); };
  const auto mod = [](Node a, int64_t d) { return make(Op::FloorMod, kIndex, {a, index(d)}); };
  const auto small = [&](int64_t most) {
    const int64_t arg[] = {0, most};
    return make(Op::Bound, kIndex, {leaf(kIndex, 40)}, Ints(arg));
  };
  const auto sum = [](Node a, int64_t f, Node b) {
    Node scaled = make(Op::Mul, kIndex, {a, index(f)});
    return make(Op::Add, kIndex, {scaled, b});
  };
  return {sum(x, 6, index(4)),
          sum(x, -4, index(7)),
          sum(x, 12, small(11)),
          sum(x, 12, small(12)),
          sum(x, 4, sum(small(5), 2, index(3))),
          div(x, 3),
          sum(div(x, 3), -1, index(2)),
          mod(x, 12),
          sum(div(x, 4), 4, mod(x, 4)),
          sum(mod(div(x, 4), 3), 4, mod(x, 4)),
          sum(mod(x, 6), 2, small(1))};
}

// With every leaf between some bounds or of some form: all of these for the first, which go with a
// few for the others. `on_machine`: rules look at signs alone.
std::vector<Node> bounded(Node scheme, bool on_machine, std::mt19937_64& random) {
  std::vector<Node> leaves, out{scheme};
  with_leaves(scheme, [&](Node n) {
    if (std::find(leaves.begin(), leaves.end(), n) == leaves.end()) leaves.push_back(n);
    return n;
  });
  for (Node l : leaves) {
    std::vector<Node> choices;
    std::vector<std::pair<int64_t, int64_t>> bounds{{0, l->vmax}, {-2, 3}};
    if (!on_machine)
      bounds.insert(bounds.end(), {{0, 0}, {0, 1}, {0, 5}, {1, 2}, {-3, -1}, {5, 9}, {100, 300}});
    for (const auto& [low, high] : bounds) {
      const int64_t arg[] = {low, high};
      if (!l->dtype.is_bool() && low >= l->vmin && high <= l->vmax &&
          (l->dtype != kIndex || high < kIntMax))
        choices.push_back(make(Op::Bound, l->dtype, {l}, Ints(arg)));
    }
    if (l->dtype == kIndex)
      for (Node form : forms(l)) choices.push_back(form);
    if (choices.empty()) continue;
    std::vector<Node> next;
    for (Node n : out)
      for (size_t i = 0; i < (l == leaves[0] ? choices.size() : 4); ++i) {
        Node choice = choices[l == leaves[0] || i == 0 ? i : random() % choices.size()];
        next.push_back(with_leaves(n, [&](Node x) { return x == l ? choice : x; }));
      }
    out = std::move(next);
  }
  return out;
}

}  // namespace

RuleProof prove_rule(const Rule& rule, bool on_machine, bool each_power) {
  RuleProof v;
  std::mt19937_64 random(7);
  const auto check = [&](Node n) {
    Node after = v.wrong.empty() ? fired(rule, n) : nullptr;
    if (!after) return;
    if (has_index(n) && has_unknown_product(n)) {
      ++v.left_out;
      return;
    }
    v.wrong = difference(n, after);
    ++v.proved;
  };
  for (DType t : kDTypes)
    for (Node scheme : Schemes::of(rule.pattern, t, each_power)) {
      if (on_machine && has_index(scheme)) continue;
      check(scheme);
      v.blind = v.blind && is_blind(rule, scheme, random);
      if (!fired(rule, scheme) || (!v.blind && (on_machine || has_index(scheme))))
        for (Node n : bounded(scheme, on_machine, random)) {
          v.blind = v.blind && (fired(rule, scheme) || !fired(rule, n));
          check(n);
        }
    }
  return v;
}

}  // namespace tiny::test
