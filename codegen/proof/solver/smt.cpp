#include "codegen/proof/solver/smt.h"

#include "codegen/proof/claims/claim.h"
#include "tiny/base/error.h"

namespace tiny {

namespace {

std::string number(int64_t v) {
  if (v >= 0) return std::to_string(v);
  return cat("(- ", std::to_string(v).substr(1), ")");
}

// 2^k as text: of 64 bits too.
std::string power_of_two(int k) {
  return k == 64 ? "18446744073709551616" : std::to_string(uint64_t{1} << k);
}

constexpr const char* infix(Op op) {
  switch (op) {
    case Op::Add: return "+";
    case Op::Sub: return "-";
    case Op::Mul: return "*";
    case Op::FloorDiv: return "div";  // z3's rounds down for a positive divisor, as ours
    case Op::FloorMod: return "mod";
    case Op::Lt: return "<";
    case Op::Le: return "<=";
    case Op::Eq: return "=";
    case Op::Ne: return "distinct";
    case Op::Where: return "ite";
    default: return nullptr;
  }
}
constexpr const char* connective(Op op) {
  switch (op) {
    case Op::And: return "and";
    case Op::Or: return "or";
    case Op::Xor: return "xor";
    default: return nullptr;
  }
}

}  // namespace

std::string SmtText::term(Node n, int copy) {
  if (const std::string* name = names_[copy].find(n)) return *name;
  if (!n->is(Op::Range) && !is_opaque(n))
    for (Node s : n->srcs()) term(s, copy);
  return names_[copy][n] = define(n, copy);
}

void SmtText::assert_that(std::string_view condition) {
  asserted_ += cat("(assert ", condition, ")\n");
}

std::string SmtText::variable(Node leaf, int copy, const std::string& name) {
  const bool is_bool = leaf->dtype.is_bool();
  declarations_ += cat("(declare-const ", name, is_bool ? " Bool)\n" : " Int)\n");
  if (!is_bool) {
    const bool u64 = leaf->dtype.scalar == Scalar::U64;
    const std::string top = u64 ? "18446744073709551615" : number(leaf->vmax);
    declarations_ += cat("(assert (<= ", number(leaf->vmin), " ", name, " ", top, "))\n");
  }
  variables_.push_back({name, leaf, copy});
  return name;
}

std::string SmtText::define(Node n, int copy) {
  const std::string suffix = copy ? "_b" : "";
  if (n->is_const())
    return n->dtype.is_bool() ? n->int_value() ? "true" : "false" : number(n->int_value());
  if (n->is(Op::Range)) return variable(n, copy, cat("r", n->arg<RangeArg>().id, suffix));
  if (is_opaque(n)) return variable(n, copy, cat("load", opaque_++, suffix));
  if (n->dtype != kIndex && !n->dtype.is_bool()) return "";  // the inner half of a wrapping cast
  const std::string value = operation(n, copy);
  if (value.empty()) return variable(n, copy, cat("any", opaque_++, suffix));
  if (value[0] != '(') return value;
  const std::string name = cat("t", definitions_++);
  declarations_ +=
      cat("(define-fun ", name, " () ", n->dtype.is_bool() ? "Bool " : "Int ", value, ")\n");
  return name;
}

// Nothing for what is not expressed: any value within its bounds stands for it.
std::string SmtText::operation(Node n, int copy) {
  const auto source = [&](int i) { return *names_[copy].find(n->src(i)); };
  const auto call = [&](const char* f) {
    std::string text = cat("(", f);
    for (uint32_t i = 0; i < n->num_src; ++i) text += cat(" ", source(static_cast<int>(i)));
    return text + ")";
  };
  if (n->is(Op::Cast)) {
    if (n->src(0)->dtype.is_bool()) return cat("(ite ", source(0), " 1 0)");
    Node inner = wrapping_cast(n);
    if (!inner) return source(0);
    const DType t = inner->dtype;
    const std::string low = number(int_min(t)), exact = *names_[copy].find(inner->src(0));
    return cat("(+ (mod (- ", exact, " ", low, ") ", power_of_two(t.bits()), ") ", low, ")");
  }
  if (n->is(Op::Max) || n->is(Op::Min))
    return cat("(ite (", n->is(Op::Max) ? ">= " : "<= ", source(0), " ", source(1), ") ", source(0),
               " ", source(1), ")");
  if ((n->is(Op::FloorDiv) || n->is(Op::FloorMod)) && n->src(1)->vmin <= 0) return "";
  if (const char* f = infix(n->op)) return call(f);
  if (const char* f = n->dtype.is_bool() ? connective(n->op) : nullptr) return call(f);
  return "";
}

}  // namespace tiny
