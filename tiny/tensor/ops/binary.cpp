// Operations with two and three operands, promotion, casts. Functions of one operand are in
// tensor_math.cpp.
#include <array>
#include <cmath>
#include <limits>

#include "tiny/tensor/detail.h"

namespace tiny {

using detail::binary;

// --- Promotion ----------------------------------------------------------------------------------

namespace {

// How much say an operand has: tensors with axes come first, then 0-d tensors, then numbers.
enum Say { kWithAxes, kZeroDim, kNumber, kSays };

Say say_of(const Operand& x) {
  if (x.is_number()) return kNumber;
  return x.tensor().rank() > 0 ? kWithAxes : kZeroDim;
}

DType dtype_of_operand(const Operand& x) {
  return x.is_number() ? x.number().default_dtype() : x.tensor().dtype();
}

// `lower` counts only where its kind (bool < integer < float) is higher. kVoid: nothing said yet.
DType combine(DType higher, DType lower) {
  if (higher == kVoid) return lower;
  if (lower == kVoid || higher.is_float()) return higher;
  return higher.is_bool() || lower.is_float() ? promote(higher, lower) : higher;
}

DType type_of_all(std::initializer_list<Operand> operands) {
  std::array<DType, kSays> said{kVoid, kVoid, kVoid};
  for (const Operand& o : operands) {
    DType& t = said[say_of(o)];
    t = t == kVoid ? dtype_of_operand(o) : promote(t, dtype_of_operand(o));
  }
  return combine(combine(said[kWithAxes], said[kZeroDim]), said[kNumber]);
}

DType real_result(const Operand& x, const Operand& y) {
  return detail::real_dtype(result_type(x, y));
}

}  // namespace

DType result_type(const Operand& x, const Operand& y) { return type_of_all({x, y}); }

// --- Arithmetic ---------------------------------------------------------------------------------

Tensor operator+(const Operand& x, const Operand& y) {
  const DType t = result_type(x, y);
  return binary("add", t.is_bool() ? Op::Or : Op::Add, x, y, t);
}

Tensor operator-(const Operand& x, const Operand& y) {
  const DType t = result_type(x, y);
  check(!t.is_bool(), "sub: two bools have no difference: use ^ or logical_xor");
  return binary("sub", Op::Sub, x, y, t);
}

Tensor operator*(const Operand& x, const Operand& y) {
  const DType t = result_type(x, y);
  return binary("mul", t.is_bool() ? Op::And : Op::Mul, x, y, t);
}

Tensor operator/(const Operand& x, const Operand& y) {
  return binary("div", Op::Div, x, y, real_result(x, y));
}

Tensor operator-(const Tensor& x) { return x.neg(); }

Tensor trunc_div(const Operand& x, const Operand& y) {
  LabelScope label("trunc_div");
  const DType t = result_type(x, y);
  check(!t.is_bool(), "trunc_div: not defined for two bools");
  if (!t.is_float()) return binary("trunc_div", Op::TruncDiv, x, y, t);
  const auto [a, b] = detail::match("trunc_div", x, y, t);
  const DType wide = detail::compute_dtype(t);
  return (Tensor(a).to(wide) / Tensor(b).to(wide)).trunc().to(t);
}

namespace {

struct Division {
  Tensor quotient, rest;
};

// The upper 26 bits of a number's fraction; what is left has 27.
Tensor upper_half(const Tensor& x) {
  return (x.bitcast(kI64) & ~((int64_t{1} << 27) - 1)).bitcast(kF64);
}

// Of two f64: the largest integer below the quotient, which is not the rounded quotient's (1 is 9
// times 0.1 and a rest), and u less so many v. Exact where |u / v| < 2^52, since the products of
// upper and lower bits are (T. Dekker, "A floating-point technique for extending the available
// precision", 1971); the rest is 0 beyond, where it would be of what u was rounded from.
Division floor_division(const Tensor& u, const Tensor& v) {
  const Tensor guess = (u / v).trunc();
  const Tensor q = upper_half(guess), q_low = guess - q, w = upper_half(v), w_low = v - w;
  const Tensor sum = u - q * w - q * w_low - q_low * w - q_low * w_low;
  const Tensor exact = where(sum == 0, u * 0, sum);  // no rest has the sign of u
  // 5 mod inf is 5: the quotient 0 must not meet the infinity.
  // 0 / v is NaN where there is no rest, and 0 where the quotient of two numbers is infinite.
  const Tensor small = where(guess.abs() < 0x1p52, exact, u * 0 / v);
  const Tensor rest = where(guess == 0, u, small);
  const Tensor over = where(0 > v, rest > 0, rest < 0);
  const Tensor quotient = where(rest == rest, where(over, guess - 1, guess), rest);
  return {where(v == 0, u / v, quotient).detach(), where(over, rest + v, rest).detach()};
}

}  // namespace

Tensor floor_div(const Operand& x, const Operand& y) {
  LabelScope label("floor_div");
  const DType t = result_type(x, y);
  check(!t.is_bool(), "floor_div: not defined for two bools");
  if (!t.is_float()) return binary("floor_div", Op::FloorDiv, x, y, t);
  const auto [a, b] = detail::match("floor_div", x, y, t);
  return floor_division(Tensor(a).to(kF64), Tensor(b).to(kF64)).quotient.to(t);
}

Tensor mod(const Operand& x, const Operand& y) {
  LabelScope label("mod");
  const DType t = result_type(x, y);
  check(!t.is_bool(), "mod: not defined for two bools");
  if (!t.is_float()) return binary("mod", Op::FloorMod, x, y, t);
  const auto [a, b] = detail::match("mod", x, y, t);
  const Tensor u = Tensor(a).to(kF64), v = Tensor(b).to(kF64);
  const Division d = floor_division(u, v);
  const Tensor by_u =
      detail::with_derivative(d.rest, u, [](const Tensor& at) { return at.full_like(1); });
  return detail::with_derivative(by_u, v, [&](const Tensor&) { return -d.quotient; }).to(t);
}

namespace {

// x^n by repeated squaring, n >= 0: exact for integers, and its gradient needs no logarithm.
Tensor integer_power(const Tensor& x, int64_t n) {
  Tensor result, square = x;
  for (; n; n >>= 1) {
    if (n & 1) result = result.defined() ? result * square : square;
    if (n > 1) square = square * square;
  }
  return result.defined() ? result : x.ones_like();
}

// Both integer tensors of one dtype and shape; 0 for negative exponents unless x is 1 or -1.
Tensor integer_power(const Tensor& x, const Tensor& y) {
  Tensor result = x.ones_like(), square = x;
  const int bits = y.dtype().bits() - (y.dtype().is_signed() ? 1 : 0);
  for (int bit = 0; bit < bits; ++bit) {
    result = where(((y >> bit) & 1) == 1, result * square, result);
    square = square * square;
  }
  const Tensor odd = (y & 1) == 1;
  const Tensor unit = where(x == 1, 1, where(x == -1, where(odd, -1, 1), 0)).to(x.dtype());
  return x.dtype().is_unsigned() ? result : where(y < 0, unit, result);
}

// |x|^y with the sign rules of IEEE 754 pow, both floats of one dtype and shape.
Tensor real_power(const Tensor& x, const Tensor& y) {
  const Tensor magnitude = where(x == 0, 1, x.abs());  // keeps log2's gradient finite at 0
  const Tensor is_integer = y.trunc() == y;
  const Tensor odd = logical_and(is_integer, (y * 0.5).trunc() * 2 != y);
  const Tensor power = (y * magnitude.log2()).exp2();
  const Tensor is_real = logical_or(is_integer, x.isinf());  // (-inf)^1.5 is inf
  const Tensor base_negative = where(odd, -power, where(is_real, power, std::nan("")));
  const Tensor zero = where(odd, x.detach(), 0);  // an odd power keeps its sign
  const Tensor at_zero = where(y > 0, zero, where(y < 0, zero.reciprocal(), power));
  const Tensor other = where(x == 0, at_zero, where(x < 0, base_negative, power));
  // x^1 is x, also where the logarithm rounds it up to inf; its slopes are those of the power.
  const Tensor is_own = logical_or(x == 0, other.isinf()), by_log = where(is_own, x, other);
  const Tensor by_x = detail::with_derivative(x.detach(), x, [&](const Tensor& at) {
    return where(is_own, 1, y * by_log / where(is_own, 1, at));
  });
  const Tensor first =
      detail::with_derivative(by_x, y, [&](const Tensor&) { return by_log * magnitude.log(); });
  const Tensor general = where(y == 1, first, other);
  // x^0 and 1^y are 1 by themselves, with their gradients, save for infinities and NaN.
  const Tensor unit = logical_and(logical_or(y == 0, x == 1), power != 1);
  return where(unit, 1, where(logical_and(x == -1, y.isinf()), 1, general)).to(x.dtype());
}

Tensor real_power_with_slopes(const Tensor& x, const Tensor& y) {
  const Tensor power = real_power(x, y).detach();
  // Where a slope would be 0 inf it is 0; another base there keeps NaN from slopes of slopes.
  const Tensor by_x = detail::with_derivative(power, x, [&](const Tensor& at) {
    const Tensor is_constant = logical_and(y == 0, at.reciprocal().isfinite().logical_not());
    return where(is_constant, 0, y * real_power(where(is_constant, 1, at), y - 1));
  });
  return detail::with_derivative(by_x, y, [&](const Tensor& at) {
    const Tensor is_zero = logical_and(x == 0, at >= 0), base = where(is_zero, 1, x);
    return where(is_zero, 0, real_power(base, at) * base.log());
  });
}

// x^n for the exponents that have a better way than exp2(n log2(x)); not defined for others.
Tensor special_power(const Tensor& x, double n) {
  if (n == 0.5) return x.sqrt();
  if (n == -0.5) return x.rsqrt();
  if (n != std::trunc(n) || std::abs(n) > 64) return Tensor();
  const Tensor p = integer_power(x, static_cast<int64_t>(std::abs(n)));
  if (n >= 0) return p;
  return detail::with_derivative(p.reciprocal().detach(), x, [n](const Tensor& at) {
    return integer_power(at, static_cast<int64_t>(1 - n)).reciprocal() * n;
  });
}

Tensor integral_pow(const Operand& x, const Operand& y, DType t) {
  if (y.is_number()) {
    const int64_t n = y.number().integer();
    check(n >= 0, "pow: an integer tensor to the negative power ", n, ": convert it with to(kF32)");
    return integer_power(Tensor(detail::operand_node(x, t)), n);
  }
  const auto [a, b] = detail::match("pow", x, y, t);
  return integer_power(Tensor(a), Tensor(b));
}

}  // namespace

Tensor pow(const Operand& x, const Operand& y) {
  LabelScope label("pow");
  const DType t = result_type(x, y);
  check(!t.is_bool(), "pow: not defined for two bools");
  if (!t.is_float()) return integral_pow(x, y, t);
  const DType wide = detail::compute_dtype(t);
  if (y.is_number()) {
    const Tensor base(detail::operand_node(x, wide));
    const Tensor special = special_power(base, y.number().real());
    if (special.defined()) return special.to(t);
  }
  const auto [a, b] = detail::match("pow", x, y, wide);
  return real_power_with_slopes(Tensor(a), Tensor(b)).to(t);
}

Tensor maximum(const Operand& x, const Operand& y) {
  const DType t = result_type(x, y);
  return binary("maximum", t.is_bool() ? Op::Or : Op::Max, x, y, t);
}

Tensor minimum(const Operand& x, const Operand& y) {
  const DType t = result_type(x, y);
  return binary("minimum", t.is_bool() ? Op::And : Op::Min, x, y, t);
}

namespace {

DType signed_of_size(int bytes) {
  return bytes == 8 ? kI64 : bytes == 4 ? kI32 : bytes == 2 ? kI16 : kI8;
}

// The sign bit of a float: also that of -0.0.
Tensor sign_bit(const Tensor& x) { return x.bitcast(signed_of_size(x.dtype().size())) < 0; }

}  // namespace

Tensor atan2(const Operand& y, const Operand& x) {
  LabelScope label("atan2");
  const DType t = real_result(y, x), wide = detail::compute_dtype(t);
  const auto [a, b] = detail::match("atan2", y, x, wide);
  const Tensor v(a), u(b);
  const auto magnitude = [](const Tensor& z) { return where(sign_bit(z), -z, z); };  // slope 1 at 0
  const Tensor av = magnitude(v), au = magnitude(u);
  // The angle within the first half of a quadrant, then mirrored where it belongs.
  const Tensor steep = av > au;
  const Tensor low = where(steep, au, av), high = where(steep, av, au);
  const Tensor even = low == high;  // also for 0 / 0 and inf / inf
  const Tensor both_special = logical_and(even, logical_or(high == 0, high.isinf()));
  const Tensor ratio =
      where(both_special, where(high == 0, 0, 1).to(wide), low / where(both_special, 1, high));
  Tensor angle = ratio.atan();
  angle = where(steep, M_PI_2 - angle, angle);
  angle = where(sign_bit(u), M_PI - angle, angle);
  return where(sign_bit(v), -angle, angle).to(t);
}

Tensor copysign(const Operand& x, const Operand& y) {
  LabelScope label("copysign");
  const DType t = real_result(x, y);
  const auto [a, b] = detail::match("copysign", x, y, t);
  const Tensor magnitude = Tensor(a).abs();
  return where(sign_bit(Tensor(b)), -magnitude, magnitude);
}

// --- Comparisons and logic ----------------------------------------------------------------------

namespace {

// Numbers beyond the range of an 8-bit float stay beyond it: e4m3 has no infinity.
DType compared_type(const Operand& x, const Operand& y) {
  const DType t = result_type(x, y);
  return t.is_f8() ? kF32 : t;
}

}  // namespace

Tensor operator==(const Operand& x, const Operand& y) {
  return binary("eq", Op::Eq, x, y, compared_type(x, y));
}
Tensor operator!=(const Operand& x, const Operand& y) {
  return binary("ne", Op::Ne, x, y, compared_type(x, y));
}
Tensor operator<(const Operand& x, const Operand& y) {
  return binary("lt", Op::Lt, x, y, compared_type(x, y));
}
Tensor operator<=(const Operand& x, const Operand& y) {
  return binary("le", Op::Le, x, y, compared_type(x, y));
}
Tensor operator>(const Operand& x, const Operand& y) {
  return binary("gt", Op::Lt, y, x, compared_type(x, y));
}
Tensor operator>=(const Operand& x, const Operand& y) {
  return binary("ge", Op::Le, y, x, compared_type(x, y));
}
Tensor logical_and(const Operand& x, const Operand& y) {
  return binary("logical_and", Op::And, x, y, kBool);
}
Tensor logical_or(const Operand& x, const Operand& y) {
  return binary("logical_or", Op::Or, x, y, kBool);
}
Tensor logical_xor(const Operand& x, const Operand& y) {
  return binary("logical_xor", Op::Xor, x, y, kBool);
}

// --- Bits ---------------------------------------------------------------------------------------

namespace {

Tensor bits(const char* what, Op op, const Operand& x, const Operand& y) {
  const DType t = result_type(x, y);
  detail::require_integral(what, t);
  return binary(what, op, x, y, t);
}

}  // namespace

Tensor operator&(const Operand& x, const Operand& y) { return bits("bitwise_and", Op::And, x, y); }
Tensor operator|(const Operand& x, const Operand& y) { return bits("bitwise_or", Op::Or, x, y); }
Tensor operator^(const Operand& x, const Operand& y) { return bits("bitwise_xor", Op::Xor, x, y); }

Tensor operator<<(const Operand& x, const Operand& y) {
  check(!result_type(x, y).is_bool(), "shl: takes integers and not bool");
  return bits("shl", Op::Shl, x, y);
}

Tensor operator>>(const Operand& x, const Operand& y) {
  check(!result_type(x, y).is_bool(), "shr: takes integers and not bool");
  return bits("shr", Op::Shr, x, y);
}

// --- Three operands -----------------------------------------------------------------------------

Tensor where(const Tensor& condition, const Operand& x, const Operand& y) {
  LabelScope label("where");
  check(condition.dtype().is_bool(), "where: the condition is bool and not ", condition.dtype());
  const DType t = result_type(x, y);
  Node a = detail::operand_node(x, t), b = detail::operand_node(y, t);
  const Shape xy = broadcast("where", a->shape(), b->shape());
  const Shape shape = broadcast("where", condition.capacity(), xy);
  detail::check_lengths("where", a, b);
  detail::check_lengths("where", condition.node(), a);
  detail::check_lengths("where", condition.node(), b);
  const Node c = detail::broadcast_to(condition.node(), shape);
  return Tensor(build::where(c, detail::broadcast_to(a, shape), detail::broadcast_to(b, shape)));
}

Tensor byte_dot(const Tensor& x, const Tensor& y, const Tensor& sum) {
  LabelScope label("byte_dot");
  for (const Tensor* t : {&x, &y, &sum})
    check(t->dtype() == kI32, "byte_dot: words are i32 and not ", t->dtype());
  const Node a = x.node(), b = y.node(), c = sum.node();
  const Shape xy = broadcast("byte_dot", a->shape(), b->shape());
  const Shape shape = broadcast("byte_dot", xy, c->shape());
  detail::check_lengths("byte_dot", a, b);
  detail::check_lengths("byte_dot", a, c);
  detail::check_lengths("byte_dot", b, c);
  return Tensor(build::byte_dot(detail::broadcast_to(a, shape), detail::broadcast_to(b, shape),
                                detail::broadcast_to(c, shape)));
}

Tensor Tensor::clamp(std::optional<Operand> min, std::optional<Operand> max) const {
  LabelScope label("clamp");
  check(min || max, "clamp: neither a lower nor an upper bound");
  const auto tensor_or_this = [&](const std::optional<Operand>& bound) {
    return bound && !bound->is_number() ? *bound : Operand(*this);
  };
  const DType t = type_of_all({*this, tensor_or_this(min), tensor_or_this(max)});
  Tensor out = to(t);
  // A bound that is a number takes the tensor's dtype. NaN passes through, and is a bound of all:
  // no gradient goes either way.
  const auto limit = [&](const Operand& o, bool lower) {
    const Tensor bound(detail::operand_node(o, t));
    if (t.is_int()) {
      out = lower ? maximum(out, bound) : minimum(out, bound);
      return;
    }
    const Tensor within = lower ? out >= bound : out <= bound;
    const Tensor beyond = lower ? out < bound : out > bound;
    out = where(within, out, t.is_float() ? where(beyond, bound, NAN) : bound);
  };
  if (min) limit(*min, true);
  if (max) limit(*max, false);
  return out;
}

Tensor Tensor::lerp(const Tensor& end, const Operand& weight) const {
  LabelScope label("lerp");
  detail::require_float("lerp", dtype());
  const DType t = dtype(), wide = detail::compute_dtype(t);
  const Tensor a = to(wide), b = end.to(wide);
  const Tensor w(detail::operand_node(weight, wide));
  return (a + w * (b - a)).to(t);
}

Tensor Tensor::masked_fill(const Tensor& mask, Number value) const {
  LabelScope label("masked_fill");
  check(mask.dtype().is_bool(), "masked_fill: the mask is bool and not ", mask.dtype());
  return where(mask, Tensor(detail::number_node(value, dtype())), *this).to(dtype());
}

// --- Casts --------------------------------------------------------------------------------------

Tensor Tensor::to(DType t) const {
  if (t == dtype()) return *this;
  LabelScope label("cast");
  check(t.lanes == 1 && t.size() > 0, "to: tensors have no dtype ", t);
  if (t.is_bool()) {
    const Node zero = build::full(capacity(), dtype(), int64_t{0});
    return Tensor(build::binary(Op::Ne, node(), zero));
  }
  return Tensor(build::cast(node(), t));
}

Tensor Tensor::bitcast(DType t) const {
  LabelScope label("bitcast");
  check(t.size() == dtype().size() && t.lanes == 1, "bitcast: ", dtype(), " has ", dtype().size(),
        " bytes and ", t, " has ", t.size());
  return Tensor(build::bitcast(build::detach(node()), t));
}

namespace {

DType dtype_of(Float8 format) { return format == Float8::E4M3FN ? kF8E4M3 : kF8E5M2; }

}  // namespace

Tensor Tensor::f8_encode(Float8 format) const {
  LabelScope label("f8_encode");
  detail::require_float("f8_encode", dtype());
  return detach().to(kF32).to(dtype_of(format)).bitcast(kU8);
}

Tensor Tensor::f8_decode(Float8 format) const {
  LabelScope label("f8_decode");
  check(dtype() == kU8, "f8_decode: takes u8 bit patterns and not ", dtype());
  return bitcast(dtype_of(format)).to(kF32);
}

}  // namespace tiny
