#include "codegen/kernel/facts.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tiny/ir/facts.h"

namespace tiny {

// infer_bounds gives the dtype's full span to whatever might wrap, and 64-bit bounds saturate, so
// a bound that touches the end of the span says nothing.
bool cannot_wrap(Node n) {
  if (!n->dtype.is_int() || n->dtype.scalar == Scalar::U64) return false;
  if (n->dtype.is_unsigned()) return n->vmax < int_max(n->dtype);
  return n->vmin > int_min(n->dtype) && n->vmax < int_max(n->dtype);
}

DivideHazard divide_hazard(Node n) {
  const Node a = n->src(0), b = n->src(1);
  DivideHazard hazard;
  // Bounds of u64 are those of its lower half: only a Const is sure.
  const bool exact = n->dtype.scalar != Scalar::U64 || b->is_const();
  hazard.by_zero = !exact || (b->vmin <= 0 && b->vmax >= 0);
  hazard.overflow =
      n->dtype.is_signed() && a->vmin <= int_min(n->dtype) && b->vmin <= -1 && b->vmax >= -1;
  return hazard;
}

bool shift_may_exceed(Node n) {
  const Node amount = n->src(1);
  return amount->vmin < 0 || amount->vmax >= n->dtype.bits();
}

int ordered_operand(Node n) {
  for (int i = 0; i < 2; ++i)
    if (n->src(i)->is_const() && !std::isnan(n->src(i)->number())) return i;
  return -1;
}

namespace {

int64_t product(int64_t a, int64_t b) {  // or a factor of it
  int64_t c;
  return __builtin_mul_overflow(a, b, &c) ? 1 : c;
}

// The power of two in x, at most 2^62; that of 0 is all of it.
int64_t power_of_two_in(int64_t x) {
  constexpr int64_t kMax = int64_t{1} << 62;
  return x == 0 ? kMax : std::min(x & -x, kMax);
}

int64_t divided(int64_t factor, int64_t by) { return by > 0 && factor % by == 0 ? factor / by : 1; }

// 2^amount where that is known and a factor can be so large, else 0.
int64_t power_of_shift(Node n) {
  const Node amount = n->src(1);
  if (!amount->is_const() || amount->int_value() < 0 || amount->int_value() > 62) return 0;
  return int64_t{1} << amount->int_value();
}

// Of the exact result. Values have many paths to them (a random number's bits, say): `depth` is how
// far down to look.
int64_t exact_factor(Node n, int depth) {
  if (n->is_const()) return n->int_value() == INT64_MIN ? 1 : std::abs(n->int_value());
  if (!n->dtype.is_int() || depth == 0) return 1;
  const auto of = [=](int i) {
    const Node s = n->src(i);
    const int64_t factor = exact_factor(s, depth - 1);
    // Of a value that may wrap only its power of two divides the result.
    return s->is_const() || cannot_wrap(s) ? factor : power_of_two_in(factor);
  };
  switch (n->op) {
    case Op::Cast: return n->src(0)->dtype.is_int() ? of(0) : 1;
    case Op::Neg: return of(0);
    case Op::Mul: return product(of(0), of(1));
    case Op::Add:
    case Op::Sub:
    case Op::Max:
    case Op::Min:
    case Op::TruncMod: return std::gcd(of(0), of(1));
    case Op::Where: return std::gcd(of(1), of(2));
    case Op::And: return std::max(power_of_two_in(of(0)), power_of_two_in(of(1)));
    case Op::Or:
    case Op::Xor: return std::min(power_of_two_in(of(0)), power_of_two_in(of(1)));
    case Op::Shl: return power_of_shift(n) ? product(of(0), power_of_shift(n)) : 1;
    case Op::Shr: return divided(of(0), power_of_shift(n));
    case Op::TruncDiv: return n->src(1)->is_const() ? divided(of(0), of(1)) : 1;
    case Op::Range: return n->vmin == 0 && n->vmax == 0 ? 0 : 1;
    default: return 1;
  }
}

// Between which a float lies that is not NaN.
struct FloatRange {
  double least = -INFINITY, most = INFINITY;
};

bool are_opposite(Node a, Node b) {
  return (a->op == Op::Neg && a->src(0) == b) || (b->op == Op::Neg && b->src(0) == a);
}

FloatRange float_range(Node n, int depth) {
  if (n->is_const()) return {n->float_value(), n->float_value()};
  if (depth == 0) return {};
  const auto of = [&](int i) { return float_range(n->src(i), depth - 1); };
  switch (n->op) {
    case Op::Broadcast: return of(0);
    case Op::Neg: return {-of(0).most, -of(0).least};
    case Op::Exp2: return {std::exp2(of(0).least), std::exp2(of(0).most)};
    case Op::Exp: return {std::exp(of(0).least), std::exp(of(0).most)};
    case Op::Sqrt: return {0, INFINITY};
    case Op::Add: {
      const FloatRange a = of(0), b = of(1);
      const double least = a.least + b.least, most = a.most + b.most;
      return std::isnan(least) || std::isnan(most) ? FloatRange() : FloatRange{least, most};
    }
    case Op::Mul: {
      if (n->src(0) == n->src(1)) return {0, INFINITY};
      const double factor = n->src(1)->is_const() ? n->src(1)->float_value() : 0;
      if (!(factor > 0) || std::isinf(factor)) return {};
      const FloatRange a = of(0);
      return {a.least * factor, a.most * factor};
    }
    case Op::Max:
    case Op::Min: {
      const FloatRange a = of(0), b = of(1);
      const bool is_size = are_opposite(n->src(0), n->src(1));
      if (n->op == Op::Max)
        return {std::max(is_size ? 0 : a.least, b.least), std::max(a.most, b.most)};
      return {std::min(a.least, b.least), std::min(is_size ? 0 : a.most, b.most)};
    }
    case Op::Where: {
      const FloatRange a = of(1), b = of(2);
      return {std::min(a.least, b.least), std::max(a.most, b.most)};
    }
    default: return {};
  }
}

}  // namespace

bool has_normal_inverse(Node x) {
  constexpr int kDepth = 8;
  const FloatRange r = float_range(x, kDepth);
  return r.least >= 0x1p-125 && r.most <= 0x1p125;
}

int64_t known_factor(Node n) {
  const int64_t factor = exact_factor(n, 12);
  return n->is_const() || cannot_wrap(n) ? factor : power_of_two_in(factor);
}

bool is_streaming_store(Node store) {
  constexpr int64_t kTooLarge = 24 << 20;  // a share of the last cache: other data is there too
  constexpr int64_t kLine = 64;            // bytes
  const Node param = store->src(0), index = store->src(1);
  const DType t = store->src(2)->dtype;
  if (gate_of(store) || index->dtype.lanes > 1 || std::holds_alternative<OpArg>(store->payload))
    return false;
  const int64_t bytes = t.size() * t.lanes;
  if (bytes < 32 || elements_of(param) * t.size() < kTooLarge || known_factor(index) % t.lanes)
    return false;
  if (bytes >= kLine) return true;
  const bool goes_on = index->op == Op::Add && index->src(1)->is_const();
  return known_factor(goes_on ? index->src(0) : index) % (kLine / t.size()) == 0;
}

Op combine_op(Op op, DType dtype) {
  if (!dtype.is_bool()) return op;
  if (op == Op::Add || op == Op::Max) return Op::Or;
  if (op == Op::Mul || op == Op::Min) return Op::And;
  return op;
}

}  // namespace tiny
