// Cost of computing a value again instead of storing it.
#pragma once
#include "tiny/ir/op.h"

namespace tiny {

// Of an operation for each element, in vector operations.
inline int work_of(Op op) {
  static const OpSet expensive = op_set(Op::Exp2, Op::Log2, Op::Sin, Op::Sqrt, Op::Recip, Op::Div,
                                        Op::FloorDiv, Op::FloorMod, Op::TruncDiv, Op::TruncMod);
  if (op == Op::Gather || op == Op::Stride || op == Op::Pad) return 4;
  if (!is_elementwise(op) || op == Op::Cast) return 0;
  return expensive.test(static_cast<size_t>(op)) ? 8 : 1;
}

// Values that cost less in all are computed by each kernel that reads them; others may be stored.
inline constexpr int kWorthStoring = 12;
// A GPU does more operations in the time in which it writes a value and reads it back.
inline int worth_storing(bool gpu) { return gpu ? 64 : kWorthStoring; }

}  // namespace tiny
