// Functions of one operand. All that are no single node are formulas over other Tensor functions,
// so that their gradients follow; each is written to be accurate near zero and for large arguments.
// Both branches of a `where` are computed, so what a branch is not meant for is replaced first.
#include <cmath>
#include <limits>
#include <vector>

#include "tiny/tensor/detail.h"

namespace tiny {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// f(x) in f32 or f64, rounded once to the dtype of a real function of x.
template <class F> Tensor real_function(const char* name, const Tensor& x, F f) {
  LabelScope label(name);
  const DType t = detail::real_dtype(x.dtype());
  return f(x.to(detail::compute_dtype(t))).to(t);
}

Tensor apply(Op op, const Tensor& x) { return Tensor(build::unary(op, x.node())); }

// Horner's scheme, highest power first. Powers that are nothing beside the last coefficient in x's
// dtype where |x| <= limit are left out.
Tensor polynomial(const Tensor& x, const std::vector<double>& coefficients,
                  double limit = kInfinity) {
  const double nothing = std::ldexp(std::abs(coefficients.back()), x.dtype() == kF64 ? -57 : -28);
  size_t first = 0;
  const auto power = [&] { return static_cast<double>(coefficients.size() - 1 - first); };
  while (std::abs(coefficients[first]) * std::pow(limit, power()) < nothing) ++first;
  Tensor sum = x.full_like(coefficients[first]);
  while (++first < coefficients.size()) sum = sum * x + coefficients[first];
  return sum;
}

// series(x) where |x| < limit, general(x) elsewhere; the other one sees a harmless argument.
template <class Series, class General>
Tensor near_zero(const Tensor& x, double limit, Series series, General general) {
  const Tensor small = x * x < limit * limit;
  return where(small, series(where(small, x, 0)), general(where(small, limit, x)));
}

Tensor nonpositive_abs(const Tensor& x) { return where(x < 0, x, -x); }  // gradient -1 at 0

// An odd function of x from its value y at |x|, for which -0 stays -0: there y has the sign itself.
Tensor odd(const Tensor& x, const Tensor& y) { return where(x < 0, -y, y); }

// Rounding-like functions of integers give them back.
template <class F> Tensor rounding(const char* name, const Tensor& x, F f) {
  LabelScope label(name);
  if (!x.dtype().is_float()) return x;
  return f(x.to(detail::compute_dtype(x.dtype()))).to(x.dtype());
}

}  // namespace

// --- Arithmetic ---------------------------------------------------------------------------------

Tensor Tensor::neg() const {
  LabelScope label("neg");
  check(!dtype().is_bool(), "neg: not defined for bool: use logical_not");
  return apply(Op::Neg, *this);
}

Tensor Tensor::abs() const {
  LabelScope label("abs");
  if (dtype().is_bool() || dtype().is_unsigned()) return *this;
  if (dtype().is_int()) return maximum(*this, neg());
  // The branch for 0 makes the gradient 0 there, and -0 to 0.
  return where(*this == 0, 0, where(*this < 0, neg(), *this));
}

Tensor Tensor::sign() const {
  LabelScope label("sign");
  if (dtype().is_bool()) return *this;
  const Tensor x = detach(), zero = zeros_like(), one = ones_like();
  if (dtype().is_unsigned()) return where(x > 0, one, zero);
  return where(x > 0, one, where(x < 0, full_like(-1), zero));
}

Tensor Tensor::floor() const {
  return rounding("floor", *this, [](const Tensor& x) { return apply(Op::Floor, x); });
}

Tensor Tensor::ceil() const {
  return rounding("ceil", *this, [](const Tensor& x) { return -apply(Op::Floor, -x); });
}

Tensor Tensor::trunc() const {
  return rounding("trunc", *this, [](const Tensor& x) { return apply(Op::Trunc, x); });
}

Tensor Tensor::round() const {
  return rounding("round", *this, [](const Tensor& with_gradient) {
    const Tensor x = with_gradient.detach();
    const Tensor whole = x.trunc(), rest = (x - whole).abs();  // exact, also for large x
    const Tensor odd = (whole * 0.5).trunc() * 2 != whole;
    const Tensor away = logical_or(rest > 0.5, logical_and(rest == 0.5, odd));
    return where(away, whole + x.sign(), whole);
  });
}

Tensor Tensor::square() const {
  LabelScope label("square");
  return *this * *this;
}

Tensor Tensor::sqrt() const {
  return real_function("sqrt", *this, [](const Tensor& x) { return apply(Op::Sqrt, x); });
}

Tensor Tensor::rsqrt() const {
  return real_function("rsqrt", *this, [](const Tensor& x) { return x.sqrt().reciprocal(); });
}

Tensor Tensor::reciprocal() const {
  return real_function("reciprocal", *this, [](const Tensor& x) { return apply(Op::Recip, x); });
}

// --- Exponentials and logarithms ----------------------------------------------------------------

Tensor Tensor::exp2() const {
  return real_function("exp2", *this, [](const Tensor& x) { return apply(Op::Exp2, x); });
}

Tensor Tensor::exp() const {
  return real_function("exp", *this, [](const Tensor& x) { return (x * M_LOG2E).exp2(); });
}

Tensor Tensor::expm1() const {
  return real_function("expm1", *this, [](const Tensor& x) {
    constexpr double kNear = 0.125;
    const auto taylor = [](const Tensor& u) {
      return u * polynomial(u,
                            {1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24,
                             1.0 / 6, 0.5, 1},
                            kNear);
    };
    const Tensor y = near_zero(x, kNear, taylor, [](const Tensor& u) { return u.exp() - 1; });
    return detail::with_derivative(y.detach(), x, [](const Tensor& at) { return at.exp(); });
  });
}

Tensor Tensor::log2() const {
  return real_function("log2", *this, [](const Tensor& x) { return apply(Op::Log2, x); });
}

Tensor Tensor::log() const {
  return real_function("log", *this, [](const Tensor& x) { return x.log2() * M_LN2; });
}

Tensor Tensor::log10() const {
  return real_function("log10", *this, [](const Tensor& x) { return x.log2() * (M_LN2 / M_LN10); });
}

Tensor Tensor::log1p() const {
  return real_function("log1p", *this, [](const Tensor& x) {
    // log(1 + x) = 2 artanh(s) with s = x / (2 + x)
    constexpr double kNear = 0.125, kLargest = kNear / (2 - kNear);
    const auto series = [](const Tensor& u) {
      const Tensor s = u / (u + 2), s2 = s * s;
      return s *
             polynomial(s2, {2.0 / 11, 2.0 / 9, 2.0 / 7, 2.0 / 5, 2.0 / 3, 2}, kLargest * kLargest);
    };
    const Tensor y = near_zero(x, kNear, series, [](const Tensor& u) { return (u + 1).log(); });
    return detail::with_derivative(y.detach(), x,
                                   [](const Tensor& at) { return (at + 1).reciprocal(); });
  });
}

// --- Trigonometric functions --------------------------------------------------------------------

Tensor Tensor::sin() const {
  return real_function("sin", *this, [](const Tensor& x) { return apply(Op::Sin, x); });
}

Tensor Tensor::cos() const {
  // Not sin(x + pi/2), whose sum rounds away what large arguments need.
  return real_function("cos", *this,
                       [](const Tensor& x) { return 1 - (x * 0.5).sin().square() * 2; });
}

Tensor Tensor::tan() const {
  return real_function("tan", *this, [](const Tensor& x) { return x.sin() / x.cos(); });
}

Tensor Tensor::atan() const {
  return real_function("atan", *this, [](const Tensor& x) {
    // Reduced to |u| <= tan(pi/8) as in Cephes' atan.c (S. Moshier), then halved once more:
    // atan(u) = 2 atan(u / (1 + sqrt(1 + u^2))).
    const Tensor a = where(x < 0, -x, x);
    const Tensor big = a > 2.414213562373095, middle = a > 0.41421356237309503;
    const Tensor top = where(big, -1, where(middle, a - 1, a));
    const Tensor bottom = where(big, a, where(middle, a + 1, 1));
    const Tensor u = top / bottom;
    const Tensor v = u / ((u * u + 1).sqrt() + 1), w = v * v;
    const Tensor series = v * polynomial(w, {-2.0 / 19, 2.0 / 17, -2.0 / 15, 2.0 / 13, -2.0 / 11,
                                             2.0 / 9, -2.0 / 7, 2.0 / 5, -2.0 / 3, 2});
    // -0 leaves the sign of zero, as 0 would not.
    const Tensor offset = where(big, x.full_like(M_PI_2), where(middle, x.full_like(M_PI_4), -0.0));
    return odd(x, series + offset);
  });
}

namespace {

Tensor asin_slope(const Tensor& x) { return ((1 - x) * (x + 1)).rsqrt(); }

}  // namespace

Tensor Tensor::asin() const {
  return real_function("asin", *this, [](const Tensor& x) {
    const Tensor angle = (x / (((1 - x) * (x + 1)).sqrt() + 1)).atan() * 2;
    return detail::with_derivative(angle.detach(), x, asin_slope);
  });
}

Tensor Tensor::acos() const {
  return real_function("acos", *this, [](const Tensor& x) {
    const Tensor angle = ((1 - x) / (x + 1)).sqrt().atan() * 2;
    return detail::with_derivative(angle.detach(), x,
                                   [](const Tensor& at) { return -asin_slope(at); });
  });
}

// --- Hyperbolic functions -----------------------------------------------------------------------

Tensor Tensor::sinh() const {
  return real_function("sinh", *this, [](const Tensor& x) {
    const auto taylor = [](const Tensor& u) {
      return u * polynomial(u * u, {1.0 / 362880, 1.0 / 5040, 1.0 / 120, 1.0 / 6, 1});
    };
    const auto general = [](const Tensor& u) {  // half the argument, so as not to overflow early
      const Tensor up = (u * 0.5).exp(), down = (u * -0.5).exp();
      return up * 0.5 * up - down * 0.5 * down;
    };
    return near_zero(x, x.dtype() == kF64 ? 0.125 : 0.25, taylor, general);  // x^10 / 11! < eps
  });
}

Tensor Tensor::cosh() const {
  return real_function("cosh", *this, [](const Tensor& x) {
    const Tensor up = (x * 0.5).exp(), down = (x * -0.5).exp();
    return up * 0.5 * up + down * 0.5 * down;
  });
}

Tensor Tensor::tanh() const {
  return real_function("tanh", *this, [](const Tensor& x) {
    const double near = x.dtype() == kF64 ? 0.0625 : 0.125;  // x^12 / 278 < eps
    const auto taylor = [near](const Tensor& u) {
      return u * polynomial(u * u,
                            {-1382.0 / 155925, 62.0 / 2835, -17.0 / 315, 2.0 / 15, -1.0 / 3, 1},
                            near * near);
    };
    const auto general = [](const Tensor& u) {
      const Tensor e = (nonpositive_abs(u) * 2).exp(), y = (1 - e) * (e + 1).reciprocal();
      return where(u < 0, -y, y);
    };
    const auto value = [&](const Tensor& u) { return near_zero(u, near, taylor, general); };
    const auto slope = [](const Tensor& u) {  // 1 / cosh^2
      const Tensor e = (nonpositive_abs(u) * 2).exp(), r = (e + 1).reciprocal();
      return e * 4 * (r * r);
    };
    // Gradients know nothing of the two ways to compute the value: what lies between would have to
    // be kept for both.
    return detail::with_derivative(value(x).detach(), x, [&](const Tensor& at) {
      return detail::with_derivative(slope(at).detach(), at,
                                     [&](const Tensor& u) { return value(u) * slope(u) * -2; });
    });
  });
}

Tensor Tensor::asinh() const {
  return real_function("asinh", *this, [](const Tensor& x) {
    const Tensor a = where(x < 0, -x, x), large = a > 0x1p30;  // whose square might overflow
    const Tensor u = where(large, 1, a);
    const Tensor near = (u * (u / ((u * u + 1).sqrt() + 1) + 1)).log1p();
    const Tensor y = where(large, where(large, a, 1).log() + M_LN2, near);
    return odd(x, y);
  });
}

Tensor Tensor::acosh() const {
  return real_function("acosh", *this, [](const Tensor& x) {
    const Tensor large = x > 0x1p30, t = where(large, 1, x) - 1;
    const Tensor near = (t + (t * (t + 2)).sqrt()).log1p();
    const Tensor out = where(large, where(large, x, 1).log() + M_LN2, near);
    const Tensor y = where(x < 1, std::nan(""), out);  // also where t (t + 2) overflows
    return detail::with_derivative(
        y.detach(), x, [](const Tensor& at) { return (at - 1).rsqrt() * (at + 1).rsqrt(); });
  });
}

Tensor Tensor::atanh() const {
  return real_function("atanh", *this, [](const Tensor& x) {
    const Tensor y = (x * 2 / (1 - x)).log1p() * 0.5;
    return detail::with_derivative(
        y.detach(), x, [](const Tensor& at) { return ((1 - at) * (at + 1)).reciprocal(); });
  });
}

// --- Error function -----------------------------------------------------------------------------

namespace {

// Within 3 units of f32: polynomials fitted (weighted least squares, relative error 1e-9) to
// erf(x)/x - 1 in x*x and to log2(1 - erf(x)), which needs no division.
Tensor erf_of_f32(const Tensor& x) {
  const auto center = [](const Tensor& u) {
    return u + u * polynomial(u * u, {7.85384578e-05, -0.0008010188652, 0.005188327074,
                                      -0.02685381157, 0.1128358514, -0.3761262582, 0.128379165726});
  };
  const auto tail = [](const Tensor& u) {
    const Tensor a = where(u < 0, -u, u), b = where(a > 4, 4, a);  // beyond 4: 1 in f32
    const Tensor y = 1 - polynomial(b, {0.0002688886421, -0.004252575078, 0.03150567912,
                                        -0.14875163, -0.9206483546, -1.626046004, -0.0004927088085})
                             .exp2();
    return where(u < 0, -y, y);
  };
  return near_zero(x, 1, center, tail);
}

// W. J. Cody, "Rational Chebyshev approximations for the error function", Math. Comp. 23 (1969).
Tensor erf_of_f64(const Tensor& x) {
  const auto center = [](const Tensor& u) {
    const Tensor z = u * u;
    return u *
           polynomial(z, {1.85777706184603153e-1, 3.16112374387056560, 1.13864154151050156e2,
                          3.77485237685302021e2, 3.20937758913846947e3}) /
           polynomial(z, {1, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3,
                          2.84423683343917062e3});
  };
  const auto tail = [](const Tensor& u) {
    const Tensor a = where(u < 0, -u, u), b = where(a > 6, 6, a);
    const Tensor p =
        polynomial(b, {2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594,
                       6.61191906371416295e1, 2.98635138197400131e2, 8.81952221241769090e2,
                       1.71204761263407058e3, 2.05107837782607147e3, 1.23033935479799725e3});
    const Tensor q =
        polynomial(b, {1, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2,
                       1.62138957456669019e3, 3.29079923573345963e3, 4.36261909014324716e3,
                       3.43936767414372164e3, 1.23033935480374942e3});
    const Tensor y = 1 - (b * b).neg().exp() * p / q;
    return where(u < 0, -y, y);
  };
  return near_zero(x, 0.46875, center, tail);
}

Tensor erf_slope(const Tensor& x) { return (x * x * -M_LOG2E).exp2() * M_2_SQRTPI; }

// 1 + erf(x), without the cancellation of that sum: 2^(|x| p(|x|)), of relative error 1e-7 below 1
// and 5e-6 at 4.5 (a fit as above, where its error beside 1 counts), is 1 - erf(|x|). What is
// rounded to f16 afterwards, whose numbers end at |x| = 3.9, has a p of relative error 4e-6 there.
Tensor erf_plus_1(const Tensor& x, bool is_f16) {
  if (x.dtype() == kF64) return x.erf() + 1;
  const Tensor a = where(x < 0, -x, x);
  const Tensor p = is_f16
                       ? polynomial(a, {-1.967197855e-05, 0.0004784348146, -0.00518875094,
                                        0.03383375399, -0.1523470172, -0.9171214673, -1.628057078})
                       : polynomial(a, {-5.308079385e-07, 1.23546596e-05, -0.0001221979253,
                                        0.0006482824774, -0.001720225949, -0.0007354095586,
                                        0.02839471444, -0.1485972067, -0.9183852124, -1.627911032});
  const Tensor y = (a * p).exp2();
  return detail::with_derivative(where(x < 0, y, 2 - y).detach(), x, erf_slope);
}

// x Phi(x), with the derivative Phi(x) + x phi(x) of the normal distribution.
Tensor exact_gelu(const Tensor& x, bool is_f16) {
  const Tensor twice = erf_plus_1(x * M_SQRT1_2, is_f16);
  return detail::with_derivative((x * 0.5 * twice).detach(), x, [&](const Tensor& at) {
    const Tensor power = (at * at * (-0.5 * M_LOG2E)).exp2();
    return twice * 0.5 + at * power * (M_SQRT1_2 * M_2_SQRTPI / 2);
  });
}

}  // namespace

Tensor Tensor::erf() const {
  return real_function("erf", *this, [](const Tensor& x) {
    return detail::with_derivative((x.dtype() == kF64 ? erf_of_f64(x) : erf_of_f32(x)).detach(), x,
                                   erf_slope);
  });
}

// --- Tests --------------------------------------------------------------------------------------

Tensor Tensor::isnan() const {
  LabelScope label("isnan");
  return *this != *this;
}

Tensor Tensor::isinf() const {
  LabelScope label("isinf");
  if (!dtype().is_float()) return isnan();
  return logical_or(*this == kInfinity, *this == -kInfinity);
}

Tensor Tensor::isfinite() const {
  LabelScope label("isfinite");
  if (!dtype().is_float()) return *this == *this;
  return logical_and(*this<kInfinity, *this> - kInfinity);
}

Tensor Tensor::logical_not() const {
  LabelScope label("logical_not");
  return *this == 0;
}

Tensor Tensor::bitwise_not() const {
  LabelScope label("bitwise_not");
  detail::require_integral("bitwise_not", dtype());
  return dtype().is_bool() ? logical_not() : *this ^ full_like(-1);
}

// --- Activations --------------------------------------------------------------------------------

Tensor Tensor::relu() const {
  LabelScope label("relu");
  return where(*this <= 0, 0, *this);  // NaN stays, and the gradient at 0 is 0
}

Tensor Tensor::relu6() const {
  LabelScope label("relu6");
  return where(*this >= 6, 6, relu());  // the gradient at 6 is 0
}

Tensor Tensor::sigmoid() const {
  return real_function("sigmoid", *this, [](const Tensor& x) {
    const Tensor e = nonpositive_abs(x).exp();  // never overflows
    // Not divided: of tiny numbers, as e may be, GPUs take a slow path to round that exactly.
    return where(x < 0, e, 1) * (e + 1).reciprocal();
  });
}

Tensor Tensor::logsigmoid() const {
  return real_function("logsigmoid", *this,
                       [](const Tensor& x) { return -(-x).softplus(1, kInfinity); });
}

namespace {

// log(1 + x) for x in [0, 1]. In f32 without a division or logarithm: x times the polynomial of
// degree 9 that interpolates log(1 + x) / x in Chebyshev's points, which is off by 5.4e-9 of it.
Tensor log1p_up_to_one(const Tensor& x) {
  if (x.dtype() == kF64) return x.log1p();
  return x * polynomial(x, {-0.0031760570083861238, 0.01954252718714997, -0.05637361262934065,
                            0.10543623767455303, -0.1526966705202085, 0.1966327424661074,
                            -0.2495161625994282, 0.33329710498480913, -0.4999989264803454,
                            0.9999999946562879});
}

}  // namespace

Tensor Tensor::softplus(double beta, double threshold) const {
  return real_function("softplus", *this, [&](const Tensor& x) {
    const auto value = [&](const Tensor& at) {  // log(1 + e^u) = max(u, 0) + log(1 + e^-|u|)
      const Tensor u = at * beta, rest = log1p_up_to_one(nonpositive_abs(u).exp());
      return where(u > threshold, at, (where(u < 0, 0, u) + rest) / beta);
    };
    return detail::with_derivative(value(x).detach(), x, [&](const Tensor& at) {
      const Tensor u = at * beta;
      return where(u > threshold, 1, u.sigmoid());
    });
  });
}

Tensor Tensor::silu() const {
  return real_function("silu", *this, [](const Tensor& x) { return x * x.sigmoid(); });
}

Tensor Tensor::mish() const {
  return real_function("mish", *this, [](const Tensor& x) {
    // tanh(log(1 + w)) = n / (n + 2) with n = w (w + 2), w = e^x: 1 in f64 for x of 20 and more.
    const Tensor w = where(x > 20, 20, x).exp(), n = w * (w + 2);
    return x * (n * (n + 2).reciprocal());
  });
}

Tensor Tensor::selu() const {
  return real_function("selu", *this, [](const Tensor& x) {
    return x.elu(1.6732632423543772) * 1.0507009873554805;
  });
}

Tensor Tensor::gelu(bool tanh_approximation) const {
  return real_function("gelu", *this, [&](const Tensor& x) {
    if (!tanh_approximation) return exact_gelu(x, dtype() == kF16);
    const Tensor inner = (x + x * x * x * 0.044715) * std::sqrt(2 / M_PI);
    return x * 0.5 * (inner.tanh() + 1);
  });
}

Tensor Tensor::elu(double alpha) const {
  return real_function("elu", *this, [&](const Tensor& x) {
    return where(x > 0, x, where(x > 0, 0, x).expm1() * alpha);
  });
}

Tensor Tensor::celu(double alpha) const {
  return real_function("celu", *this, [&](const Tensor& x) {
    return where(x > 0, x, (where(x > 0, 0, x) / alpha).expm1() * alpha);
  });
}

Tensor Tensor::leaky_relu(double negative_slope) const {
  return real_function("leaky_relu", *this,
                       [&](const Tensor& x) { return where(x > 0, x, x * negative_slope); });
}

Tensor Tensor::hardtanh(double min, double max) const {
  LabelScope label("hardtanh");
  const Tensor low(detail::number_node(min, dtype())), high(detail::number_node(max, dtype()));
  return where(*this <= low, low, where(*this >= high, high, *this));  // gradient 0 at both
}

Tensor Tensor::hardsigmoid() const {
  return real_function("hardsigmoid", *this, [](const Tensor& x) { return (x + 3).relu6() / 6; });
}

Tensor Tensor::hardswish() const {
  return real_function("hardswish", *this, [](const Tensor& x) {
    const Tensor u = where(x < -3, -3, where(x < 3, x, 0));
    return where(x < 3, u * (u + 3) / 6, x);
  });
}

}  // namespace tiny
