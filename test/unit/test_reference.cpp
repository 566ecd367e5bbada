#include "test/reference.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "runtime/device/buffer.h"
#include "tiny/base/error.h"
#include "tiny/ir/build.h"

using namespace tiny;

namespace {

using Numbers = std::vector<double>;
using Integers = std::vector<int64_t>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Buffers without memory whose values the test holds.
class Inputs {
 public:
  Node add(DType dtype, Shape shape, const Numbers& values) {
    const int64_t size = numel(shape);
    const auto buffer = std::make_shared<Buffer>("CPU", dtype, size);
    const Node n = make(Op::Buffer, dtype, {}, BufferArg{buffer, size, 0});
    kept_.emplace_back(n);
    values_[n] = values;
    return build::reshape(n, shape);
  }
  HostTensor evaluate(Node n) const {
    return tiny::evaluate(n, [&](Node buffer, void* out) { read(buffer, out); });
  }
  Numbers numbers(Node n) const { return evaluate(n).numbers(); }
  Integers integers(Node n) const { return evaluate(n).integers(); }

 private:
  // By way of a cast of constants, so that every dtype is written by the one conversion.
  void read(Node buffer, void* out) const {
    const Numbers& values = values_.at(buffer);
    const size_t bytes = buffer->dtype.size();
    for (size_t i = 0; i < values.size(); ++i) {
      const Node one = build::cast(constant(kF64, values[i]), buffer->dtype);
      const HostTensor value = tiny::evaluate(one);
      std::memcpy(static_cast<std::byte*>(out) + i * bytes, value.data.data(), bytes);
    }
  }
  std::vector<NodeRef> kept_;
  std::map<Node, Numbers> values_;
};

Node scalar(DType t, double v) { return constant(t, v); }
Node integer(DType t, int64_t v) { return constant(t, v); }
int64_t value_of(Node n) { return evaluate(n).integers()[0]; }
double number_of(Node n) { return evaluate(n).numbers()[0]; }

// One integer operation on two buffers, so that no rewrite folds it.
int64_t apply(Op op, DType t, int64_t x, int64_t y) {
  return value_of(make(op, is_comparison(op) ? kBool : t, {integer(t, x), integer(t, y)}));
}
double apply(Op op, DType t, double x, double y) {
  return number_of(make(op, is_comparison(op) ? kBool : t, {scalar(t, x), scalar(t, y)}));
}

}  // namespace

TEST_CASE("the reference reads buffers through its callback") {
  Inputs in;
  const Node x = in.add(kF32, {2, 2}, {1, 2, 3, 4});
  CHECK(in.numbers(x) == Numbers{1, 2, 3, 4});
  CHECK(in.evaluate(x).shape == Shape{2, 2});
  CHECK(in.numbers(build::binary(Op::Add, x, x)) == Numbers{2, 4, 6, 8});
}

TEST_CASE("reference integers wrap around in their dtype") {
  CHECK(apply(Op::Add, kI8, int64_t{127}, int64_t{1}) == -128);
  CHECK(apply(Op::Mul, kI16, int64_t{300}, int64_t{300}) == 90000 - 65536);
  CHECK(apply(Op::Sub, kU8, int64_t{0}, int64_t{1}) == 255);
  CHECK(apply(Op::Add, kI32, int64_t{INT32_MAX}, int64_t{1}) == INT32_MIN);
  CHECK(apply(Op::Add, kI64, INT64_MAX, int64_t{1}) == INT64_MIN);
  CHECK(value_of(make(Op::Neg, kI8, {integer(kI8, -128)})) == -128);
  CHECK(value_of(make(Op::Neg, kU8, {integer(kU8, 1)})) == 255);
}

TEST_CASE("reference divisions round as their names say and give 0 for a divisor of 0") {
  CHECK(apply(Op::FloorDiv, kI32, int64_t{-7}, int64_t{2}) == -4);
  CHECK(apply(Op::FloorMod, kI32, int64_t{-7}, int64_t{2}) == 1);
  CHECK(apply(Op::FloorMod, kI32, int64_t{7}, int64_t{-2}) == -1);
  CHECK(apply(Op::TruncDiv, kI32, int64_t{-7}, int64_t{2}) == -3);
  CHECK(apply(Op::TruncMod, kI32, int64_t{-7}, int64_t{2}) == -1);
  CHECK(apply(Op::FloorDiv, kU8, int64_t{200}, int64_t{7}) == 28);
  for (Op op : {Op::FloorDiv, Op::FloorMod, Op::TruncDiv, Op::TruncMod}) {
    CHECK(apply(op, kI32, int64_t{5}, int64_t{0}) == 0);
    CHECK(apply(op, kU64, int64_t{5}, int64_t{0}) == 0);
  }
  CHECK(apply(Op::TruncDiv, kI64, INT64_MIN, int64_t{-1}) == INT64_MIN);
  CHECK(apply(Op::FloorMod, kI64, INT64_MIN, int64_t{-1}) == 0);
  CHECK(apply(Op::FloorMod, kF32, -7.5, 2.0) == 0.5);
}

TEST_CASE("reference shifts are arithmetic for signed and logical for unsigned integers") {
  CHECK(apply(Op::Shr, kI8, int64_t{-128}, int64_t{3}) == -16);
  CHECK(apply(Op::Shr, kU8, int64_t{0x80}, int64_t{3}) == 16);
  CHECK(apply(Op::Shl, kI8, int64_t{0x41}, int64_t{1}) == -126);
  CHECK(apply(Op::Shl, kU16, int64_t{0xffff}, int64_t{4}) == 0xfff0);
  CHECK(apply(Op::Xor, kU8, int64_t{0xf0}, int64_t{0xff}) == 0x0f);
}

TEST_CASE("reference Max and Min pass NaN on, comparisons do not hold for it") {
  for (Op op : {Op::Max, Op::Min}) {
    CHECK(std::isnan(apply(op, kF32, kNan, 1.0)));
    CHECK(std::isnan(apply(op, kBF16, 1.0, kNan)));
  }
  CHECK(apply(Op::Max, kF64, -kInfinity, 1.0) == 1);
  CHECK(apply(Op::Lt, kF32, kNan, 1.0) == 0);
  CHECK(apply(Op::Eq, kF32, kNan, kNan) == 0);
  CHECK(apply(Op::Ne, kF32, kNan, kNan) == 1);
  CHECK(apply(Op::Le, kU64, int64_t{-1}, int64_t{1}) == 0);  // the largest u64
}

TEST_CASE("reference 16-bit floats are rounded after every operation") {
  // 2048 + 1 is not a half: the sum is rounded to the even neighbour.
  CHECK(apply(Op::Add, kF16, 2048.0, 1.0) == 2048);
  CHECK(apply(Op::Add, kF16, 2048.0, 3.0) == 2052);
  CHECK(apply(Op::Mul, kF16, 300.0, 300.0) == kInfinity);
  CHECK(apply(Op::Add, kBF16, 256.0, 1.0) == 256);
  CHECK(apply(Op::Div, kF32, 1.0, 3.0) == static_cast<double>(1.0f / 3.0f));
  CHECK(apply(Op::Div, kF64, 1.0, 3.0) == 1.0 / 3.0);
}

TEST_CASE("reference functions are those of libm") {
  CHECK(number_of(make(Op::Exp2, kF64, {scalar(kF64, 0.5)})) == std::exp2(0.5));
  CHECK(number_of(make(Op::Log2, kF32, {scalar(kF32, 8)})) == 3);
  CHECK(number_of(make(Op::Sin, kF64, {scalar(kF64, 2)})) == std::sin(2.0));
  CHECK(number_of(make(Op::Sqrt, kF32, {scalar(kF32, 9)})) == 3);
  CHECK(number_of(make(Op::Recip, kF32, {scalar(kF32, 8)})) == 0.125);
  CHECK(number_of(make(Op::Floor, kF32, {scalar(kF32, -1.5)})) == -2);
  CHECK(number_of(make(Op::Trunc, kF32, {scalar(kF32, -1.5)})) == -1);
}

TEST_CASE("reference casts truncate, keep low bits, round to even and test for zero") {
  const auto cast = [](Node x, DType to) { return make(Op::Cast, to, {x}); };
  CHECK(value_of(cast(scalar(kF32, -2.9), kI32)) == -2);
  CHECK(value_of(cast(integer(kI32, 0x1234), kI8)) == 0x34);
  CHECK(value_of(cast(integer(kI32, -1), kU16)) == 0xffff);
  CHECK(value_of(cast(scalar(kF32, kNan), kBool)) == 1);
  CHECK(value_of(cast(scalar(kF32, 0.25), kBool)) == 1);
  CHECK(number_of(cast(scalar(kF32, 2049), kF16)) == 2048);
  CHECK(number_of(cast(scalar(kF32, 65520), kF16)) == kInfinity);
  CHECK(number_of(cast(integer(kI64, (1 << 24) + 1), kF32)) == 1 << 24);
  CHECK(value_of(make(Op::Bitcast, kI32, {scalar(kF32, 1)})) == 0x3f800000);
}

TEST_CASE("reference movement puts every element where its definition says") {
  Inputs in;
  const Node x = in.add(kI32, {2, 3}, {1, 2, 3, 4, 5, 6});
  CHECK(in.integers(build::permute(x, Shape{1, 0})) == Integers{1, 4, 2, 5, 3, 6});
  CHECK(in.integers(build::flip(x, Shape{1, 0})) == Integers{4, 5, 6, 1, 2, 3});
  CHECK(in.integers(build::flip(x, Shape{1, 1})) == Integers{6, 5, 4, 3, 2, 1});
  CHECK(in.integers(build::stride(x, Shape{1, 2})) == Integers{1, 3, 4, 6});
  CHECK(in.integers(build::shrink(x, Shape{1, 2, 1, 3})) == Integers{5, 6});
  CHECK(in.integers(build::pad(x, Shape{0, 1, 1, 0})) ==
        Integers{0, 1, 2, 3, 0, 4, 5, 6, 0, 0, 0, 0});
  const Node row = in.add(kI32, {1, 2}, {7, 8});
  CHECK(in.integers(build::expand(row, Shape{3, 2})) == Integers{7, 8, 7, 8, 7, 8});
  const Node deep = in.add(kI32, {2, 1, 2}, {1, 2, 3, 4});
  CHECK(in.integers(build::permute(build::expand(deep, Shape{2, 2, 2}), Shape{2, 0, 1})) ==
        Integers{1, 1, 3, 3, 2, 2, 4, 4});
  // out[i, j] = x[1 - i, i + j]
  CHECK(in.integers(build::affine(x, Shape{2, 2}, Shape{1, -1, 0, 0, 1, 1})) ==
        Integers{4, 5, 2, 3});
}

TEST_CASE("reference reductions cover any axes and keep them with size 1") {
  Inputs in;
  const Node x = in.add(kF32, {2, 3}, {1, -2, 3, 4, 5, -6});
  CHECK(in.numbers(build::reduce(Op::Add, x, 0b01)) == Numbers{5, 3, -3});
  CHECK(in.numbers(build::reduce(Op::Add, x, 0b10)) == Numbers{2, 3});
  CHECK(in.numbers(build::reduce(Op::Max, x, 0b10)) == Numbers{3, 5});
  CHECK(in.numbers(build::reduce(Op::Min, x, 0b11)) == Numbers{-6});
  CHECK(in.numbers(build::reduce(Op::Mul, x, 0b11)) == Numbers{720});
  CHECK(in.evaluate(build::reduce(Op::Add, x, 0b10)).shape == Shape{2, 1});
  const Node flags = in.add(kBool, {4}, {0, 0, 1, 0});
  CHECK(in.integers(build::reduce(Op::Max, flags, 1)) == Integers{1});
  CHECK(in.integers(build::reduce(Op::Min, flags, 1)) == Integers{0});
}

TEST_CASE("a reference sum of 16-bit floats does not lose what is smaller than its last place") {
  const Node x = build::full(Shape{4096}, kF16, 1.0);
  CHECK(number_of(build::reduce(Op::Add, x, 1)) == 4096);
  const Node y = build::full(Shape{1 << 20}, kF32, 0.1);
  CHECK(number_of(build::reduce(Op::Add, y, 1)) == doctest::Approx(104857.6).epsilon(1e-7));
}

TEST_CASE("a reference gather gives zero where an index lies outside") {
  Inputs in;
  const Node x = in.add(kF32, {2, 2}, {1, 2, 3, 4});
  const Node row = in.add(kI64, {4}, {0, 1, 1, 2}), column = in.add(kI32, {4}, {1, 0, -1, 0});
  const std::vector<Node> indices{row, column};
  CHECK(in.numbers(build::gather(x, indices)) == Numbers{2, 3, 0, 0});
}

TEST_CASE("a reference scatter combines in row-major order and drops what lies outside") {
  Inputs in;
  const Node base = in.add(kF32, {3}, {10, 20, 30}), values = in.add(kF32, {4}, {1, 2, 3, 4});
  const std::vector<Node> at{in.add(kI64, {4}, {2, 0, 2, 3})};
  const auto by = [&](Op op) {
    return in.numbers(build::scatter(base, values, at, ScatterArg{op, false}));
  };
  CHECK(by(Op::Add) == Numbers{12, 20, 34});
  CHECK(by(Op::Mul) == Numbers{20, 20, 90});
  CHECK(by(Op::Max) == Numbers{10, 20, 30});
  CHECK(by(Op::Min) == Numbers{2, 20, 1});
  CHECK(by(Op::Assign) == Numbers{2, 20, 3});
}

TEST_CASE("the reference passes values through nodes that only say where they live") {
  Inputs in;
  const Node x = in.add(kF32, {2}, {1, 2}), y = in.add(kF32, {2}, {3, 4});
  CHECK(in.numbers(build::assign(x, y)) == Numbers{3, 4});
  CHECK(in.numbers(build::contiguous(x)) == Numbers{1, 2});
  CHECK(in.numbers(build::detach(build::leaf(x))) == Numbers{1, 2});
}

TEST_CASE("the reference selects by a condition and counts by iota") {
  const Node i = build::iota(4, kI32);
  const Node condition = build::binary(Op::Lt, i, build::full(Shape{4}, kI32, int64_t{2}));
  const Node nan = build::full(Shape{4}, kF32, kNan);
  const Node chosen = build::where(condition, build::cast(i, kF32), nan);
  const Numbers values = evaluate(chosen).numbers();
  CHECK(values[1] == 1);
  CHECK(std::isnan(values[2]));
}

TEST_CASE("the reference evaluates chains of any depth without recursion") {
  Node x = build::cast(build::iota(2, kI32), kF64);
  for (int i = 0; i < 20000; ++i) x = build::binary(Op::Add, x, build::full(Shape{2}, kF64, 1.0));
  CHECK(evaluate(x).numbers() == Numbers{20000, 20001});
}

TEST_CASE("the reference handles tensors without elements") {
  const Node none = build::full(Shape{0, 3}, kF32, 1.0);
  CHECK(evaluate(none).size() == 0);
  CHECK(evaluate(build::reduce(Op::Add, none, 0b01)).numbers() == Numbers{0, 0, 0});
  CHECK(evaluate(build::reduce(Op::Max, none, 0b01)).numbers() ==
        Numbers{-kInfinity, -kInfinity, -kInfinity});
}

TEST_CASE("the reference refuses nodes that belong into kernels") {
  const Node param = make(Op::Param, kF32, {}, Ints(Shape{0, 4}));
  CHECK_THROWS_AS(evaluate(param), Bug);
}
