#include "codegen/render.h"

#include <cmath>

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
  hazard.overflow = n->dtype.is_signed() && a->vmin <= int_min(n->dtype) && b->vmin <= -1 &&
                    b->vmax >= -1;
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

Op combine_op(Op op, DType dtype) {
  if (!dtype.is_bool()) return op;
  if (op == Op::Add || op == Op::Max) return Op::Or;
  if (op == Op::Mul || op == Op::Min) return Op::And;
  return op;
}

}  // namespace tiny
