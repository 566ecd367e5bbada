#include <cmath>

#include "codegen/kernel/facts.h"
#include "codegen/render/llvm/printer.h"

namespace tiny {

using namespace llvm_text;

// --- arithmetic --------------------------------------------------------------------------------
std::string LlvmPrinter::shuffle_two(Node n) {
  if (n->dtype.lanes == 1) {
    const int64_t lanes = n->src(0)->dtype.lanes, i = n->ints()[0];
    return define(cat("extractelement ", typed(n->src(i < lanes ? 0 : 1)), ", i32 ", i % lanes));
  }
  std::string lanes = cat("<", n->ints().size(), " x i32> <");
  for (size_t i = 0; i < n->ints().size(); ++i) lanes += cat(i ? ", " : "", "i32 ", n->ints()[i]);
  return define(cat("shufflevector ", typed(n->src(0)), ", ", typed(n->src(1)), ", ", lanes, ">"));
}

std::string LlvmPrinter::arithmetic(Node n) {
  const DType t = n->dtype;
  switch (n->op) {
    case Op::Cast: return cast(n);
    case Op::Bitcast: return define(cat("bitcast ", typed(n->src(0)), " to ", type_of(t)));
    case Op::Broadcast: return broadcast(t, value(n->src(0)));
    case Op::Reverse: return shuffle(t, value(n->src(0)), t.lanes, t.lanes - 1, -1);
    case Op::Fold: return fold(n);
    case Op::Shuffle: return shuffle_two(n);
    case Op::Where:
      return define(
          cat("select ", typed(n->src(0)), ", ", typed(n->src(1)), ", ", typed(n->src(2))));
    case Op::MulAdd: return mul_add(t, value(n->src(0)), value(n->src(1)), value(n->src(2)));
    case Op::ByteDot:
      return intrinsic("", type_of(t), cat("llvm.x86.avx512.vpdpbusd.", 32 * t.lanes),
                       {type_of(t), type_of(t), type_of(t)},
                       {value(n->src(2)), value(n->src(0)), value(n->src(1))});
    case Op::TruncDiv:
    case Op::TruncMod: return divide(n);
    case Op::Shl:
    case Op::Shr: return shift(n);
    case Op::Max:
    case Op::Min:
      if (t.is_float() && ordered_operand(n) >= 0) return max_with_const(n);
      break;
    default: break;
  }
  if (is_comparison(n->op)) return compare(n);
  if (info(n->op).cls == OpClass::Unary) return unary(n->op, t, value(n->src(0)));
  if (info(n->op).cls == OpClass::Binary) {
    const bool may_say_so = n->is(Op::Add) || n->is(Op::Sub) || n->is(Op::Mul);
    const bool exact = may_say_so && cannot_wrap(n);
    const char* flags = !exact ? "" : t.is_unsigned() ? "nuw " : "nsw ";
    return combine(n->op, t, value(n->src(0)), value(n->src(1)), flags);
  }
  throw Bug(cat("render_llvm: ", n->op, " has no place in a linear program"));
}

std::string LlvmPrinter::mul_add(DType t, Str a, Str b, Str c) {
  const std::string type = type_of(t);
  return intrinsic("", type, "llvm.fmuladd." + suffix_of(t), {type, type, type}, {a, b, c});
}

std::string LlvmPrinter::unary(Op op, DType t, Str x) {
  const std::string type = type_of(t);
  if (!t.is_float()) {
    if (op == Op::Neg) return combine(Op::Sub, t, "zeroinitializer", x);
    if (op == Op::Floor || op == Op::Trunc || op == Op::Bound) return x;
  }
  expect(t.is_float(), "render_llvm: ", op, " of ", t.name());
  switch (op) {
    case Op::Neg: return define(cat("fneg ", type, " ", x));
    case Op::Recip: return define(cat("fdiv ", type, " ", splat_text(t, double_bits(1)), ", ", x));
    case Op::Sqrt: return intrinsic("", type, "llvm.sqrt." + suffix_of(t), {type}, {x});
    case Op::Floor: return intrinsic("", type, "llvm.floor." + suffix_of(t), {type}, {x});
    case Op::Trunc: return intrinsic("", type, "llvm.trunc." + suffix_of(t), {type}, {x});
    default: throw Bug(cat("render_llvm: ", op, " should have been decomposed"));
  }
}

namespace {

const char* instruction(Op op, bool is_float) {
  switch (op) {
    case Op::Add: return is_float ? "fadd" : "add";
    case Op::Sub: return is_float ? "fsub" : "sub";
    case Op::Mul: return is_float ? "fmul" : "mul";
    case Op::Div: return is_float ? "fdiv" : nullptr;
    case Op::And: return is_float ? nullptr : "and";
    case Op::Or: return is_float ? nullptr : "or";
    case Op::Xor: return is_float ? nullptr : "xor";
    default: return nullptr;
  }
}

}  // namespace

// A binary operation that is also one of a reduction.
std::string LlvmPrinter::combine(Op op, DType t, Str a, Str b, const char* flags) {
  op = combine_op(op, t);
  const std::string type = type_of(t);
  if (op == Op::Max || op == Op::Min) {
    const char* what = op == Op::Max ? "max" : "min";
    // maximum and minimum return NaN where either is; nsz spares the order of -0 and 0.
    if (t.is_float())
      return intrinsic("nsz ", type, cat("llvm.", what, "imum.", suffix_of(t)), {type, type},
                       {a, b});
    return intrinsic("", type, cat("llvm.", t.is_signed() ? "s" : "u", what, ".", suffix_of(t)),
                     {type, type}, {a, b});
  }
  const char* name = instruction(op, t.is_float());
  expect(name, "render_llvm: ", op, " of ", t.name());
  return define(cat(name, " ", t.is_bool() ? "" : flags, type, " ", a, ", ", b));
}

// One instruction on x86, where max(a, b) is a > b ? a : b.
std::string LlvmPrinter::max_with_const(Node n) {
  const int at = ordered_operand(n);
  const std::string c = typed(n->src(at)), x = typed(n->src(1 - at));
  const std::string wins =
      define(cat("fcmp ", n->is(Op::Max) ? "ogt " : "olt ", c, ", ", value(n->src(1 - at))));
  return define(cat("select ", type_of(kBool.vec(n->dtype.lanes)), " ", wins, ", ", c, ", ", x));
}

std::string LlvmPrinter::compare(Node n) {
  const DType t = n->src(0)->dtype;
  const int which = static_cast<int>(n->op) - static_cast<int>(Op::Lt);
  static constexpr const char* kFloat[] = {"olt", "ole", "oeq", "une"};
  static constexpr const char* kSigned[] = {"slt", "sle", "eq", "ne"};
  static constexpr const char* kUnsigned[] = {"ult", "ule", "eq", "ne"};
  const char* name = t.is_float()    ? kFloat[which]
                     : t.is_signed() ? kSigned[which]
                                     : kUnsigned[which];
  expect(!t.is_narrow(), "render_llvm: a comparison of 16-bit floats should have been decomposed");
  return define(
      cat(t.is_float() ? "fcmp " : "icmp ", name, " ", typed(n->src(0)), ", ", value(n->src(1))));
}

// Guarded by replacing the divisor where the division would trap (see DivideHazard).
std::string LlvmPrinter::divide(Node n) {
  const DType t = n->dtype;
  const std::string type = type_of(t), mask = type_of(kBool.vec(t.lanes));
  const DivideHazard hazard = divide_hazard(n);
  const std::string x = value(n->src(0)), one = splat_text(t, "1");
  std::string y = value(n->src(1)), zero, bad;
  if (hazard.by_zero) bad = zero = define(cat("icmp eq ", type, " ", y, ", zeroinitializer"));
  if (hazard.overflow) {
    const std::string lowest =
        define(cat("icmp eq ", type, " ", x, ", ", const_text(constant(t, int_min(t)))));
    const std::string minus = define(cat("icmp eq ", type, " ", y, ", ", splat_text(t, "-1")));
    bad = define(cat("and ", mask, " ", lowest, ", ", minus));
    if (hazard.by_zero) bad = define(cat("or ", mask, " ", bad, ", ", zero));
  }
  if (hazard.any())
    y = define(cat("select ", mask, " ", bad, ", ", type, " ", one, ", ", type, " ", y));
  const bool mod = n->is(Op::TruncMod);
  const std::string result =
      define(cat(t.is_signed() ? "s" : "u", mod ? "rem " : "div ", type, " ", x, ", ", y));
  if (mod || !hazard.by_zero) return result;
  return define(
      cat("select ", mask, " ", zero, ", ", type, " zeroinitializer, ", type, " ", result));
}

// A larger amount would be poison: its low bits are taken, as most machines do.
std::string LlvmPrinter::shift(Node n) {
  const DType t = n->dtype;
  const std::string type = type_of(t);
  std::string amount = value(n->src(1));
  if (shift_may_exceed(n))
    amount = define(cat("and ", type, " ", amount, ", ", splat_text(t, cat(t.bits() - 1))));
  const char* name = n->is(Op::Shl) ? "shl " : t.is_signed() ? "ashr " : "lshr ";
  return define(cat(name, type, " ", value(n->src(0)), ", ", amount));
}

// --- casts -------------------------------------------------------------------------------------
std::string LlvmPrinter::convert(const char* how, DType from, Str v, DType to) {
  return define(cat(how, " ", type_of(from), " ", v, " to ", type_of(to)));
}

std::string LlvmPrinter::cast(Node n) {
  const Node x = n->src(0);
  const DType from = x->dtype, to = n->dtype;
  const std::string v = value(x);
  if (from == to) return v;
  if (from.is_narrow() || to.is_narrow()) return cast_half(from, v, to);
  if (to.is_bool()) {
    const char* test = from.is_float() ? "fcmp une " : "icmp ne ";
    return define(cat(test, type_of(from), " ", v, ", zeroinitializer"));
  }
  if (from.is_bool()) return convert(to.is_float() ? "uitofp" : "zext", from, v, to);
  if (from.is_float() && to.is_float())
    return convert(to.size() > from.size() ? "fpext" : "fptrunc", from, v, to);
  if (to.is_float()) return convert(from.is_signed() ? "sitofp" : "uitofp", from, v, to);
  // Saturating: plain fptosi is poison outside the range.
  if (from.is_float() && to.is_signed() && to.lanes > 1) return saturate(from, v, to);
  if (from.is_float())
    return intrinsic("", type_of(to),
                     cat("llvm.fpto", to.is_signed() ? "si" : "ui", ".sat.", suffix_of(to), ".",
                         suffix_of(from)),
                     {type_of(from)}, {v});
  if (to.size() == from.size()) return v;
  if (to.size() < from.size()) return convert("trunc", from, v, to);
  return convert(from.is_signed() ? "sext" : "zext", from, v, to);
}

// The saturating intrinsic takes vectors apart.
std::string LlvmPrinter::saturate(DType from, Str v, DType to) {
  const double limit = std::ldexp(1.0, to.bits() - 1);  // exact in every float
  const auto compare = [&](const char* how, double with) {
    return define(
        cat("fcmp ", how, " ", type_of(from), " ", v, ", ", const_text(constant(from, with))));
  };
  const auto select = [&](DType t, Str test, Str a, Str b) {
    return define(cat("select ", type_of(kBool.vec(t.lanes)), " ", test, ", ", type_of(t), " ", a,
                      ", ", type_of(t), " ", b));
  };
  const std::string over = compare("oge", limit), under = compare("olt", -limit);
  const std::string number = compare("ord", 0.0);
  std::string safe = select(from, number, v, "zeroinitializer");
  safe = select(from, over, "zeroinitializer", safe);
  safe = select(from, under, "zeroinitializer", safe);
  const std::string inside = convert("fptosi", from, safe, to);
  const std::string high = select(to, over, const_text(constant(to, int_max(to))), inside);
  return select(to, under, const_text(constant(to, int_min(to))), high);
}

// Between f16 and f32 only: decompose() casts by way of f32.
std::string LlvmPrinter::cast_half(DType from, Str v, DType to) {
  const DType half = from.is_half() ? from : to, wide = kF32.vec(half.lanes);
  const bool native = half.scalar == Scalar::F16 && target_.has_f16;
  expect(native && (from == wide || to == wide), "render_llvm: the cast of ", from.name(), " to ",
         to.name(), " should have been decomposed");
  const std::string type = vector_of(half.lanes, "half");
  if (from.is_half()) {
    const std::string h = define(cat("bitcast ", type_of(from), " ", v, " to ", type));
    return define(cat("fpext ", type, " ", h, " to ", type_of(to)));
  }
  const std::string h = define(cat("fptrunc ", type_of(from), " ", v, " to ", type));
  return define(cat("bitcast ", type, " ", h, " to ", type_of(to)));
}

// --- lanes -------------------------------------------------------------------------------------
std::string LlvmPrinter::broadcast(DType t, Str v) {
  const std::string one =
      define(cat("insertelement ", type_of(t), " poison, ", type_of(t.one()), " ", v, ", i32 0"));
  return define(cat("shufflevector ", type_of(t), " ", one, ", ", type_of(t), " poison, <", t.lanes,
                    " x i32> zeroinitializer"));
}

// Lanes from, from + step, ... of a vector of dtype t.
std::string LlvmPrinter::shuffle(DType t, Str v, int lanes, int from, int step) {
  return define(cat("shufflevector ", type_of(t), " ", v, ", ", type_of(t), " poison, ",
                    lane_list(lanes, from, step)));
}

// The two halves of a vector are combined until one lane is left. The order is spelt out, rather
// than left to llvm.vector.reduce with reassoc, so that every compiler gives the same sum.
std::string LlvmPrinter::fold(Node n) {
  const Op op = n->arg<OpArg>().op;
  DType t = n->src(0)->dtype;
  std::string v = value(n->src(0));
  for (; t.lanes > 1 && t.lanes % 2 == 0; t = t.vec(t.lanes / 2)) {
    const int half = t.lanes / 2;
    const std::string low = lanes_of(t, v, half, 0), high = lanes_of(t, v, half, half);
    v = combine(op, t.vec(half), low, high);
  }
  if (t.lanes == 1) return v;
  std::string sum = lanes_of(t, v, 1, 0);
  for (int i = 1; i < t.lanes; ++i) sum = combine(op, t.one(), sum, lanes_of(t, v, 1, i));
  return sum;
}

std::string LlvmPrinter::lanes_of(DType t, Str v, int lanes, int from) {
  if (lanes > 1) return shuffle(t, v, lanes, from, 1);
  return define(cat("extractelement ", type_of(t), " ", v, ", i32 ", from));
}

}  // namespace tiny
