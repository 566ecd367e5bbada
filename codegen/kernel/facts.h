// Facts of kernel nodes that every renderer asks for: what may wrap, trap or be out of range.
#pragma once
#include "tiny/ir/node.h"

namespace tiny {

// The exact result of this integer operation fits its dtype, by the bounds of its sources.
bool cannot_wrap(Node n);

// The cases that a TruncDiv or TruncMod must be guarded against, by the bounds of its sources. The
// guarded results: x / 0 = 0, x % 0 = 0, lowest / -1 = lowest, lowest % -1 = 0.
struct DivideHazard {
  bool by_zero = false, overflow = false;
  bool any() const { return by_zero || overflow; }
};
DivideHazard divide_hazard(Node n);

// The amount of this shift may be outside 0 .. bits-1. Renderers use its low bits then.
bool shift_may_exceed(Node n);

// For a float Max or Min: the operand (0 or 1) that is a Const and not NaN, or -1. With one, a
// single compare-and-select that returns the other operand when unordered lets NaN through.
int ordered_operand(Node n);

// Whether a float is a NaN or so far from 0 and from infinity that 1 / x is a normal number.
bool has_normal_inverse(Node x);

// A number that divides every value of an integer node (0 for the constant 0).
int64_t known_factor(Node n);

// A store of whole aligned vectors to a buffer too large for the caches: it need not be read first
// nor kept there. A plain copy of the C library does the same. Of a cache line all is stored in the
// same iteration: parts of lines that wait for the rest are written one by one.
bool is_streaming_store(Node store);

// Operation of a Reduce, Fold or Update, with Add, Mul, Max, Min of bools as Or and And.
Op combine_op(Op op, DType dtype);

// The payload of a Param in a kernel, or of a Stage: the kernel's argument, and its elements.
inline int slot_of(Node param) { return static_cast<int>(param->ints()[0]); }
inline int64_t elements_of(Node param) { return param->ints()[1]; }

inline Node gate_of(Node load_or_store) {  // nullptr where there is none, or one that always holds
  const uint32_t at = load_or_store->is(Op::Load) ? 2 : 3;
  if (load_or_store->num_src <= at) return nullptr;
  const Node gate = load_or_store->src(static_cast<int>(at));
  return gate->is_const(1) ? nullptr : gate;
}

}  // namespace tiny
