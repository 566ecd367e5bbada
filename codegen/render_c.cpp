#include "codegen/render_c.h"

#include <charconv>
#include <cmath>
#include <set>

#include "codegen/dialect.h"
#include "codegen/render.h"
#include "tiny/error.h"

namespace tiny {

namespace {

DType signed_of(DType t) {  // integers of the same width
  static constexpr Scalar kBySize[] = {Scalar::Void, Scalar::I8,   Scalar::I16,
                                       Scalar::Void, Scalar::I32,  Scalar::Void,
                                       Scalar::Void, Scalar::Void, Scalar::I64};
  return {kBySize[t.size()], t.lanes};
}
DType unsigned_of(DType t) {
  const DType s = signed_of(t);
  return {static_cast<Scalar>(static_cast<int>(s.scalar) + 4), t.lanes};
}

std::string float_text(DType t, double v) {
  const bool wide = t.scalar == Scalar::F64;
  const std::string suffix = wide ? "" : "f";
  if (std::isnan(v)) return wide ? "__builtin_nan(\"\")" : "__builtin_nanf(\"\")";
  if (std::isinf(v)) return cat(v < 0 ? "(-" : "", "__builtin_inf", suffix, v < 0 ? "())" : "()");
  char digits[40];
  const auto end = wide ? std::to_chars(digits, digits + sizeof digits, v)
                        : std::to_chars(digits, digits + sizeof digits, static_cast<float>(v));
  std::string text(digits, end.ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return std::signbit(v) ? "(" + text + suffix + ")" : text + suffix;
}

std::string int_text(DType t, int64_t v) {
  const bool wide = t.size() == 8;
  const char* unsigned_suffix = wide ? "ull" : t.bits() == 32 ? "u" : "";
  if (t.is_unsigned()) return cat(static_cast<uint64_t>(v), unsigned_suffix);
  const char* suffix = wide ? "ll" : "";
  // The lowest number has no literal: the minus sign is an operator.
  if (v == int_min(t)) return cat("(", v + 1, suffix, " - 1)");
  return v < 0 ? cat("(", v, suffix, ")") : cat(v, suffix);
}

std::string scalar_text(Node n) {
  const DType t = n->dtype;
  if (t.scalar == Scalar::F16) return cat(f32_to_f16(static_cast<float>(n->float_value())));
  if (t.scalar == Scalar::BF16) return cat(f32_to_bf16(static_cast<float>(n->float_value())));
  if (t.is_float()) return float_text(t, n->float_value());
  if (t.is_bool()) return t.lanes > 1 && n->int_value() ? "-1" : cat(n->int_value());
  return int_text(t, n->int_value());
}

std::string numbers(int count, int from, int step) {
  std::string out;
  for (int i = 0; i < count; ++i) out += cat(i ? ", " : "", from + i * step);
  return out;
}

// Values that are used once, by a statement of the same loop: their expression is printed there.
class SingleUse {
 public:
  explicit SingleUse(const Linear& program) {
    int block = 0;
    for (Node n : program.body) {
      for (Node s : uses_of(n)) {
        Use& use = uses_[s];
        ++use.count;
        use.block = block;
      }
      block += n->is(Op::Loop) || n->is(Op::EndLoop);
    }
    block = 0;
    for (Node n : program.body) {
      Use* use = uses_.find(n);
      if (use && use->count == 1 && use->block == block) use->inside = true;
      block += n->is(Op::Loop) || n->is(Op::EndLoop);
    }
  }
  bool operator()(Node n) const {
    const Use* use = uses_.find(n);
    return use && use->inside;
  }

 private:
  struct Use {
    int count = 0, block = 0;
    bool inside = false;
  };
  static std::vector<Node> uses_of(Node n) {
    switch (n->op) {
      case Op::Loop: return {n->src(0)->src(0)};
      case Op::Update: return {n->src(0)->src(0)};
      case Op::EndLoop:
      case Op::Acc:
      case Op::Reduce: return {};
      default: return {n->srcs().begin(), n->srcs().end()};
    }
  }
  NodeMap<Use> uses_;
};

class Printer {
 public:
  Printer(const Linear& program, const Dialect& dialect)
      : program_(program), dialect_(dialect), single_use_(program) {}

  Source print() {
    scalars_.insert(Scalar::I64);  // of begin and end
    for (Node n : program_.body) statement(n);
    return {program_.name, text(), dialect_.language, program_.heavy};
  }

 private:
  using Str = const std::string&;

  // --- lines and names ---------------------------------------------------------------------------

  void line(Str text) { body_ += std::string(depth_ * 2, ' ') + text + "\n"; }

  std::string type(DType t) {
    if (t.is_bool() && t.lanes == 1) return dialect_.boolean;
    scalars_.insert(t.scalar);
    if (t.lanes == 1) return t.name();
    vectors_.insert({t.scalar, t.lanes});
    return t.name();
  }
  DType in_memory(DType t) const { return t.is_bool() ? kU8.vec(t.lanes) : t; }

  static std::string bare(Str e) {  // without the parentheses around all of it
    if (e.front() != '(') return e;
    int open = 0;
    for (size_t i = 0; i < e.size(); ++i) {
      open += (e[i] == '(') - (e[i] == ')');
      if (!open) return i + 1 == e.size() ? e.substr(1, i - 1) : e;
    }
    return e;
  }

  std::string define(DType t, Str expression) {
    const std::string name = cat("v", ++names_);
    line(cat("const ", type(t), " ", name, " = ", bare(expression), ";"));
    return name;
  }

  // For an operand that is printed more than once.
  std::string named(Node n) {
    const std::string v = value(n);
    if (n->is_const()) return v;
    if (v.size() <= 12 && v.find(' ') == std::string::npos) return v;
    return define(n->dtype, v);
  }

  // For an operand whose lanes are taken one by one: a subscript binds closer than a cast.
  std::string subscripted(Node n) {
    const std::string v = named(n);
    return v.front() == '(' ? define(n->dtype, v) : v;
  }

  std::string value(Node n) {
    const DType t = n->dtype;
    switch (n->op) {
      case Op::Const: return t.lanes > 1 ? splat(t, scalar_text(n)) : scalar_text(n);
      case Op::Ramp: return cat("(", type(t), "){", numbers(t.lanes, 0, 1), "}");
      case Op::Range: return cat("r", n->arg<RangeArg>().id);
      default: break;
    }
    const std::string* name = values_.find(n);
    expect(name, "render_c: ", n->op, " is used before it is defined");
    return *name;
  }

  std::string helper(Helper h, Str call) {
    helpers_.insert(h);
    return call;
  }
  std::string splat(DType t, Str one) {
    return helper(Helper::Splat, cat("splat(", type(t), ", ", bare(one), ")"));
  }
  // Lanes of `a` where the mask holds, of `b` elsewhere.
  std::string where(DType t, Str mask, Str a, Str b) {
    if (t.lanes == 1) return cat("(", mask, " ? ", a, " : ", b, ")");
    return helper(Helper::Where, cat("where(", type(t), ", ", type(signed_of(t)), ", ", bare(mask),
                                     ", ", bare(a), ", ", bare(b), ")"));
  }
  // `a op b` as bools of the lanes of t.
  std::string test(DType t, Str a, const char* op, Str b) {
    const std::string text = cat(a, " ", op, " ", b);
    if (t.lanes == 1) return "(" + text + ")";
    return convert(text, kBool.vec(t.lanes));
  }
  std::string convert(Str v, DType to) {
    return cat("__builtin_convertvector(", bare(v), ", ", type(to), ")");
  }
  std::string as(DType t, Str v) { return cat("(", type(t), ")", v); }

  std::string text() {
    std::string params, args;
    for (size_t i = 0; i < program_.params.size(); ++i) {
      if (!program_.params[i]) continue;
      params +=
          cat(program_.written[i] ? "" : "const ", type(in_memory(program_.params[i]->dtype.one())),
              "* ", dialect_.restrict_word, " b", i, ", ");
      args += cat("args[", i, "], ");
    }
    std::string out;
    for (Scalar s : scalars_)
      if (s != Scalar::Bool) out += cat("typedef ", c_scalar(s), " ", DType(s).name(), ";\n");
    for (const auto& [s, lanes] : vectors_) {
      const DType t(s, lanes);
      out += fill(dialect_.vector_type, {{'T', t.name()},
                                         {'S', c_scalar(s)},
                                         {'B', cat(t.size())},
                                         {'V', cat(t.size() * lanes)}});
    }
    for (Helper h : helpers_) out += dialect_.helpers[static_cast<int>(h)];
    // Products and sums of different statements may be fused, as gcc does unasked.
    out += "#ifdef __clang__\n#pragma clang fp contract(fast)\n#endif\n\n";
    out += fill(dialect_.body, {{'N', program_.name}, {'P', params}}) + body_ + "}\n";
    return out + fill(dialect_.entry, {{'N', program_.name}, {'A', args}});
  }

  // --- statements --------------------------------------------------------------------------------

  void statement(Node n) {
    switch (n->op) {
      case Op::Const:
      case Op::Range:
      case Op::Param:
      case Op::Ramp: return;
      case Op::Loop: return open_loop(n->src(0));
      case Op::EndLoop: --depth_; return line("}");
      case Op::Acc: return declare_accumulator(n->src(0));
      case Op::Update: return update(n->src(0));
      case Op::Store: return store(n);
      // Named at once: the accumulator may be declared anew before the value is used.
      case Op::Reduce: values_[n] = define(n->dtype, accumulators_[n]); return;
      case Op::Load: values_[n] = load(n); return;
      default: break;
    }
    const std::string expression = arithmetic(n);
    const bool inside = single_use_(n) && expression.size() <= 60;
    values_[n] = inside ? expression : define(n->dtype, expression);
  }

  void open_loop(Node range) {
    const std::string r = value(range);
    const bool core = range->arg<RangeArg>().kind == RangeKind::Core;
    line(cat("for (", type(range->dtype), " ", r, " = ", core ? "begin" : "0", "; ", r, " < ",
             core ? "end" : value(range->src(0)), "; ++", r, ") {"));
    ++depth_;
  }

  void declare_accumulator(Node reduce) {
    std::string& name = accumulators_[reduce];
    name = cat("acc", ++accumulator_names_);
    const Node start = identity(reduce->arg<OpArg>().op, reduce->dtype);
    line(cat(type(reduce->dtype), " ", name, " = ", bare(value(start)), ";"));
  }

  void update(Node reduce) {
    const Op op = combine_op(reduce->arg<OpArg>().op, reduce->dtype);
    const std::string acc = accumulators_[reduce];
    const bool twice = op == Op::Max || op == Op::Min;
    const std::string v = twice ? named(reduce->src(0)) : value(reduce->src(0));
    line(cat(acc, " = ", bare(combine(op, reduce->dtype, acc, v)), ";"));
  }

  // --- memory ------------------------------------------------------------------------------------

  std::string element(Node param, Str index) {
    return cat("b", slot_of(param), "[", bare(index), "]");
  }
  std::string vector_at(Node param, DType t, Str index, const char* access) {
    return cat("*(", access, type(in_memory(t)), "*)(b", slot_of(param), " + ", index, ")");
  }
  // A lane read from memory, as it is kept in a register.
  std::string lane_from(DType t, Str v) {
    if (!t.is_bool()) return v;
    return t.lanes > 1 ? cat("-(", v, " != 0)") : cat("(", v, " != 0)");
  }

  std::string load(Node n) {
    const Node param = n->src(0), index = n->src(1), gate = gate_of(n);
    const DType t = n->dtype;
    if (t.lanes > 1 && (index->dtype.lanes > 1 || (gate && gate->dtype.lanes > 1)))
      return load_lanes(n);
    if (t.lanes == 1) {
      const std::string v = lane_from(t, element(param, value(index)));
      return define(t, gate ? cat(value(gate), " ? ", v, " : 0") : v);
    }
    std::string v = vector_at(param, t, value(index), "const ");
    if (t.is_bool()) v = as(t, cat("(", v, " != 0)"));
    if (!gate) return define(t, v);
    const std::string name = cat("v", ++names_);
    line(cat(type(t), " ", name, " = {0};"));
    line(cat("if (", bare(value(gate)), ") ", name, " = ", v, ";"));
    return name;
  }

  std::string load_lanes(Node n) {
    const Node index = n->src(1), gate = gate_of(n);
    const std::string at = lane_index(index);
    const std::string test = gate ? lane_gate(gate) : "";
    const std::string target = cat("v", ++names_);
    line(cat(type(n->dtype), " ", target, " = {0};"));
    line(cat("for (int l = 0; l < ", n->dtype.lanes, "; ++l) ", test, target,
             "[l] = ", lane_from(n->dtype, element(n->src(0), at)), ";"));
    return target;
  }

  // The index of lane `l`, and the condition that guards it.
  std::string lane_index(Node index) {
    const std::string v = subscripted(index);
    return index->dtype.lanes > 1 ? v + "[l]" : v + " + l";
  }
  std::string lane_gate(Node gate) {
    const std::string v = subscripted(gate);
    return cat("if (", v, gate->dtype.lanes > 1 ? "[l]" : "", ") ");
  }

  void store(Node n) {
    const Node param = n->src(0), index = n->src(1), gate = gate_of(n);
    const DType t = n->src(2)->dtype;
    if (std::holds_alternative<OpArg>(n->payload)) return combine_lanes(n);
    if (t.lanes > 1 && (index->dtype.lanes > 1 || (gate && gate->dtype.lanes > 1)))
      return store_lanes(n);
    std::string v = value(n->src(2)), at;
    if (t.lanes == 1) {
      at = element(param, value(index));
    } else {
      at = vector_at(param, t, value(index), "");
      if (t.is_bool()) v = as(in_memory(t), cat("-", v));
    }
    line(cat(gate ? cat("if (", bare(value(gate)), ") ") : "", at, " = ", bare(v), ";"));
  }

  // Reads, combines and writes each lane in turn: two lanes may meet in one element.
  void combine_lanes(Node n) {
    const Node index = n->src(1), gate = gate_of(n);
    const DType t = n->src(2)->dtype, one = t.one();
    const bool scalar = t.lanes == 1;
    const std::string v = scalar ? named(n->src(2)) : define(t, value(n->src(2)));
    const std::string at = element(n->src(0), scalar ? named(index) : lane_index(index));
    const std::string test = !gate ? "" : scalar ? cat("if (", named(gate), ") ") : lane_gate(gate);
    line(cat("for (int l = 0; l < ", t.lanes, "; ++l) ", test, "{"));
    ++depth_;
    const std::string old = define(one, lane_from(one, at));
    line(cat(at, " = ", combine(n->arg<OpArg>().op, one, old, scalar ? v : v + "[l]"), ";"));
    --depth_;
    line("}");
  }

  void store_lanes(Node n) {
    const Node index = n->src(1), gate = gate_of(n);
    const DType t = n->src(2)->dtype;
    const std::string v = define(t, value(n->src(2))), at = lane_index(index);
    const std::string test = gate ? lane_gate(gate) : "";
    line(cat("for (int l = 0; l < ", t.lanes, "; ++l) ", test, element(n->src(0), at), " = ",
             t.is_bool() ? "-" : "", v, "[l];"));
  }

  // --- arithmetic --------------------------------------------------------------------------------

  std::string arithmetic(Node n) {
    const DType t = n->dtype;
    switch (n->op) {
      case Op::Cast: return cast(n);
      case Op::Bitcast: return bitcast(n);
      case Op::Broadcast: return broadcast(n);
      case Op::Reverse: {
        const std::string v = named(n->src(0));
        return cat("__builtin_shufflevector(", v, ", ", v, ", ", numbers(t.lanes, t.lanes - 1, -1),
                   ")");
      }
      case Op::Shuffle: {
        std::string lanes;
        for (int64_t i : n->ints()) lanes += cat(", ", i);
        return cat("__builtin_shufflevector(", named(n->src(0)), ", ", named(n->src(1)), lanes,
                   ")");
      }
      case Op::Fold: return fold(n);
      case Op::Where: return where(t, value(n->src(0)), value(n->src(1)), value(n->src(2)));
      case Op::TruncDiv:
      case Op::TruncMod: return divide(n);
      case Op::Shl:
      case Op::Shr: return shift(n);
      case Op::Max:
      case Op::Min:
        if (t.is_float() && ordered_operand(n) >= 0) return max_with_const(n);
        return combine(n->op, t, named(n->src(0)), named(n->src(1)));
      default: break;
    }
    if (is_comparison(n->op)) return compare(n);
    if (info(n->op).cls == OpClass::Unary) return unary(n);
    if (info(n->op).cls == OpClass::Binary)
      return combine(n->op, t, value(n->src(0)), value(n->src(1)), cannot_wrap(n));
    throw Bug(cat("render_c: ", n->op, " has no place in a linear program"));
  }

  std::string unary(Node n) {
    const DType t = n->dtype;
    if (t.is_int() && n->is(Op::Neg))
      return combine(Op::Sub, t, value(constant(t, 0)), value(n->src(0)), cannot_wrap(n));
    if (t.is_int() && (n->is(Op::Floor) || n->is(Op::Trunc))) return value(n->src(0));
    expect(t.is_float(), "render_c: ", n->op, " of ", t.name());
    switch (n->op) {
      case Op::Neg: return cat("(-", value(n->src(0)), ")");
      case Op::Recip: return cat("(", value(constant(t, 1)), " / ", value(n->src(0)), ")");
      case Op::Sqrt: return by_lane(n, "__builtin_sqrt");
      case Op::Floor: return by_lane(n, "__builtin_floor");
      case Op::Trunc: return by_lane(n, "__builtin_trunc");
      default: throw Bug(cat("render_c: ", n->op, " should have been decomposed"));
    }
  }

  std::string by_lane(Node n, const char* function) {
    const DType t = n->dtype;
    const char* suffix = t.scalar == Scalar::F32 ? "f" : "";
    if (t.lanes == 1) return cat(function, suffix, "(", bare(value(n->src(0))), ")");
    const std::string x = subscripted(n->src(0)), name = cat("v", ++names_);
    line(cat(type(t), " ", name, ";"));
    line(cat("for (int l = 0; l < ", t.lanes, "; ++l) ", name, "[l] = ", function, suffix, "(", x,
             "[l]);"));
    return name;
  }

  static const char* symbol(Op op) {
    switch (op) {
      case Op::Add: return "+";
      case Op::Sub: return "-";
      case Op::Mul: return "*";
      case Op::Div: return "/";
      case Op::And: return "&";
      case Op::Or: return "|";
      case Op::Xor: return "^";
      case Op::Lt: return "<";
      case Op::Le: return "<=";
      case Op::Eq: return "==";
      case Op::Ne: return "!=";
      default: throw Bug(cat("render_c: no operator for ", op));
    }
  }

  // A binary operation that is also one of a reduction. `exact`: it does not wrap.
  std::string combine(Op op, DType t, Str a, Str b, bool exact = false) {
    op = combine_op(op, t);
    if (op == Op::Max || op == Op::Min) {
      // The second test lets a NaN of `a` through; one of `b` fails both.
      const char* wins = op == Op::Max ? ">" : "<";
      std::string first = test(t, a, wins, b);
      if (t.is_float()) first = cat("(", first, " | ", test(t, a, "!=", a), ")");
      return where(t, first, a, b);
    }
    const std::string infix = cat(" ", symbol(op), " ");
    const bool arithmetic = op == Op::Add || op == Op::Sub || op == Op::Mul;
    if (!t.is_int() || !arithmetic || exact || (t.is_unsigned() && t.bits() >= 32))
      return cat("(", a, infix, b, ")");
    // Wraps, which is defined for unsigned numbers alone; smaller scalars would be promoted to int.
    const DType u = t.lanes == 1 && t.bits() < 32 ? kU32 : unsigned_of(t);
    return as(t, cat("(", as(u, a), infix, as(u, b), ")"));
  }

  std::string max_with_const(Node n) {
    const int at = ordered_operand(n);
    const std::string c = named(n->src(at)), x = named(n->src(1 - at));
    return where(n->dtype, test(n->dtype, c, n->is(Op::Max) ? ">" : "<", x), c, x);
  }

  std::string compare(Node n) {
    const DType t = n->src(0)->dtype;
    expect(!t.is_half(), "render_c: a comparison of halves should have been decomposed");
    const std::string a = value(n->src(0)), b = value(n->src(1));
    if (t.is_bool() && t.lanes > 1) {  // lanes are 0 and -1: the order is reversed
      if (n->is(Op::Lt)) return cat("(~", a, " & ", b, ")");
      if (n->is(Op::Le)) return cat("(~", a, " | ", b, ")");
    }
    return test(t, a, symbol(n->op), b);
  }

  // Guarded by replacing the divisor where the division would trap (see DivideHazard).
  std::string divide(Node n) {
    const DType t = n->dtype;
    const DivideHazard hazard = divide_hazard(n);
    const char* infix = n->is(Op::TruncMod) ? " % " : " / ";
    if (!hazard.any()) return cat("(", value(n->src(0)), infix, value(n->src(1)), ")");
    const std::string x = named(n->src(0)), zero = value(constant(t, 0));
    std::string y = named(n->src(1)), by_zero, bad;
    const DType mask = kBool.vec(t.lanes);
    if (hazard.by_zero) bad = by_zero = define(mask, test(t, y, "==", zero));
    if (hazard.overflow) {
      const std::string lowest = test(t, x, "==", value(constant(t, int_min(t))));
      bad = cat("(", lowest, " & ", test(t, y, "==", value(constant(t, -1))), ")");
      if (hazard.by_zero) bad = cat("(", by_zero, " | ", bad, ")");
    }
    y = define(t, where(t, bad, value(constant(t, 1)), y));
    const std::string result = cat("(", x, infix, y, ")");
    if (n->is(Op::TruncMod) || !hazard.by_zero) return result;
    return where(t, by_zero, zero, result);
  }

  // A larger amount would be undefined: its low bits are taken, as most machines do.
  std::string shift(Node n) {
    const DType t = n->dtype;
    std::string amount = value(n->src(1));
    if (shift_may_exceed(n))
      amount = cat("(", amount, " & ", value(constant(t, t.bits() - 1)), ")");
    const std::string x = value(n->src(0));
    if (n->is(Op::Shr)) return cat("(", x, " >> ", amount, ")");
    if (t.is_unsigned() && t.bits() >= 32) return cat("(", x, " << ", amount, ")");
    const DType u = t.lanes == 1 && t.bits() < 32 ? kU32 : unsigned_of(t);
    const std::string by = t.lanes > 1 ? as(u, amount) : amount;
    return as(t, cat("(", as(u, x), " << ", by, ")"));
  }

  // --- casts and lanes ---------------------------------------------------------------------------

  std::string cast(Node n) {
    const DType from = n->src(0)->dtype, to = n->dtype;
    if (from == to) return value(n->src(0));
    expect(!from.is_half() && !to.is_half(), "render_c: the cast of ", from.name(), " to ",
           to.name(), " should have been decomposed");
    if (to.is_bool()) return test(from, value(n->src(0)), "!=", value(constant(from, 0)));
    if (from.is_float() && to.is_int()) return saturate(n);
    const std::string v = value(n->src(0));
    if (to.lanes == 1) return as(to, v);
    return from.is_bool() ? convert("-" + v, to) : convert(v, to);
  }

  // A float outside the integer's range gives the nearest end of it, NaN gives 0: in C alone it
  // would be undefined.
  std::string saturate(Node n) {
    const DType from = n->src(0)->dtype, to = n->dtype;
    const double low = to.is_unsigned() ? 0 : std::ldexp(-1.0, to.bits() - 1);
    const double high = std::ldexp(1.0, to.bits() - (to.is_unsigned() ? 0 : 1));
    const std::string x = named(n->src(0)), zero = value(constant(from, 0));
    const std::string above = test(from, x, ">=", value(constant(from, high)));
    const std::string below = test(from, x, "<", value(constant(from, low)));
    const DType mask = kBool.vec(to.lanes);
    const std::string over = define(mask, above), under = define(mask, below);
    const std::string outside = cat("(", over, " | ", under, " | ", test(from, x, "!=", x), ")");
    const std::string safe = define(from, where(from, outside, zero, x));
    const std::string inner = to.lanes == 1 ? as(to, safe) : convert(safe, to);
    const std::string top = value(identity(Op::Min, to)), bottom = value(identity(Op::Max, to));
    return where(to, over, top, where(to, under, bottom, inner));
  }

  std::string bitcast(Node n) {
    const DType from = n->src(0)->dtype, to = n->dtype;
    const std::string v = value(n->src(0));
    if (to.lanes > 1 || (from.is_int() && to.is_int()) || from.is_half() || to.is_half())
      return as(to, v);
    return helper(Helper::Bitcast, cat("bitcast(", type(to), ", ", type(from), ", ", bare(v), ")"));
  }

  std::string broadcast(Node n) {
    const DType t = n->dtype;
    const std::string v = value(n->src(0));
    if (t.is_bool()) return splat(t, cat("(", type(kI8), ")-", v));
    return splat(t, t.bits() < 32 ? as(t.one(), v) : v);  // undoes the promotion to int
  }

  // Halves are combined until one lane is left, in the order of render_llvm.
  std::string fold(Node n) {
    const Op op = combine_op(n->arg<OpArg>().op, n->src(0)->dtype);
    DType t = n->src(0)->dtype;
    std::string v = named(n->src(0));
    for (; t.lanes > 2 && t.lanes % 2 == 0; t = t.vec(t.lanes / 2)) {
      const int half = t.lanes / 2;
      const DType h = t.vec(half);
      const std::string low = define(h, lanes_of(v, half, 0));
      v = define(h, combine(op, h, low, define(h, lanes_of(v, half, half))));
    }
    const DType one = t.one();
    std::string sum = lane_of(t, v, 0);
    for (int i = 1; i < t.lanes; ++i) {
      if (i > 1) sum = define(one, sum);
      sum = combine(op, one, sum, lane_of(t, v, i));
    }
    return sum;
  }
  std::string lanes_of(Str v, int lanes, int from) {
    return cat("__builtin_shufflevector(", v, ", ", v, ", ", numbers(lanes, from, 1), ")");
  }
  std::string lane_of(DType t, Str v, int i) {
    return t.is_bool() ? cat("(", v, "[", i, "] != 0)") : cat(v, "[", i, "]");
  }

  const Linear& program_;
  const Dialect& dialect_;
  const SingleUse single_use_;
  std::string body_;
  std::set<Scalar> scalars_;
  std::set<std::pair<Scalar, int>> vectors_;
  std::set<Helper> helpers_;
  NodeMap<std::string> values_, accumulators_;
  size_t depth_ = 1;
  int names_ = 0, accumulator_names_ = 0;
};

}  // namespace

Source render_c(const Linear& program, const Target& target) {
  return Printer(program, dialect_of(target)).print();
}

}  // namespace tiny
