#include "runtime/layout_operands.h"

#include <doctest/doctest.h>

#include "test/unit/kernels.h"
#include "tiny/build.h"
#include "tiny/env.h"

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
