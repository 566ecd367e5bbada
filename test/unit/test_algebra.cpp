// The integer rules three ways: each rule on random graphs that match its pattern, random index
// expressions for every value of their ranges, and proofs of typical expressions with z3. Proofs of
// the rules themselves are in test_rules.cpp.
#include "tiny/rewrite/algebra.h"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <optional>
#include <random>
#include <set>

#include "codegen/passes/decompose/decompose.h"
#include "codegen/proof/prove.h"
#include "codegen/proof/solver/smt.h"
#include "test/reference.h"
#include "tiny/base/error.h"
#include "tiny/ir/build.h"
#include "tiny/ir/facts.h"
#include "tiny/ir/print.h"

using namespace tiny;

namespace {

constexpr int64_t kExtents[] = {2, 5, 7, 12};

Node range(int id, int64_t extent) {
  return make(Op::Range, kIndex, {index(extent)}, RangeArg{id, RangeKind::Loop});
}
Node op(Op o, Node a, Node b) { return make(o, is_comparison(o) ? kBool : a->dtype, {a, b}); }
Node div(Node a, int64_t d) { return op(Op::FloorDiv, a, index(d)); }
Node mod(Node a, int64_t d) { return op(Op::FloorMod, a, index(d)); }
Node add(Node a, Node b) { return op(Op::Add, a, b); }
Node mul(Node a, int64_t f) { return op(Op::Mul, a, index(f)); }

// --- evaluation ----------------------------------------------------------------------------------

using Values = std::vector<int64_t>;  // of ranges, by id

// A scalar graph with its ranges replaced by constants, by the reference evaluator; Index is i64.
class Evaluator {
 public:
  explicit Evaluator(const Values& ranges) : ranges_(ranges) {}

  Node tensor_form(Node n) {
    if (Node* done = done_.find(n)) return *done;
    Node out;
    const DType t = n->dtype == kIndex ? kI64 : n->dtype;
    if (n->op == Op::Range) {
      out = constant(kI64, ranges_[static_cast<size_t>(n->arg<RangeArg>().id)]);
    } else if (n->is_const()) {
      out = make(Op::Const, t, {}, n->payload);
    } else {
      std::vector<Node> srcs;
      for (Node s : n->srcs()) srcs.push_back(tensor_form(s));
      out = make(n->op, t, srcs, n->payload);
    }
    done_[n] = out;
    return out;
  }

 private:
  const Values& ranges_;
  NodeMap<Node> done_;
};

// A division by zero anywhere below has no value to compare.
bool is_defined(Node n) {
  for (Node s : topological(n)) {
    if (s->op < Op::FloorDiv || s->op > Op::TruncMod) continue;
    if (evaluate(s->src(1)).numbers()[0] == 0) return false;
  }
  return true;
}

double value_of(Node n, const Values& ranges) {
  return evaluate(Evaluator(ranges).tensor_form(n)).numbers()[0];
}

bool same_value(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// --- graphs that match a pattern -----------------------------------------------------------------

class Maker {
 public:
  explicit Maker(uint64_t seed) : random_(seed) {}

  // A graph of the dtype for the pattern; nullptr where this attempt cannot satisfy it.
  Node make_match(const Pattern& p, DType t) {
    captured_.fill(nullptr);
    return make_one(p, t);
  }

  Node leaf(DType t) {
    if (t == kIndex) return index_leaf();
    if (t.is_bool() && below(2)) return op(Op::Lt, index_leaf(), index_leaf());
    if (t.is_int() && below(2)) return make(Op::Cast, t, {index_leaf()});
    return t.is_float() ? constant(t, static_cast<double>(below(9)) - 4)
                        : constant(t, static_cast<int64_t>(below(9)) - 4);
  }

  Node index_expression(int depth) {
    if (depth <= 0 || below(6) == 0) return index_leaf();
    Node a = index_expression(depth - 1);
    switch (below(8)) {
      case 0:
      case 1: return add(a, index_expression(depth - 1));
      case 2: return op(Op::Sub, a, index_expression(depth - 1));
      case 3: return mul(a, static_cast<int64_t>(below(13)) - 3);
      case 4:
      case 5: return div(a, static_cast<int64_t>(below(12)) + 1);
      case 6: return mod(a, static_cast<int64_t>(below(12)) + 1);
      default: return op(below(2) ? Op::Max : Op::Min, a, index_expression(depth - 1));
    }
  }

  Node condition(int depth) {
    const Op ops[] = {Op::Lt, Op::Le, Op::Eq, Op::Ne};
    Node c = op(ops[below(4)], index_expression(depth), index_expression(depth - 1));
    if (below(3) == 0) c = op(below(2) ? Op::And : Op::Or, c, condition(depth - 1));
    return c;
  }

  size_t below(size_t n) { return random_() % n; }

 private:
  Node index_leaf() {
    if (below(3) == 0) return index(static_cast<int64_t>(below(17)) - 8);
    const auto id = static_cast<int>(below(std::size(kExtents)));
    return range(id, kExtents[id]);
  }

  Op one_of(const OpSet& ops, DType t) {
    std::vector<Op> fit;
    for (int i = 0; i < kOps; ++i)
      if (ops.test(static_cast<size_t>(i)) && takes(static_cast<Op>(i), t))
        fit.push_back(static_cast<Op>(i));
    return fit.empty() ? Op::Count : fit[below(fit.size())];
  }

  // Operations of which the reference evaluator knows a result in that dtype.
  static bool takes(Op o, DType t) {
    if (o == Op::Const) return true;
    if (!is_elementwise(o) || o == Op::Bitcast || o == Op::Shl || o == Op::Shr) return false;
    if (o == Op::MulAdd || o == Op::ByteDot) return false;  // of kernels, and of i32 alone
    if (is_comparison(o)) return t.is_bool();
    if (o == Op::Where || o == Op::Cast) return true;
    const bool bits = o == Op::And || o == Op::Or || o == Op::Xor;
    if (t.is_bool()) return bits || o == Op::Max || o == Op::Min;
    const bool real = o == Op::Recip || o == Op::Sqrt || o == Op::Exp2 || o == Op::Log2 ||
                      o == Op::Sin || o == Op::Floor || o == Op::Trunc || o == Op::Div;
    return t.is_float() ? !bits && (o < Op::FloorDiv || o > Op::TruncMod) : !real;
  }

  DType source_dtype(Op o, size_t i, DType t) {
    const DType any[] = {kIndex, kI32, kF32, kBool};
    if (o == Op::Where && i == 0) return kBool;
    if (is_comparison(o)) return compared_;
    if (o == Op::Cast) return any[below(4)];
    return t;
  }

  Node make_one(const Pattern& p, DType t) {
    if (p.capture >= 0 && captured_[static_cast<size_t>(p.capture)]) {
      Node n = captured_[static_cast<size_t>(p.capture)];
      return n->dtype == t ? n : nullptr;
    }
    for (int tries = 0; tries < 20; ++tries) {
      Node n = attempt(p, t);
      if (!n || (p.where && !p.where(n))) continue;
      if (p.capture >= 0) captured_[static_cast<size_t>(p.capture)] = n;
      return n;
    }
    return nullptr;
  }

  Node attempt(const Pattern& p, DType t) {
    if (p.value) return t.is_float() ? constant(t, *p.value) : constant(t, std::lround(*p.value));
    if (p.ops.none()) return below(4) ? leaf(t) : t == kIndex ? index_expression(2) : leaf(t);
    const Op o = one_of(p.ops, t);
    if (o == Op::Count) return nullptr;
    if (o == Op::Const) return constant(t, static_cast<int64_t>(below(9)));
    const DType kinds[] = {kIndex, kI32, kBool};
    compared_ = kinds[below(3)];
    const DType compared = compared_;
    std::vector<Node> srcs;
    for (int i = 0; i < info(o).arity; ++i) {
      const auto at = static_cast<size_t>(i);
      compared_ = compared;
      const DType s = source_dtype(o, at, t);
      srcs.push_back(p.any_sources ? leaf(s) : make_one(p.sources[at], s));
      if (!srcs.back()) return nullptr;
    }
    return make(o, t, srcs);
  }

  std::mt19937_64 random_;
  std::array<Node, kMaxCaptures> captured_{};
  DType compared_ = kIndex;
};

void for_all_ranges(uint64_t used, const std::function<bool(const Values&)>& f) {
  Values v(std::size(kExtents));
  const std::function<bool(size_t)> walk = [&](size_t i) {
    if (i == v.size()) return f(v);
    for (v[i] = 0; v[i] < (used >> i & 1 ? kExtents[i] : 1); ++v[i])
      if (!walk(i + 1)) return false;
    return true;
  };
  walk(0);
}

// Plain evaluation of index arithmetic and conditions: thousands of values are tried.
std::optional<int64_t> quick_value(Node n, const Values& v) {
  if (n->is_const()) return n->int_value();
  if (n->op == Op::Range) return v[static_cast<size_t>(n->arg<RangeArg>().id)];
  int64_t s[3] = {};
  for (uint32_t i = 0; i < n->num_src; ++i) {
    const auto x = quick_value(n->src(static_cast<int>(i)), v);
    if (!x) return {};
    s[i] = *x;
  }
  switch (n->op) {
    case Op::Neg: return -s[0];
    case Op::Add: return s[0] + s[1];
    case Op::Sub: return s[0] - s[1];
    case Op::Mul: return s[0] * s[1];
    case Op::FloorDiv: return floor_div(s[0], s[1]);
    case Op::FloorMod: return floor_mod(s[0], s[1]);
    case Op::Max: return std::max(s[0], s[1]);
    case Op::Min: return std::min(s[0], s[1]);
    case Op::Lt: return s[0] < s[1];
    case Op::Le: return s[0] <= s[1];
    case Op::Eq: return s[0] == s[1];
    case Op::Ne: return s[0] != s[1];
    case Op::And: return s[0] & s[1];
    case Op::Or: return s[0] | s[1];
    case Op::Where: return s[0] ? s[1] : s[2];
    default: throw Bug(cat("quick_value: ", n->op));
  }
}

void check_same_for_all(Node before, Node after) {
  for_all_ranges(before->ranges, [&](const Values& v) {
    const auto a = quick_value(before, v), b = quick_value(after, v);
    if (a == b) return true;
    FAIL_CHECK(to_expression(before) << " became " << to_expression(after)
                                     << " at r0.. = " << to_text(v) << ": " << *a << " and " << *b);
    return false;
  });
}

}  // namespace

TEST_CASE("every rule keeps the value of what it matches") {
  Arena arena;
  ArenaScope scope(arena);
  Maker maker(11);
  const DType dtypes[] = {kIndex, kI32, kBool, kF32};
  for (const Rule& rule : simplify_rules().rules()) {
    int tried = 0;
    for (int i = 0; i < 600 && tried < 25; ++i) {
      Node n = maker.make_match(rule.pattern, dtypes[maker.below(4)]);
      Match m;
      m.root = n;
      if (!n || !match(rule.pattern, n, m)) continue;
      Node after = rule.apply(m);
      if (!after || after == n) continue;
      CHECK(after->dtype == n->dtype);
      for (int k = 0; k < 4; ++k) {
        Values v;
        for (int64_t extent : kExtents)
          v.push_back(static_cast<int64_t>(maker.below(static_cast<size_t>(extent))));
        if (!is_defined(Evaluator(v).tensor_form(n))) continue;
        ++tried;
        const double wanted = value_of(n, v), got = value_of(after, v);
        INFO(rule.name << ":\n" << to_text(n) << "became\n" << to_text(after));
        CHECK(same_value(wanted, got));
      }
    }
    INFO(rule.name << " was tried " << tried << " times");
    CHECK(tried > 0);
  }
}

TEST_CASE("divisions of all machine integers are proved to be what they become") {
  if (!has_solver()) return;
  Arena arena;
  ArenaScope scope(arena);
  std::set<std::string> fired;
  for (DType t : {kI8, kI16, kI32, kI64, kU8, kU16, kU32})
    for (int64_t d : {1, 2, 3, 7, 16, 100, -1, -2, -7})
      for (Op o : {Op::FloorDiv, Op::FloorMod, Op::TruncDiv, Op::TruncMod}) {
        if (d < 0 && t.is_unsigned()) continue;
        const int64_t arg[] = {0, 1};
        Node x = make(Op::Load, t, {make(Op::Param, t, {}, Ints(arg)), index(0)});
        Node n = op(o, x, constant(t, d));
        const char* name = nullptr;
        Node after = division_rules().apply(n, &name);
        if (!after) continue;
        fired.insert(name);
        const Finding f = prove_equal(n, after, 1000 * kSolverSteps);
        INFO(t << ' ' << to_expression(n) << " became " << to_expression(after));
        CHECK_MESSAGE(f.verdict == Verdict::Proved, f.text);
      }
  for (bool high : {false, true}) {
    Node a = make(Op::Cast, kBool, {range(0, 2)}), b = make(Op::Cast, kBool, {range(1, 2)});
    Node n = op(high ? Op::Max : Op::Min, a, b);
    const char* name = nullptr;
    Node after = division_rules().apply(n, &name);
    fired.insert(name);
    CHECK(prove_equal(n, after, 1000 * kSolverSteps).verdict == Verdict::Proved);
  }
  for (const Rule& rule : division_rules().rules())
    CHECK_MESSAGE(fired.count(rule.name), rule.name);
}

TEST_CASE("a wrong rule is caught where it fires, by its name") {
  if (!has_solver()) return;
  Arena arena;
  ArenaScope scope(arena);
  static const RuleTable wrong(
      {{"x / 4 is x / 5", pat::node(Op::FloorDiv, pat::any(0), pat::number(4)),
        [](const Match& m) { return div(m[0], 5); }}});
  const WatchRules watch(check_rewrite);
  CHECK_THROWS_WITH_AS(rewrite(div(range(0, 5), 4), wrong),
                       "rule 'x / 4 is x / 5': r0/4 became r0/5: at r0=4 1 and 0", Bug);
  CHECK(rewrite(div(range(0, 4), 4), wrong) == div(range(0, 4), 5));  // equal there
}

TEST_CASE("rules have names, and no two the same one") {
  std::set<std::string> names;
  for (const Rule& rule : simplify_rules().rules()) CHECK(names.insert(rule.name).second);
}

TEST_CASE("simplify keeps random index expressions equal for all values of their ranges") {
  Arena arena;
  ArenaScope scope(arena);
  Maker maker(5);
  for (int i = 0; i < 700; ++i) {
    Node n = maker.index_expression(4);
    check_same_for_all(n, simplify(n));
  }
}

TEST_CASE("simplify keeps random conditions equal for all values of their ranges") {
  Arena arena;
  ArenaScope scope(arena);
  Maker maker(6);
  for (int i = 0; i < 700; ++i) {
    Node n = maker.condition(3);
    check_same_for_all(n, simplify(n));
  }
}

TEST_CASE("simplifying twice is simplifying once") {
  Arena arena;
  ArenaScope scope(arena);
  Maker maker(7);
  for (int i = 0; i < 300; ++i) {
    Node once = simplify(maker.index_expression(4));
    CHECK_MESSAGE(simplify(once) == once, to_expression(once));
  }
}

TEST_CASE("typical expressions are proved equal to what they become") {
  if (!has_solver()) return;
  Arena arena;
  ArenaScope scope(arena);
  Node g = range(0, 100352), i = range(1, 28), j = range(2, 28), k = range(3, 9);
  Node row = div(mod(g, 784), 28), column = mod(g, 28);
  Node pad_row = op(Op::Sub, add(row, div(k, 3)), index(1));
  const Node expressions[] = {
      div(div(g, 12), 7),
      mod(mod(g, 84), 12),
      mod(div(mod(g, 784), 28), 7),
      add(mul(div(g, 28), 28), column),
      add(mul(mod(div(g, 28), 28), 28), column),
      div(add(mul(i, 28), j), 28),
      mod(add(mul(i, 28), j), 28),
      div(add(mul(i, 56), add(mul(j, 2), index(1))), 4),
      mod(add(mul(g, 12), add(mul(i, 6), index(3))), 9),
      op(Op::And, op(Op::Lt, index(-1), pad_row), op(Op::Lt, pad_row, index(28))),
      op(Op::Lt, div(add(mul(i, 3), k), 4), index(5)),
      op(Op::Lt, add(mul(i, 6), mul(j, 4)), index(51)),
      op(Op::Le, mul(i, 3), add(mul(j, 3), index(7))),
      mod(op(Op::Sub, i, index(40)), 13),
      div(op(Op::Sub, mul(i, 4), index(9)), 4),
      op(Op::Max, mod(g, 7), index(7)),
      div(mod(add(mul(div(g, 49), 49), mod(g, 49)), 196), 14),
  };
  for (Node before : expressions) {
    Node after = simplify(before);
    const Finding f = prove_equal(before, after, 1000 * kSolverSteps);
    INFO(to_expression(before) << " became " << to_expression(after));
    CHECK_MESSAGE(f.verdict == Verdict::Proved, f.text);
  }
}

TEST_CASE("the prover refutes what is not equal") {
  if (!has_solver()) return;
  Arena arena;
  ArenaScope scope(arena);
  Node g = range(0, 100);
  CHECK(prove_equal(div(g, 12), div(g, 13), 1000 * kSolverSteps).verdict == Verdict::Wrong);
}

TEST_CASE("index arithmetic takes its simplest form") {
  Arena arena;
  ArenaScope scope(arena);
  Node a = range(0, 4), b = range(1, 6);
  Node flat = index_add(index_mul(a, 6), b);
  CHECK(index_div(flat, 6) == a);
  CHECK(index_mod(flat, 6) == b);
  CHECK(index_add(index_mul(index_div(flat, 5), 5), index_mod(flat, 5)) == flat);
  CHECK(index_add(flat, index_mul(flat, -1)) == index(0));
  CHECK(less(flat, index(24))->is_const(1));
  CHECK(less(flat, index(0))->is_const(0));
  CHECK(both(nullptr, nullptr) == nullptr);
  CHECK(both(less(a, index(2)), nullptr) == less(a, index(2)));
  CHECK(less(flat, index(12)) == less(a, index(2)));  // whole rows of 6
  CHECK(less(index(11), flat) == less(index(1), a));
  CHECK(less(flat, index(13)) != less(a, index(2)));
  CHECK(to_expression(index_div(index_add(flat, index(1)), 4)) == "r0+((((r0*2)+r1)+1)/4)");
}

TEST_CASE("divisors whose product leaves int64 stay two") {
  Arena arena;
  ArenaScope scope(arena);
  const int64_t arg[] = {0, 1};
  Node x = make(Op::Load, kIndex, {make(Op::Param, kIndex, {}, Ints(arg)), index(0)});
  const int64_t far = int64_t{1} << 62;
  CHECK(to_expression(index_div(index_div(x, 3), 5)) == "Load(Param(),0)/15");
  Node quotient = op(Op::FloorDiv, index_div(x, 3), index(far));
  CHECK(simplify(quotient) == quotient);
  CHECK(prove_equal(quotient, index(0), 1000 * kSolverSteps).verdict ==
        Verdict::Wrong);  // -1 of what is below 0
}

TEST_CASE("integers from indices that wrap stay machine integers") {
  Arena arena;
  ArenaScope scope(arena);
  const auto from_index = [](DType t, Node i) { return make(Op::Cast, t, {i}); };
  Node far = index_add(range(0, 300), index(100));
  for (Op o : {Op::Lt, Op::Max, Op::FloorDiv, Op::FloorMod}) {
    Node n = op(o, from_index(kI8, far), constant(kI8, 5));
    CHECK(simplify(n) == n);  // 128 is -128
    CHECK(simplify(op(o, from_index(kI16, far), constant(kI16, 5))) != n);
  }
  // Its bounds are beyond int64.
  Node product = op(Op::Mul, from_index(kI64, far), constant(kI64, int64_t{1} << 60));
  CHECK(simplify(product) == product);
  Node by_zero = op(Op::FloorDiv, constant(kI32, 5), constant(kI32, 0));
  CHECK(simplify(by_zero) == by_zero);
}

TEST_CASE("constants fold as machine arithmetic does") {
  Arena arena;
  ArenaScope scope(arena);
  const auto fold = [](Op o, Node a, Node b) { return fold_constants(op(o, a, b)); };
  CHECK(fold(Op::Add, constant(kU8, 250), constant(kU8, 10))->int_value() == 4);
  CHECK(fold(Op::Mul, constant(kI32, INT32_MAX), constant(kI32, 2))->int_value() == -2);
  CHECK(fold(Op::FloorDiv, constant(kI32, -7), constant(kI32, 2))->int_value() == -4);
  CHECK(fold(Op::TruncDiv, constant(kI32, -7), constant(kI32, 2))->int_value() == -3);
  CHECK(fold(Op::FloorDiv, constant(kI32, 1), constant(kI32, 0)) == nullptr);
  CHECK(fold(Op::Lt, constant(kF32, 1), constant(kF32, 2))->int_value() == 1);
  // A product that is added keeps the digits that it would lose alone.
  for (DType t : {kF32, kF64}) {
    const auto sum = [&](double a, double b, double c) {
      return fold_constants(make(Op::MulAdd, t, {constant(t, a), constant(t, b), constant(t, c)}));
    };
    CHECK(sum(3, -2, 0.5)->float_value() == -5.5);
    const double digits = t == kF32 ? 0x1p-12 : 0x1p-30;
    CHECK(sum(1 + digits, 1 + digits, -1 - 2 * digits)->float_value() == digits * digits);
  }
  const Node words[] = {constant(kI32, -1), constant(kI32, 0x00ff0102), constant(kI32, 5)};
  const Node dot = make(Op::ByteDot, kI32, {words[0], words[1], words[2]});
  CHECK(fold_constants(dot)->int_value() == 255 * (2 + 1 - 1) + 5);
}

TEST_CASE("rules that hold for integers alone leave floats as they are") {
  Arena arena;
  ArenaScope scope(arena);
  const int64_t arg[] = {0, 1};
  Node x = make(Op::Param, kF32, {}, Ints(arg));
  Node times_zero = op(Op::Mul, x, constant(kF32, 0));  // NaN for an infinite x
  CHECK(simplify(times_zero) == times_zero);
  Node plus_zero = op(Op::Add, x, constant(kF32, 0));  // 0 for x = -0
  CHECK(simplify(plus_zero) == plus_zero);
}

TEST_CASE("what rules make of a comparison of vectors is a vector") {
  Arena arena;
  ArenaScope scope(arena);
  constexpr int kLanes = 4;
  const DType integers = kI32.vec(kLanes), floats = kF32.vec(kLanes);
  const int64_t slots[2][2] = {{0, 1}, {1, 1}};
  const Node x = make(Op::Param, integers, {}, Ints(slots[0]));
  const Node y = make(Op::Param, floats, {}, Ints(slots[1]));
  for (const Op o : {Op::Lt, Op::Le, Op::Eq, Op::Ne}) {
    const Node c = make(o, kBool.vec(kLanes), {x, constant(integers, 2)});
    const Node n = simplify(make(Op::Where, floats, {c, constant(floats, -INFINITY), y}));
    REQUIRE(n->op == Op::Where);
    CHECK(n->src(1) == y);
    CHECK(n->src(0)->dtype == kBool.vec(kLanes));
  }
}
