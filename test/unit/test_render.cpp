#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "codegen/kernel/facts.h"
#include "codegen/passes/passes.h"
#include "test/unit/run_kernel.h"
#include "tiny/base/error.h"

using namespace tiny;
using namespace tiny::test;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Numbers of both signs with every special value among them, in a random order.
template <class T> std::vector<T> samples(size_t n, unsigned seed) {
  std::vector<T> out(n);
  std::mt19937 rng(seed);
  std::uniform_real_distribution<double> number(-100, 100);
  constexpr bool is_float = std::is_floating_point_v<T>;
  using Limits = std::numeric_limits<T>;
  const T special[] = {T(0),
                       is_float ? T(-0.0) : T(-1),
                       Limits::max(),
                       Limits::lowest(),
                       is_float ? T(kInf) : T(1),
                       is_float ? T(-kInf) : T(2),
                       is_float ? T(kNan) : T(3),
                       is_float ? Limits::denorm_min() : T(7)};
  for (T& v : out) v = rng() % 3 ? static_cast<T>(number(rng)) : special[rng() % 8];
  return out;
}

template <class T> bool same_number(T a, T b) {
  if constexpr (std::is_floating_point_v<T>)
    return (std::isnan(a) && std::isnan(b)) || a == b;
  else
    return a == b;
}

template <class T> T add_wrapping(T a, T b) {
  return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}

// What an element-wise kernel of x (slot 0) and y (slot 1) should give.
template <class T, class R> struct Case {
  const char* name;
  std::function<Node(Node x, Node y)> formula;
  std::function<R(T x, T y)> expected;
};

// Every case is an output of one kernel over vectors of `lanes`.
template <class T, class R> void check_cases(const std::vector<Case<T, R>>& cases, int lanes) {
  const int64_t n = 512;
  const std::vector<T> x = samples<T>(n, 1), y = samples<T>(n, 2);
  for (Compiler compiler : compilers()) {
    const Node r = range(0, n / lanes, RangeKind::Core);
    const Node at = op(Op::Mul, r, constant(kI64, lanes));
    const DType t = dtype_of<T>().vec(lanes);
    const Node a = make(Op::Load, t, {param(0, t.one()), at});
    const Node b = make(Op::Load, t, {param(1, t.one()), at});
    Statements s("cases");
    s.loop(r);
    std::vector<std::vector<R>> out(cases.size(), std::vector<R>(n));
    std::vector<void*> args{const_cast<T*>(x.data()), const_cast<T*>(y.data())};
    for (size_t i = 0; i < cases.size(); ++i) {
      const Node value = cases[i].formula(a, b);
      const Node to = param(static_cast<int>(i) + 2, value->dtype.one());
      s.values(make(Op::Store, kVoid, {to, at, value}));
      args.push_back(out[i].data());
    }
    s.end(r);
    run(s.linear(), host_target(compiler), args, 0, n / lanes);
    for (size_t i = 0; i < cases.size(); ++i)
      for (int64_t k = 0; k < n; ++k) {
        INFO(cases[i].name, " of ", x[k], " and ", y[k], ", ", lanes, " lanes, compiler ",
             static_cast<int>(compiler));
        const R want = cases[i].expected(x[k], y[k]);
        REQUIRE_MESSAGE(same_number(out[i][k], want), out[i][k], " is not ", want);
      }
  }
}

auto with(Op o) {
  return [o](Node x, Node y) { return op(o, x, y); };
}
auto one(Op o) {
  return [o](Node x, Node) { return make(o, x->dtype, {x}); };
}
auto to(DType t) {
  return [t](Node x, Node) { return make(Op::Cast, t.vec(x->dtype.lanes), {x}); };
}
auto with_const(Op o, double c) {
  return [=](Node x, Node) { return op(o, x, constant(x->dtype, c)); };
}

template <class T> T max_nan(T a, T b) {
  return std::isnan(a) || std::isnan(b) ? T(kNan) : std::max(a, b);
}
template <class T> T min_nan(T a, T b) {
  return std::isnan(a) || std::isnan(b) ? T(kNan) : std::min(a, b);
}

template <class R, class T> R saturated(T x) {
  if (std::isnan(x)) return 0;
  if (x >= std::ldexp(T(1), std::numeric_limits<R>::digits)) return std::numeric_limits<R>::max();
  if (x <= T(std::numeric_limits<R>::min())) return std::numeric_limits<R>::min();
  return static_cast<R>(x);
}

template <class T> std::vector<Case<T, T>> float_cases() {
  return {
      {"add", with(Op::Add), [](T x, T y) { return x + y; }},
      {"sub", with(Op::Sub), [](T x, T y) { return x - y; }},
      {"mul", with(Op::Mul), [](T x, T y) { return x * y; }},
      {"div", with(Op::Div), [](T x, T y) { return x / y; }},
      {"max", with(Op::Max), max_nan<T>},
      {"min", with(Op::Min), min_nan<T>},
      {"max with 0", with_const(Op::Max, 0), [](T x, T) { return max_nan<T>(x, 0); }},
      {"min with 6", with_const(Op::Min, 6), [](T x, T) { return min_nan<T>(x, 6); }},
      {"max with inf", with_const(Op::Max, kInf), [](T x, T) { return max_nan<T>(x, kInf); }},
      {"max with NaN", with_const(Op::Max, kNan), [](T, T) { return T(kNan); }},
      {"neg", one(Op::Neg), [](T x, T) { return -x; }},
      {"recip", one(Op::Recip), [](T x, T) { return 1 / x; }},
      {"sqrt", one(Op::Sqrt), [](T x, T) { return std::sqrt(x); }},
      {"floor", one(Op::Floor), [](T x, T) { return std::floor(x); }},
      {"trunc", one(Op::Trunc), [](T x, T) { return std::trunc(x); }},
      {"where",
       [](Node x, Node y) {
         return make(Op::Where, x->dtype, {op(Op::Lt, x, y), x, y});
       },
       [](T x, T y) { return x < y ? x : y; }},
  };
}

template <class T> std::vector<Case<T, uint8_t>> comparison_cases() {
  return {
      {"lt", with(Op::Lt), [](T x, T y) { return x < y; }},
      {"le", with(Op::Le), [](T x, T y) { return x <= y; }},
      {"eq", with(Op::Eq), [](T x, T y) { return x == y; }},
      {"ne", with(Op::Ne), [](T x, T y) { return x != y; }},
      {"to bool", to(kBool), [](T x, T) { return x != 0; }},
      {"lt of bools", [](Node x, Node y) { return op(Op::Lt, to(kBool)(x, y), to(kBool)(y, x)); },
       [](T x, T y) { return (x != 0) < (y != 0); }},
      {"le of bools", [](Node x, Node y) { return op(Op::Le, to(kBool)(x, y), to(kBool)(y, x)); },
       [](T x, T y) { return (x != 0) <= (y != 0); }},
      {"xor of bools",
       [](Node x, Node y) { return op(Op::Xor, to(kBool)(x, y), op(Op::Le, x, y)); },
       [](T x, T y) { return (x != 0) != (x <= y); }},
      {"and with true",
       [](Node x, Node y) {
         return op(Op::And, op(Op::Lt, x, y), constant(kBool.vec(x->dtype.lanes), 1));
       },
       [](T x, T y) { return x < y; }},
  };
}

template <class T> std::vector<Case<T, T>> int_cases() {
  constexpr int kBits = sizeof(T) * 8;
  constexpr T kLow = std::numeric_limits<T>::min();
  const auto overflows = [](T x, T y) { return std::is_signed_v<T> && x == kLow && y == T(-1); };
  return {
      {"add", with(Op::Add), add_wrapping<T>},
      {"sub", with(Op::Sub), [](T x, T y) { return add_wrapping<T>(x, T(0) - uint64_t(y)); }},
      {"mul", with(Op::Mul), [](T x, T y) { return static_cast<T>(uint64_t(x) * uint64_t(y)); }},
      {"neg", one(Op::Neg), [](T x, T) { return static_cast<T>(0 - uint64_t(x)); }},
      {"max", with(Op::Max), [](T x, T y) { return std::max(x, y); }},
      {"min", with(Op::Min), [](T x, T y) { return std::min(x, y); }},
      {"and", with(Op::And), [](T x, T y) { return static_cast<T>(x & y); }},
      {"xor", with(Op::Xor), [](T x, T y) { return static_cast<T>(x ^ y); }},
      {"div", with(Op::TruncDiv),
       [=](T x, T y) { return y == 0            ? T(0)
                              : overflows(x, y) ? x
                                                : static_cast<T>(x / y); }},
      {"mod", with(Op::TruncMod),
       [=](T x, T y) { return y == 0 || overflows(x, y) ? T(0) : static_cast<T>(x % y); }},
      {"div by 3", with_const(Op::TruncDiv, 3), [](T x, T) { return static_cast<T>(x / 3); }},
      {"shl", with(Op::Shl),
       [](T x, T y) { return static_cast<T>(uint64_t(x) << (uint64_t(y) % kBits)); }},
      {"shr", with(Op::Shr), [](T x, T y) { return static_cast<T>(x >> (uint64_t(y) % kBits)); }},
      {"shl by 3", with_const(Op::Shl, 3), [](T x, T) { return static_cast<T>(uint64_t(x) << 3); }},
  };
}

template <class T, class R> void check_cast(R (*expected)(T), int lanes) {
  check_cases<T, R>({{"cast", to(dtype_of<R>()), [=](T x, T) { return expected(x); }}}, lanes);
}

// y[i] = x[i] * 2 + 1 over vectors of 16.
Linear scale_program() {
  const Node r = range(0, 64, RangeKind::Core);
  const Node at = op(Op::Mul, r, constant(kI64, 16));
  const Node x = make(Op::Load, kF32.vec(16), {param(0, kF32), at});
  const Node twice = op(Op::Mul, x, constant(x->dtype, 2));
  const Node y = op(Op::Add, twice, constant(x->dtype, 1));
  Statements s("scale");
  s.loop(r).values(make(Op::Store, kVoid, {param(1, kF32), at, y})).end(r);
  return s.linear();
}

// out[row] = reduction over `columns` of row `row`, in vectors of 16 that are folded at the end.
Linear row_reduce(Op how, int64_t columns) {
  const DType v = kF32.vec(16);
  const Node row = range(0, 1 << 20, RangeKind::Core), block = range(1, columns / 16);
  const Node start = op(Op::Mul, row, constant(kI64, columns));
  const Node at = op(Op::Add, start, op(Op::Mul, block, constant(kI64, 16)));
  const Node x = make(Op::Load, v, {param(0, kF32), at});
  const Node reduce = make(Op::Reduce, v, {x, block}, OpArg{how});
  const Node fold = make(Op::Fold, kF32, {reduce}, OpArg{how});
  Statements s("reduce");
  s.loop(row).accumulate(reduce).loop(block).update(reduce).end(block).result(reduce);
  s.values(make(Op::Store, kVoid, {param(1, kF32), row, fold})).end(row);
  return s.linear();
}

}  // namespace

TEST_CASE("arithmetic of floats is that of IEEE 754, with NaN in max and min") {
  for (int lanes : {1, 16}) check_cases<float, float>(float_cases<float>(), lanes);
  for (int lanes : {1, 8}) check_cases<double, double>(float_cases<double>(), lanes);
}

TEST_CASE("comparisons give bools of one byte") {
  for (int lanes : {1, 16}) check_cases<float, uint8_t>(comparison_cases<float>(), lanes);
  for (int lanes : {1, 8}) check_cases<int64_t, uint8_t>(comparison_cases<int64_t>(), lanes);
  check_cases<uint8_t, uint8_t>(comparison_cases<uint8_t>(), 16);
}

TEST_CASE("integers wrap, and a division by zero or of the lowest by -1 does not trap") {
  for (int lanes : {1, 16}) {
    check_cases<int32_t, int32_t>(int_cases<int32_t>(), lanes);
    check_cases<uint8_t, uint8_t>(int_cases<uint8_t>(), lanes);
    check_cases<int8_t, int8_t>(int_cases<int8_t>(), lanes);
  }
  check_cases<uint16_t, uint16_t>(int_cases<uint16_t>(), 1);
  check_cases<uint32_t, uint32_t>(int_cases<uint32_t>(), 4);
  check_cases<int64_t, int64_t>(int_cases<int64_t>(), 8);
  check_cases<uint64_t, uint64_t>(int_cases<uint64_t>(), 1);
}

TEST_CASE("casts of floats to integers saturate, NaN gives 0") {
  for (int lanes : {1, 8}) {
    check_cast<float, int32_t>(saturated<int32_t, float>, lanes);
    check_cast<float, int8_t>(saturated<int8_t, float>, lanes);
    check_cast<float, uint64_t>(saturated<uint64_t, float>, lanes);
    check_cast<double, int64_t>(saturated<int64_t, double>, lanes);
    check_cast<double, uint16_t>(saturated<uint16_t, double>, lanes);
  }
}

TEST_CASE("casts between other dtypes keep the value or its low bits") {
  for (int lanes : {1, 8}) {
    check_cast<uint64_t, float>([](uint64_t x) { return float(x); }, lanes);
    check_cast<int64_t, double>([](int64_t x) { return double(x); }, lanes);
    check_cast<int32_t, int8_t>([](int32_t x) { return int8_t(x); }, lanes);
    check_cast<int8_t, uint64_t>([](int8_t x) { return uint64_t(x); }, lanes);
    check_cast<double, float>([](double x) { return float(x); }, lanes);
  }
}

TEST_CASE("bools become 0 and 1, and bits are kept by a bitcast") {
  const std::vector<Case<float, float>> bools{
      {"bool", [](Node x, Node y) { return to(kF32)(to(kBool)(x, y), y); },
       [](float x, float) { return float(x != 0); }}};
  const auto negated_bits = [](Node x, Node y) {
    return make(Op::Bitcast, kU32.vec(x->dtype.lanes), {one(Op::Neg)(x, y)});
  };
  const std::vector<Case<float, uint32_t>> bits{
      {"bits", negated_bits, [](float x, float) { return std::bit_cast<uint32_t>(-x); }}};
  for (int lanes : {1, 8}) {
    check_cases<float, float>(bools, lanes);
    check_cases<float, uint32_t>(bits, lanes);
  }
}

TEST_CASE("the parallel range runs from begin to end") {
  std::vector<float> x(1024), y(1024, -7);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  for (Compiler compiler : compilers()) {
    run(scale_program(), host_target(compiler), {x.data(), y.data()}, 2, 5);
    CHECK(y[31] == -7);
    CHECK(y[32] == 65);
    CHECK(y[79] == 159);
    CHECK(y[80] == -7);
  }
}

TEST_CASE("a row is summed in lanes that are folded at the end, alike by every compiler") {
  const int64_t rows = 5, columns = 160;
  std::vector<float> x(rows * columns), first;
  std::mt19937 rng(3);
  for (float& v : x) v = std::uniform_real_distribution<float>(-1, 1)(rng);
  for (Compiler compiler : compilers()) {
    std::vector<float> sums(rows);
    run(row_reduce(Op::Add, columns), host_target(compiler), {x.data(), sums.data()}, 0, rows);
    for (int64_t r = 0; r < rows; ++r) {
      double want = 0;
      for (int64_t c = 0; c < columns; ++c) want += x[r * columns + c];
      CHECK(sums[r] == doctest::Approx(want).epsilon(1e-5));
    }
    if (first.empty()) first = sums;
    CHECK(sums == first);
  }
}

TEST_CASE("the maximum of a row with NaN is NaN, of a row of -inf is -inf") {
  std::vector<float> x(4 * 32, -kInf);
  x[0] = kNan;
  x[32 + 31] = kNan;
  x[64 + 5] = 3;
  for (Compiler compiler : compilers()) {
    std::vector<float> most(4);
    run(row_reduce(Op::Max, 32), host_target(compiler), {x.data(), most.data()}, 0, 4);
    CHECK(std::isnan(most[0]));
    CHECK(std::isnan(most[1]));
    CHECK(most[2] == 3);
    CHECK(most[3] == -kInf);
  }
}

TEST_CASE("a gated load is zero where its gate is false and touches nothing there") {
  std::vector<float> x{1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  for (Compiler compiler : compilers())
    for (int lanes : {1, 8}) {
      // out[i] = x[i - 4] where 4 <= i < 12, in a window far outside the buffer elsewhere
      const Node r = range(0, 16 / lanes, RangeKind::Core);
      Node i = op(Op::Mul, r, constant(kI64, lanes));
      const Node at = i, start = op(Op::Sub, i, constant(kI64, 4));
      if (lanes > 1) i = op(Op::Add, splat(i, lanes), make(Op::Ramp, kI64.vec(lanes)));
      const auto bound = [&](int64_t v) { return constant(i->dtype, v); };
      const Node gate = op(Op::And, op(Op::Le, bound(4), i), op(Op::Lt, i, bound(12)));
      const Node v = make(Op::Load, kF32.vec(lanes), {param(0, kF32), start, gate});
      Statements s("window");
      s.loop(r).values(make(Op::Store, kVoid, {param(1, kF32), at, v})).end(r);
      std::vector<float> out(16, -1);
      run(s.linear(), host_target(compiler), {x.data(), out.data()}, 0, 16 / lanes);
      CHECK(out == std::vector<float>{0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0});
    }
}

TEST_CASE("gates of stores leave memory as it is, with one lane, with all, and for a scatter") {
  std::vector<int32_t> x{1, 2, 3, 4, 5, 6, 7, 8};
  for (Compiler compiler : compilers()) {
    const Node r = range(0, 2, RangeKind::Core);
    const Node at = op(Op::Mul, r, constant(kI64, 4)), ramp = make(Op::Ramp, kI64.vec(4));
    const Node v = make(Op::Load, kI32.vec(4), {param(0, kI32), at});
    const Node lanes = op(Op::Lt, ramp, constant(kI64.vec(4), 2));
    const Node first = op(Op::Eq, r, constant(kI64, 0));
    const Node back = op(Op::Sub, constant(kI64.vec(4), 7), op(Op::Add, splat(at, 4), ramp));
    Statements s("stores");
    s.loop(r);
    s.values(make(Op::Store, kVoid, {param(1, kI32), at, v, lanes}));
    s.values(make(Op::Store, kVoid, {param(2, kI32), at, v, first}));
    s.values(make(Op::Store, kVoid, {param(3, kI32), back, v, lanes}));
    s.end(r);
    std::vector<int32_t> a(8, -1), b(8, -1), c(8, -1);
    run(s.linear(), host_target(compiler), {x.data(), a.data(), b.data(), c.data()}, 0, 2);
    CHECK(a == std::vector<int32_t>{1, 2, -1, -1, 5, 6, -1, -1});
    CHECK(b == std::vector<int32_t>{1, 2, 3, 4, -1, -1, -1, -1});
    CHECK(c == std::vector<int32_t>{-1, -1, 6, 5, -1, -1, 2, 1});
  }
}

TEST_CASE("a vector index gathers, bools and reversed lanes included") {
  std::vector<uint8_t> x{1, 0, 0, 1, 1, 1, 0, 0};
  std::vector<int32_t> index{7, 6, 5, 4, -9, 2, 1, 99};
  for (Compiler compiler : compilers()) {
    const Node r = range(0, 1, RangeKind::Core);
    const Node i = make(Op::Load, kI32.vec(8), {param(1, kI32), r});
    const Node inside =
        op(Op::And, op(Op::Le, constant(i->dtype, 0), i), op(Op::Lt, i, constant(i->dtype, 8)));
    const Node v = make(Op::Load, kBool.vec(8), {param(0, kBool), i, inside});
    const Node reversed = make(Op::Reverse, v->dtype, {v});
    const Node all = make(Op::Fold, kBool, {op(Op::Or, v, reversed)}, OpArg{Op::Min});
    Statements s("gather");
    s.loop(r);
    s.values(make(Op::Store, kVoid, {param(2, kBool), r, reversed}));
    s.values(make(Op::Store, kVoid, {param(3, kBool), r, all})).end(r);
    std::vector<uint8_t> out(8, 9), folded(1, 9);
    run(s.linear(), host_target(compiler), {x.data(), index.data(), out.data(), folded.data()}, 0,
        1);
    CHECK(out == std::vector<uint8_t>{0, 0, 0, 0, 1, 1, 0, 0});
    CHECK(folded[0] == 0);
  }
}

TEST_CASE("index arithmetic is said not to wrap only where bounds show it") {
  const Node r = range(0, 1000, RangeKind::Loop, kI32);
  CHECK(cannot_wrap(op(Op::Mul, r, constant(kI32, 1000))));
  CHECK_FALSE(cannot_wrap(op(Op::Mul, r, constant(kI32, 10000000))));
  const Node loaded = make(Op::Load, kI32, {param(0, kI32), r});
  CHECK_FALSE(cannot_wrap(op(Op::Add, loaded, constant(kI32, 1))));
}

TEST_CASE("divisions are guarded unless the divisor is known") {
  const Node r = range(0, 1000, RangeKind::Loop, kI32);
  const Node loaded = make(Op::Load, kI32, {param(0, kI32), r});
  CHECK(divide_hazard(op(Op::TruncDiv, loaded, loaded)).by_zero);
  CHECK(divide_hazard(op(Op::TruncDiv, loaded, loaded)).overflow);
  CHECK_FALSE(divide_hazard(op(Op::TruncDiv, loaded, constant(kI32, 7))).any());
  CHECK(divide_hazard(op(Op::TruncDiv, loaded, constant(kI32, -1))).overflow);
  const Node positive = op(Op::Add, r, constant(kI32, 1));
  CHECK_FALSE(divide_hazard(op(Op::TruncDiv, loaded, positive)).any());
}

TEST_CASE("a factor of an index is found through casts, shifts, divisions and masks") {
  const Node r = range(0, 1000, RangeKind::Loop, kI32), s = range(1, 1000, RangeKind::Loop, kI32);
  const auto c = [](int64_t v) { return constant(kI32, v); };
  const Node twelve = op(Op::Mul, r, c(12));
  CHECK(known_factor(c(0)) == 0);
  CHECK(known_factor(c(-8)) == 8);
  CHECK(known_factor(r) == 1);
  CHECK(known_factor(range(2, 1, RangeKind::Loop, kI32)) == 0);
  CHECK(known_factor(op(Op::Add, twelve, op(Op::Mul, s, c(8)))) == 4);
  CHECK(known_factor(make(Op::Cast, kI64, {twelve})) == 12);
  CHECK(known_factor(op(Op::TruncDiv, twelve, c(3))) == 4);
  CHECK(known_factor(op(Op::TruncDiv, twelve, c(5))) == 1);
  CHECK(known_factor(op(Op::TruncMod, twelve, c(8))) == 4);
  CHECK(known_factor(op(Op::Shl, r, c(3))) == 8);
  CHECK(known_factor(op(Op::Shr, twelve, c(1))) == 6);
  CHECK(known_factor(op(Op::Shr, twelve, c(3))) == 1);
  CHECK(known_factor(op(Op::And, r, c(-16))) == 16);
  CHECK(known_factor(op(Op::Or, op(Op::Shl, r, c(4)), c(4))) == 4);
  CHECK(known_factor(make(Op::Where, kI32, {op(Op::Lt, r, s), twelve, c(8)})) == 4);
  // What wraps keeps its power of two, and no other factor.
  const Node loaded = make(Op::Load, kI32, {param(0, kI32), r});
  CHECK(known_factor(op(Op::Mul, loaded, c(12))) == 4);
  CHECK(known_factor(op(Op::Mul, c(int64_t{1} << 30), c(int64_t{1} << 30))) % 16 == 0);
}

TEST_CASE("identities leave the other operand of a reduction unchanged") {
  CHECK(identity(Op::Max, kF32)->number() == -kInf);
  CHECK(identity(Op::Min, kF16)->number() == kInf);
  CHECK(identity(Op::Max, kI8)->int_value() == -128);
  CHECK(identity(Op::Min, kU64)->int_value() == -1);
  CHECK(identity(Op::Min, kBool)->int_value() == 1);
  CHECK(identity(Op::Mul, kF64)->number() == 1);
  CHECK_THROWS_AS(identity(Op::Sub, kF32), Bug);
}

TEST_CASE("a linear program prints one line a statement") {
  CHECK(to_text(row_reduce(Op::Add, 32)) ==
        "kernel reduce in f32 b0, out f32 b1\n"
        "  loop r0: i64 < 1048576 Core\n"
        "    acc1: f32x16 = 0:f32x16\n"
        "    loop r1: i64 < 2 Loop\n"
        "      v1: i64 = Mul(r0, 32)\n"
        "      v2: i64 = Mul(r1, 16)\n"
        "      v3: i64 = Add(v1, v2)\n"
        "      v4: f32x16 = Load(b0, v3)\n"
        "      acc1 = Add(acc1, v4)\n"
        "    end r1\n"
        "    v5: f32x16 = Reduce(acc1)\n"
        "    v6: f32 = Fold.Add(v5)\n"
        "    Store(b1, r0, v6)\n"
        "  end r0\n");
}

TEST_CASE("vectors of indices get 32 bits where bounds fit, scalars 64 on a CPU") {
  const Node r = range(0, 1 << 20, RangeKind::Core, kIndex);
  const Node scalar = op(Op::Mul, r, constant(kIndex, 16));
  const Node lanes = op(Op::Add, splat(scalar, 16), make(Op::Ramp, kIndex.vec(16)));
  const Node far = op(Op::Mul, lanes, constant(kIndex.vec(16), int64_t{1} << 20));
  const Node gate = op(Op::Lt, far, constant(kIndex.vec(16), int64_t{1} << 40));
  const Node v = make(Op::Load, kF32.vec(16), {param(0, kF32), lanes, gate});
  const Node store = make(Op::Store, kVoid, {param(1, kF32), scalar, v});
  const Node out = choose_index_width(store, Target{});
  CHECK(out->src(1)->dtype == kI64);
  const Node load = out->src(2);
  CHECK(load->src(1)->dtype == kI32.vec(16));
  CHECK(load->src(2)->src(0)->dtype == kI64.vec(16));
  for (Node n : topological(out)) CHECK(n->dtype.scalar != Scalar::Index);
}
