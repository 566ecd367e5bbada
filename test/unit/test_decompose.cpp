#include "codegen/passes/decompose/decompose.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "codegen/passes/passes.h"
#include "test/unit/run_kernel.h"
#include "tiny/ir/facts.h"
#include "tiny/tiny.h"

using namespace tiny;
using namespace tiny::test;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Runs `formula` of x (slot 0) and y (slot 1), decomposed for the compiler, over vectors.
template <class T, class R>
std::vector<R> compute(Compiler compiler, const std::function<Node(Node, Node)>& formula,
                       std::vector<T> x, std::vector<T> y, int lanes) {
  x.resize((x.size() + 31) / 32 * 32);
  y.resize(x.size());
  const Target target = host_target(compiler);
  const int64_t blocks = static_cast<int64_t>(x.size()) / lanes;
  const Node r = range(0, blocks, RangeKind::Core);
  const Node at = op(Op::Mul, r, constant(kI64, lanes));
  const DType t = dtype_of<T>();
  const Node a = make(Op::Load, t.vec(lanes), {param(0, t), at});
  const Node b = make(Op::Load, t.vec(lanes), {param(1, t), at});
  const Node store = make(Op::Store, kVoid, {param(2, dtype_of<R>()), at, formula(a, b)});
  Statements s("decomposed");
  s.loop(r).values(decompose(store, target)).end(r);
  std::vector<R> out(x.size());
  run(s.linear(), target, {x.data(), y.data(), out.data()}, 0, blocks);
  return out;
}

std::function<Node(Node, Node)> unary(Op o) {
  return [o](Node x, Node) { return make(o, x->dtype, {x}); };
}
std::function<Node(Node, Node)> cast_to(DType t) {
  return [t](Node x, Node) { return make(Op::Cast, t.vec(x->dtype.lanes), {x}); };
}

// Distance in units of the last place of a float with the value `want`.
double ulps(float got, double want) {
  int exponent;
  std::frexp(want, &exponent);
  return std::abs(got - want) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

bool is_special(double v) { return std::isnan(v) || std::isinf(v); }
bool same_special(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// Floats with evenly spaced bits from all of them that satisfy |x| <= limit or are special.
std::vector<float> floats(double limit) {
  std::vector<float> out{float(kInf), -float(kInf), float(kNan), 0.0f, -0.0f, 1.0f, -1.0f};
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 10007) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (!(std::abs(x) > limit)) out.push_back(x);
  }
  return out;
}

void check_function(Op o, double (*exact)(double), const std::vector<float>& x, double allowed) {
  for (Compiler compiler : compilers())
    for (int lanes : {1, 16}) {
      const std::vector<float> y = compute<float, float>(compiler, unary(o), x, x, lanes);
      double worst = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        const auto want = static_cast<double>(static_cast<float>(exact(x[i])));
        if (is_special(want) || is_special(y[i])) {
          REQUIRE_MESSAGE(same_special(y[i], want), o, " of ", x[i], ": ", y[i], " not ", want);
        } else {
          worst = std::max(worst, ulps(y[i], exact(x[i])));
        }
      }
      INFO(o, ", ", lanes, " lanes");
      CHECK(worst <= allowed);
    }
}

void check_double(Op o, long double (*exact)(long double), double low, double high,
                  double allowed) {
  std::vector<double> x{kInf, -kInf, kNan, 0, 1, 0.5, 2, 3};
  std::mt19937_64 rng(5);
  std::uniform_real_distribution<double> any(low, high), near_one(0.5, 2);
  for (int i = 0; i < 2000; ++i) x.push_back(i % 2 ? any(rng) : near_one(rng));
  for (Compiler compiler : compilers()) {
    const std::vector<double> y = compute<double, double>(compiler, unary(o), x, x, 8);
    for (size_t i = 0; i < x.size(); ++i) {
      const long double want = exact(x[i]);
      INFO(o, " of ", x[i], " is ", y[i]);
      if (is_special(static_cast<double>(want)))
        REQUIRE(same_special(y[i], static_cast<double>(want)));
      else
        REQUIRE(std::abs(y[i] - static_cast<double>(want)) <=
                allowed * std::abs(static_cast<double>(want)));
    }
  }
}

template <class T>
void check_division(Op o, T (*exact)(T, T), std::function<Node(Node, Node)> formula,
                    const std::vector<T>& x, const std::vector<T>& y) {
  for (Compiler compiler : compilers())
    for (int lanes : {1, 16}) {
      const std::vector<T> got = compute<T, T>(compiler, formula, x, y, lanes);
      for (size_t i = 0; i < x.size(); ++i) {
        INFO(o, " of ", int64_t(x[i]), " and ", int64_t(y[i]), ", ", lanes, " lanes");
        REQUIRE(int64_t(got[i]) == int64_t(exact(x[i], y[i])));
      }
    }
}

template <class T> T floor_quotient(T a, T b) { return static_cast<T>(floor_div(a, b)); }
template <class T> T floor_rest(T a, T b) { return static_cast<T>(floor_mod(a, b)); }

bool contains(Node root, Op o) {
  for (Node n : topological(root))
    if (n->is(o)) return true;
  return false;
}

template <class H> int bits_of(H h) { return h.bits; }

template <class H> bool same_half(H a, H b) {
  const auto x = static_cast<float>(a), y = static_cast<float>(b);
  return (std::isnan(x) && std::isnan(y)) || bits_of(a) == bits_of(b);
}

// Every half becomes the f32 of its value, and f32 near each half and halfway to the next become
// the nearest.
template <class H> void check_half_casts() {
  const DType t = dtype_of<H>();
  std::vector<H> halves(size_t{1} << 8 * sizeof(H));
  std::vector<float> numbers;
  for (size_t i = 0; i < halves.size(); ++i) {
    halves[i].bits = static_cast<decltype(H::bits)>(i);
    const auto bits = std::bit_cast<uint32_t>(static_cast<float>(halves[i]));
    const int dropped = t == kF8E4M3 ? 20 : t == kF8E5M2 ? 21 : t == kF16 ? 13 : 16;
    const uint32_t unit = 1u << dropped;
    for (uint32_t offset : {0u, unit / 2 - 1, unit / 2, unit / 2 + 1, unit - 1})
      numbers.push_back(std::bit_cast<float>(bits + offset));
  }
  std::mt19937 rng(9);
  for (int i = 0; i < 100000; ++i) numbers.push_back(std::bit_cast<float>(uint32_t(rng())));
  for (Compiler compiler : compilers()) {
    const auto up = compute<H, float>(compiler, cast_to(kF32), halves, halves, 16);
    for (size_t i = 0; i < halves.size(); ++i) {
      const auto want = static_cast<float>(halves[i]);
      REQUIRE_MESSAGE(same_special(up[i], want), "half ", i, ": ", up[i], " not ", want);
    }
    const auto down = compute<float, H>(compiler, cast_to(t), numbers, numbers, 16);
    for (size_t i = 0; i < numbers.size(); ++i)
      REQUIRE_MESSAGE(same_half(down[i], H(numbers[i])), numbers[i], ": ", bits_of(down[i]),
                      " not ", bits_of(H(numbers[i])));
  }
}

}  // namespace

TEST_CASE("exp2 of f32 is within one unit, with subnormal results, overflow and NaN") {
  check_function(Op::Exp2, std::exp2, floats(kInf), 1.0);
}

TEST_CASE("log2 of f32 is within 1.7 units, -inf at zero and NaN below") {
  check_function(Op::Log2, std::log2, floats(kInf), 1.7);
}

TEST_CASE("sin of f32 is within 2.5 units up to 1000") {
  check_function(Op::Sin, std::sin, floats(1000), 2.5);
}

TEST_CASE("sin of large f32 is within 3.1e-7") {
  std::vector<float> x = floats(kInf);
  std::erase_if(x, [](float v) { return !(std::abs(v) > 1000) || std::isinf(v); });
  x.insert(x.end(), {31415.9f, 1e5f, 1.00001e5f, -1e6f, 1e10f, 1e30f, -3e38f});
  for (Compiler compiler : compilers()) {
    const std::vector<float> y = compute<float, float>(compiler, unary(Op::Sin), x, x, 16);
    for (size_t i = 0; i < x.size(); ++i)
      REQUIRE_MESSAGE(std::abs(y[i] - std::sin(double(x[i]))) <= 3.1e-7, "sin of ", x[i], ": ",
                      y[i]);
  }
}

TEST_CASE("sin of large f64 is within 7e-16") {
  std::vector<double> x{3e9, -3.0000001e9, 1e30, 0x1p1023, std::numeric_limits<double>::max()};
  std::mt19937_64 rng(6);
  std::uniform_real_distribution<double> exponent(31, 1023);
  for (int i = 0; i < 4096; ++i) x.push_back((i % 2 ? 1 : -1) * std::exp2(exponent(rng)));
  for (Compiler compiler : compilers()) {
    const std::vector<double> y = compute<double, double>(compiler, unary(Op::Sin), x, x, 8);
    for (size_t i = 0; i < x.size(); ++i)
      REQUIRE_MESSAGE(std::abs(y[i] - sinl(x[i])) <= 7e-16, "sin of ", x[i], ": ", y[i]);
  }
}

TEST_CASE("exp2, log2 and sin of f64 have relative errors of at most 1e-15") {
  check_double(Op::Exp2, exp2l, -1020, 1030, 1e-15);
  check_double(Op::Log2, log2l, 0, 1e300, 1e-15);
  check_double(Op::Sin, sinl, -1e6, 1e6, 1e-15);
}

TEST_CASE("exp is within 2 units in the last place from the smallest normal number to overflow") {
  std::vector<float> x{float(kInf), -float(kInf), float(kNan), 0, 88.72283f, 88.7229f, -87.33f};
  for (int i = -8730; i <= 8872; i += 7) x.push_back(static_cast<float>(i) / 100);
  std::vector<double> wide{kInf, -kInf, kNan, 709.78};
  for (int i = -7080; i <= 7097; i += 13) wide.push_back(i / 10.0);
  const auto size = static_cast<int64_t>(x.size()), count = static_cast<int64_t>(wide.size());
  for (const std::string device : {"CPU", "EMU:CUDA:sm_90a", "EMU:LLVM:gfx942"}) {
    const Tensor t = Tensor::from(x, {size}, device);
    const Tensor w = Tensor::from(wide, {count}, device);
    for (const double sign : {1.0, -1.0}) {
      const std::vector<float> y = (t * sign).exp().to_vector<float>();
      for (size_t i = 0; i < x.size(); ++i) {
        INFO("exp of ", x[i] * sign, " is ", y[i], " on ", device);
        const double want = std::exp(sign * x[i]);
        if (const auto near = static_cast<float>(want); is_special(near))
          CHECK(same_special(y[i], near));
        else
          CHECK(ulps(y[i], want) <= (want < std::numeric_limits<float>::min() ? 6 : 2));
      }
    }
    const std::vector<double> y = w.exp().to_vector<double>();
    for (size_t i = 0; i < wide.size(); ++i) {
      INFO("exp of ", wide[i], " is ", y[i], " on ", device);
      const double want = std::exp(wide[i]);
      if (is_special(want))
        CHECK(same_special(y[i], want));
      else
        CHECK(std::abs(y[i] - want) <= 6e-16 * want);
    }
  }
}

TEST_CASE("16-bit floats and f8 cast to f32 exactly, and f32 to the nearest of them") {
  check_half_casts<Float8E4M3>();
  check_half_casts<Float8E5M2>();
  check_half_casts<Half>();
  check_half_casts<BFloat16>();
}

TEST_CASE("arithmetic of 16-bit floats rounds after each operation") {
  const auto formula = [](Node x, Node y) { return op(Op::Sub, op(Op::Mul, x, y), x); };
  std::vector<Half> x, y;
  std::mt19937 rng(4);
  for (int i = 0; i < 4096; ++i) {
    x.emplace_back(std::uniform_real_distribution<float>(-9, 9)(rng));
    y.emplace_back(std::uniform_real_distribution<float>(-9, 9)(rng));
  }
  for (Compiler compiler : compilers()) {
    const auto got = compute<Half, Half>(compiler, formula, x, y, 16);
    for (size_t i = 0; i < x.size(); ++i) {
      const auto product = Half(float(x[i]) * float(y[i]));
      REQUIRE(got[i].bits == Half(float(product) - float(x[i])).bits);
    }
  }
}

TEST_CASE("a reduction of 16-bit floats accumulates in f32 and their moves stay as they are") {
  const Node r = range(0, 64);
  const Node x = make(Op::Load, kBF16, {param(0, kBF16), r});
  const Node sum = decompose(make(Op::Reduce, kBF16, {x, r}, OpArg{Op::Add}), Target{});
  CHECK(sum->dtype == kBF16);
  for (Node n : topological(sum))
    if (n->is(Op::Reduce)) CHECK(n->dtype == kF32);
  const Node moved = make(Op::Store, kVoid, {param(1, kBF16), r, x});
  CHECK(decompose(moved, Target{}) == moved);
}

TEST_CASE("a cast of f16 is left to hardware that has it, one of bf16 to that of GPUs") {
  Target target;
  target.language = Target::Language::LlvmIr;
  target.has_f16 = target.has_bf16 = true;
  const Node r = range(0, 64);
  for (DType t : {kF16, kBF16}) {
    const Node up = make(Op::Cast, kF32, {make(Op::Load, t, {param(0, t), r})});
    CHECK((decompose(up, target) == up) == (t == kF16));
    CHECK(contains(decompose(up, Target{}), Op::Bitcast));
  }
}

TEST_CASE("a byte is widened without a stop at the half that holds it") {
  Target target;
  target.kind = Target::Kind::Gpu;
  target.language = Target::Language::Cuda;
  target.has_f16 = target.has_bf16 = true;
  const Node r = range(0, 64);
  const auto casts_of = [&](DType from) {
    const Node half = make(Op::Cast, kBF16, {make(Op::Load, from, {param(0, from), r})});
    int casts = 0;
    for (Node n : topological(decompose(make(Op::Cast, kF32, {half}), target)))
      casts += n->is(Op::Cast);
    return casts;
  };
  for (DType t : {kI8, kU8}) CHECK(casts_of(t) == 1);
  CHECK(casts_of(kI32) > 1);  // rounded by the half
}

TEST_CASE("floor division and remainder go towards minus infinity for every sign") {
  std::vector<int32_t> x, y;
  for (int a = -40; a <= 40; ++a)
    for (int b = -9; b <= 9; ++b)
      if (b) {
        x.push_back(a);
        y.push_back(b);
      }
  const auto with = [](Op o) { return [o](Node a, Node b) { return op(o, a, b); }; };
  check_division<int32_t>(Op::FloorDiv, floor_quotient, with(Op::FloorDiv), x, y);
  check_division<int32_t>(Op::FloorMod, floor_rest, with(Op::FloorMod), x, y);
  for (int64_t divisor : {8, 7, -3, 1}) {
    const auto by = [=](Op o) {
      return [=](Node a, Node) { return op(o, a, constant(a->dtype, divisor)); };
    };
    const std::vector<int32_t> same(x.size(), static_cast<int32_t>(divisor));
    check_division<int32_t>(Op::FloorDiv, floor_quotient, by(Op::FloorDiv), x, same);
    check_division<int32_t>(Op::FloorMod, floor_rest, by(Op::FloorMod), x, same);
    check_division<int32_t>(
        Op::TruncDiv, [](int32_t a, int32_t b) { return a / b; }, by(Op::TruncDiv), x, same);
  }
}

TEST_CASE("a division needs no correction where bounds show that nothing is negative") {
  const Node i = range(0, 100), three = constant(kI64, 3), eight = constant(kI64, 8);
  CHECK(decompose(op(Op::FloorDiv, i, three), Target{}) == op(Op::TruncDiv, i, three));
  CHECK(decompose(op(Op::FloorMod, i, three), Target{}) == op(Op::TruncMod, i, three));
  CHECK(decompose(op(Op::TruncDiv, i, eight), Target{}) == op(Op::Shr, i, three));
  CHECK(decompose(op(Op::TruncMod, i, eight), Target{}) == op(Op::And, i, constant(kI64, 7)));
  const Node signed_value = op(Op::Sub, i, constant(kI64, 50));
  CHECK(decompose(op(Op::FloorDiv, signed_value, eight), Target{}) ==
        op(Op::Shr, signed_value, three));
  const Node kept = op(Op::TruncDiv, signed_value, eight);
  CHECK(decompose(kept, Target{}) == kept);
}

TEST_CASE("the maximum of bools is or, the minimum and") {
  const Node r = range(0, 8);
  const Node a = make(Op::Load, kBool, {param(0, kBool), r});
  const Node b = make(Op::Load, kBool, {param(1, kBool), r});
  CHECK(decompose(op(Op::Max, a, b), Target{}) == op(Op::Or, a, b));
  CHECK(decompose(op(Op::Min, a, b), Target{}) == op(Op::And, a, b));
}

TEST_CASE("GPUs keep exponentials, logarithms and casts, f64 sines are decomposed") {
  Target gpu;
  gpu.kind = Target::Kind::Gpu;
  gpu.language = Target::Language::Cuda;
  const Node thread = range(0, 32, RangeKind::Thread, kI32);
  const auto ops_left = [&](Op o, DType t) {
    const Node x = make(Op::Load, t, {param(0, t), thread});
    return topological(decompose(make(o, t, {x}), gpu)).size();
  };
  const size_t alone = ops_left(Op::Sqrt, kF32);
  for (DType t : {kF32, kF64})
    for (Op o : {Op::Exp2, Op::Log2}) CHECK(ops_left(o, t) == alone);
  CHECK(ops_left(Op::Sin, kF32) == alone);
  CHECK(ops_left(Op::Sin, kF64) > alone + 20);
  CHECK(ops_left(Op::Exp2, kBF16) == alone + 2);  // in f32, between two casts
}
