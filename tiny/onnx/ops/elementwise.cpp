// Element-wise operators: functions of one tensor, arithmetic, comparisons, bits, casts.
#include <cmath>
#include <limits>

#include "tiny/onnx/ops/table.h"

namespace tiny::onnx {

namespace {

template <Tensor (Tensor::*function)() const> Tensors unary(Call& c) {
  return {(c[0].*function)()};
}

// A function of real numbers; narrow ones are computed in f32 and rounded once.
template <class F> Tensors in_f32(const Tensor& x, F&& f) {
  const DType dtype = x.dtype();
  if (!dtype.is_narrow()) return {f(x)};
  return {f(x.to(kF32)).to(dtype)};
}

Tensors elu(Call& c) {
  return in_f32(c[0], [&](const Tensor& x) { return x.elu(c.real("alpha", 1)); });
}

Tensors celu(Call& c) {
  return in_f32(c[0], [&](const Tensor& x) { return x.celu(c.real("alpha", 1)); });
}

Tensors selu(Call& c) {
  const double alpha = c.real("alpha", 1.67326319217681884765625);
  const double gamma = c.real("gamma", 1.05070102214813232421875);
  return in_f32(c[0], [&](const Tensor& x) { return x.elu(alpha) * gamma; });
}

Tensors leaky_relu(Call& c) { return {c[0].leaky_relu(c.real("alpha", 0.01f))}; }

Tensors hard_sigmoid(Call& c) {
  const double alpha = c.real("alpha", 0.2f), beta = c.real("beta", 0.5);
  return in_f32(c[0], [&](const Tensor& x) { return (x * alpha + beta).clamp(0, 1); });
}

Tensors hard_swish(Call& c) {
  return in_f32(c[0], [](const Tensor& x) { return x * (x * (1.0 / 6) + 0.5).clamp(0, 1); });
}

Tensors thresholded_relu(Call& c) { return {where(c[0] > c.real("alpha", 1), c[0], 0)}; }

Tensors shrink(Call& c) {
  const double lambda = c.real("lambd", 0.5), bias = c.real("bias", 0);
  const Tensor& x = c[0];
  const Tensor wide = x.dtype() == kF64 ? x : x.to(kF32);
  const Tensor y = where(wide < -lambda, wide + bias, where(wide > lambda, wide - bias, 0));
  return {y.to(x.dtype())};
}

Tensors softplus(Call& c) {
  return in_f32(c[0], [](const Tensor& x) { return x.softplus(); });
}

Tensors softsign(Call& c) {
  return in_f32(c[0], [](const Tensor& x) { return x / (x.abs() + 1); });
}

Tensors gelu(Call& c) {
  const bool approximate = c.text("approximate", "none") == "tanh";
  return in_f32(c[0], [&](const Tensor& x) { return x.gelu(approximate); });
}

Tensors is_inf(Call& c) {
  const Tensor& x = c[0];
  const bool negative = c.integer("detect_negative", 1) != 0;
  const bool positive = c.integer("detect_positive", 1) != 0;
  const Tensor infinite = x.isinf();
  if (negative && positive) return {infinite};
  if (!negative && !positive) return {Tensor::full(to_shape(x.capacity()), false)};
  return {logical_and(infinite, negative ? x < 0 : x > 0)};
}

Tensors prelu(Call& c) {
  const Tensor &x = c[0], &slope = c[1];
  // The slope broadcasts to x; version 6 also has one value for each channel.
  const bool is_per_channel = c.opset() < 7 && slope.rank() == 1 && x.rank() > 1;
  const Tensor s = is_per_channel && slope.numel() > 1 ? along_axis(slope, 1, x.rank()) : slope;
  return {where(x < 0, x * s, x)};
}

Tensors clip_by_attributes(Call& c) {
  const double lowest = std::numeric_limits<float>::lowest(), largest = -lowest;
  std::optional<Operand> min, max;
  if (const double m = c.real("min", lowest); m > lowest) min = m;
  if (const double m = c.real("max", largest); m < largest) max = m;
  return {min || max ? c[0].clamp(min, max) : c[0]};
}

Tensors clip(Call& c) {
  Tensor x = c[0];
  for (size_t i = 1; i < 3; ++i)
    c.require(!c.has(i) || c[i].dtype() == x.dtype(), "a bound is of another dtype than ",
              x.dtype());
  if (c.has(1)) x = maximum(x, c[1].reshape({}));
  if (c.has(2)) x = minimum(x, c[2].reshape({}));
  return {x};
}

// --- Casts ---------------------------------------------------------------------------------------

DType dtype_of_attribute(Call& c, int64_t type) {
  const auto dtype = dtype_of_type(type);
  c.require(dtype && type != kInt4Type && type != kUint4Type, "no tensor is of type ",
            name_of_type(type), " here");
  return *dtype;
}

// Floats beyond e4m3 are NaN without `saturate`, and its largest number with it, as of to().
Tensor cast_to(Call& c, const Tensor& x, DType to) {
  if (x.dtype() == to) return x;
  if (!to.is_f8() || c.integer("saturate", 1) != 0) {
    const bool limits = to == kF8E5M2 && c.integer("saturate", 1) != 0 && !x.dtype().is_f8();
    if (!limits) return x.to(to);
    return where(x.isnan(), x, x.clamp(-57344.0, 57344.0)).to(to);
  }
  if (to == kF8E5M2) return x.to(to);
  // Beyond the middle between 448 and the next number, 480.
  return where(x.to(kF32).abs() > 464.0, std::numeric_limits<double>::quiet_NaN(), x.to(kF32))
      .to(to);
}

Tensors cast(Call& c) {
  // Version 1 names the type.
  c.require(c.find("to") != nullptr, "the attribute to is left out");
  return {cast_to(c, c[0], dtype_of_attribute(c, c.integer("to", 0)))};
}

Tensors cast_like(Call& c) { return {cast_to(c, c[0], c[1].dtype())}; }

// --- Two operands --------------------------------------------------------------------------------

// The second operand of version 6 may begin at an axis of the first.
Tensor second_operand(Call& c) {
  const Tensor &x = c[0], &y = c[1];
  if (c.opset() >= 7 || c.integer("broadcast", 0) == 0 || !c.has_attribute("axis")) return y;
  const int64_t axis = axis_of(x, c.integer("axis", 0));
  c.require(axis + y.rank() <= x.rank(), "shapes ", to_text(x.shape()), " and ", to_text(y.shape()),
            " do not meet at axis ", axis);
  Shape shape = sizes(y);
  shape.resize(static_cast<size_t>(x.rank() - axis), 1);
  return y.reshape(shape);
}

void require_one_dtype(Call& c) {
  for (size_t i = 1; i < c.size(); ++i)
    c.require(c[i].dtype() == c[0].dtype(), "operands of ", c[0].dtype(), " and ", c[i].dtype(),
              ", expected one dtype");
}

template <Tensor (*function)(const Operand&, const Operand&)> Tensors binary(Call& c) {
  require_one_dtype(c);
  return {function(c[0], second_operand(c))};
}

Tensors divide(Call& c) {
  require_one_dtype(c);
  const Tensor y = second_operand(c);
  return {c[0].dtype().is_float() ? c[0] / y : trunc_div(c[0], y)};
}

Tensors power(Call& c) {
  const Tensor &x = c[0], y = second_operand(c);
  const DType dtype = x.dtype();
  if (dtype.is_float()) return {pow(x, y.dtype() == dtype ? y : y.to(dtype))};
  if (!y.dtype().is_float()) return {pow(x, y.to(dtype))};
  const DType wide = y.dtype() == kF64 || dtype.size() == 8 ? kF64 : kF32;
  return {pow(x.to(wide), y.to(wide)).to(dtype)};
}

Tensors modulo(Call& c) {
  require_one_dtype(c);
  const Tensor &x = c[0], &y = c[1];
  if (c.integer("fmod", 0) == 0) {
    c.require(!x.dtype().is_float(), "floats need the attribute fmod");
    return {mod(x, y)};
  }
  if (!x.dtype().is_float()) return {x - trunc_div(x, y) * y};
  return {copysign(mod(x.abs(), y.abs()), x)};
}

template <Tensor (*function)(const Operand&, const Operand&)> Tensors variadic(Call& c) {
  require_one_dtype(c);
  Tensor out = c[0];
  for (size_t i = 1; i < c.size(); ++i) out = function(out, c[i]);
  return {out};
}

Tensors mean(Call& c) {
  const Tensor sum = variadic<(operator+)>(c)[0];
  return {sum / static_cast<double>(c.size())};
}

Tensors bit_shift(Call& c) {
  require_one_dtype(c);
  const std::string direction = c.text("direction", "");
  c.require(direction == "LEFT" || direction == "RIGHT", "the direction is \"", direction,
            "\", expected LEFT or RIGHT");
  return {direction == "LEFT" ? c[0] << c[1] : c[0] >> c[1]};
}

Tensors select(Call& c) {
  c.require(c[1].dtype() == c[2].dtype(), "operands of ", c[1].dtype(), " and ", c[2].dtype(),
            ", expected one dtype");
  return {where(c[0], c[1], c[2])};
}

Tensors identity(Call& c) { return {c[0]}; }

constexpr TypeSet kBool1 = type_set(kBool);

constexpr Operator kElementwise[] = {
    {"Abs", 1, kNumbers, unary<&Tensor::abs>},
    {"Acos", 7, kFloats, unary<&Tensor::acos>},
    {"Acosh", 9, kFloats, unary<&Tensor::acosh>},
    {"Add", 1, kNumbers, binary<(operator+)>},
    {"And", 1, kBool1, binary<logical_and>},
    {"Asin", 7, kFloats, unary<&Tensor::asin>},
    {"Asinh", 9, kFloats, unary<&Tensor::asinh>},
    {"Atan", 7, kFloats, unary<&Tensor::atan>},
    {"Atanh", 9, kFloats, unary<&Tensor::atanh>},
    {"BitShift", 11, kUnsigned, bit_shift},
    {"BitwiseAnd", 18, kIntegers, binary<(operator&)>},
    {"BitwiseNot", 18, kIntegers, unary<&Tensor::bitwise_not>},
    {"BitwiseOr", 18, kIntegers, binary<(operator|)>},
    {"BitwiseXor", 18, kIntegers, binary<(operator^)>},
    {"Cast", 6, kAll, cast},
    {"CastLike", 15, kAll, cast_like},
    {"Ceil", 1, kFloats, unary<&Tensor::ceil>},
    {"Celu", 12, kFloats, celu},
    {"Clip", 1, kNumbers, clip_by_attributes},
    {"Clip", 11, kNumbers, clip},
    {"Cos", 7, kFloats, unary<&Tensor::cos>},
    {"Cosh", 9, kFloats, unary<&Tensor::cosh>},
    {"Div", 1, kNumbers, divide},
    {"Elu", 1, kFloats, elu},
    {"Equal", 1, kAll, binary<(operator==)>},
    {"Erf", 9, kNumbers, unary<&Tensor::erf>},
    {"Exp", 1, kFloats, unary<&Tensor::exp>},
    {"Floor", 1, kFloats, unary<&Tensor::floor>},
    {"Gelu", 20, kFloats, gelu},
    {"Greater", 1, kNumbers, binary<(operator>)>},
    {"GreaterOrEqual", 12, kNumbers, binary<(operator>=)>},
    {"HardSigmoid", 1, kFloats, hard_sigmoid},
    {"HardSwish", 14, kFloats, hard_swish},
    {"Identity", 1, kAll, identity},
    {"IsInf", 10, kFloats | type_set(kF8E4M3, kF8E5M2), is_inf},
    {"IsNaN", 9, kFloats | type_set(kF8E4M3, kF8E5M2), unary<&Tensor::isnan>},
    {"LeakyRelu", 1, kFloats, leaky_relu},
    {"Less", 1, kNumbers, binary<(operator<)>},
    {"LessOrEqual", 12, kNumbers, binary<(operator<=)>},
    {"Log", 1, kFloats, unary<&Tensor::log>},
    {"Max", 1, kNumbers, variadic<maximum>},
    {"Mean", 1, kFloats, mean},
    {"Min", 1, kNumbers, variadic<minimum>},
    {"Mish", 18, kFloats, unary<&Tensor::mish>},
    {"Mod", 10, kNumbers, modulo},
    {"Mul", 1, kNumbers, binary<(operator*)>},
    {"Neg", 1, kSigned, unary<&Tensor::neg>},
    {"Not", 1, kBool1, unary<&Tensor::logical_not>},
    {"Or", 1, kBool1, binary<logical_or>},
    {"PRelu", 1, kNumbers, prelu},
    {"Pow", 1, kNumbers, power},
    {"Reciprocal", 1, kFloats, unary<&Tensor::reciprocal>},
    {"Relu", 1, kSigned, unary<&Tensor::relu>},
    {"Round", 11, kFloats, unary<&Tensor::round>},
    {"Selu", 1, kFloats, selu},
    {"Shrink", 9, kNumbers, shrink},
    {"Sigmoid", 1, kFloats, unary<&Tensor::sigmoid>},
    {"Sign", 9, kNumbers, unary<&Tensor::sign>},
    {"Sin", 7, kFloats, unary<&Tensor::sin>},
    {"Sinh", 9, kFloats, unary<&Tensor::sinh>},
    {"Softplus", 1, kFloats, softplus},
    {"Softsign", 1, kFloats, softsign},
    {"Sqrt", 1, kFloats, unary<&Tensor::sqrt>},
    {"Sub", 1, kNumbers, binary<(operator-)>},
    {"Sum", 1, kFloats, variadic<(operator+)>},
    {"Tan", 7, kFloats, unary<&Tensor::tan>},
    {"Tanh", 1, kFloats, unary<&Tensor::tanh>},
    {"ThresholdedRelu", 10, kFloats, thresholded_relu},
    {"Where", 9, kBool1, select},
    {"Xor", 1, kBool1, binary<logical_xor>},
};

}  // namespace

std::span<const Operator> elementwise_operators() { return kElementwise; }

}  // namespace tiny::onnx
