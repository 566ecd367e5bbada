#include "codegen/passes/passes.h"

#include <doctest/doctest.h>

#include "codegen/kernel/access.h"
#include "codegen/kernel/option.h"
#include "test/unit/kernels.h"
#include "tiny/ir/verify.h"
#include "tiny/rewrite/algebra.h"

using namespace tiny;
using namespace tiny::test;

namespace {

Node bound(Node value, int range, RangeKind kind) {
  Node k = simplify(to_ranges(kernel_of({value})));
  return simplify(apply(k, Opt{OptKind::Bind, range, static_cast<int64_t>(kind), {}}, Target{}));
}

Node vectorized(Node value, int range) {
  Node k = simplify(vectorize(bound(value, range, RangeKind::Vector), Target{}));
  verify(k, Form::Vector, "vectorize");
  return k;
}

Node unrolled(Node value, int range) {
  return simplify(unroll(bound(value, range, RangeKind::Unroll), Target{}));
}

}  // namespace

TEST_CASE("a vector range makes one wide load and one wide store") {
  Arena arena;
  ArenaScope scope(arena);
  Node k = vectorized(build::unary(Op::Neg, tensor_param(1, {4, 8})), 1);
  CHECK(all_of(k, Op::Load)[0]->dtype == kF32.vec(8));
  CHECK(all_of(k, Op::Load)[0]->src(1)->dtype.lanes == 1);  // consecutive, from one place on
  CHECK(all_of(k, Op::Store)[0]->src(2)->dtype == kF32.vec(8));
  CHECK(ranges_of(k).size() == 1);
}

TEST_CASE("a load that does not move along the vector range is spread to its lanes") {
  Arena arena;
  ArenaScope scope(arena);
  Node x = build::expand(tensor_param(1, {4, 1}), Shape{4, 8});
  Node k = vectorized(build::binary(Op::Mul, x, tensor_param(2, {4, 8})), 1);
  int spread_loads = 0;
  for (Node b : all_of(k, Op::Broadcast))
    spread_loads += b->src(0)->op == Op::Load && b->src(0)->dtype == kF32;
  CHECK(spread_loads == 1);
}

TEST_CASE("a load with steps along the vector range is a gather of lanes") {
  Arena arena;
  ArenaScope scope(arena);
  Node k = vectorized(build::unary(Op::Neg, build::stride(tensor_param(1, {24}), Shape{3})), 0);
  CHECK(all_of(k, Op::Load)[0]->src(1)->dtype.lanes == 8);
}

TEST_CASE("every second element is picked from two whole vectors that end inside the buffer") {
  Arena arena;
  ArenaScope scope(arena);
  Node k = vectorized(build::unary(Op::Neg, build::stride(tensor_param(1, {15}), Shape{2})), 0);
  const std::vector<Node> loads = all_of(k, Op::Load);
  REQUIRE(loads.size() == 2);
  for (Node load : loads) CHECK(load->src(1)->vmax + load->dtype.lanes <= 15);
  REQUIRE(count_op(k, Op::Shuffle) == 1);
  const Ints picks = all_of(k, Op::Shuffle)[0]->ints();
  for (int64_t i = 0; i < 8; ++i) {  // lane p of the first load is element p, of the second p - 1
    const int64_t element = picks[i] < 8 ? picks[i] : picks[i] - 8 + 7;
    CHECK(element == 2 * i);
  }
}

TEST_CASE("a square tile is transposed by shuffles where its rows are a power of two") {
  Arena arena;
  ArenaScope scope(arena);
  for (int64_t n : {3, 4, 5, 8}) {
    Node k = simplify(to_ranges(kernel_of({sum(tensor_param(1, {n, n}), 2)})));
    k = apply(k,
              {Opt{OptKind::Bind, 0, static_cast<int64_t>(RangeKind::Vector), {}},
               Opt{OptKind::Bind, 1, static_cast<int64_t>(RangeKind::Unroll), {}}},
              Target{});
    k = simplify(vectorize(simplify(k), Target{}));
    CHECK(count_op(k, Op::Column) == (n == 4 || n == 8));
  }
}

TEST_CASE("of memory that a kernel writes, elements beside every second one are left alone") {
  Arena arena;
  ArenaScope scope(arena);
  Node k = vectorized(build::unary(Op::Neg, build::stride(tensor_param(0, {15}), Shape{2})), 0);
  CHECK(count_op(k, Op::Shuffle) == 0);
  CHECK(all_of(k, Op::Load)[0]->src(1)->dtype.lanes == 8);
}

TEST_CASE("a reduction over a vector range accumulates lanes and folds them") {
  Arena arena;
  ArenaScope scope(arena);
  Node x = tensor_param(1, {4, 8});
  Node k = vectorized(sum(x, 2), 1);
  CHECK(count_op(k, Op::Fold) == 1);
  CHECK(all_of(k, Op::Load)[0]->dtype == kF32.vec(8));
  CHECK(all_of(k, Op::Store)[0]->src(2)->dtype == kF32);
}

TEST_CASE("a reduction over a vector range keeps the lanes of another") {
  Arena arena;
  ArenaScope scope(arena);
  Node x = build::expand(tensor_param(1, {8, 1}), Shape{8, 4});
  Node k = simplify(to_ranges(kernel_of({build::reduce(Op::Min, x, 2)})));
  for (int range : {0, 1})
    k = apply(k, Opt{OptKind::Bind, range, static_cast<int64_t>(RangeKind::Vector), {}}, Target{});
  k = simplify(vectorize(k, Target{}));
  verify(k, Form::Vector, "vectorize");
  CHECK(count_op(k, Op::Fold) == 0);
  CHECK(all_of(k, Op::Store)[0]->src(2)->dtype == kF32.vec(8));
}

TEST_CASE("an unrolled range repeats stores for each of its values") {
  Arena arena;
  ArenaScope scope(arena);
  Node k = unrolled(build::unary(Op::Neg, tensor_param(1, {4, 3})), 1);
  CHECK(all_of(k, Op::Store).size() == 3);
  CHECK(all_of(k, Op::Load).size() == 3);
  CHECK(ranges_of(k).size() == 1);
}

TEST_CASE("an unrolled reduction has one accumulator for each value") {
  Arena arena;
  ArenaScope scope(arena);
  Node x = sum(tensor_param(1, {4, 8}), 2);
  Node k = simplify(to_ranges(kernel_of({x})));
  k = apply(k,
            {Opt{OptKind::Split, 1, 4, {}},
             Opt{OptKind::Bind, 2, static_cast<int64_t>(RangeKind::Unroll), {}}},
            Target{});
  k = simplify(unroll(simplify(k), Target{}));
  CHECK(all_of(k, Op::Reduce).size() == 4);
  CHECK(count_op(k, Op::Add) >= 3);
  CHECK(all_of(k, Op::Store).size() == 1);
}

TEST_CASE("a GPU's sums that lie side by side are added up in turn") {
  Arena arena;
  ArenaScope scope(arena);
  Target gpu;
  gpu.kind = Target::Kind::Gpu;
  constexpr auto kUnroll = static_cast<int64_t>(RangeKind::Unroll);
  Node sum = make(Op::ReduceAxis, kF32, {tensor_param(1, {8, 64})}, ReduceArg{Op::Add, 2});
  const Node k = simplify(to_ranges(kernel_of({sum})));
  const Opt inner{OptKind::Split, 1, 4, {}}, unroll_inner{OptKind::Bind, 2, kUnroll, {}};
  const auto accumulators = [&](const std::vector<Opt>& opts) {
    return all_of(simplify(unroll(simplify(apply(k, opts, gpu)), gpu)), Op::Reduce).size();
  };
  CHECK(accumulators({inner, unroll_inner}) == 4);  // one sum waits for itself: four parts of it
  CHECK(accumulators({inner, unroll_inner, {OptKind::Bind, 0, kUnroll, {}}}) == 8);
}
