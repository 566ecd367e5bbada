#include <cmath>
#include <optional>

#include "tiny/ir/facts.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

namespace {

std::optional<double> fold_float(Op op, double a, double b) {
  switch (op) {
    case Op::Neg: return -a;
    case Op::Recip: return 1 / a;
    case Op::Sqrt: return std::sqrt(a);
    case Op::Exp2: return std::exp2(a);
    case Op::Exp: return std::exp(a);
    case Op::Log2: return std::log2(a);
    case Op::Sin: return std::sin(a);
    case Op::Floor: return std::floor(a);
    case Op::Trunc: return std::trunc(a);
    case Op::Add: return a + b;
    case Op::Sub: return a - b;
    case Op::Mul: return a * b;
    case Op::Div: return a / b;
    case Op::Max: return std::isnan(a) || a > b ? a : b;
    case Op::Min: return std::isnan(a) || a < b ? a : b;
    default: return std::nullopt;
  }
}

// Bits beyond the dtype are cut off by `constant`.
std::optional<int64_t> fold_int(Op op, DType t, int64_t a, int64_t b) {
  const auto ua = static_cast<uint64_t>(a), ub = static_cast<uint64_t>(b);
  const auto wrap = [](uint64_t v) { return static_cast<int64_t>(v); };
  const bool wide = t.scalar == Scalar::U64;
  const bool divides = b != 0 && !(a == kIntMin && b == -1);
  const bool shifts = b >= 0 && b < (t.scalar == Scalar::Index ? 64 : t.bits());
  switch (op) {
    case Op::Neg: return wrap(0 - ua);
    case Op::Add: return wrap(ua + ub);
    case Op::Sub: return wrap(ua - ub);
    case Op::Mul: return wrap(ua * ub);
    case Op::FloorDiv:
      if (divides) return wide ? wrap(ua / ub) : floor_div(a, b);
      break;
    case Op::FloorMod:
      if (divides) return wide ? wrap(ua % ub) : floor_mod(a, b);
      break;
    case Op::TruncDiv:
      if (divides) return wide ? wrap(ua / ub) : a / b;
      break;
    case Op::TruncMod:
      if (divides) return wide ? wrap(ua % ub) : a % b;
      break;
    case Op::Max: return (wide ? ua > ub : a > b) ? a : b;
    case Op::Min: return (wide ? ua < ub : a < b) ? a : b;
    case Op::Shl:
      if (shifts) return wrap(ua << b);
      break;
    case Op::Shr:
      if (shifts) return wide ? wrap(ua >> b) : a >> b;
      break;
    case Op::Bound: return a;
    case Op::And: return a & b;
    case Op::Or: return a | b;
    case Op::Xor: return a ^ b;
    default: break;
  }
  return std::nullopt;
}

template <class T> bool compare(Op op, T a, T b) {
  switch (op) {
    case Op::Lt: return a < b;
    case Op::Le: return a <= b;
    case Op::Eq: return a == b;
    default: return a != b;
  }
}

Node fold_comparison(Node n) {
  Node a = n->src(0), b = n->src(1);
  bool r;
  if (a->dtype.is_float())
    r = compare(n->op, a->float_value(), b->float_value());
  else if (a->dtype.scalar == Scalar::U64)
    r = compare<uint64_t>(n->op, a->int_value(), b->int_value());
  else
    r = compare(n->op, a->int_value(), b->int_value());
  return constant(n->dtype, static_cast<int64_t>(r));
}

// As kernels cast it: towards zero, beyond the range its nearest end, 0 for NaN. Of a u64 the bits.
int64_t integer_of(double x, DType t) {
  if (std::isnan(x)) return 0;
  const int bits = t.scalar == Scalar::Index ? 64 : t.bits();
  const double above = std::ldexp(1.0, bits - (t.is_signed() ? 1 : 0));
  if (x >= above) return t.scalar == Scalar::U64 ? -1 : int_max(t);
  if (x <= (t.is_signed() ? -above : 0)) return int_min(t);
  if (t.scalar == Scalar::U64) return static_cast<int64_t>(static_cast<uint64_t>(x));
  return static_cast<int64_t>(x);
}

Node fold_cast(Node n) {
  Node x = n->src(0);
  if (!x->dtype.is_float()) {
    if (n->dtype.is_float()) return constant(n->dtype, x->number());
    return constant(n->dtype, x->int_value());
  }
  const double v = x->float_value();
  if (n->dtype.is_float() || n->dtype.is_bool()) return constant(n->dtype, v);
  return constant(n->dtype, integer_of(v, n->dtype));
}

// Rounded once, as the instruction does it.
Node fold_mul_add(Node n) {
  const double a = n->src(0)->float_value(), b = n->src(1)->float_value();
  const double c = n->src(2)->float_value();
  if (n->dtype.scalar == Scalar::F64) return constant(n->dtype, std::fma(a, b, c));
  if (n->dtype.scalar != Scalar::F32) return nullptr;
  const auto f = [](double v) { return static_cast<float>(v); };
  return constant(n->dtype, static_cast<double>(std::fma(f(a), f(b), f(c))));
}

Node fold_byte_dot(Node n) {
  int64_t sum = n->src(2)->int_value();
  for (int at = 0; at < 32; at += 8)
    sum += static_cast<uint8_t>(n->src(0)->int_value() >> at) *
           static_cast<int8_t>(n->src(1)->int_value() >> at);
  return constant(n->dtype, static_cast<int32_t>(sum));
}

}  // namespace

Node fold_constants(Node n) {
  if (!is_elementwise(n->op) || n->op == Op::Bitcast) return nullptr;
  for (Node s : n->srcs())
    if (!s->is_const()) return nullptr;
  if (n->op == Op::Where) return n->src(n->src(0)->int_value() ? 1 : 2);
  if (n->op == Op::ByteDot) return fold_byte_dot(n);
  if (n->op == Op::MulAdd) return n->dtype.is_float() ? fold_mul_add(n) : nullptr;
  if (n->op == Op::Cast) return fold_cast(n);
  if (is_comparison(n->op)) return fold_comparison(n);
  Node a = n->src(0), b = n->src(static_cast<int>(n->num_src) - 1);
  if (n->dtype.is_float()) {
    const auto r = fold_float(n->op, a->float_value(), b->float_value());
    return r ? constant(n->dtype, *r) : nullptr;
  }
  const auto r = fold_int(n->op, n->dtype, a->int_value(), b->int_value());
  return r ? constant(n->dtype, *r) : nullptr;
}

}  // namespace tiny
