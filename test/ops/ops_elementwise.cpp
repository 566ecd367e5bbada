#include "test/ops/ops.h"
#include "tiny/ir/build.h"

namespace tiny::ops {

namespace {

const DType kFloats[] = {kF32, kF64, kF16, kBF16};
const DType kIntegers[] = {kI8, kI16, kI32, kI64, kU8, kU16, kU32, kU64};
const DType kAll[] = {kBool, kI8, kI16, kI32, kI64, kU8, kU16, kU32, kU64, kF16, kBF16, kF32, kF64};

std::string shape_name(const std::string& name, const Shape& shape) {
  return cat(name, " ", to_text(shape));
}

struct UnaryRow {
  const char* name;
  Tensor (*f)(const Tensor&);
  double low = -2, high = 2;
};

#define MEMBER(f) #f, [](const Tensor& x) { return x.f(); }
const UnaryRow kUnary[] = {
    {MEMBER(neg)},
    {MEMBER(abs)},
    {MEMBER(sign)},
    {MEMBER(floor), -9, 9},
    {MEMBER(ceil), -9, 9},
    {MEMBER(round), -9, 9},
    {MEMBER(trunc), -9, 9},
    {MEMBER(square)},
    {MEMBER(sqrt), 0.1, 9},
    {MEMBER(rsqrt), 0.1, 9},
    {MEMBER(reciprocal), 0.2, 5},
    {MEMBER(exp), -5, 5},
    {MEMBER(exp2), -9, 9},
    {MEMBER(expm1)},
    {MEMBER(log), 0.1, 20},
    {MEMBER(log2), 0.1, 20},
    {MEMBER(log10), 0.1, 20},
    {MEMBER(log1p), -0.5, 5},
    {MEMBER(sin), -9, 9},
    {MEMBER(cos), -9, 9},
    {MEMBER(tan), -1.2, 1.2},
    {MEMBER(asin), -0.9, 0.9},
    {MEMBER(acos), -0.9, 0.9},
    {MEMBER(atan), -9, 9},
    {MEMBER(sinh)},
    {MEMBER(cosh)},
    {MEMBER(tanh)},
    {MEMBER(asinh), -9, 9},
    {MEMBER(acosh), 1.2, 9},
    {MEMBER(atanh), -0.9, 0.9},
    {MEMBER(erf)},
    {MEMBER(isnan)},
    {MEMBER(isinf)},
    {MEMBER(isfinite)},
    {MEMBER(logical_not)},
    {MEMBER(relu)},
    {MEMBER(relu6), -3, 9},
    {MEMBER(sigmoid), -9, 9},
    {MEMBER(logsigmoid), -9, 9},
    {MEMBER(silu), -5, 5},
    {MEMBER(mish), -5, 5},
    {MEMBER(selu)},
    {MEMBER(gelu), -4, 4},
    {"gelu tanh", [](const Tensor& x) { return x.gelu(true); }, -4, 4},
    {MEMBER(softplus), -9, 25},
    {MEMBER(elu)},
    {MEMBER(celu)},
    {MEMBER(leaky_relu)},
    {MEMBER(hardtanh)},
    {MEMBER(hardswish), -5, 5},
    {MEMBER(hardsigmoid), -5, 5},
    {"clamp", [](const Tensor& x) { return x.clamp(-0.5, 0.75); }},
    {"pow 3", [](const Tensor& x) { return pow(x, 3); }},
    {"pow -0.5", [](const Tensor& x) { return pow(x, -0.5); }, 0.2, 4},
    {"2 pow", [](const Tensor& x) { return pow(2.5, x); }},
    {"detach", [](const Tensor& x) { return x.detach() * x; }},
    {"contiguous", [](const Tensor& x) { return (x * 2).contiguous() + 1; }},
};
#undef MEMBER

struct BinaryRow {
  const char* name;
  Tensor (*f)(const Operand&, const Operand&);
  double low = -2, high = 2;
};

const BinaryRow kBinary[] = {
    {"add", operator+ },
     {"sub", operator- },
      {"mul", operator* }, {"div", operator/, 0.3, 4}, {"pow", pow, 0.3, 3}, {"maximum", maximum},
       {"minimum", minimum}, {"atan2", atan2}, {"copysign", copysign}, {"mod", mod, 0.3, 4},
       {"eq", operator== },
        {"ne", operator!= },
         {"lt", operator<},
          {"le", operator<= },
           {"gt", operator> },
            {
                "ge",
                operator>= },
                {"and", logical_and},
                {"or", logical_or},
                {"xor", logical_xor},
                {"floor_div", floor_div, 0.3, 4},
                {"trunc_div", trunc_div, 0.3, 4},
           };

const BinaryRow kInteger[] = {
    {"add", operator+, 0, 120},   {"sub", operator-, 0, 120},
    {"mul", operator*, 0, 120},   {"floor_div", floor_div, 1, 120},
    {"mod", mod, 1, 120},         {"trunc_div", trunc_div, 1, 120},
    {"maximum", maximum, 0, 120}, {"minimum", minimum, 0, 120},
    {"and", operator&, 0, 120},   {"or", operator|, 0, 120},
    {"xor", operator^, 0, 120},   {"shl", operator<<, 0, 7},
    {"shr", operator>>, 0, 7},    {"lt", operator<, 0, 3},
    {"eq", operator==, 0, 3},     {"le", operator<=, 0, 3},
    {"ne", operator!=, 0, 3},
};

// Sign and magnitude of the first operand in all combinations, where the dtype has a sign.
Outputs with_signs(Tensor (*f)(const Operand&, const Operand&), const Inputs& in, bool both) {
  if (!in[0].dtype().is_signed()) return {f(in[0], in[1])};
  if (!both) return {f(in[0], in[1]), f(-in[0], in[1])};
  return {f(in[0], in[1]), f(-in[0], in[1]), f(in[0], -in[1]), f(-in[0], -in[1])};
}

}  // namespace

Cases unary_cases() {
  Cases out;
  for (const UnaryRow& row : kUnary) {
    const auto build = [f = row.f](const Inputs& in) { return Outputs{f(in[0])}; };
    for (DType t : kFloats)
      out.push_back({cat(row.name, " ", t), {{{3, 7}, t, row.low, row.high}}, build, 4});
  }
  for (const Shape& shape : {Shape{}, {0}, {1}, {2}, {31}, {1, 1}, {257}, {3, 0, 2}, {5, 7, 11}})
    out.push_back({shape_name("exp", shape), {{shape}}, [](const Inputs& in) {
                     return Outputs{(in[0] * 2).exp() + 1};
                   }});
  return out;
}

Cases binary_cases() {
  Cases out;
  for (const BinaryRow& row : kBinary) {
    const auto build = [f = row.f](const Inputs& in) { return Outputs{f(in[0], in[1])}; };
    for (DType t : kFloats) {
      const Input x{{3, 7}, t, row.low, row.high};
      out.push_back({cat(row.name, " ", t), {x, x}, build, 8});
    }
  }
  const std::pair<Shape, Shape> shapes[] = {{{3, 1}, {1, 5}},    {{4}, {2, 3, 4}}, {{}, {3}},
                                            {{2, 1, 3}, {5, 1}}, {{0, 3}, {1, 3}}, {{1}, {1, 1}}};
  for (const auto& [a, b] : shapes)
    out.push_back({cat("mul ", to_text(a), to_text(b)), {{a}, {b}}, [](const Inputs& in) {
                     return Outputs{in[0] * in[1], in[0] - in[1]};
                   }});
  const Input x{{4, 5}}, y{{5}}, flag{{4, 1}, kBool, 0, 1};
  out.push_back({"where", {flag, x, y}, [](const Inputs& in) {
                   return Outputs{where(in[0], in[1], in[2]), where(in[0], 1.5, in[1])};
                 }});
  out.push_back({"lerp", {x, y, {{4, 1}}}, [](const Inputs& in) {
                   return Outputs{in[0].lerp(in[1], in[2]), in[0].lerp(in[1], 0.25)};
                 }});
  out.push_back({"clamp tensors",
                 {x, {{5}, kF32, -1, 0}, {{4, 1}, kF32, 0, 1}},
                 [](const Inputs& in) { return Outputs{in[0].clamp(in[1], in[2])}; }});
  out.push_back({"masked_fill", {x, flag}, [](const Inputs& in) {
                   return Outputs{in[0].masked_fill(in[1], 7)};
                 }});
  out.push_back(
      {"mixed dtypes", {x, {{5}, kI32, -9, 9}, {{4, 1}, kF16}, flag}, [](const Inputs& in) {
         return Outputs{in[0] + in[1], in[2] * in[1], in[3] + in[2], in[1] / in[1].abs()};
       }});
  return out;
}

Cases integer_cases() {
  Cases out;
  for (const BinaryRow& row : kInteger) {
    const bool divides = row.low == 1, shifts = row.high == 7;
    for (DType t : kIntegers) {
      const Input x{{41}, t, shifts ? 0 : row.low, shifts ? 120 : row.high};
      const Input y{{41}, t, row.low, shifts ? std::min(7, t.bits() - 1) : row.high};
      out.push_back({cat(row.name, " ", t), {x, y}, [f = row.f, divides](const Inputs& in) {
                       return with_signs(f, in, divides);
                     }});
    }
  }
  for (DType t : kIntegers)
    out.push_back({cat("unary ", t),
                   {{{41}, t, 0, 120}},
                   [](const Inputs& in) {
                     const Tensor& x = in[0];
                     return Outputs{x.neg(),         x.abs(),         x.sign(), x.square(),
                                    x.bitwise_not(), x.logical_not(), x.sqrt(), x.clamp(10, 50)};
                   },
                   4});
  const Input signed_one{{41}, kI32, -120, 120}, divisor{{41}, kI32, 1, 9};
  out.push_back({"remainders as in C", {signed_one, divisor}, [](const Inputs& in) {
                   const Node x = in[0].node(), y = in[1].node();
                   return Outputs{Tensor(build::binary(Op::TruncMod, x, y)),
                                  Tensor(build::binary(Op::TruncMod, x, build::unary(Op::Neg, y)))};
                 }});
  const Input word{{41}, kI32, -2e9, 2e9};
  out.push_back(
      {"byte_dot", {word, word, signed_one}, [](const Inputs& in) {
         return Outputs{byte_dot(in[0], in[1], in[2]), byte_dot(in[0] >> 4, in[1], in[0])};
       }});
  const Input flag{{17}, kBool, 0, 1};
  out.push_back({"bools", {flag, flag}, [](const Inputs& in) {
                   const Tensor &x = in[0], &y = in[1];
                   return Outputs{x + y,           x * y, x & y,  x | y,         x ^ y,
                                  x.bitwise_not(), x < y, x == y, maximum(x, y), minimum(x, y)};
                 }});
  return out;
}

Cases cast_cases() {
  Cases out;
  for (DType from : kAll)
    out.push_back({cat("casts of ", from),
                   {{{19}, from, 0, from.is_bool() ? 1.0 : 100.0}},
                   [](const Inputs& in) {
                     Outputs y;
                     for (DType to : kAll) y.push_back(in[0].to(to));
                     return y;
                   }});
  for (DType from : kAll)
    if (!from.is_bool())
      out.push_back({cat("bitcasts of ", from), {{{19}, from, 1, 100}}, [](const Inputs& in) {
                       Outputs y;
                       for (DType to : kAll)
                         if (!to.is_bool() && !to.is_float() && to.size() == in[0].dtype().size())
                           y.push_back(in[0].bitcast(to));
                       return y;
                     }});
  out.push_back({"rounding to 16-bit floats",
                 {{{301}, kF32, -3000, 3000}, {{301}, kF32, -1e-6, 1e-6}},
                 [](const Inputs& in) {
                   return Outputs{in[0].to(kF16), in[0].to(kBF16), in[1].to(kF16),
                                  (in[0] * 1e3).to(kF16), in[1].to(kBF16)};
                 }});
  out.push_back({"8-bit floats", {{{301}, kF32, -500, 500}}, [](const Inputs& in) {
                   const Tensor a = in[0].f8_encode(Float8::E4M3FN);
                   const Tensor b = in[0].f8_encode(Float8::E5M2);
                   return Outputs{a, b, a.f8_decode(Float8::E4M3FN), b.f8_decode(Float8::E5M2)};
                 }});
  return out;
}

}  // namespace tiny::ops
