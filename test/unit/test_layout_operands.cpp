#include "runtime/layout/pack.h"

#include <doctest/doctest.h>

#include "test/unit/kernels.h"
#include "tiny/base/env.h"
#include "tiny/ir/build.h"

using namespace tiny;
using namespace tiny::test;

namespace {

Target hopper() {
  Target t;
  t.kind = Target::Kind::Gpu;
  t.has_wgmma = true;
  return t;
}

// a (rows, 64) times b (64, 256), both computed: the sum of their products.
Node product(int64_t rows, DType dtype) {
  Node a = build::unary(Op::Neg, tensor_param(1, {rows, 64}, dtype));
  Node b = build::unary(Op::Neg, tensor_param(2, {64, 256}, dtype));
  const Shape shape{rows, 64, 256};
  a = build::expand(build::reshape(a, Shape{rows, 64, 1}), shape);
  b = build::expand(build::reshape(b, Shape{1, 64, 256}), shape);
  return build::reduce(Op::Add, build::binary(Op::Mul, a, b), 2);
}

}  // namespace

TEST_CASE("computed operands of matrix units get memory, f32 where it may be rounded") {
  CHECK(computed_operands(product(256, kBF16), hopper()).size() == 2);
  CHECK(computed_operands(product(256, kF32), hopper()).empty());
  CHECK(computed_operands(product(256, kBF16), Target()).empty());
  const EnvOverride rounds("ALLOW_TF32", "1");
  CHECK(computed_operands(product(256, kF32), hopper()).size() == 2);
  CHECK(computed_operands(product(32, kF32), hopper()).empty());  // b is used 32 times
}

TEST_CASE("operands that lie in memory by windows get memory by rows where they are read often") {
  // (images, 15, 15, 2, 2), the order of a pool's gradient, as images of 30 x 30.
  Node pooled = build::unary(Op::Neg, tensor_param(1, {8, 15, 15, 2, 2}));
  const Shape order{0, 1, 3, 2, 4};
  Node images = build::reshape(build::permute(pooled, order), Shape{8, 1, 30, 30});
  const auto read = [&](int64_t uses) { return build::expand(images, Shape{8, uses, 30, 30}); };
  CHECK(with_affine_indices(read(16)) == read(16));
  Node often = with_affine_indices(read(64));
  CHECK(same(often->shape(), read(64)->shape()));
  Node memory = often;
  while (is_movement(memory->op)) memory = memory->src(0);
  REQUIRE(memory->op == Op::Contiguous);
  CHECK(memory->src(0) == images);
  Node rows = build::expand(tensor_param(2, {8, 1, 30, 30}), Shape{8, 64, 30, 30});
  CHECK(with_affine_indices(rows) == rows);  // they are already
}

TEST_CASE(
    "an operand that leaves elements of its memory out is stored without them where it is "
    "read often") {
  Node x = tensor_param(1, {64, 28, 28});
  const Shape every_second{0, 1, 0, 0, 0, 0, 2, 0, 0, 0, 0, 2};
  Node seen = build::affine(x, Shape{64, 14, 14}, every_second);
  const auto read = [&](Node v, int64_t uses) {
    return build::expand(build::reshape(v, Shape{1, 64, 14, 14}), Shape{uses, 64, 14, 14});
  };
  CHECK(with_dense_indices(read(seen, 16)) == read(seen, 16));
  Node memory = with_dense_indices(read(seen, 64));
  while (is_movement(memory->op)) memory = memory->src(0);
  REQUIRE(memory->op == Op::Contiguous);
  CHECK(memory->src(0) == seen);
  // Windows of 3 x 3 leave nothing out where they are two apart.
  const Shape windows{0, 1, 0, 0, 0, 0, 0, 0, 2, 0, 1, 0, 0, 0, 0, 2, 0, 1};
  Node w = build::affine(x, Shape{64, 13, 13, 3, 3}, windows);
  Node often =
      build::expand(build::reshape(w, Shape{1, 64, 13, 13, 3, 3}), Shape{64, 64, 13, 13, 3, 3});
  CHECK(with_dense_indices(often) == often);
}

TEST_CASE("a CPU's weights are packed where pixels would make worse tiles, and are many") {
  Target cpu;
  cpu.vector_bytes = 64;
  cpu.vector_registers = 32;
  // Whether (columns, k) is stored by columns, beside (k, size, size).
  const auto packs = [&](int64_t columns, int64_t k, int64_t size) {
    const Shape shape{columns, k, size, size};
    Node w = build::reshape(tensor_param(1, {columns, k}), Shape{columns, k, 1, 1});
    Node x = build::reshape(tensor_param(2, {k, size, size}), Shape{1, k, size, size});
    Node mul = build::binary(Op::Mul, build::expand(w, shape), build::expand(x, shape));
    const std::vector<OperandPlan> plans = plan_packing(build::reduce(Op::Add, mul, 2), cpu);
    REQUIRE(plans.size() == 2);
    return plans[0].dim == 0;
  };
  CHECK(packs(256, 256, 14));
  CHECK_FALSE(packs(16, 256, 64));  // one vector of columns, four of pixels
  CHECK_FALSE(packs(64, 4, 14));    // as long as a kernel more
}
