// Rows of the table: leaves, and functions of one element or of several that broadcast.
#include "test/programs/draw.h"

namespace tiny::programs {

namespace {

bool real(Draw& d, Step& s) {
  const int x = d.pick(is_real);
  s.in = {x};
  s.r = static_cast<double>(d.between(-30, 30)) / 16;
  return x >= 0;
}

bool two(Draw& d, Step& s) {
  if (!real(d, s)) return false;
  const int y = d.partner(s.in[0]);
  s.in = d.chance(0.5) ? std::vector{s.in[0], y} : std::vector{y, s.in[0]};
  return y >= 0;
}

bool three(Draw& d, Step& s) {
  if (!two(d, s)) return false;
  s.in.push_back(d.partner(s.in[0]));
  return s.in[2] >= 0;
}

bool masked(Draw& d, Step& s) {
  const int mask = d.pick([](const Known& v) { return v.dtype() == kBool; });
  if (mask < 0 || !real(d, s)) return false;
  s.in = {mask, s.in[0], d.partner(s.in[0])};
  return s.in[2] >= 0;
}

bool cast(Draw& d, Step& s) {
  s.in = {d.pick([](const Known&) { return true; })};
  const bool keeps = d.gradient() || d.chance(0.5);
  s.t = keeps ? d.one_of({d.real_type(), d.real_type(), kF64, kF32, kBF16, kF16})
              : d.one_of({kI32, kI64, kI8, kU8, kBool, kI16, kU32});
  return s.in[0] >= 0 && d[s.in[0]].dtype() != s.t &&
         (!s.t.is_unsigned() || d[s.in[0]].dtype().is_unsigned() || d[s.in[0]].dtype().is_bool());
}

bool number(Draw& d, Step& s) {
  const int x = d.pick([](const Known& v) { return v.dtype().is_int(); });
  s.in = {x};
  s.i = d.between(1, 7);
  return x >= 0;
}

bool numbers(Draw& d, Step& s) {
  if (!number(d, s)) return false;
  s.in.push_back(d.partner(s.in[0]));
  return s.in[1] >= 0;
}

bool bools(Draw& d, Step& s) {
  s.in = {d.pick([](const Known& v) { return v.dtype() == kBool; })};
  if (s.in[0] < 0) return false;
  s.in.push_back(d.partner(s.in[0]));
  return s.in[1] >= 0;
}

bool fresh(Draw& d, Step& s) {
  s.a = d.shape();
  s.t = d.real_type();
  s.r = static_cast<double>(d.between(-30, 30)) / 16;
  return true;
}

}  // namespace

std::vector<Row> leaf_rows() {
  return {
      {"leaf", 0, "lm", fresh, TINY_EXPRESSION(leaf(a, t, seed, i, j))},
      {"realize", 0, "m", fresh, TINY_EXPRESSION(Tensor())},
      {"full", 1, "m", fresh, TINY_EXPRESSION(Tensor::full(a, r, t))},
      {"positions", 1, "", fresh, TINY_EXPRESSION(wave(Tensor::zeros(a, t), r))},
  };
}

std::vector<Row> elementwise_rows() {
  return {
      {"add", 24, "e", two, TINY_EXPRESSION(x + y)},
      {"sub", 12, "e", two, TINY_EXPRESSION(x - y)},
      {"mul", 24, "e", two, TINY_EXPRESSION(x * y)},
      {"div", 8, "", two, TINY_EXPRESSION(x / (y * y + 0.5))},
      {"maximum", 9, "m", two, TINY_EXPRESSION(maximum(x, y))},
      {"minimum", 2, "m", two, TINY_EXPRESSION(minimum(x, y))},
      {"pow", 1, "", two, TINY_EXPRESSION(pow(x.abs() + 0.5, y.tanh()))},
      {"atan2", 1, "", two, TINY_EXPRESSION(atan2(x, y.abs() + 0.5))},
      {"copysign", 1, "m", two, TINY_EXPRESSION(copysign(x, y))},
      {"where_less", 12, "e", two, TINY_EXPRESSION(where(x < y, x, y * 2))},
      {"where_number", 1, "e", two, TINY_EXPRESSION(where(x >= r, x * 2, y))},
      {"where", 6, "m", masked, TINY_EXPRESSION(where(x, y, z))},
      {"masked_fill", 1, "m", masked, TINY_EXPRESSION(y.masked_fill(x, 0.25))},
      {"lerp", 1, "", three, TINY_EXPRESSION(x.lerp(y, z.sigmoid()))},
      {"fma", 4, "e", three, TINY_EXPRESSION(x * y + z)},
      {"times_number", 3, "", real, TINY_EXPRESSION(x * r)},
      {"plus_number", 2, "", real, TINY_EXPRESSION(x + r)},
      {"number_minus", 1, "", real, TINY_EXPRESSION(r - x)},
      {"neg", 2, "m", real, TINY_EXPRESSION(-x)},
      {"abs", 2, "m", real, TINY_EXPRESSION(x.abs())},
      {"square", 2, "e", real, TINY_EXPRESSION(x.square())},
      {"sin", 3, "", real, TINY_EXPRESSION(x.sin())},
      {"cos", 1, "", real, TINY_EXPRESSION(x.cos())},
      {"tan", 1, "", real, TINY_EXPRESSION(x.tanh().tan())},
      {"tanh", 3, "", real, TINY_EXPRESSION(x.tanh())},
      {"sigmoid", 2, "", real, TINY_EXPRESSION(x.sigmoid())},
      {"tamed", 3, "", real, TINY_EXPRESSION(x / (x * x + 1))},
      {"exp", 2, "", real, TINY_EXPRESSION(x.exp())},
      {"exp2", 1, "", real, TINY_EXPRESSION(x.tanh().exp2())},
      {"expm1", 1, "", real, TINY_EXPRESSION(x.tanh().expm1())},
      {"log", 2, "", real, TINY_EXPRESSION((x * x + 0.3).log())},
      {"log2", 1, "", real, TINY_EXPRESSION((x.abs() + 0.5).log2())},
      {"log10", 1, "", real, TINY_EXPRESSION((x.abs() + 0.5).log10())},
      {"log1p", 1, "", real, TINY_EXPRESSION(x.square().log1p())},
      {"sqrt", 2, "", real, TINY_EXPRESSION((x * x + 0.3).sqrt())},
      {"rsqrt", 2, "", real, TINY_EXPRESSION((x * x + 0.3).rsqrt())},
      {"reciprocal", 1, "", real, TINY_EXPRESSION((x * x + 0.5).reciprocal())},
      {"asin", 1, "", real, TINY_EXPRESSION((x.sin() * 0.9).asin())},
      {"acos", 1, "", real, TINY_EXPRESSION((x.sin() * 0.9).acos())},
      {"atan", 1, "", real, TINY_EXPRESSION(x.atan())},
      {"sinh", 1, "", real, TINY_EXPRESSION(x.tanh().sinh())},
      {"cosh", 1, "", real, TINY_EXPRESSION(x.tanh().cosh())},
      {"asinh", 1, "", real, TINY_EXPRESSION(x.asinh())},
      {"acosh", 1, "", real, TINY_EXPRESSION((x * x + 1.5).acosh())},
      {"atanh", 1, "", real, TINY_EXPRESSION((x.sin() * 0.9).atanh())},
      {"erf", 1, "", real, TINY_EXPRESSION(x.erf())},
      {"relu", 3, "m", real, TINY_EXPRESSION(x.relu())},
      {"relu6", 1, "m", real, TINY_EXPRESSION(x.relu6())},
      {"clamp", 2, "m", real, TINY_EXPRESSION(x.clamp(-0.75, 1.25))},
      {"gelu", 1, "", real, TINY_EXPRESSION(x.gelu())},
      {"gelu_tanh", 1, "", real, TINY_EXPRESSION(x.gelu(true))},
      {"silu", 1, "", real, TINY_EXPRESSION(x.silu())},
      {"mish", 1, "", real, TINY_EXPRESSION(x.mish())},
      {"selu", 1, "", real, TINY_EXPRESSION(x.selu())},
      {"elu", 1, "", real, TINY_EXPRESSION(x.elu(0.7))},
      {"celu", 1, "", real, TINY_EXPRESSION(x.celu(0.7))},
      {"softplus", 1, "", real, TINY_EXPRESSION(x.softplus())},
      {"logsigmoid", 1, "", real, TINY_EXPRESSION(x.logsigmoid())},
      {"leaky_relu", 1, "", real, TINY_EXPRESSION(x.leaky_relu(0.1))},
      {"hardtanh", 1, "m", real, TINY_EXPRESSION(x.hardtanh())},
      {"hardswish", 1, "", real, TINY_EXPRESSION(x.hardswish())},
      {"hardsigmoid", 1, "", real, TINY_EXPRESSION(x.hardsigmoid())},
      {"softsign", 1, "", real, TINY_EXPRESSION(softsign(x))},
      {"floor", 1, "ms", real, TINY_EXPRESSION(x.floor())},
      {"ceil", 1, "ms", real, TINY_EXPRESSION(x.ceil())},
      {"round", 1, "ms", real, TINY_EXPRESSION(x.round())},
      {"trunc", 1, "ms", real, TINY_EXPRESSION(x.trunc())},
      {"sign", 1, "ms", real, TINY_EXPRESSION(x.sign())},
      {"fmod", 1, "s", real, TINY_EXPRESSION(mod(x, 1.75))},
      {"cast", 5, "s", cast, TINY_EXPRESSION(x.to(t))},
  };
}

std::vector<Row> integer_rows() {
  return {
      {"less", 2, "ms", two, TINY_EXPRESSION(x < y)},
      {"at_most", 1, "ms", two, TINY_EXPRESSION(x <= y)},
      {"equal", 1, "ms", two, TINY_EXPRESSION(x == y)},
      {"unequal", 1, "ms", two, TINY_EXPRESSION(x != y)},
      {"above", 1, "ms", real, TINY_EXPRESSION(x > r)},
      {"isfinite", 1, "ms", real, TINY_EXPRESSION(x.isfinite())},
      {"and", 1, "ms", bools, TINY_EXPRESSION(logical_and(x, y))},
      {"or", 1, "ms", bools, TINY_EXPRESSION(logical_or(x, y))},
      {"xor", 1, "ms", bools, TINY_EXPRESSION(logical_xor(x, y.logical_not()))},
      {"int_add", 1, "ms", numbers, TINY_EXPRESSION(x + y)},
      {"int_sub", 1, "ms", numbers, TINY_EXPRESSION(x - y)},
      {"int_mul", 1, "ms", numbers, TINY_EXPRESSION(x * y)},
      {"int_and", 1, "ms", numbers, TINY_EXPRESSION(x & y)},
      {"int_or", 1, "ms", numbers, TINY_EXPRESSION(x | y)},
      {"int_xor", 1, "ms", numbers, TINY_EXPRESSION(x ^ y)},
      {"int_max", 1, "ms", numbers, TINY_EXPRESSION(maximum(x, y))},
      {"int_less", 1, "ms", numbers, TINY_EXPRESSION(x < y)},
      {"shift", 1, "ms", number, TINY_EXPRESSION(x >> i)},
      {"shift_left", 1, "ms", number, TINY_EXPRESSION((x & 7) << (i % 4))},
      {"floor_div", 1, "ms", number, TINY_EXPRESSION(floor_div(x, i))},
      {"trunc_div", 1, "ms", number, TINY_EXPRESSION(trunc_div(x, i))},
      {"mod", 1, "ms", number, TINY_EXPRESSION(mod(x, i))},
      {"bitwise_not", 1, "ms", number, TINY_EXPRESSION(x.bitwise_not())},
      {"int_where", 1, "ms", numbers, TINY_EXPRESSION(where(x < i, x, y))},
      {"byte_dot", 1, "ms", numbers,
       TINY_EXPRESSION(byte_dot(x.to(kI32) * 40503, y.to(kI32) * 30011, x.to(kI32)))},
  };
}

}  // namespace tiny::programs
