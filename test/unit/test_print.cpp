#include "tiny/ir/print.h"

#include <doctest/doctest.h>

#include "extra/kernel_reader.h"
#include "tiny/rewrite/algebra.h"

using namespace tiny;

namespace {

Node range(int id, int64_t extent, RangeKind kind = RangeKind::Loop) {
  return make(Op::Range, kIndex, {index(extent)}, RangeArg{id, kind});
}
Node op(Op o, Node a, Node b) { return make(o, is_comparison(o) ? kBool : a->dtype, {a, b}); }

}  // namespace

TEST_CASE("a graph is printed a line a node, sources first") {
  Arena arena;
  ArenaScope scope(arena);
  const int64_t arg[] = {0, 2, 3}, axes[] = {1, 0};
  Node x = make(Op::Param, kF32, {}, Ints(arg));
  Node sum =
      make(Op::ReduceAxis, kF32, {make(Op::Permute, kF32, {x}, Ints(axes))}, ReduceArg{Op::Add, 3});
  CHECK(to_text(sum) ==
        "%0 Param f32 (2,3) [0,2,3]\n"
        "%1 Permute f32 (3,2) [1,0] %0\n"
        "%2 ReduceAxis f32 (1,1) Add axes 0 1 %1\n");
}

TEST_CASE("each payload has a text") {
  Arena arena;
  ArenaScope scope(arena);
  Node r = range(3, 8, RangeKind::Vector);
  CHECK(to_text(r) == "%0 Const index 8\n%1 Range index r3 vector %0\n");
  Node x = make(Op::Cast, kF32, {r});
  CHECK(
      to_text(make(Op::Reduce, kF32, {x, r}, OpArg{Op::Max})).ends_with("Reduce f32 Max %2 %1\n"));
  CHECK(to_text(constant(kF64, 0.1)) == "%0 Const f64 0.10000000000000001\n");
  CHECK(to_text(constant(kI32, -4)) == "%0 Const i32 -4\n");
}

TEST_CASE("a shared node is printed once, for several roots too") {
  Arena arena;
  ArenaScope scope(arena);
  Node a = constant(kI32, 1), b = op(Op::Add, a, a);
  const std::vector<Node> roots{a, b};
  CHECK(to_text(roots) == "%0 Const i32 1\n%1 Add i32 %0 %0\n");
}

TEST_CASE("the text does not depend on the order in which nodes were made") {
  const auto text = [](bool turned) {
    Arena arena;
    ArenaScope scope(arena);
    Node a = turned ? nullptr : range(0, 4), b = range(1, 5);
    if (!a) a = range(0, 4);
    return to_text(op(Op::Mul, a, b));
  };
  CHECK(text(false) == text(true));
}

TEST_CASE("an index expression is one line of arithmetic") {
  Arena arena;
  ArenaScope scope(arena);
  Node a = range(0, 4), b = range(1, 5);
  Node flat = op(Op::Add, op(Op::Mul, a, index(64)), b);
  CHECK(to_expression(flat) == "(r0*64)+r1");
  CHECK(to_expression(op(Op::Lt, op(Op::FloorMod, flat, index(7)), index(3))) ==
        "(((r0*64)+r1)%7)<3");
  CHECK(to_expression(op(Op::Max, a, b)) == "Max(r0,r1)");
}

TEST_CASE("kernels are read one by one, though two headings come before them") {
  Arena arena;
  ArenaScope scope(arena);
  const auto kernel = [](int64_t size) {
    const int64_t arg[] = {0, size};
    Node x = make(Op::Param, kF32, {}, Ints(arg)), r = range(0, size);
    Node store = make(Op::Store, kVoid, {x, r, make(Op::Load, kF32, {x, r})});
    return to_text(make(Op::Sink, kVoid, {store}));
  };
  const std::string texts[] = {kernel(8), kernel(5)};
  std::istringstream in("--- a\n--- a\n" + texts[0] + texts[1] + "--- b\n" + texts[0]);
  std::vector<std::string> read;
  read_kernels(in, "a", [&](Node k) { read.push_back(to_text(k)); });
  REQUIRE(read.size() == 2);
  CHECK(read[0] == texts[0]);
  CHECK(read[1] == texts[1]);
}
