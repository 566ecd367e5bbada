#include "tiny/ir/verify.h"

#include <doctest/doctest.h>

#include <string>

#include "tiny/base/error.h"
#include "tiny/rewrite/algebra.h"

using namespace tiny;

namespace {

Node parameter(int slot, Shape shape, DType dtype = kF32) {
  shape.insert(shape.begin(), slot);
  return make(Op::Param, dtype, {}, Ints(shape));
}
Node range(int id, int64_t extent, RangeKind kind) {
  return make(Op::Range, kIndex, {index(extent)}, RangeArg{id, kind});
}
Node load(Node at) { return make(Op::Load, kF32, {parameter(0, {64}), at}); }

// What verify says, empty where the graph is legal.
std::string complaint(Node root, Form form) {
  try {
    verify(root, form, "some pass");
  } catch (const Bug& e) {
    return e.what();
  }
  return "";
}

bool starts(const std::string& text, const std::string& with) { return text.rfind(with, 0) == 0; }

}  // namespace

TEST_CASE("verify names the pass, the rule and the graph") {
  Arena arena;
  ArenaScope scope(arena);
  Node bad = make(Op::Add, kF32, {parameter(0, {4}), parameter(1, {4}, kI32)});
  CHECK(complaint(bad, Form::Tensor) ==
        "after some pass: the two sources have different dtypes:\n"
        "%0 Param f32 (4) [0,4]\n%1 Param i32 (4) [1,4]\n%2 Add f32 (4) %0 %1\n");
}

TEST_CASE("a tensor graph holds no loads and a kernel no movement") {
  Arena arena;
  ArenaScope scope(arena);
  const int64_t shape[] = {2, 2};
  Node view = make(Op::Reshape, kF32, {parameter(0, {4})}, Ints(shape));
  CHECK(complaint(view, Form::Tensor).empty());
  CHECK(starts(complaint(view, Form::Kernel), "after some pass: this operation has no place here"));
  Node value = load(range(0, 4, RangeKind::Loop));
  CHECK(complaint(value, Form::Kernel).empty());
  CHECK(starts(complaint(value, Form::Tensor), "after some pass: this operation has no place"));
}

TEST_CASE("ranges that should have been expanded are found") {
  Arena arena;
  ArenaScope scope(arena);
  Node vector = load(range(0, 4, RangeKind::Vector)),
       unrolled = load(range(0, 4, RangeKind::Unroll));
  const std::string text = "after some pass: a range that should have been expanded";
  CHECK(complaint(vector, Form::Kernel).empty());
  CHECK(starts(complaint(vector, Form::Vector), text));
  CHECK(complaint(unrolled, Form::Vector).empty());
  CHECK(starts(
      complaint(make(Op::Load, kF32, {parameter(0, {64}), constant(kI64, 3)}), Form::Machine), ""));
}

TEST_CASE("no index is left without a width") {
  Arena arena;
  ArenaScope scope(arena);
  Node value = load(range(0, 4, RangeKind::Loop));
  CHECK(starts(complaint(value, Form::Machine), "after some pass: an index without width"));
}

TEST_CASE("dtypes, lanes and shapes of element-wise operations agree") {
  Arena arena;
  ArenaScope scope(arena);
  Node x = parameter(0, {4}), y = parameter(1, {3}), c = parameter(2, {4}, kBool);
  const auto says = [&](Node n, const std::string& rule) {
    return starts(complaint(n, Form::Tensor), "after some pass: " + rule);
  };
  CHECK(says(make(Op::Add, kF32, {x, y}), "sources differ in shape"));
  CHECK(says(make(Op::Add, kI32, {x, x}), "the result has another dtype than the sources"));
  CHECK(says(make(Op::Lt, kF32, {x, x}), "a comparison must be bool"));
  CHECK(says(make(Op::Where, kF32, {x, x, x}), "the branches of where differ in dtype, or its"));
  CHECK(says(make(Op::Add, kF32, {x}), "wrong number of sources"));
  CHECK(says(make(Op::Neg, kF32.vec(4), {x}), "sources have other lanes than the result"));
  CHECK(complaint(make(Op::Where, kF32, {c, x, x}), Form::Tensor).empty());
}
