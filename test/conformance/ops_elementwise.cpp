// Element-wise operations of one, two and three operands, and conversions.
#include <optional>

#include "test/conformance/arguments.h"
#include "test/conformance/operators.h"

namespace tiny::conformance {

namespace {

template <Tensor (Tensor::*F)() const> Tensors unary(const Inputs& in, const Json&) {
  return {(in[0].*F)()};
}

template <Tensor (Tensor::*F)(double) const>
Tensors with_alpha(const Inputs& in, const Json& args) {
  return {(in[0].*F)(real(args.at("alpha")))};
}

// A scalar counts by its stated kind, however the JSON file writes it.
Number scalar(const Json& args) {
  const Number value = number(args.at("scalar"));
  const std::string kind = args.at("kind");
  if (kind == "float") return value.real();
  if (kind == "bool") return value.real() != 0;
  return value.is_float() ? static_cast<int64_t>(value.real()) : value.integer();
}

template <Tensor (*F)(const Operand&, const Operand&)>
Tensors binary(const Inputs& in, const Json& args) {
  if (in.has(1)) return {F(in[0], in[1])};
  const Number s = scalar(args);
  return {args.at("reverse").get<bool>() ? F(s, in[0]) : F(in[0], s)};
}

Tensors gelu(const Inputs& in, const Json& args) {
  return {in[0].gelu(args.at("approximate") == "tanh")};
}

Tensors softplus(const Inputs& in, const Json& args) {
  return {in[0].softplus(real(args.at("beta")), real(args.at("threshold")))};
}

Tensors leaky_relu(const Inputs& in, const Json& args) {
  return {in[0].leaky_relu(real(args.at("negative_slope")))};
}

Tensors hardtanh(const Inputs& in, const Json& args) {
  return {in[0].hardtanh(real(args.at("min")), real(args.at("max")))};
}

std::optional<Operand> limit(const Json& json) {
  return json.is_null() ? std::optional<Operand>() : Operand(number(json));
}

Tensors clamp(const Inputs& in, const Json& args) {
  return {in[0].clamp(limit(args.at("min")), limit(args.at("max")))};
}

Tensors clamp_tensor(const Inputs& in, const Json&) { return {in[0].clamp(in[1], in[2])}; }

Tensors select_where(const Inputs& in, const Json&) { return {where(in[0], in[1], in[2])}; }

Tensors lerp(const Inputs& in, const Json& args) {
  if (in.has(2)) return {in[0].lerp(in[1], in[2])};
  return {in[0].lerp(in[1], number(args.at("weight")))};
}

Tensors cast(const Inputs& in, const Json& args) { return {in[0].to(dtype(args.at("dtype")))}; }

Tensors bitcast(const Inputs& in, const Json& args) {
  return {in[0].bitcast(dtype(args.at("dtype")))};
}

Float8 float8(const Json& args) {
  return args.at("format") == "e5m2" ? Float8::E5M2 : Float8::E4M3FN;
}

Tensors f8_encode(const Inputs& in, const Json& args) { return {in[0].f8_encode(float8(args))}; }
Tensors f8_decode(const Inputs& in, const Json& args) { return {in[0].f8_decode(float8(args))}; }

void add_unary(Table& table) {
  table.insert({
      {"neg", unary<&Tensor::neg>},
      {"exp", unary<&Tensor::exp>},
      {"exp2", unary<&Tensor::exp2>},
      {"expm1", unary<&Tensor::expm1>},
      {"log", unary<&Tensor::log>},
      {"log2", unary<&Tensor::log2>},
      {"log10", unary<&Tensor::log10>},
      {"log1p", unary<&Tensor::log1p>},
      {"sin", unary<&Tensor::sin>},
      {"cos", unary<&Tensor::cos>},
      {"tan", unary<&Tensor::tan>},
      {"asin", unary<&Tensor::asin>},
      {"acos", unary<&Tensor::acos>},
      {"atan", unary<&Tensor::atan>},
      {"sinh", unary<&Tensor::sinh>},
      {"cosh", unary<&Tensor::cosh>},
      {"tanh", unary<&Tensor::tanh>},
      {"asinh", unary<&Tensor::asinh>},
      {"acosh", unary<&Tensor::acosh>},
      {"atanh", unary<&Tensor::atanh>},
      {"sqrt", unary<&Tensor::sqrt>},
      {"rsqrt", unary<&Tensor::rsqrt>},
      {"reciprocal", unary<&Tensor::reciprocal>},
      {"square", unary<&Tensor::square>},
      {"abs", unary<&Tensor::abs>},
      {"sign", unary<&Tensor::sign>},
      {"floor", unary<&Tensor::floor>},
      {"ceil", unary<&Tensor::ceil>},
      {"round", unary<&Tensor::round>},
      {"trunc", unary<&Tensor::trunc>},
      {"erf", unary<&Tensor::erf>},
      {"sigmoid", unary<&Tensor::sigmoid>},
      {"logsigmoid", unary<&Tensor::logsigmoid>},
      {"relu", unary<&Tensor::relu>},
      {"relu6", unary<&Tensor::relu6>},
      {"silu", unary<&Tensor::silu>},
      {"mish", unary<&Tensor::mish>},
      {"selu", unary<&Tensor::selu>},
      {"hardswish", unary<&Tensor::hardswish>},
      {"hardsigmoid", unary<&Tensor::hardsigmoid>},
      {"isnan", unary<&Tensor::isnan>},
      {"isinf", unary<&Tensor::isinf>},
      {"isfinite", unary<&Tensor::isfinite>},
      {"logical_not", unary<&Tensor::logical_not>},
      {"bitwise_not", unary<&Tensor::bitwise_not>},
      {"detach", unary<&Tensor::detach>},
      {"contiguous", unary<&Tensor::contiguous>},
      {"gelu", gelu},
      {"softplus", softplus},
      {"elu", with_alpha<&Tensor::elu>},
      {"celu", with_alpha<&Tensor::celu>},
      {"leaky_relu", leaky_relu},
      {"hardtanh", hardtanh},
      {"clamp", clamp},
  });
}

void add_binary(Table& table) {
  table.insert({
      {"add", binary<(operator+)>},
      {"sub", binary<(operator-)>},
      {"mul", binary<(operator*)>},
      {"div", binary<(operator/)>},
      {"trunc_div", binary<trunc_div>},
      {"floor_div", binary<floor_div>},
      {"mod", binary<mod>},
      {"pow", binary<pow>},
      {"maximum", binary<maximum>},
      {"minimum", binary<minimum>},
      {"atan2", binary<atan2>},
      {"copysign", binary<copysign>},
      {"eq", binary<(operator==)>},
      {"ne", binary<(operator!=)>},
      {"lt", binary<(operator<)>},
      {"le", binary<(operator<=)>},
      {"gt", binary<(operator>)>},
      {"ge", binary<(operator>=)>},
      {"logical_and", binary<logical_and>},
      {"logical_or", binary<logical_or>},
      {"logical_xor", binary<logical_xor>},
      {"bitwise_and", binary<(operator&)>},
      {"bitwise_or", binary<(operator|)>},
      {"bitwise_xor", binary<(operator^)>},
      {"shl", binary<(operator<<)>},
      {"shr", binary<(operator>>)>},
  });
}

}  // namespace

void add_elementwise(Table& table) {
  add_unary(table);
  add_binary(table);
  table.insert({
      {"where", select_where},
      {"lerp", lerp},
      {"clamp_tensor", clamp_tensor},
      {"cast", cast},
      {"bitcast", bitcast},
      {"f8_encode", f8_encode},
      {"f8_decode", f8_decode},
  });
}

}  // namespace tiny::conformance
