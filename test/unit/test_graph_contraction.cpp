#include "runtime/analysis/graph_contraction.h"

#include <doctest/doctest.h>

#include "test/unit/kernels.h"
#include "tiny/ir/build.h"

using namespace tiny;
using namespace tiny::test;

namespace {

using Axes = std::vector<int>;

// The sum along the last axis of a times b, each expanded to the axes.
Node sum_of_products(Node a, Node b, const Shape& axes) {
  Node mul = build::binary(Op::Mul, build::expand(a, axes), build::expand(b, axes));
  return build::reduce(Op::Add, mul, uint32_t{1} << (axes.size() - 1));
}

}  // namespace

TEST_CASE("a contraction tells axes by the operands that have them") {
  Node a = tensor_param(1, {4, 8, 1, 16}), b = tensor_param(2, {4, 1, 5, 16});
  const GraphContraction c(sum_of_products(a, b, {4, 8, 5, 16}));
  const ContractionAxes axes = c.axes();
  CHECK(axes.is_whole);
  CHECK(axes.own[0] == Axes{1});
  CHECK(axes.own[1] == Axes{2});
  CHECK(axes.batch == Axes{0});
  CHECK(axes.k == Axes{3});
  CHECK(c.summed_axis() == 3);
  CHECK(c.size({0, 1, 3}) == 4 * 8 * 16);
  CHECK(c.walk(0, 3).kind == Walk::Contiguous);
  CHECK(c.walk(1, 2).kind == Walk::Movable);
  CHECK(!c.moves(0, 2));
}

TEST_CASE("a contraction with an axis of no operand, or a sum along one of a single operand") {
  Node a = tensor_param(1, {8, 1, 16}), b = tensor_param(2, {1, 5, 16});
  Node row = tensor_param(3, {1, 5, 1});
  const auto axes = [](Node sum) { return GraphContraction(sum).axes(); };
  CHECK(axes(sum_of_products(a, b, {8, 5, 16})).is_whole);
  CHECK(!axes(sum_of_products(a, a, {8, 5, 16})).is_whole);
  CHECK(!axes(sum_of_products(a, row, {8, 5, 16})).is_whole);
}

TEST_CASE("an operand of a contraction is read by some of its axes") {
  Node a = tensor_param(1, {8, 1, 16}), b = tensor_param(2, {1, 5, 16});
  const GraphContraction c(sum_of_products(a, b, {8, 5, 16}));
  const Axes axes{2, 0};
  CHECK(c.extents(axes) == Shape{16, 8});
  CHECK(c.view(0, axes, c.extents(axes)) ==
        build::affine(a, Shape{16, 8}, Shape{0, 0, 1, 0, 0, 0, 0, 1, 0}));
  const Axes with_none{2, -1, 0};
  CHECK(c.view(0, with_none, Shape{16, 3, 8}) ==
        build::affine(a, Shape{16, 3, 8}, Shape{0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0}));
  CHECK(c.map_of(axes) == std::vector<int64_t>{0, 0, 0, 1, 0, 1, 0, 0});
}
