#include "tiny/ir/build.h"

#include <doctest/doctest.h>

#include "tiny/base/error.h"

using namespace tiny;

namespace {

// A tensor that no rule sees through: the index along the last axis, computed.
Node some_tensor(const Shape& shape, DType dtype = kI32) {
  const Node i = build::iota(numel(shape), dtype);
  return build::reshape(build::binary(Op::Add, i, i), shape);
}

bool has_shape(Node n, const Shape& shape) { return same(n->shape(), shape); }

}  // namespace

TEST_CASE("movement that changes nothing gives its source back") {
  const Node x = some_tensor({2, 3});
  CHECK(build::reshape(x, Shape{2, 3}) == x);
  CHECK(build::permute(x, Shape{0, 1}) == x);
  CHECK(build::expand(x, Shape{2, 3}) == x);
  CHECK(build::pad(x, Shape{0, 0, 0, 0}) == x);
  CHECK(build::shrink(x, Shape{0, 2, 0, 3}) == x);
  CHECK(build::flip(x, Shape{0, 0}) == x);
  CHECK(build::stride(x, Shape{1, 1}) == x);
  CHECK(build::cast(x, kI32) == x);
}

TEST_CASE("a flip of axes of one element is no flip") {
  const Node x = some_tensor({1, 3});
  CHECK(build::flip(x, Shape{1, 0}) == x);
  CHECK(build::flip(x, Shape{1, 1}) == build::flip(x, Shape{0, 1}));
}

TEST_CASE("a view of a view is one view") {
  const Node x = some_tensor({2, 3, 4});
  CHECK(build::reshape(build::reshape(x, Shape{6, 4}), Shape{24}) == build::reshape(x, Shape{24}));
  CHECK(build::permute(build::permute(x, Shape{2, 0, 1}), Shape{1, 2, 0}) == x);
  const Node p = build::permute(build::permute(x, Shape{1, 0, 2}), Shape{2, 1, 0});
  CHECK(p == build::permute(x, Shape{2, 0, 1}));
  CHECK(has_shape(p, {4, 2, 3}));
  CHECK(build::flip(build::flip(x, Shape{1, 0, 1}), Shape{1, 0, 1}) == x);
  CHECK(build::stride(build::stride(x, Shape{1, 1, 2}), Shape{1, 1, 2}) ==
        build::stride(x, Shape{1, 1, 4}));
}

TEST_CASE("views are kept apart until the outermost that asked for it ends") {
  const NodeRef held(build::reshape(some_tensor({2, 3, 5, 1}), Shape{5, 6}));
  const NodeMark now(Arena::global());
  const auto merges = [&] {
    return build::reshape(held.get(), Shape{10, 3})->src(0) != held.get();
  };
  CHECK(merges());
  {
    const build::KeptViews outer(now);
    CHECK(!merges());
    { const build::KeptViews inner(now); }
    CHECK(!merges());
  }
  CHECK(merges());
}

TEST_CASE("nested pads and shrinks add up") {
  const Node x = some_tensor({5});
  CHECK(build::pad(build::pad(x, Shape{1, 2}), Shape{3, 4}) == build::pad(x, Shape{4, 6}));
  const Node s = build::shrink(build::shrink(x, Shape{1, 5}), Shape{1, 3});
  CHECK(s == build::shrink(x, Shape{2, 4}));
}

TEST_CASE("expands merge through sizes of one") {
  const Node x = some_tensor({1, 3, 1});
  const Node e = build::expand(build::expand(x, Shape{2, 3, 1}), Shape{2, 3, 4});
  CHECK(e == build::expand(x, Shape{2, 3, 4}));
}

TEST_CASE("a constant keeps one form through every movement") {
  const Node c = build::full(Shape{2, 3}, kF32, 1.5);
  CHECK(build::reshape(c, Shape{6}) == build::full(Shape{6}, kF32, 1.5));
  CHECK(build::permute(c, Shape{1, 0}) == build::full(Shape{3, 2}, kF32, 1.5));
  CHECK(build::shrink(c, Shape{0, 1, 1, 3}) == build::full(Shape{1, 2}, kF32, 1.5));
  CHECK(build::stride(c, Shape{2, 2}) == build::full(Shape{1, 2}, kF32, 1.5));
  CHECK(build::flip(c, Shape{1, 1}) == c);
  CHECK(build::reshape(build::full(Shape{1, 1}, kF32, 1.5), Shape{}) == constant(kF32, 1.5));
}

TEST_CASE("a reduction over axes of one element is the source") {
  const Node x = some_tensor({1, 3});
  CHECK(build::reduce(Op::Add, x, 0b01) == x);
  CHECK(build::reduce(Op::Add, x, 0b11) == build::reduce(Op::Add, x, 0b10));
  CHECK(has_shape(build::reduce(Op::Add, x, 0b10), {1, 1}));
}

TEST_CASE("what a reduction of no elements gives is the neutral element") {
  CHECK(build::identity(Op::Add, kF32, Shape{2, 1}) == build::full(Shape{2, 1}, kF32, 0.0));
  CHECK(build::identity(Op::Mul, kF32, Shape{2, 1}) == build::full(Shape{2, 1}, kF32, 1.0));
  CHECK(build::identity(Op::Min, kI32, Shape{1}) ==
        build::full(Shape{1}, kI32, int64_t{INT32_MAX}));
  const Node x = build::full(Shape{2, 0}, kF32, 0.0);
  CHECK(build::reduce(Op::Add, x, 0b10)->op == Op::ReduceAxis);  // until it is scheduled
}

TEST_CASE("a where with a known condition or equal branches is a branch") {
  const Node x = some_tensor({3}), y = build::unary(Op::Neg, x);
  const Node yes = build::full(Shape{3}, kBool, int64_t{1});
  const Node no = build::full(Shape{3}, kBool, int64_t{0});
  CHECK(build::where(yes, x, y) == x);
  CHECK(build::where(no, x, y) == y);
  CHECK(build::where(build::binary(Op::Lt, x, y), x, x) == x);
}

TEST_CASE("comparisons are bool and other operations keep the dtype") {
  const Node x = some_tensor({3});
  CHECK(build::binary(Op::Lt, x, x)->dtype == kBool);
  CHECK(build::binary(Op::Max, x, x)->dtype == kI32);
  CHECK(build::bitcast(build::bitcast(x, kF32), kI32) == x);
}

TEST_CASE("sources of different shapes or dtypes are a bug") {
  CHECK_THROWS_AS(build::binary(Op::Add, some_tensor({3}), some_tensor({4})), Bug);
  CHECK_THROWS_AS(build::binary(Op::Add, some_tensor({3}), some_tensor({3}, kI64)), Bug);
  CHECK_THROWS_AS(build::reshape(some_tensor({3}), Shape{4}), Bug);
}

TEST_CASE("gather has the shape of its indices and scatter that of its base") {
  const Node x = some_tensor({4, 5}), i = some_tensor({2, 3});
  CHECK(has_shape(build::gather(x, std::vector<Node>{i, i}), {2, 3}));
  const Node values = some_tensor({2, 3});
  CHECK(has_shape(build::scatter(x, values, std::vector<Node>{i, i}, {Op::Add, false}), {4, 5}));
}

TEST_CASE("each leaf is a tensor of its own") {
  const Node x = build::full(Shape{2}, kF32, 1.0);
  const Node a = build::leaf(x), b = build::leaf(x);
  CHECK(a != b);
  CHECK(a->needs_grad);
  CHECK_FALSE(build::detach(a)->needs_grad);
  CHECK(build::detach(x) == x);
}
