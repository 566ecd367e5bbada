#include "codegen/render/c/text.h"

#include <charconv>
#include <cmath>

#include "tiny/base/error.h"

namespace tiny {

DType signed_of(DType t) {
  static constexpr Scalar kBySize[] = {Scalar::Void, Scalar::I8,   Scalar::I16,
                                       Scalar::Void, Scalar::I32,  Scalar::Void,
                                       Scalar::Void, Scalar::Void, Scalar::I64};
  return {kBySize[t.size()], t.lanes};
}
DType unsigned_of(DType t) {
  const DType s = signed_of(t);
  return {static_cast<Scalar>(static_cast<int>(s.scalar) + 4), t.lanes};
}

namespace {

// By its bits where the language has no name for it.
std::string special_float(DType t, double v, bool builtins) {
  const bool wide = t.scalar == Scalar::F64;
  if (!builtins) {
    const char* single = std::isnan(v) ? "0x7fc00000u" : v < 0 ? "0xff800000u" : "0x7f800000u";
    return wide ? cat("((f64)bitcast<f32>(", single, "))") : cat("bitcast<f32>(", single, ")");
  }
  if (std::isnan(v)) return wide ? "__builtin_nan(\"\")" : "__builtin_nanf(\"\")";
  return cat(v < 0 ? "(-" : "", "__builtin_inf", wide ? "" : "f", v < 0 ? "())" : "()");
}

std::string float_text(DType t, double v) {
  const bool wide = t.scalar == Scalar::F64;
  char digits[40];
  const auto end = wide ? std::to_chars(digits, digits + sizeof digits, v)
                        : std::to_chars(digits, digits + sizeof digits, static_cast<float>(v));
  std::string text(digits, end.ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  if (!wide) text += "f";
  return std::signbit(v) ? "(" + text + ")" : text;
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

}  // namespace

std::string scalar_text(Node n, const Dialect& dialect) {
  const DType t = n->dtype;
  if (t.is_narrow()) {
    const auto v = static_cast<float>(n->float_value());
    const int bits = t.is_f8()                 ? f32_to_f8(v, t.scalar)
                     : t.scalar == Scalar::F16 ? f32_to_f16(v)
                                               : f32_to_bf16(v);
    return dialect.classes ? cat(t.one().name(), "{", bits, "}") : cat(bits);
  }
  if (t.is_float())
    return std::isfinite(n->float_value()) ? float_text(t, n->float_value())
                                           : special_float(t, n->float_value(), !dialect.classes);
  if (t.is_bool())
    return t.lanes > 1 && n->int_value() && !dialect.classes ? "-1" : cat(n->int_value());
  return int_text(t, n->int_value());
}

std::string numbers(int count, int from, int step) {
  std::string out;
  for (int i = 0; i < count; ++i) out += cat(i ? ", " : "", from + i * step);
  return out;
}

std::string bare(const std::string& e) {
  if (e.front() != '(') return e;
  int open = 0;
  for (size_t i = 0; i < e.size(); ++i) {
    open += (e[i] == '(') - (e[i] == ')');
    if (!open) return i + 1 == e.size() ? e.substr(1, i - 1) : e;
  }
  return e;
}

SingleUse::SingleUse(const Linear& program) {
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

std::vector<Node> SingleUse::uses_of(Node n) {
  switch (n->op) {
    case Op::Loop: return {n->src(0)->src(0)};
    case Op::Update: return {updated_with(n->src(0))};
    case Op::Rescale: return {n->src(0)->src(0)->src(1)};
    case Op::Fetch: {
      Node store = n->src(0), load = store->src(2);
      std::vector<Node> out(load->srcs().begin(), load->srcs().end());
      out.push_back(store->src(1));
      return out;
    }
    case Op::Barrier:
    case Op::EndLoop:
    case Op::Acc:
    case Op::Group:
    case Op::Reduce: return {};
    default: return {n->srcs().begin(), n->srcs().end()};
  }
}

const char* symbol(Op op) {
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
    default: throw Bug(cat("no operator for ", op));
  }
}

}  // namespace tiny
