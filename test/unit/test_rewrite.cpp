#include "tiny/rewrite/rewrite.h"

#include <doctest/doctest.h>

#include <string>

#include "tiny/base/error.h"
#include "tiny/ir/print.h"

using namespace tiny;
using namespace tiny::pat;

namespace {

Node parameter(int slot, DType dtype = kF32) {
  const int64_t arg[] = {slot, 1};
  return make(Op::Param, dtype, {}, Ints(arg));
}
Node op(Op o, Node a, Node b) { return make(o, a->dtype, {a, b}); }

Node first(const Match& m) { return m[0]; }

}  // namespace

TEST_CASE("the sources of a commutative operation match in either order") {
  Arena arena;
  ArenaScope scope(arena);
  const RuleTable table({{"x * 1", node(Op::Mul, any(0), number(1)), first}});
  Node x = parameter(0), one = constant(kF32, 1);
  CHECK(rewrite(op(Op::Mul, x, one), table) == x);
  CHECK(rewrite(op(Op::Mul, one, x), table) == x);
}

TEST_CASE("the sources of other operations match in their own order only") {
  Arena arena;
  ArenaScope scope(arena);
  const RuleTable table({{"x - 0", node(Op::Sub, any(0), number(0)), first}});
  Node x = parameter(0), zero = constant(kF32, 0);
  CHECK(rewrite(op(Op::Sub, x, zero), table) == x);
  CHECK(rewrite(op(Op::Sub, zero, x), table) == op(Op::Sub, zero, x));
}

TEST_CASE("a capture used twice stands for one node") {
  Arena arena;
  ArenaScope scope(arena);
  const RuleTable table({{"max(x, x)", node(Op::Max, any(0), any(0)), first}});
  Node x = parameter(0), y = parameter(1);
  CHECK(rewrite(op(Op::Max, x, x), table) == x);
  CHECK(rewrite(op(Op::Max, x, y), table) == op(Op::Max, x, y));
}

TEST_CASE("both orders are tried at each level of a pattern") {
  Arena arena;
  ArenaScope scope(arena);
  const RuleTable table({{"x & (x & y)", node(Op::And, any(0), node(Op::And, any(0), any(1)).as(2)),
                          [](const Match& m) { return m[2]; }}});
  Node x = parameter(0, kBool), y = parameter(1, kBool);
  for (Node inner : {op(Op::And, x, y), op(Op::And, y, x)}) {
    CHECK(rewrite(op(Op::And, x, inner), table) == inner);
    CHECK(rewrite(op(Op::And, inner, x), table) == inner);
  }
}

TEST_CASE("the first rule that changes the node wins") {
  Arena arena;
  ArenaScope scope(arena);
  const Pattern sum = node(Op::Add, any(0), any(1));
  const RuleTable no_change({
      {"nothing", sum, [](const Match&) -> Node { return nullptr; }},
      {"itself", sum, [](const Match& m) { return m.root; }},
      {"one", sum, [](const Match&) { return constant(kF32, 1); }},
      {"two", sum, [](const Match&) { return constant(kF32, 2); }},
  });
  const char* fired = nullptr;
  Node r = no_change.apply(op(Op::Add, parameter(0), parameter(1)), &fired);
  REQUIRE(r);
  CHECK(r->is_const(1));
  CHECK(std::string(fired) == "one");
}

TEST_CASE("tables join in order") {
  const RuleTable a({{"first", any(0), first}});
  const RuleTable b({{"second", any(0), first}});
  const RuleTable both({&a, &b});
  REQUIRE(both.rules().size() == 2);
  CHECK(std::string(both.rules()[0].name) == "first");
  CHECK(std::string(both.rules()[1].name) == "second");
}

TEST_CASE("what a rule makes is rewritten too") {
  Arena arena;
  ArenaScope scope(arena);
  const RuleTable table({
      {"-x is x * -1", node(Op::Neg, any(0)),
       [](const Match& m) { return op(Op::Mul, m[0], constant(kF32, -1)); }},
      {"x * y is x / y", node(Op::Mul, any(0), any(1)),
       [](const Match& m) { return op(Op::Div, m[0], m[1]); }},
  });
  Node x = parameter(0);
  Node r = rewrite(op(Op::Add, make(Op::Neg, kF32, {x}), x), table);
  CHECK(r == op(Op::Add, op(Op::Div, x, constant(kF32, -1)), x));
}

TEST_CASE("rules that go round in circles end in an error that names them") {
  Arena arena;
  ArenaScope scope(arena);
  const RuleTable table({
      {"sum to difference", node(Op::Add, any(0), any(1)),
       [](const Match& m) { return op(Op::Sub, m[0], make(Op::Neg, kF32, {m[1]})); }},
      {"difference to sum", node(Op::Sub, any(0), any(1)),
       [](const Match& m) { return op(Op::Add, m[0], make(Op::Neg, kF32, {m[1]})); }},
  });
  std::string text;
  try {
    rewrite(op(Op::Add, parameter(0), parameter(1)), table);
  } catch (const Bug& e) {
    text = e.what();
  }
  CHECK(text.find("rewrite goes round in circles; the last rules were:") == 0);
  CHECK(text.find("\n  sum to difference") != std::string::npos);
  CHECK(text.find("\n  difference to sum") != std::string::npos);
}

TEST_CASE("a graph that no rule matches comes back as it is") {
  Arena arena;
  ArenaScope scope(arena);
  const RuleTable table({{"x * 1", node(Op::Mul, any(0), number(1)), first}});
  Node n = parameter(0);
  for (int i = 0; i < 20000; ++i) n = make(Op::Neg, kF32, {n});
  const size_t before = arena.size();
  CHECK(rewrite(n, table) == n);
  CHECK(arena.size() == before);
}

TEST_CASE("substitute replaces a node everywhere and looks into nothing new") {
  Arena arena;
  ArenaScope scope(arena);
  Node x = parameter(0), y = parameter(1);
  Node root = op(Op::Add, op(Op::Mul, x, x), x);
  CHECK(substitute(root, x, y) == op(Op::Add, op(Op::Mul, y, y), y));
  Node more = op(Op::Add, x, y);
  CHECK(substitute(op(Op::Mul, x, y), x, more) == op(Op::Mul, more, y));
  CHECK(substitute(y, x, more) == y);
}
