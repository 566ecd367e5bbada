// Every rule of the tables on integers and bools, proved by z3 for all values of what it captures.
// A rule that does the same whatever stands for its captures is proved on leaves that can have any
// value. One that looks at bounds or numbers has lemmas, in which these are unknowns, and is proved
// on small ones besides, or on all there are. What that leaves open is printed, with the reason.
#include <doctest/doctest.h>

#include <bit>
#include <iostream>
#include <map>
#include <set>

#include "codegen/passes/decompose/decompose.h"
#include "test/unit/bit_text.h"
#include "test/unit/rule_proof.h"
#include "tiny/base/error.h"
#include "tiny/ir/facts.h"
#include "tiny/rewrite/algebra.h"

using namespace tiny;
using namespace tiny::test;

namespace {

// That a formula holds for all integers; of d and e, for those above 0.
struct Lemma {
  const char* rule;  // "" for all of them
  std::string names, formula;
};

// a = d q + r is the one way to write a with 0 <= r < d: q is a / d, r is a % d. Said so, products
// of unknowns are polynomials, which z3 decides.
std::string divides(const std::string& a, const std::string& d, const std::string& q,
                    const std::string& r) {
  return cat("(and (= ", a, " (+ (* ", d, " ", q, ") ", r, ")) (<= 0 ", r, ") (< ", r, " ", d,
             "))");
}

// What the functions of algebra.cpp rest on.
std::vector<Lemma> lemmas() {
  std::vector<Lemma> all;
  const char* rule = "";
  const auto add = [&](const char* names, const std::string& formula) {
    all.push_back({rule, names, formula});
  };
  const auto given = [](const std::string& what, const std::string& then) {
    return cat("(=> (and ", what, ") ", then, ")");
  };
  add("a d", divides("a", "d", "(div a d)", "(mod a d)"));
  add("a d q r p m",
      given(divides("a", "d", "q", "r") + divides("a", "d", "p", "m"), "(and (= q p) (= r m))"));

  rule = "a value with one bound is a constant";
  add("x lo hi", given("(<= lo x hi) (= lo hi)", "(= x lo)"));
  rule = "max(x, y) by bounds";
  add("x y low high", given("(<= low x) (<= y high) (>= low high)", "(= (ite (>= x y) x y) x)"));
  rule = "min(x, y) by bounds";
  add("x y low high", given("(<= low y) (<= x high) (>= low high)", "(= (ite (<= x y) x y) x)"));

  // The machine's value of an exact x is (x + s) % d - s: d is 2^bits, s is 0 or d / 2.
  rule = "cast of an Index and back";
  add("x d s", given("(<= (- s) x) (< x (- d s))", "(= (- (mod (+ x s) d) s) x)"));
  rule = "integers from indices are computed as indices";  // sums, differences, products
  const std::string operands =
      divides("(+ x s)", "d", "p", "u") + divides("(+ y s)", "d", "q", "v");
  add("x y d s p q u v n w", given(operands + divides("(+ (+ x y) s)", "d", "n", "w"),
                                   divides("(+ (+ (- u s) (- v s)) s)", "d", "(- n p q)", "w")));
  add("x y d s p q u v n w", given(operands + divides("(+ (- x y) s)", "d", "n", "w"),
                                   divides("(+ (- u v) s)", "d", "(+ (- n p) q)", "w")));
  add("x y d s p q u v n w", given(operands + divides("(+ (* x y) s)", "d", "n", "w"),
                                   divides("(+ (* (- u s) (- v s)) s)", "d",
                                           "(+ n (* d p q) (- (+ (* p y) (* q x))))", "w")));

  const std::string digits = divides("x", "d", "y", "a") + divides("y", "e", "q", "b");
  rule = "collect the terms of a sum";
  add("f x y", "(= (* f (- x y)) (+ (* f x) (* (- f) y)))");
  add("f g x", "(= (+ (* f x) (* g x)) (* (+ f g) x))");
  add("b d x", "(= (+ (* (* b d) (div x d)) (* b (mod x d))) (* b x))");
  // (x / d % e) * d + x % d is x % (d * e)
  add("x d e y a q b", given(digits, divides("x", "(* d e)", "q", "(+ (* d b) a)")));

  const std::string block = "(<= (* k d) r) (< r (* (+ k 1) d))";  // no r crosses a multiple of d
  rule = "divide a sum";
  add("d k w r", given(block, "(= (div (+ (* d w) r) d) (+ w k))"));
  add("d w r", "(= (div (+ (* d w) r) d) (+ w (div r d)))");
  add("d e t r", given("(<= 0 r) (< r d)", "(= (div (+ (* d t) r) (* d e)) (div t e))"));
  add("d e x", "(= (div (div x d) e) (div x (* d e)))");
  add("x d e y a q b", given(digits, "(= (div (+ (* d b) a) d) b)"));  // x % (d * e) / d
  rule = "remainder of a sum";
  add("d k w r", given(block, divides("(+ (* d w) r)", "d", "(+ w k)", "(- r (* k d))")));
  add("d w r q m",
      given(divides("r", "d", "q", "m"), divides("(+ (* d w) r)", "d", "(+ w q)", "m")));
  add("d e t r q b", given("(<= 0 r) (< r d)" + divides("t", "e", "q", "b"),
                           divides("(+ (* d t) r)", "(* d e)", "q", "(+ (* d b) r)")));
  // d * (x % e) + r and d * x + r have the same remainder by d * e
  add("d e x r q b p m",
      given(divides("x", "e", "q", "b") + divides("(+ (* d b) r)", "(* d e)", "p", "m"),
            divides("(+ (* d x) r)", "(* d e)", "(+ p q)", "m")));

  rule = "compare sums";
  add("a b c", "(= (< (+ a c) b) (< (- a b) (- c)))");
  add("d s c", "(= (< (* d s) c) (< s (- (div (- c) d))))");
  add("d u r c q low high",  // terms too small to matter
      given("(<= low r high) (= q (+ 1 (div (- c 1 low) d))) (= q (+ 1 (div (- c 1 high) d)))",
            "(= (< (+ (* d u) r) c) (< u q))"));
  add("d x c", "(= (< (div x d) c) (< x (* c d)))");
  add("d x c", "(= (< (- (div x d)) c) (< (- (* (- 1 c) d) 1) x))");
  add("s c", "(= (< (- s) c) (< (- c) s))");
  rule = "floor division by truncation";  // a = b * t + m, m smaller than b, of the sign of a
  const std::string truncated =
      "(distinct b 0) (= a (+ (* b t) m)) (ite (>= a 0) (>= m 0) (<= m 0))"
      "(< (- (ite (> b 0) b (- b))) m (ite (> b 0) b (- b)))";
  const std::string down = "(and (distinct m 0) (distinct (< m 0) (< b 0)))";
  add("a b t m q r",
      given(
          truncated + "(= q (ite " + down + " (- t 1) t)) (= r (ite " + down + " (+ m b) m))",
          "(and (= a (+ (* b q) r)) (ite (> b 0) (and (<= 0 r) (< r b)) (and (< b r) (<= r 0))))"));
  add("a b t m q r", given(truncated + "(>= a 0) (> b 0)", "(and (<= 0 m) (< m b))"));
  // and none of it wraps, of numbers in [-s, s); the least by -1 has no value
  const std::string machine =
      truncated + down +
      "(<= (- s) a) (< a s) (<= (- s) b) (< b s) (or (> a (- s)) (< b (- 1)) (> b 0))";
  add("a b t m s", given(machine, "(and (< (- s) t) (< t s) (<= (- s) (+ m b)) (< (+ m b) s))"));

  rule = "divide by a power of two";  // a shift and a mask are a floor and its remainder
  add("x d", given("(>= x 0)", "(= (ite (>= x 0) (div x d) (- (div (- x) d))) (div x d))"));

  rule = "a <= b is a < b + 1";
  add("a b", "(= (<= a b) (< a (+ b 1)))");
  rule = "a == c with terms on the left";
  add("a b c e", "(= (= (+ a c) (+ b e)) (= (- a b) (- e c)))");
  return all;
}

// Rules that look at what they capture, of which all cases are enumerated: proved without lemmas.
// Of the machine's divisions these are: which power of two it is, that none is negative or not.
constexpr const char* kPowers = "divide by a power of two";
const std::set<std::string> kEnumerated = {kPowers, "floor division by truncation"};

// What is not proved for all values, and why: of one rule, or of all that have lemmas, or of all.
const std::map<std::string, const char*> kNotProved = {
    {"fold constants",
     "it captures no unknown; what it computes is compared with z3 on numbers at the ends of each "
     "dtype and around 0"},
    {"where(c, -infinity, x) = where(not c, x, -infinity)",
     "it matches infinities, which are floats; selections of two constants are proved with the "
     "same "
     "inverse of a comparison"},
};
constexpr const char* kByInstances =
    "z3 does not read C++: their lemmas hold for all numbers, that their code does what these say "
    "is proved of graphs with numbers and bounds in them, for all values of the other leaves";
constexpr const char* kProducts =
    "products of unknown indices are not linear; their lemmas are about them";
constexpr const char* kTriedBlind =
    "that a rule does the same whatever stands for its captures is tried with a dozen graphs in "
    "place of each leaf of each graph that it matches";
constexpr const char* kOneLane =
    "proofs are of one lane; all operations in these rules act on each lane alone";

bool holds(const Lemma& lemma) {
  std::string declared, positive, name;
  for (const char c : lemma.names + ' ') {
    if (c != ' ') {
      name += c;
      continue;
    }
    declared += cat("(", name, " Int)");
    if (name == "d" || name == "e") positive += cat("(> ", name, " 0)");
    name.clear();
  }
  return decide(cat("(exists (", declared, ") (and true ", positive, " (not ", lemma.formula,
                    ")))")) == Decision::Never;
}

bool is_index(Node n) { return n->dtype == kIndex; }

}  // namespace

TEST_CASE("rules: lemmas hold for all integers") {
  if (!has_solver()) return;
  for (const Lemma& lemma : lemmas())
    CHECK_MESSAGE(holds(lemma), std::string(lemma.rule), ": ", lemma.formula);
  CHECK(!holds({"", "x d", "(= (div (+ x 1) d) (+ (div x d) 1))"}));
}

TEST_CASE("rules: all are proved for all values of what they capture") {
  if (!has_solver()) return;
  Arena arena;
  ArenaScope scope(arena);
  std::set<std::string> with_lemma, names;
  for (const Lemma& lemma : lemmas()) with_lemma.insert(lemma.rule);
  with_lemma.erase("");
  std::string by_instances, with_products;  // lists of names and counts
  int rules = 0, proved = 0;
  for (const RuleTable* table : {&simplify_rules(), &division_rules()})
    for (const Rule& rule : table->rules()) {
      const std::string name = names.insert(rule.name).first->c_str();
      if (kNotProved.contains(name)) continue;
      const RuleProof v = prove_rule(rule, table == &division_rules(), name == kPowers);
      CHECK_MESSAGE(v.wrong == "", name);
      CHECK_MESSAGE(v.proved > 0, name);
      // What it does depends on more than lemmas know, or it needs none.
      CHECK_MESSAGE(with_lemma.contains(name) == !v.blind, name);
      ++rules;
      proved += v.proved;
      if (!v.blind && !kEnumerated.contains(name))
        by_instances += cat("\n    ", name, " (", v.proved, " graphs)");
      if (v.left_out) with_products += cat("\n    ", name, " (", v.left_out, " graphs)");
    }
  for (const std::string& name : with_lemma) CHECK_MESSAGE(names.contains(name), name);
  for (const std::string& name : kEnumerated) CHECK_MESSAGE(with_lemma.contains(name), name);
  std::cout << rules << " rules on integers and bools proved, on " << proved
            << " graphs; not proved for all values:\n";
  for (const auto& [name, reason] : kNotProved) {
    CHECK_MESSAGE(names.contains(name), name);
    std::cout << "  " << name << ": " << reason << '\n';
  }
  std::cout << "  " << kByInstances << ':' << by_instances << "\n  " << kProducts << ':'
            << with_products << "\n  " << kTriedBlind << "\n  " << kOneLane << std::endl;
}

TEST_CASE("rules: constants fold to what z3 computes") {
  if (!has_solver()) return;
  Arena arena;
  ArenaScope scope(arena);
  int folded = 0;
  for (DType t : kDTypes)
    for (int i = 0; i < kOps && t != kIndex; ++i) {
      const Op op = static_cast<Op>(i);
      BitText bits;
      std::string differs;
      for (const std::vector<DType>& dtypes : sources_of(op, t)) {
        if (dtypes[0] == kIndex || op == Op::Where) continue;
        const auto corners = [](DType s) {
          std::vector<Node> out;
          for (int64_t v : {int_min(s), int_min(s) + 1, int64_t{-7}, int64_t{-1}, int64_t{0},
                            int64_t{1}, int64_t{2}, int64_t{7}, int_max(s) - 1, int_max(s)})
            if (v >= int_min(s) && v <= int_max(s)) out.push_back(constant(s, v));
          return out;
        };
        for (Node a : corners(dtypes[0]))
          for (Node b : dtypes.size() > 1 ? corners(dtypes[1]) : std::vector<Node>{a}) {
            std::vector<Node> srcs{a, b};
            srcs.resize(dtypes.size());
            Node n = make(op, t, srcs), after = fold_constants(n);
            if (!after || (op >= Op::FloorDiv && op <= Op::TruncMod && b->int_value() == 0))
              continue;
            differs += cat(" (distinct ", BitText()(n), " ", bits(after), ")");
            ++folded;
          }
      }
      if (differs.empty()) continue;
      CHECK_MESSAGE(decide(cat("(or false", differs, ")")) == Decision::Never, info(op).name,
                    " of ", t);
    }
  CHECK(folded > 3000);
}

TEST_CASE("rules: wrong ones are found") {
  if (!has_solver()) return;
  using namespace pat;
  Arena arena;
  ArenaScope scope(arena);
  const auto verdict = [](Pattern pattern, Node (*apply)(const Match&)) {
    return prove_rule({"planted", std::move(pattern), apply});
  };
  const auto first = [](const Match& m) { return m[0]; };
  // Right for indices, not for integers that wrap.
  CHECK(verdict(node(Op::TruncDiv, node(Op::Mul, any(0), number(2)), number(2)), first).wrong ==
        "wrong: i8 (Load(Param(),0)*2)/2 became Load(Param(),0)");
  CHECK(verdict(node(Op::Shr, node(Op::Shl, any(0), number(1)), number(1)), first).wrong ==
        "wrong: i8 Shr(Shl(Load(Param(),0),1),1) became Load(Param(),0)");
  // Right for bools alone.
  CHECK(verdict(node(Op::And, any(0), number(1)), first).wrong ==
        "wrong: i8 Load(Param(),0)&1 became Load(Param(),0)");
  const auto is_wrong = [&](Pattern pattern, Node (*apply)(const Match&)) {
    const std::string text = verdict(std::move(pattern), apply).wrong;
    CHECK_MESSAGE(text.starts_with("wrong: "), text);
  };
  // A shift goes down, a truncation towards zero.
  CHECK(verdict(node(Op::TruncDiv, any(0), number(2)), [](const Match& m) {
          return make(Op::Shr, m.root->dtype, {m[0], constant(m.root->dtype, 1)});
        }).wrong.starts_with("wrong: "));
  // One divisor of one width.
  const RuleProof one =
      prove_rule({"planted", node(Op::FloorDiv, any(0), constant(1)),
                  [](const Match& m) -> Node {
                    const int64_t d = m[1]->int_value();
                    if (m[0]->dtype != kI64 || d <= 0 || (d & (d - 1))) return nullptr;
                    const int64_t k = std::countr_zero(static_cast<uint64_t>(d));
                    return make(Op::Shr, kI64, {m[0], tiny::constant(kI64, k == 37 ? 36 : k)});
                  }},
                 true, true);
  CHECK(one.wrong == "wrong: i64 Load(Param(),0)/137438953472 became Shr(Load(Param(),0),36)");
  // A remainder that goes up where it is 0 too, of integers too wide to try.
  is_wrong(node(Op::FloorMod, any(0), any(1)).when([](Node n) { return n->dtype == kI64; }),
           [](const Match& m) {
             Node rest = make(Op::TruncMod, kI64, {m[0], m[1]}), zero = tiny::constant(kI64, 0);
             Node sign = make(Op::Xor, kI64, {m[0], m[1]});
             return make(
                 Op::Where, kI64,
                 {make(Op::Lt, kBool, {sign, zero}), make(Op::Add, kI64, {rest, m[1]}), rest});
           });
  // The branches of a Where in the wrong order.
  is_wrong(node(Op::Where, any(0), any(1), node(Op::Where, any(0), any(2), any(3))),
           [](const Match& m) {
             return make(Op::Where, m.root->dtype, {m[0], m[1], m[2]});
           });
  // By bounds, one of them the wrong one.
  is_wrong(node(Op::Max, any(0), any(1)),
           [](const Match& m) { return m[0]->vmin > m[1]->vmin ? m[0] : nullptr; });
  // A remainder that is left out where the divisor divides the factor.
  is_wrong(node(Op::FloorDiv, any(0), constant(1)).when(is_index), [](const Match& m) -> Node {
    const Sum s = to_sum(m[0]);
    if (s.terms.size() != 1 || s.terms[0].factor != 6 || m[1]->int_value() != 3) return nullptr;
    return index_mul(s.terms[0].atom, 2);
  });
  // What it does depends on what it captures: it would need a lemma.
  const RuleProof looks = verdict(node(Op::Add, any(0), number(0)), [](const Match& m) {
    return m[0]->is_const() || m[0]->is(Op::Range) ? m[0] : nullptr;
  });
  CHECK(looks.wrong == "");
  CHECK(!looks.blind);
}
