#include "codegen/render.h"

#include <cmath>
#include <numeric>

#include "tiny/facts.h"

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

int64_t known_factor(Node n) {
  if (n->is_const()) return n->int_value();
  if (n->is(Op::Cast) && n->src(0)->dtype.is_int()) return known_factor(n->src(0));
  if (n->is(Op::Mul)) return known_factor(n->src(0)) * known_factor(n->src(1));
  if (n->is(Op::Add) || n->is(Op::Sub))
    return std::gcd(known_factor(n->src(0)), known_factor(n->src(1)));
  return 1;
}

bool is_streaming_store(Node store) {
  constexpr int64_t kTooLarge = 24 << 20;  // a share of the last cache: other data is there too
  const Node param = store->src(0), index = store->src(1);
  const DType t = store->src(2)->dtype;
  if (gate_of(store) || index->dtype.lanes > 1 || std::holds_alternative<OpArg>(store->payload))
    return false;
  const int64_t bytes = t.size() * t.lanes;
  return bytes >= 32 && param->ints()[1] * t.size() >= kTooLarge &&
         known_factor(index) % t.lanes == 0;
}

Op combine_op(Op op, DType dtype) {
  if (!dtype.is_bool()) return op;
  if (op == Op::Add || op == Op::Max) return Op::Or;
  if (op == Op::Mul || op == Op::Min) return Op::And;
  return op;
}

}  // namespace tiny
