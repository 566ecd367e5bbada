// The polynomials are minimax fits of the relative error, found by Remez exchange in 45 digits on
// the interval that is stated with each, then rounded to the dtype. Errors were measured
// against libm: for f32 on every number, in double; for f64 on random samples, in long double.
#include "codegen/passes/decompose/transcendental.h"

#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "tiny/base/error.h"

namespace tiny {

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Nodes as values in formulas.
struct Value {
  Node n;
  DType dtype() const { return n->dtype; }
};
template <class T> Value like(Value x, T number) { return {constant(x.dtype(), number)}; }
Value binary(Op op, Value a, Value b) { return {make(op, a.dtype(), {a.n, b.n})}; }
Value operator+(Value a, Value b) { return binary(Op::Add, a, b); }
Value operator-(Value a, Value b) { return binary(Op::Sub, a, b); }
Value operator*(Value a, Value b) { return binary(Op::Mul, a, b); }
Value operator/(Value a, Value b) { return binary(Op::Div, a, b); }
Value mul_add(Value a, Value b, Value c) { return {make(Op::MulAdd, a.dtype(), {a.n, b.n, c.n})}; }
Value operator+(Value a, double b) { return a + like(a, b); }
Value operator-(Value a, double b) { return a - like(a, b); }
Value operator*(Value a, double b) { return a * like(a, b); }

// Integers.
Value operator<<(Value a, int by) { return binary(Op::Shl, a, like(a, by)); }
Value operator>>(Value a, int by) { return binary(Op::Shr, a, like(a, by)); }
Value operator<<(Value a, Value by) { return binary(Op::Shl, a, by); }
Value operator>>(Value a, Value by) { return binary(Op::Shr, a, by); }
Value operator&(Value a, int64_t b) { return binary(Op::And, a, like(a, b)); }
Value operator|(Value a, Value b) { return binary(Op::Or, a, b); }
Value operator|(Value a, int64_t b) { return a | like(a, b); }
Value operator^(Value a, Value b) { return binary(Op::Xor, a, b); }
Value operator^(Value a, int64_t b) { return a ^ like(a, b); }
Value add(Value a, int64_t b) { return a + like(a, b); }

Value test(Op op, Value a, Value b) { return {make(op, kBool.vec(a.dtype().lanes), {a.n, b.n})}; }
Value operator<(Value a, double b) { return test(Op::Lt, a, like(a, b)); }
Value operator>(Value a, double b) { return test(Op::Lt, like(a, b), a); }
Value equals(Value a, double b) { return test(Op::Eq, a, like(a, b)); }
Value where(Value condition, Value a, Value b) {
  return {make(Op::Where, a.dtype(), {condition.n, a.n, b.n})};
}
Value where(Value condition, Value a, double b) { return where(condition, a, like(a, b)); }
Value floored(Value x) { return {make(Op::Floor, x.dtype(), {x.n})}; }
Value cast(Value x, DType to) { return {make(Op::Cast, to.vec(x.dtype().lanes), {x.n})}; }
Value bits(Value x, DType to) { return {make(Op::Bitcast, to.vec(x.dtype().lanes), {x.n})}; }

// Coefficients from the highest power down.
Value polynomial(Value x, std::initializer_list<double> coefficients) {
  Value sum{nullptr};
  for (double c : coefficients) sum = sum.n ? mul_add(sum, x, like(x, c)) : like(x, c);
  return sum;
}

// What the algorithms must know of a format.
struct Format {
  DType integer, unsigned_integer;
  int mantissa;       // bits of the fraction
  int exponent_min;   // of normal numbers
  int exponent_max;   // numbers are below 2^this
  double round;       // 1.5 * 2^mantissa: adding it leaves the nearest integer in the low bits
  int64_t sqrt_half;  // the bits of sqrt(1/2)
};
constexpr Format kF32Format{kI32, kU32, 23, -126, 128, 0x1.8p23, 0x3f3504f3};
constexpr Format kF64Format{kI64, kU64, 52, -1022, 1024, 0x1.8p52, 0x3fe6a09e667f3bcd};

const Format& format_of(Node x, const char* what) {
  expect(x->dtype.scalar == Scalar::F32 || x->dtype.scalar == Scalar::F64, what, " of ",
         x->dtype.name());
  return x->dtype.scalar == Scalar::F32 ? kF32Format : kF64Format;
}

}  // namespace

// 2^x = 2^n 2^r with n the nearest integer. The fit is of (2^r - 1) / r on [-1/2, 1/2], so that
// powers of two are exact; its error is 3.9e-9 for f32, 1.8e-17 for f64.
// Measured: f32 at most 0.94 units in the last place, f64 a relative error of 1.6e-16.
//
// `natural`: e^x = 2^t with t = x log2(e). n is the integer nearest to t, and r = t - n comes from
// the whole product: t rounded would be off by as much as |t| 2^-24 (2^-53).
Node lower_power(Node node, bool natural, bool plain) {
  const Format& f = format_of(node, "exp2");
  const bool single = node->dtype.scalar == Scalar::F32;
  const Value x{node};
  // Results below the normal numbers are computed 2^shift too large and scaled, which rounds once.
  const int shift = single ? 64 : 128;
  const double least = f.exponent_min - f.mantissa - 2;
  const double log2e = single ? static_cast<float>(std::numbers::log2e) : std::numbers::log2e;
  const Value near = binary(Op::Max, x, like(x, natural ? least / log2e : least));
  const Value clamped = natural ? near * log2e : near;
  const Value small = clamped < double(f.exponent_min);
  const Value y = where(small, clamped + double(shift), clamped);
  const Value rounded = plain ? floored(y + 0.5) : y + f.round;
  const Value whole = plain ? rounded : rounded - f.round;
  Value r = y - whole;
  if (natural) {
    const auto rest = static_cast<double>(std::numbers::log2e_v<long double> - log2e);
    const Value less = where(small, whole - double(shift), whole) * -1.0;
    r = mul_add(near, like(x, rest), mul_add(near, like(x, log2e), less));
  }
  const Value p =
      single
          ? polynomial(r, {0.000154697234, 0.00134100008, 0.00961803086, 0.0555029735, 0.240226507,
                           0.693147242, 1})
          : polynomial(r, {4.0779938562463539e-10, 7.0725704454692938e-09, 1.0180648196555812e-07,
                           1.3215442675115585e-06, 1.5252727383872463e-05, 0.00015403530441572598,
                           0.0013333558153441334, 0.0096181291076070027, 0.055504108664790386,
                           0.24022650695910097, 0.69314718055994573, 1});
  // n goes into the exponent by an integer addition: n is at the low end of `rounded`.
  const Value n = plain ? cast(rounded, f.integer) : bits(rounded, f.integer);
  const Value power = n << f.mantissa;
  const Value scaled = bits(bits(p, f.integer) + power, x.dtype());
  const Value result = where(small, scaled * std::ldexp(1.0, -shift), scaled);
  // From 2^128 on infinity; NaN is no less either, and stays NaN.
  return where((natural ? clamped : x) < double(f.exponent_max), result, x + kInf).n;
}

Node lower_exp2(Node x, bool plain) { return lower_power(x, false, plain); }
Node lower_exp(Node x, bool plain) { return lower_power(x, true, plain); }

// x = 2^e m with m in [sqrt(1/2), sqrt 2): log2 x = e + log2 m.
// f32: log2(1 + f) = f P(f), error of the fit 4.1e-9. f64: with s = f / (2 + f), log2(1 + f) =
// s P(s^2), error of the fit 1.1e-18.
// Measured: f32 at most 1.67 units in the last place, f64 a relative error of 3.4e-16.
Node lower_log2(Node node) {
  const Format& format = format_of(node, "log2");
  const bool single = node->dtype.scalar == Scalar::F32;
  const Value x{node};
  const Value small = x < std::ldexp(1.0, format.exponent_min);  // subnormal
  const double scale = format.mantissa + 1;
  const Value normal = where(small, x * std::ldexp(1.0, format.mantissa + 1), x);
  const Value i = add(bits(normal, format.integer), -format.sqrt_half);
  const Value exponent = cast(i >> format.mantissa, x.dtype());
  const Value e = where(small, exponent - scale, exponent);
  const int64_t fraction = (int64_t{1} << format.mantissa) - 1;
  const Value f = bits(add(i & fraction, format.sqrt_half), x.dtype()) - 1.0;
  Value result;
  if (single) {
    const Value p =
        polynomial(f, {-0.109949782, 0.186175078, -0.191062719, 0.204600602, -0.239617407,
                       0.288567424, -0.360696644, 0.480898231, -0.721347332, 1.44269502});
    result = mul_add(f, p, e);
  } else {
    const Value s = f / (f + 2.0);
    const Value p = polynomial(
        s * s, {0.2136708237069988, 0.22091186166128718, 0.26233440198912689, 0.32059853392062632,
                0.4121985858511395, 0.57707801634546996, 0.96179669392598988, 2.8853900817779268});
    result = mul_add(s, p, e);
  }
  const Value at_end = where(x < kInf, result, x);
  return where(x > 0.0, at_end, where(equals(x, 0.0), like(x, -kInf), kNan)).n;
}

namespace {

// x modulo 2 pi in [-pi, pi], for f32 of at least 2^15 (Payne and Hanek, 1983). With x = m 2^e the
// turns x / 2 pi, without their integer part, are m times the bits of 1 / 2 pi from place e on,
// modulo 1: one 64-bit product. Absolute error 3.1e-7, most of it from rounding to f32 at the end.
Value reduce_large_f32(Value x) {
  const Value i = bits(x, kI32);
  const Value m = (i & 0x7fffff) | 0x800000;
  const Value signed_m = where(x < 0.0, like(m, 0) - m, m);
  // Bits of 2^-8 / 2 pi after the point; the window starts 8 + e = 8 + exponent - 150 later.
  const int64_t word[] = {0x0028be60db939105, 0x4a7f09d5f47d4d37, 0x7036d8a5664f10e4};
  const Value start = cast(add((i >> 23) & 255, 8 - 150), kU64);
  const Value second = test(Op::Ne, start & 64, like(start, 0));
  const Value high = where(second, like(start, word[1]), like(start, word[0]));
  const Value low = where(second, like(start, word[2]), like(start, word[1]));
  const Value by = start & 63;
  const Value window = (high << by) | ((low >> 1) >> (by ^ 63));
  const Value turns = cast(cast(signed_m, kI64), kU64) * window;
  return cast(cast(turns, kI64), kF32) * (6.283185307179586 * 0x1p-64);
}

// The bits of 2^-24 / 2 pi after the point.
constexpr uint64_t kTurn[] = {0x00000028be60db93, 0x91054a7f09d5f47d, 0x4d377036d8a5664f,
                              0x10e4107f9458eaf7, 0xaef1586dc91b8e90, 0x9374b801924bba82,
                              0x7464873f877ac72c, 0x4a69cfba208d7d4b, 0xaed1213a671c09ad,
                              0x17df904e64758e60, 0xd4ce7d272117e2ef, 0x7e4a0ec7fe25fff7,
                              0x816603fbcbc462d6, 0x829b47db4d9fb3c9, 0xf2c26dd3d18fd9a7,
                              0x97fa8b5d49eeb1fa, 0xf97c5ecf41ce7de2, 0x94a4ba9afed7ec47};

// kTurn[k + next], k in [0, 16).
Value word_of_turn(Value k, int next) {
  std::vector<Value> words;
  for (int i = 0; i < 16; ++i) words.push_back(like(k, static_cast<int64_t>(kTurn[i + next])));
  for (int bit = 1; words.size() > 1; bit *= 2) {
    const Value odd = test(Op::Ne, k & bit, like(k, 0));
    std::vector<Value> half;
    for (size_t i = 0; i < words.size(); i += 2) half.push_back(where(odd, words[i + 1], words[i]));
    words = half;
  }
  return words[0];
}

// The same for f64 of at least 2^31, whose product takes 128 of those bits. Absolute error 7e-16.
Value reduce_large_f64(Value x) {
  const Value i = bits(x, kI64);
  const Value m = cast((i & 0xfffffffffffff) | 0x10000000000000, kU64);
  const Value start = cast(add((i >> 52) & 2047, 24 - 1075), kU64), k = (start >> 6) & 15;
  const Value by = start & 63;
  const Value words[] = {word_of_turn(k, 0), word_of_turn(k, 1), word_of_turn(k, 2)};
  const auto from = [&](int at) { return (words[at] << by) | ((words[at + 1] >> 1) >> (by ^ 63)); };
  const Value high = from(0), low = from(1);
  const int64_t half = 0xffffffff;
  const Value upper = (m >> 32) * (low >> 32) + (((m >> 32) * (low & half)) >> 32) +
                      (((m & half) * (low >> 32)) >> 32);
  const Value turns = cast(m * high + upper, kI64);
  const Value signed_turns = where(x < 0.0, like(turns, 0) - turns, turns);
  return cast(signed_turns, kF64) * (6.283185307179586 * 0x1p-64);
}

// The high word of a product of 24 and 32 bits, by parts of 16 bits.
Value high_word(Value m, Value x) {
  const Value m0 = m & 0xffff, m1 = m >> 16, x0 = x & 0xffff, x1 = x >> 16;
  const Value cross = m0 * x1, other = m1 * x0;
  const Value middle = ((m0 * x0) >> 16) + (cross & 0xffff) + (other & 0xffff);
  return m1 * x1 + (cross >> 16) + (other >> 16) + (middle >> 16);
}

// reduce_large_f32 by words of 32 bits, of which the low one of the window counts by its carry
// alone.
Value reduce_large_by_words(Value x) {
  const Value i = bits(x, kU32);
  const Value m = (i & 0x7fffff) | 0x800000;
  const int64_t word[] = {0x0028be60, 0xdb939105, 0x4a7f09d5, 0xf47d4d37, 0x7036d8a5, 0x664f10e4};
  const Value start = add((i >> 23) & 255, 8 - 150) & 127, at = start >> 5, by = start & 31;
  const auto chosen = [&](int from) {
    Value out = like(i, word[from + 3]);
    for (int k = 2; k >= 0; --k)
      out = where(test(Op::Eq, at, like(at, k)), like(i, word[from + k]), out);
    return out;
  };
  const auto window = [&](int from) {
    return (chosen(from) << by) | ((chosen(from + 1) >> 1) >> (by ^ 31));
  };
  const Value turns = m * window(0) + high_word(m, window(1));
  const Value angle = cast(bits(turns, kI32), kF32) * (6.283185307179586 * 0x1p-32);
  return where(x < 0.0, like(x, 0.0) - angle, angle);
}

// The parts of pi have so few bits that n times all but the last is exact: no FMA is needed.
Value less_multiple_of_pi(Value x, Value n, std::initializer_list<double> parts) {
  for (double part : parts) x = mul_add(n, like(n, -part), x);
  return x;
}

}  // namespace

// sin x = (-1)^n sin r with r = x - n pi, n the nearest integer (Cody and Waite, 1980).
// The fit is of (sin r / r - 1) / r^2 in r^2 on [0, pi/2]: error 4.2e-11 for f32, 7.7e-22 for f64.
// f32 beyond 1e5 and f64 beyond 3e9 are reduced modulo 2 pi first.
// Measured: f32 at most 2.24 units in the last place below 100, with FMA; next to large multiples
// of pi, where sin is almost zero, up to 108 units. Absolute errors: 1.6e-7 up to 1e5, 3.1e-7
// beyond. f64 a relative error of 3.7e-16 up to 3e9, an absolute one of 7e-16 beyond.
Node lower_sin(Node node, bool plain) {
  const Format& f = format_of(node, "sin");
  const bool single = node->dtype.scalar == Scalar::F32;
  Value x{node};
  const double limit = single ? 1e5 : 3e9;
  const Value size = bits(bits(x, f.integer) & int_max(f.integer), x.dtype());
  const Value ordinary = size < limit;
  const Value huge = !single ? reduce_large_f64(x)
                     : plain ? reduce_large_by_words(x)
                             : reduce_large_f32(x);
  x = where(ordinary, x, where(size < kInf, huge, kNan));
  const Value magic = like(x, plain ? 0.5 : f.round);
  const Value half_turns = mul_add(x, like(x, 0.31830988618379067), magic);
  const Value rounded = plain ? floored(half_turns) : half_turns;
  const Value n = plain ? rounded : rounded - f.round;
  // n is below 2^15 (2^30): parts of 9 (23) bits.
  const Value r =
      single
          ? less_multiple_of_pi(x, n, {3.140625, 0.000961303711, 6.34789467e-06, 1.98418716e-09})
          : less_multiple_of_pi(x, n,
                                {3.1415925025939941, 1.5099578831723193e-07, 1.0780601671783741e-14,
                                 4.0445319168207067e-21, 5.807711947958721e-28});
  const Value square = r * r;
  const Value p =
      single ? polynomial(square, {-2.38893847e-08, 2.75258662e-06, -0.000198408903, 0.00833333097,
                                   -0.166666672})
             : polynomial(square,
                          {-7.9825098454158387e-18, 2.8102217000905484e-15, -7.6471284524766301e-13,
                           1.6059043234941991e-10, -2.505210837920095e-08, 2.7557319223947645e-06,
                           -0.00019841269841269714, 0.0083333333333333332, -0.16666666666666666});
  const Value sine = mul_add(r * square, p, r);
  const int sign = f.integer.bits() - 1;
  const Value odd = plain ? cast(rounded, f.integer) : bits(rounded, f.integer);
  // The sine of -0 is -0, which its sum with r^3 is not.
  const Value of_r = bits(sine, f.integer) | (bits(r, f.integer) & int_min(f.integer));
  return bits(of_r ^ (odd << sign), x.dtype()).n;
}

}  // namespace tiny
