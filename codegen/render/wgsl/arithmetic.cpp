#include <bit>
#include <cfloat>
#include <charconv>
#include <cmath>

#include "codegen/kernel/facts.h"
#include "codegen/render/c/text.h"
#include "codegen/render/wgsl/printer.h"

namespace tiny {

namespace {

// The bits of a number in a register of 32: of 8 and 16 bits extended by sign or zeros.
std::string normal(DType t, const std::string& e) {
  if (t.is_bool() || t.bits() >= 32) return e;
  if (!t.is_int() || t.is_unsigned()) return cat("(", e, " & ", (1 << t.bits()) - 1, "u)");
  return cat("((", e, " << ", 32 - t.bits(), "u) >> ", 32 - t.bits(), "u)");
}

std::string float_literal(double v) {
  const auto x = static_cast<float>(v);
  const auto bits = std::bit_cast<uint32_t>(x);
  if (!std::isfinite(x)) return cat("not_finite(", std::isnan(x) ? 0x7fc00000u : bits, "u)");
  // The shortest text of the largest number lies beyond it.
  if ((x != 0 && std::abs(x) < FLT_MIN) || std::abs(x) == FLT_MAX)
    return cat("bitcast<f32>(", bits, "u)");
  char digits[40];
  std::string text(digits, std::to_chars(digits, digits + sizeof digits, x).ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  text += "f";
  return std::signbit(x) ? "(" + text + ")" : text;
}

}  // namespace

// bf16 and floats of 8 bits, which are computed with in f32, are their bits.
std::string WgslPrinter::type(DType t) const {
  if (t.is_bool()) return "bool";
  if (t.scalar == Scalar::F32) return "f32";
  if (t.scalar == Scalar::F16) return "half";
  return t.is_int() && t.is_signed() ? "i32" : "u32";
}

std::string WgslPrinter::literal(Node n) const {
  const DType t = n->dtype;
  if (t.is_narrow()) {
    const auto v = static_cast<float>(n->float_value());
    if (t.scalar == Scalar::F16) return cat("half_of(", f32_to_f16(v), "u)");
    return cat(t.is_f8() ? f32_to_f8(v, t.scalar) : f32_to_bf16(v), "u");
  }
  if (t.is_float()) return float_literal(n->float_value());
  const int64_t v = n->int_value();
  if (t.is_bool()) return v ? "true" : "false";
  if (t.is_unsigned()) return cat(static_cast<uint32_t>(v), "u");
  const auto word = static_cast<int32_t>(v);  // of 64 bits the low one
  return word < 0 ? cat("i32(", word, ")") : cat(word);
}

std::string WgslPrinter::as_word(DType t, Str x) const {
  if (t.is_bool()) return cat("select(0u, 1u, ", bare(x), ")");
  if (t.scalar == Scalar::F16) return cat("half_bits(", bare(x), ")");
  return type(t) == "u32" ? x : cat("bitcast<u32>(", bare(x), ")");
}

std::string WgslPrinter::from_bits(DType t, Str word) const {
  if (t.is_bool()) return cat("(", word, " != 0u)");
  if (t.scalar == Scalar::F16) return cat("half_of(", bare(word), ")");
  return type(t) == "u32" ? word : cat("bitcast<", type(t), ">(", bare(word), ")");
}

std::string WgslPrinter::select(Str condition, Str a, Str b) {
  return cat("select(", bare(b), ", ", bare(a), ", ", bare(condition), ")");
}

// --- expressions ---------------------------------------------------------------------------------

WgslPrinter::Lanes WgslPrinter::each_lane(
    Node n, const std::function<std::string(const Lanes& operands)>& of) {
  std::vector<Lanes> sources;
  for (Node s : n->srcs()) sources.push_back(value(s));
  Lanes out;
  for (int l = 0; l < n->dtype.lanes; ++l) {
    Lanes operands;
    for (const Lanes& s : sources) operands.push_back(s[s.size() == 1 ? 0 : l]);
    out.push_back(of(operands));
  }
  return out;
}

WgslPrinter::Lanes WgslPrinter::arithmetic(Node n) {
  const DType t = n->dtype;
  switch (n->op) {
    case Op::Broadcast: return Lanes(t.lanes, named(n->src(0))[0]);
    case Op::Reverse: {
      Lanes v = value(n->src(0));
      return {v.rbegin(), v.rend()};
    }
    case Op::Shuffle: {
      Lanes all = named(n->src(0)), out;
      const Lanes more = named(n->src(1));
      all.insert(all.end(), more.begin(), more.end());
      for (int64_t i : n->ints()) out.push_back(all[i]);
      return out;
    }
    case Op::Fold: return fold(n);
    default: break;
  }
  const DType from = n->num_src ? n->src(0)->dtype : t;
  return each_lane(n, [&](const Lanes& x) -> std::string {
    switch (n->op) {
      case Op::Cast: return cast(from, t, x[0]);
      case Op::Bitcast: return bitcast(from, t, x[0]);
      case Op::Where: return select(x[0], x[1], x[2]);
      case Op::MulAdd: return cat("fma(", bare(x[0]), ", ", bare(x[1]), ", ", bare(x[2]), ")");
      case Op::TruncDiv:
      case Op::TruncMod: return divide(n, x[0], x[1]);
      case Op::Shl:
      case Op::Shr: return shift(n, x[0], x[1]);
      default: break;
    }
    if (is_comparison(n->op)) return compare(n, x[0], x[1]);
    if (info(n->op).cls == OpClass::Unary) return unary(n, x[0]);
    if (info(n->op).cls == OpClass::Binary) return combine(n->op, t, x[0], x[1]);
    throw Bug(cat("render_wgsl: ", n->op, " has no place in a linear program"));
  });
}

std::string WgslPrinter::unary(Node n, Str x) {
  const DType t = n->dtype;
  if (t.is_int() && n->is(Op::Neg))
    return normal(t, t.is_unsigned() ? cat("(0u - ", x, ")") : cat("(0 - ", x, ")"));
  if (t.is_int() && (n->is(Op::Floor) || n->is(Op::Trunc) || n->is(Op::Bound))) return x;
  expect(t.scalar == Scalar::F32, "render_wgsl: ", n->op, " of ", t.name());
  switch (n->op) {
    case Op::Neg: return cat("(-", x, ")");
    case Op::Recip: return cat("(1.0f / ", x, ")");
    case Op::Sqrt: return cat("sqrt(", bare(x), ")");
    case Op::Floor: return cat("floor(", bare(x), ")");
    case Op::Trunc: return cat("trunc(", bare(x), ")");
    default: throw Bug(cat("render_wgsl: ", n->op, " should have been decomposed"));
  }
}

// A binary operation that is also one of a reduction. Integers wrap.
std::string WgslPrinter::combine(Op op, DType t, Str a, Str b) {
  op = combine_op(op, t);
  if (op == Op::Max || op == Op::Min) {
    const char* name = op == Op::Max ? "max" : "min";
    return cat(name, t.is_float() ? "_of(" : "(", bare(a), ", ", bare(b), ")");
  }
  if (t.is_bool() && op == Op::Xor) op = Op::Ne;
  const std::string e = cat("(", a, " ", symbol(op), " ", b, ")");
  return op == Op::And || op == Op::Or || op == Op::Xor || t.is_bool() ? e : normal(t, e);
}

std::string WgslPrinter::compare(Node n, Str a, Str b) {
  const DType t = n->src(0)->dtype;
  expect(!t.is_narrow(), "render_wgsl: a comparison of narrow floats should have been decomposed");
  if (t.is_float() && n->src(0) == n->src(1) && (n->is(Op::Ne) || n->is(Op::Eq)))
    return cat(n->is(Op::Ne) ? "" : "!", "is_nan(", bare(a), ")");
  // Compilers may take != of floats for "less or greater", which NaN is not.
  if (t.is_float() && n->is(Op::Ne)) return cat("!(", a, " == ", b, ")");
  if (t.is_bool() && n->is(Op::Lt)) return cat("(!", a, " & ", b, ")");
  if (t.is_bool() && n->is(Op::Le)) return cat("(!", a, " | ", b, ")");
  return cat("(", a, " ", symbol(n->op), " ", b, ")");
}

// What the language gives where the divisor is 0 differs from what DivideHazard says, and a
// constant one is an error.
std::string WgslPrinter::divide(Node n, Str a, Str b) {
  const DType t = n->dtype;
  const bool mod = n->is(Op::TruncMod);
  if (!divide_hazard(n).any()) return cat("(", a, mod ? " % " : " / ", b, ")");
  return normal(t, cat(mod ? "mod_" : "div_", type(t), "(", bare(a), ", ", bare(b), ")"));
}

// A larger amount would be undefined: its low bits are taken.
std::string WgslPrinter::shift(Node n, Str x, Str amount) {
  const DType t = n->dtype;
  std::string by = n->src(1)->dtype.is_unsigned() ? amount : cat("u32(", bare(amount), ")");
  if (n->src(1)->is_const() && !shift_may_exceed(n)) by = cat(n->src(1)->int_value(), "u");
  if (shift_may_exceed(n)) by = cat("(", by, " & ", t.bits() - 1, "u)");
  if (t.bits() == 64) return shift_word(n, x, by);
  const std::string e = cat("(", x, n->is(Op::Shr) ? " >> " : " << ", by, ")");
  return n->is(Op::Shr) ? e : normal(t, e);
}

// Of the low word of 64 bits, which an amount beyond a word shifts out, or of all of them where the
// high word only extends the sign.
std::string WgslPrinter::shift_word(Node n, Str x, Str by) {
  const bool is_signed = n->dtype.is_signed(), right = n->is(Op::Shr);
  const char* symbol = right ? " >> " : " << ";
  if (n->src(1)->is_const() && (n->src(1)->int_value() & 63) < 32)
    return cat("(", x, symbol, n->src(1)->int_value() & 63, "u)");
  if (right && is_signed) return cat("(", x, " >> min(", bare(by), ", 31u))");
  return select(cat(by, " < 32u"), cat(x, symbol, "(", by, " & 31u)"), is_signed ? "0" : "0u");
}

std::string WgslPrinter::cast(DType from, DType to, Str x) {
  from = from.one(), to = to.one();
  if (from == to) return x;
  if (from.scalar == Scalar::F16 && to.scalar == Scalar::F32)
    return cat("f16_to_f32(", bare(x), ")");
  if (from.scalar == Scalar::F32 && to.scalar == Scalar::F16)
    return cat("f32_to_f16(", bare(x), ")");
  expect(!from.is_narrow() && !to.is_narrow(), "render_wgsl: the cast of ", from.name(), " to ",
         to.name(), " should have been decomposed");
  if (to.is_bool() && from.is_float()) return cat("!(", x, " == 0.0f)");
  if (to.is_bool()) return cat("(", x, " != ", from.is_unsigned() ? "0u" : "0", ")");
  if (from.is_float()) {
    if (to.bits() >= 32) return cat("f32_to_", type(to), "(", bare(x), ")");
    return cat("clamp(f32_to_", type(to), "(", bare(x), "), ", type(to), "(", int_min(to), "), ",
               type(to), "(", int_max(to), "))");
  }
  const std::string e = type(from) == type(to) ? x : cat(type(to), "(", bare(x), ")");
  const bool holds = from.is_bool() || (from.bits() < to.bits() && from.is_unsigned()) ||
                     (from.bits() <= to.bits() && from.is_signed() == to.is_signed());
  return holds ? e : normal(to, e);
}

std::string WgslPrinter::bitcast(DType from, DType to, Str x) {
  from = from.one(), to = to.one();
  if (from == to) return x;
  if (type(from) == type(to)) return x;
  if (to.scalar == Scalar::F16) return from_bits(to, cat("(", as_word(from, x), " & 0xffffu)"));
  const std::string bits = from.scalar == Scalar::F16 ? as_word(from, x) : x;
  return normal(to, cat("bitcast<", type(to), ">(", bare(bits), ")"));
}

// The two halves of a vector are combined until one lane is left, as the other renderers do.
WgslPrinter::Lanes WgslPrinter::fold(Node n) {
  const Op op = n->arg<OpArg>().op;
  const DType t = n->dtype;
  Lanes v = named(n->src(0));
  while (v.size() > 2 && v.size() % 2 == 0) {
    Lanes half;
    for (size_t i = 0; i < v.size() / 2; ++i)
      half.push_back(define(combine(op, t, v[i], v[i + v.size() / 2])));
    v = std::move(half);
  }
  std::string sum = v[0];
  for (size_t i = 1; i < v.size(); ++i) {
    if (i > 1) sum = define(sum);
    sum = combine(op, t, sum, v[i]);
  }
  return {sum};
}

}  // namespace tiny
