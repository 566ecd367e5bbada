#include <cmath>

#include "codegen/kernel/facts.h"
#include "codegen/options/mma.h"
#include "codegen/render/c/printer.h"

namespace tiny {

const char* CPrinter::function_name(Op op) {
  switch (op) {
    case Op::Add: return "add";
    case Op::Mul: return "mul";
    case Op::Max: return "max";
    case Op::Min: return "min";
    case Op::And: return "and";
    case Op::Or: return "or";
    case Op::Xor: return "xor";
    default: throw Bug(cat("render_c: no function for ", op));
  }
}

// --- what dialects spell differently -------------------------------------------------------------

void CPrinter::use(const char* function, DType to, DType from) {
  if (dialect_.classes && from.lanes > 1) use_.functions.insert({function, to, from});
}

std::string CPrinter::call(const char* function, DType to, DType from, Str arguments) {
  use_.functions.insert({function, to, from});
  return cat(function, "(", arguments, ")");
}

std::string CPrinter::infix(DType t, Str a, const char* op, Str b) {
  use(op, t, t);
  return cat("(", a, " ", op, " ", b, ")");
}

std::string CPrinter::test(DType t, Str a, const char* op, Str b) {
  const DType mask = kBool.vec(t.lanes);
  use(op, mask, t);
  const std::string text = cat(a, " ", op, " ", b);
  return t.lanes > 1 && !dialect_.classes ? convert(text, t, mask) : "(" + text + ")";
}

// Lanes of `a` where the mask holds, of `b` elsewhere.
std::string CPrinter::where(DType t, Str mask, Str a, Str b) {
  if (t.lanes == 1) return cat("(", mask, " ? ", a, " : ", b, ")");
  use("where", t, t);
  return fill(dialect_.where, {{'T', type(t)},
                               {'I', dialect_.classes ? "" : type(signed_of(t))},
                               {'m', bare(mask)},
                               {'a', bare(a)},
                               {'b', bare(b)}});
}

std::string CPrinter::splat(DType t, Str one) {
  use("splat", t, t);
  return fill(dialect_.splat, {{'T', type(t)}, {'x', bare(one)}});
}

std::string CPrinter::convert(Str v, DType from, DType to) {
  use("convert", to, from);
  return fill(dialect_.convert, {{'T', type(to)}, {'x', bare(v)}});
}

std::string CPrinter::shuffle(DType t, Str a, Str b, Str lanes) {
  type(t);
  return fill(dialect_.shuffle, {{'a', a}, {'b', b}, {'L', lanes}});
}

std::string CPrinter::lanes_of(DType t, Str v, int lanes, int from) {
  return shuffle(t.vec(lanes), v, v, numbers(lanes, from, 1));
}

std::string CPrinter::lane_of(DType t, Str v, int i) {
  return t.is_bool() && !dialect_.classes ? cat("(", v, "[", i, "] != 0)") : cat(v, "[", i, "]");
}

// An operand's element as the matrix unit takes it: converted once for all products of the same
// loop that it is in.
std::string CPrinter::converted(Node n, Str function) {
  auto& [word, where] = converted_[n];
  if (word.empty() || where != statements_) {
    word = define(kU32, cat(function, "(", value(n), ")"));
    where = statements_;
  }
  return word;
}

// --- expressions ---------------------------------------------------------------------------------

std::string CPrinter::arithmetic(Node n) {
  const DType t = n->dtype;
  switch (n->op) {
    case Op::Cast: return cast(n);
    case Op::Bitcast: return bitcast(n);
    case Op::Broadcast: return broadcast(n);
    case Op::Reverse: {
      const std::string v = named(n->src(0));
      return shuffle(t, v, v, numbers(t.lanes, t.lanes - 1, -1));
    }
    case Op::Shuffle: {
      std::string lanes;
      for (int64_t i : n->ints()) lanes += cat(lanes.empty() ? "" : ", ", i);
      if (n->src(0)->dtype.lanes == 1 && t.lanes == 2)
        return cat(type(t), "{", bare(value(n->src(0))), ", ", bare(value(n->src(1))), "}");
      if (t.lanes == 1) return lane_of(t, subscripted(n->src(0)), static_cast<int>(n->ints()[0]));
      const std::string a = named(n->src(0));
      return shuffle(t, a, named(n->src(1)), lanes);
    }
    case Op::Mma:
      return fragments_.product(n, adds_fragment(n)
                                       ? named(n->srcs().back())
                                       : splat(n->dtype, n->dtype.is_float() ? "0.0f" : "0"));
    case Op::Fold: return fold(n);
    case Op::Where:
      if (Node x = selections_.flushed(n); x && dialect_.classes)
        return call("exp2_flushed", t, t, bare(value(x)));
      return where(t, value(n->src(0)), value(n->src(1)), value(n->src(2)));
    case Op::Div:
      if (t == kF32 && program_.is_chain && dialect_.classes && has_normal_inverse(n->src(1)))
        return infix(t, value(n->src(0)), "*", call("inverse", t, t, bare(value(n->src(1)))));
      break;
    case Op::MulAdd: return mul_add(t, value(n->src(0)), value(n->src(1)), value(n->src(2)));
    case Op::TruncDiv:
    case Op::TruncMod: return divide(n);
    case Op::Shl:
    case Op::Shr: return shift(n);
    case Op::Max:
    case Op::Min:
      if (t.is_float() && ordered_operand(n) >= 0 && !dialect_.classes) return max_with_const(n);
      if (t.is_float() && dialect_.classes && n->src(1)->op == Op::Neg &&
          n->src(1)->src(0) == n->src(0)) {
        const std::string size = call("size_of", t, t, bare(value(n->src(0))));
        return n->is(Op::Max) ? size : cat("(-", size, ")");
      }
      return combine(n->op, t, named(n->src(0)), named(n->src(1)));
    default: break;
  }
  if (is_comparison(n->op)) return compare(n);
  if (info(n->op).cls == OpClass::Unary) return unary(n);
  if (info(n->op).cls == OpClass::Binary)
    return combine(n->op, t, value(n->src(0)), value(n->src(1)), cannot_wrap(n));
  throw Bug(cat("render_c: ", n->op, " has no place in a linear program"));
}

std::string CPrinter::unary(Node n) {
  const DType t = n->dtype;
  if (t.is_int() && n->is(Op::Neg))
    return combine(Op::Sub, t, value(constant(t, 0)), value(n->src(0)), cannot_wrap(n));
  if (t.is_int() && (n->is(Op::Floor) || n->is(Op::Trunc) || n->is(Op::Bound)))
    return value(n->src(0));
  expect(t.is_float(), "render_c: ", n->op, " of ", t.name());
  switch (n->op) {
    case Op::Neg: use("negative", t, t); return cat("(-", value(n->src(0)), ")");
    case Op::Recip:
      if (t == kF32 && program_.is_chain && dialect_.classes && has_normal_inverse(n->src(0)))
        return call("inverse", t, t, bare(value(n->src(0))));
      return combine(Op::Div, t, value(constant(t, 1)), value(n->src(0)));
    case Op::Sqrt: return by_lane(n, "sqrt");
    case Op::Floor: return by_lane(n, "floor");
    case Op::Trunc: return by_lane(n, "trunc");
    default: break;
  }
  expect(dialect_.classes, "render_c: ", n->op, " should have been decomposed");
  switch (n->op) {
    case Op::Exp2: return by_lane(n, "exp2");
    case Op::Exp: return by_lane(n, "exp");
    case Op::Log2: return by_lane(n, "log2");
    case Op::Sin: return by_lane(n, "sin");
    default: throw Bug(cat("render_c: ", n->op, " should have been decomposed"));
  }
}

std::string CPrinter::by_lane(Node n, const char* function) {
  const DType t = n->dtype;
  if (dialect_.classes)
    return call((std::string(function) + "_of").c_str(), t, t, bare(value(n->src(0))));
  const std::string name = cat("__builtin_", function, t.scalar == Scalar::F32 ? "f" : "");
  if (t.lanes == 1) return cat(name, "(", bare(value(n->src(0))), ")");
  const std::string x = subscripted(n->src(0)), target = fresh();
  line(cat(type(t), " ", target, ";"));
  each_lane(t.lanes,
            [&](Str l) { return cat(target, "[", l, "] = ", name, "(", x, "[", l, "])"); });
  return target;
}

// A binary operation that is also one of a reduction. `exact`: it does not wrap.
std::string CPrinter::combine(Op op, DType t, Str a, Str b, bool exact) {
  op = combine_op(op, t);
  if (op == Op::Max || op == Op::Min) {
    if (dialect_.classes && (t.lanes > 1 || t.is_float()))
      return call(op == Op::Max ? "max_of" : "min_of", t, t, cat(bare(a), ", ", bare(b)));
    // The second test lets a NaN of `a` through; one of `b` fails both.
    std::string first = test(t, a, op == Op::Max ? ">" : "<", b);
    if (t.is_float()) first = cat("(", first, " | ", test(t, a, "!=", a), ")");
    return where(t, first, a, b);
  }
  if (op == Op::Div && t == kF32 && program_.is_chain && dialect_.classes)
    return call("quotient", t, t, cat(bare(a), ", ", bare(b)));
  const bool arithmetic = op == Op::Add || op == Op::Sub || op == Op::Mul;
  const bool wraps = t.is_int() && arithmetic && !exact && !(t.is_unsigned() && t.bits() >= 32);
  if (op == Op::Mul && t.is_float() && !dialect_.classes)
    return cat("product", infix(t, a, symbol(op), b));
  if (!wraps || (dialect_.classes && t.lanes > 1)) return infix(t, a, symbol(op), b);
  // Defined for unsigned numbers alone; smaller scalars would be promoted to int.
  const DType u = t.lanes == 1 && t.bits() < 32 ? kU32 : unsigned_of(t);
  return as(t, infix(u, as(u, a), symbol(op), as(u, b)));
}

// Compilers contract nothing else: those of CUDA and HIP are told so, in C `product` says it.
std::string CPrinter::mul_add(DType t, Str a, Str b, Str c) {
  return call("mul_add", t, t, cat(bare(a), ", ", bare(b), ", ", bare(c)));
}

std::string CPrinter::max_with_const(Node n) {
  const int at = ordered_operand(n);
  const std::string c = named(n->src(at)), x = named(n->src(1 - at));
  return where(n->dtype, test(n->dtype, c, n->is(Op::Max) ? ">" : "<", x), c, x);
}

std::string CPrinter::compare(Node n) {
  const DType t = n->src(0)->dtype;
  expect(!t.is_narrow(), "render_c: a comparison of 16-bit floats should have been decomposed");
  const std::string a = value(n->src(0)), b = value(n->src(1));
  if (t.is_bool() && t.lanes > 1 && !dialect_.classes) {  // lanes are 0 and -1: the order reverses
    if (n->is(Op::Lt)) return cat("(~", a, " & ", b, ")");
    if (n->is(Op::Le)) return cat("(~", a, " | ", b, ")");
  }
  return test(t, a, symbol(n->op), b);
}

// Guarded by replacing the divisor where the division would trap (see DivideHazard).
std::string CPrinter::divide(Node n) {
  const DType t = n->dtype;
  const DivideHazard hazard = divide_hazard(n);
  const char* symbol = n->is(Op::TruncMod) ? "%" : "/";
  if (!hazard.any()) return infix(t, value(n->src(0)), symbol, value(n->src(1)));
  const std::string x = named(n->src(0)), zero = value(constant(t, 0));
  std::string y = named(n->src(1)), by_zero, bad;
  const DType mask = kBool.vec(t.lanes);
  if (hazard.by_zero) bad = by_zero = define(mask, test(t, y, "==", zero));
  if (hazard.overflow) {
    const std::string lowest = test(t, x, "==", value(constant(t, int_min(t))));
    bad = infix(mask, lowest, "&", test(t, y, "==", value(constant(t, -1))));
    if (hazard.by_zero) bad = infix(mask, by_zero, "|", bad);
  }
  y = define(t, where(t, bad, value(constant(t, 1)), y));
  const std::string result = infix(t, x, symbol, y);
  if (n->is(Op::TruncMod) || !hazard.by_zero) return result;
  return where(t, by_zero, zero, result);
}

// A larger amount would be undefined: its low bits are taken, as most machines do.
std::string CPrinter::shift(Node n) {
  const DType t = n->dtype;
  std::string amount = value(n->src(1));
  if (shift_may_exceed(n)) amount = infix(t, amount, "&", value(constant(t, t.bits() - 1)));
  const std::string x = value(n->src(0));
  const char* symbol = n->is(Op::Shr) ? ">>" : "<<";
  const bool plain = (t.is_unsigned() && t.bits() >= 32) || (dialect_.classes && t.lanes > 1);
  if (n->is(Op::Shr) || plain) return infix(t, x, symbol, amount);
  const DType u = t.lanes == 1 && t.bits() < 32 ? kU32 : unsigned_of(t);
  return as(t, infix(u, as(u, x), symbol, t.lanes > 1 ? as(u, amount) : amount));
}

// --- casts and lanes -----------------------------------------------------------------------------

std::string CPrinter::cast(Node n) {
  const DType from = n->src(0)->dtype, to = n->dtype;
  const std::string v = value(n->src(0));
  if (from == to) return v;
  if (from.is_narrow() || to.is_narrow()) {
    const DType wide = kF32.vec(to.lanes);
    expect(dialect_.classes && (from == wide || to == wide), "render_c: the cast of ", from.name(),
           " to ", to.name(), " should have been decomposed");
    const std::string function = cat(from.one().name(), "_to_", to.one().name());
    return call(function.c_str(), to, from, bare(v));
  }
  if (to.is_bool()) return test(from, v, "!=", value(constant(from, 0)));
  if (from.is_float() && to.is_int()) return saturate(n);
  if (to.lanes == 1) return as(to, v);
  return convert(from.is_bool() && !dialect_.classes ? "-" + v : v, from, to);
}

// A float outside the integer's range gives the nearest end of it, NaN gives 0: in C alone it
// would be undefined.
std::string CPrinter::saturate(Node n) {
  const DType from = n->src(0)->dtype, to = n->dtype;
  if (dialect_.classes) {
    use_.functions.insert({"saturate", to, from});
    return cat("saturate<", type(to), ">(", bare(value(n->src(0))), ")");
  }
  const double low = to.is_unsigned() ? 0 : std::ldexp(-1.0, to.bits() - 1);
  const double high = std::ldexp(1.0, to.bits() - (to.is_unsigned() ? 0 : 1));
  const std::string x = named(n->src(0)), zero = value(constant(from, 0));
  const std::string above = test(from, x, ">=", value(constant(from, high)));
  const std::string below = test(from, x, "<", value(constant(from, low)));
  const DType mask = kBool.vec(to.lanes);
  const std::string over = define(mask, above), under = define(mask, below);
  const std::string outside = cat("(", over, " | ", under, " | ", test(from, x, "!=", x), ")");
  const std::string safe = define(from, where(from, outside, zero, x));
  const std::string inner = to.lanes == 1 ? as(to, safe) : convert(safe, from, to);
  const std::string top = value(identity(Op::Min, to)), bottom = value(identity(Op::Max, to));
  return where(to, over, top, where(to, under, bottom, inner));
}

std::string CPrinter::bitcast(Node n) {
  const DType from = n->src(0)->dtype, to = n->dtype;
  const std::string v = value(n->src(0));
  const bool numbers = from.is_int() && to.is_int();
  if (dialect_.classes ? numbers && to.lanes == 1
                       : to.lanes > 1 || numbers || from.is_narrow() || to.is_narrow())
    return as(to, v);
  use("bitcast", to, from);
  return fill(dialect_.bitcast, {{'T', type(to)}, {'F', type(from)}, {'x', bare(v)}});
}

std::string CPrinter::broadcast(Node n) {
  const DType t = n->dtype;
  const std::string v = value(n->src(0));
  if (dialect_.classes) return splat(t, v);
  if (t.is_bool()) return splat(t, cat("(", type(kI8), ")-", v));
  return splat(t, t.bits() < 32 ? as(t.one(), v) : v);  // undoes the promotion to int
}

// The two halves of a vector are combined until one lane is left, in the order of render_llvm.
std::string CPrinter::fold(Node n) {
  const Op op = combine_op(n->arg<OpArg>().op, n->src(0)->dtype);
  DType t = n->src(0)->dtype;
  std::string v = subscripted(n->src(0));
  for (; t.lanes > 2 && t.lanes % 2 == 0; t = t.vec(t.lanes / 2)) {
    const int half = t.lanes / 2;
    const DType h = t.vec(half);
    const std::string low = define(h, lanes_of(t, v, half, 0));
    v = define(h, combine(op, h, low, define(h, lanes_of(t, v, half, half))));
  }
  const DType one = t.one();
  std::string sum = lane_of(t, v, 0);
  for (int i = 1; i < t.lanes; ++i) {
    if (i > 1) sum = define(one, sum);
    sum = combine(op, one, sum, lane_of(t, v, i));
  }
  return sum;
}

}  // namespace tiny
