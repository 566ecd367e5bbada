#include "test/unit/bit_text.h"

#include <bit>

#include "tiny/base/error.h"
#include "tiny/ir/facts.h"
#include "tiny/rewrite/algebra.h"

namespace tiny::test {

Node leaf(DType t, int i) {
  const int64_t arg[] = {i, 1};
  return make(Op::Load, t, {make(Op::Param, t, {}, Ints(arg)), index(0)});
}

namespace {

int leaf_number(Node n) { return static_cast<int>(n->src(0)->ints()[0]); }

bool is_power_of_two(Node n) {
  return n->is_const() && n->int_value() > 1 &&
         std::has_single_bit(static_cast<uint64_t>(n->int_value()));
}

std::string sort(DType t) { return t.is_bool() ? "Bool" : cat("(_ BitVec ", t.bits(), ")"); }
std::string number(int64_t v, DType t) { return BitText()(constant(t, v)); }

std::string cast(const std::string& x, DType from, DType to) {
  if (to.is_bool()) return from.is_bool() ? x : cat("(distinct ", x, " ", number(0, from), ")");
  if (from.is_bool()) return cat("(ite ", x, " ", number(1, to), " ", number(0, to), ")");
  const int more = to.bits() - from.bits();
  if (more <= 0) return cat("((_ extract ", to.bits() - 1, " 0) ", x, ")");
  return cat("((_ ", from.is_unsigned() ? "zero" : "sign", "_extend ", more, ") ", x, ")");
}

}  // namespace

std::string BitText::operator()(Node n) {
  if (n->is(Op::Load)) {
    const std::string name = cat("x", leaf_number(n));
    leaves_[name] = sort(n->dtype);
    return name;
  }
  const DType t = n->dtype;
  if (n->is_const()) {
    if (t.is_bool()) return n->int_value() ? "true" : "false";
    const auto v = static_cast<uint64_t>(n->int_value());
    return cat("(_ bv", t.bits() == 64 ? v : v & ((uint64_t{1} << t.bits()) - 1), " ", t.bits(),
               ")");
  }
  std::vector<std::string> s;
  for (Node source : n->srcs()) s.push_back((*this)(source));
  const auto call = [](const std::string& f, auto... x) {
    std::string text = "(" + f;
    ((text += " " + x), ...);
    return text + ")";
  };
  if (n->is(Op::Bound)) {
    const auto within = [&](const char* op, int64_t bound) {
      assumed_ +=
          cat(" (", t.is_unsigned() ? "bvu" : "bvs", op, " ", s[0], " ", number(bound, t), ")");
    };
    within("ge", n->ints()[0]);
    within("le", n->ints()[1]);
    return s[0];
  }
  const bool is_bool = n->src(0)->dtype.is_bool(), is_unsigned = n->src(0)->dtype.is_unsigned();
  const auto less = [&](const std::string& a, const std::string& b) {
    return is_bool ? call("and", call("not", a), b) : call(is_unsigned ? "bvult" : "bvslt", a, b);
  };
  switch (n->op) {
    case Op::Neg: return call("bvneg", s[0]);
    case Op::Add: return call("bvadd", s[0], s[1]);
    case Op::Sub: return call("bvsub", s[0], s[1]);
    case Op::Mul: return call("bvmul", s[0], s[1]);
    case Op::And: return call(is_bool ? "and" : "bvand", s[0], s[1]);
    case Op::Or: return call(is_bool ? "or" : "bvor", s[0], s[1]);
    case Op::Xor: return call(is_bool ? "xor" : "bvxor", s[0], s[1]);
    case Op::Shl: return call("bvshl", s[0], s[1]);
    case Op::Shr: return call(is_unsigned ? "bvlshr" : "bvashr", s[0], s[1]);
    case Op::Lt: return less(s[0], s[1]);
    case Op::Le: return call("not", less(s[1], s[0]));
    case Op::Eq: return call("=", s[0], s[1]);
    case Op::Ne: return call("distinct", s[0], s[1]);
    case Op::Max: return call("ite", less(s[0], s[1]), s[1], s[0]);
    case Op::Min: return call("ite", less(s[0], s[1]), s[0], s[1]);
    case Op::Where: return call("ite", s[0], s[1], s[2]);
    case Op::Cast: return cast(s[0], n->src(0)->dtype, t);
    default:
      if (opaque_ && !t.is_unsigned()) return opaque_division(n->op, t, s[0], s[1]);
      return is_power_of_two(n->src(1)) && !n->src(0)->is_const()
                 ? division(n->op, t, s[0], n->src(1)->int_value())
                 : division(n->op, t, s[0], s[1]);
  }
}

std::string BitText::leaves() const {
  std::string text;
  for (const auto& [name, sort] : leaves_) text += cat("(", name, " ", sort, ")");
  return text;
}

// The quotient is the q whose rest a - q * b lies where it should, in bits that hold the product.
std::string BitText::division(Op op, DType t, const std::string& a, int64_t b) {
  const int more = std::bit_width(static_cast<uint64_t>(b)) + 1, width = t.bits() + more;
  const std::string q = cat("q", quotients_++), divisor = cat("(_ bv", b, " ", width, ")");
  leaves_[q] = sort(t);
  const auto wide = [&](const std::string& x) {
    return cat("((_ ", t.is_unsigned() ? "zero" : "sign", "_extend ", more, ") ", x, ")");
  };
  const std::string rest = cat("(bvsub ", wide(a), " (bvmul ", wide(q), " ", divisor, "))");
  const std::string zero = cat("(_ bv0 ", width, ")");
  const std::string above =
      cat("(and (bvsge ", rest, " ", zero, ") (bvslt ", rest, " ", divisor, "))");
  const std::string below =
      cat("(and (bvsle ", rest, " ", zero, ") (bvslt (bvneg ", rest, ") ", divisor, "))");
  const bool floors = op == Op::FloorDiv || op == Op::FloorMod;
  assumed_ +=
      floors ? " " + above : cat(" (ite (bvsge ", wide(a), " ", zero, ") ", above, " ", below, ")");
  if (op == Op::FloorDiv || op == Op::TruncDiv) return q;
  return cat("((_ extract ", t.bits() - 1, " 0) ", rest, ")");
}

// bvsmod has the sign of the divisor, as a floor's remainder does. A floor is one less than the
// truncated quotient where that is inexact and below zero.
std::string BitText::division(Op op, DType t, const std::string& a, const std::string& b) {
  const std::string zero = number(0, t), operands = cat(" ", a, " ", b, ")");
  assumed_ += cat(" (distinct ", b, " ", zero, ")");
  const bool quotient = op == Op::FloorDiv || op == Op::TruncDiv;
  if (t.is_unsigned()) return cat(quotient ? "(bvudiv" : "(bvurem", operands);
  if (op == Op::FloorMod) return "(bvsmod" + operands;
  if (op == Op::TruncMod) return "(bvsrem" + operands;
  // the smallest integer by -1 has no value
  assumed_ +=
      cat(" (not (and (= ", a, " ", number(int_min(t), t), ") (= ", b, " ", number(-1, t), ")))");
  const std::string truncated = "(bvsdiv" + operands;
  if (op == Op::TruncDiv) return truncated;
  return cat("(ite (and (distinct (bvsrem", operands, " ", zero, ") (xor (bvslt ", a, " ", zero,
             ") (bvslt ", b, " ", zero, "))) (bvsub ", truncated, " ", number(1, t), ") ",
             truncated, ")");
}

// A floor from t and m, as the lemmas in test_rules.cpp say it.
std::string BitText::opaque_division(Op op, DType t, const std::string& a, const std::string& b) {
  const std::string zero = number(0, t), least = number(int_min(t), t);
  auto& [quotient, rest] = divisions_[a + ' ' + b];
  if (quotient.empty()) {
    quotient = cat("q", quotients_);
    rest = cat("r", quotients_++);
    leaves_[quotient] = leaves_[rest] = sort(t);
    const auto is_negative = [&](const std::string& x) {
      return cat("(bvslt ", x, " ", zero, ")");
    };
    // By minus the absolute value, which every number has.
    const auto below = [&](const std::string& x) {
      return cat("(ite ", is_negative(x), " ", x, " (bvneg ", x, "))");
    };
    assumed_ += cat(" (distinct ", b, " ", zero, ") (not (and (= ", a, " ", least, ") (= ", b, " ",
                    number(-1, t), "))) (bvsgt ", below(rest), " ", below(b), ") (or (= ", rest,
                    " ", zero, ") (= ", is_negative(rest), " ", is_negative(a), "))");
  }
  if (op == Op::TruncDiv) return quotient;
  if (op == Op::TruncMod) return rest;
  const std::string down = cat("(and (distinct ", rest, " ", zero, ") (distinct (bvslt ", rest, " ",
                               zero, ") (bvslt ", b, " ", zero, ")))");
  if (op == Op::FloorDiv)
    return cat("(ite ", down, " (bvsub ", quotient, " ", number(1, t), ") ", quotient, ")");
  return cat("(ite ", down, " (bvadd ", rest, " ", b, ") ", rest, ")");
}

Decision decide(const std::string& condition) {
  SmtText q;
  q.assert_that(condition);
  return solve(q, 1000 * kSolverSteps).decision;
}

}  // namespace tiny::test
