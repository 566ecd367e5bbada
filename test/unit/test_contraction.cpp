// Sums of products in kernels: codegen/kernel/contraction.h.
#include "codegen/kernel/contraction.h"

#include <doctest/doctest.h>

#include "codegen/kernel/option.h"
#include "codegen/lower.h"
#include "test/unit/kernels.h"

namespace tiny::test {
namespace {

// The kernel's ranges in the set, as their extents.
std::vector<int64_t> extents(Node sink, uint64_t mask) {
  std::vector<int64_t> out;
  for (Node r : ranges_of(sink))
    if (mask & r->ranges) out.push_back(extent(r));
  return out;
}

using Extents = std::vector<int64_t>;

Node loops(Node value) { return loops_of(kernel_of({value}), Target{}); }

Node input(int slot, Shape shape, DType dtype = kF32) {
  return tensor_param(slot, std::move(shape), dtype);
}

// (5, 3, 7) times (5, 7, 2), of which a batch, rows, terms and columns are left.
Node products() {
  Node a = build::expand(build::reshape(input(1, {5, 3, 7}), Shape{5, 3, 7, 1}), Shape{5, 3, 7, 2});
  Node b = build::expand(build::reshape(input(2, {5, 7, 2}), Shape{5, 1, 7, 2}), Shape{5, 3, 7, 2});
  return build::binary(Op::Mul, a, b);
}

}  // namespace

TEST_CASE("a contraction has the ranges of rows, columns, terms and batch") {
  Arena arena;
  ArenaScope scope(arena);
  Node sink = loops(sum(products(), 1u << 2));
  const auto c = only_contraction(sink);
  REQUIRE(c);
  CHECK(c->is_plain());
  CHECK(c->gate() == nullptr);
  CHECK(extents(sink, c->m()) == Extents{3});
  CHECK(extents(sink, c->n()) == Extents{2});
  CHECK(extents(sink, c->k) == Extents{7});
  CHECK(extents(sink, c->batch()) == Extents{5});
  const int k = range_id(c->reduce->src(1));
  CHECK(reductions_along(sink, k) == std::vector<Node>{c->reduce});
  CHECK(reductions_along(sink, k + 1).empty());
}

TEST_CASE("columns of a contraction are what its store goes along") {
  Arena arena;
  ArenaScope scope(arena);
  for (const bool turned : {false, true}) {
    Node x = input(1, {3, 7}), w = input(2, {7, 2});
    Node product = matmul(x, w);
    Node sink = loops(turned ? build::permute(product, Shape{1, 0}) : product);
    auto c = only_contraction(sink);
    REQUIRE(c);
    turn_to_store(*c, sink->src(0));
    CHECK(extents(sink, c->n()) == Extents{turned ? 3 : 2});
    CHECK(extents(sink, c->m()) == Extents{turned ? 2 : 3});
  }
}

TEST_CASE("a contraction counts the terms that a mask leaves, and tells of casts") {
  Arena arena;
  ArenaScope scope(arena);
  Node mul = products();
  Node gate = input(3, to_shape(mul->shape()), kBool);
  const auto masked = [&](int64_t other) {
    Node rest = build::full(mul->shape(), kF32, static_cast<double>(other));
    return only_contraction(loops(sum(make(Op::Where, kF32, {gate, mul, rest}), 1u << 2)));
  };
  const auto c = masked(0);
  REQUIRE(c);
  CHECK(c->masks.size() == 1);
  CHECK(c->gate() == c->masks[0]->src(0));
  CHECK(c->masks[0]->src(1) == c->product);
  CHECK_FALSE(c->is_plain());
  CHECK_FALSE(masked(1));  // adds ones

  const auto rounded =
      only_contraction(loops(sum(build::cast(build::cast(mul, kBF16), kF32), 1u << 2)));
  REQUIRE(rounded);
  CHECK(rounded->is_converted);
}

TEST_CASE("other reductions are no contractions") {
  Arena arena;
  ArenaScope scope(arena);
  Node mul = products();
  CHECK_FALSE(only_contraction(loops(build::reduce(Op::Max, mul, 1u << 2))));
  CHECK_FALSE(only_contraction(loops(sum(input(1, {4, 5}), 2))));
  CHECK_FALSE(only_contraction(loops(input(1, {4, 5}))));
  Node two = build::binary(Op::Add, sum(mul, 1u << 2), sum(build::unary(Op::Exp2, mul), 1u << 2));
  CHECK_FALSE(only_contraction(loops(two)));
}

}  // namespace tiny::test
