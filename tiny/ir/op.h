// The table of operations. One enum serves every level, from a user's tensor to a statement of a
// kernel; `tiny/ir/verify.h` says which may occur at which stage.
#pragma once
#include <bitset>
#include <cstdint>
#include <ostream>

namespace tiny {

enum class OpClass : uint8_t { Leaf, Unary, Binary, Ternary, Movement, Tensor, Kernel, Statement };

// name, class, number of sources (-1: any), commutative
#define TINY_OPS(X)                                                                                \
  /* leaves */                                                                                     \
  X(Const, Leaf, 0, false)  /* int64 or double payload, shape () */                                \
  X(Buffer, Leaf, 0, false) /* memory, one dimension */                                            \
  X(Iota, Leaf, 0, false)   /* Ints{n}: 0, 1, ... n-1; Ints{n, device}: those of a device */       \
  X(Param, Leaf, 0, false)  /* Ints{slot, dims...}: a kernel's argument */                         \
  X(Range, Leaf, 1, false)  /* RangeArg; source: extent. Values 0 .. extent-1 */                   \
  /* element-wise, one source */                                                                   \
  X(Cast, Unary, 1, false)                                                                         \
  X(Bitcast, Unary, 1, false)                                                                      \
  X(Neg, Unary, 1, false)                                                                          \
  X(Recip, Unary, 1, false)                                                                        \
  X(Sqrt, Unary, 1, false)                                                                         \
  X(Exp2, Unary, 1, false)                                                                         \
  X(Exp, Unary, 1, false) /* in a kernel: Exp2 of a rounded product is not as exact */             \
  X(Log2, Unary, 1, false)                                                                         \
  X(Sin, Unary, 1, false)                                                                          \
  X(Floor, Unary, 1, false)                                                                        \
  X(Trunc, Unary, 1, false)                                                                        \
  X(Bound, Unary, 1, false) /* Ints{min, max}: the same integer, known to lie between the two */   \
  /* element-wise, two sources */                                                                  \
  X(Add, Binary, 2, true)                                                                          \
  X(Sub, Binary, 2, false)                                                                         \
  X(Mul, Binary, 2, true)                                                                          \
  X(Div, Binary, 2, false)      /* floats */                                                       \
  X(FloorDiv, Binary, 2, false) /* integers, towards minus infinity; x / 0 is undefined */         \
  X(FloorMod, Binary, 2, false) /* x - floor(x / y) * y: the sign of y */                          \
  X(TruncDiv, Binary, 2, false) /* integers, towards zero, as in C */                              \
  X(TruncMod, Binary, 2, false) /* the sign of x, as in C */                                       \
  X(Max, Binary, 2, true)       /* NaN if either is NaN */                                         \
  X(Min, Binary, 2, true)       /* NaN if either is NaN */                                         \
  X(Shl, Binary, 2, false)                                                                         \
  X(Shr, Binary, 2, false) /* arithmetic for signed, logical for unsigned */                       \
  X(And, Binary, 2, true)                                                                          \
  X(Or, Binary, 2, true)                                                                           \
  X(Xor, Binary, 2, true)                                                                          \
  X(Lt, Binary, 2, false)                                                                          \
  X(Le, Binary, 2, false)                                                                          \
  X(Eq, Binary, 2, true)                                                                           \
  X(Ne, Binary, 2, true) /* NaN != NaN is true, as in IEEE 754 */                                  \
  /* element-wise, three sources */                                                                \
  X(Where, Ternary, 3, false) /* condition, then, else */                                          \
  X(MulAdd, Ternary, 3,                                                                            \
    false) /* x y + z of floats in a kernel: by FMA, where the device has it */                    \
  X(ByteDot, Ternary, 3,                                                                           \
    false) /* i32 x, y, z: z + the products of x's four bytes, unsigned, and y's, signed */        \
  /* movement: views of one source */                                                              \
  X(Reshape, Movement, 1, false) /* Ints: new shape */                                             \
  X(Permute, Movement, 1, false) /* Ints: source axis of each result axis */                       \
  X(Expand, Movement, 1, false)  /* Ints: new shape; only axes of size 1 grow */                   \
  X(Pad, Movement, 1, false)     /* Ints: before, after for each axis; fills with zero */          \
  X(Shrink, Movement, 1, false)  /* Ints: begin, end for each axis */                              \
  X(Flip, Movement, 1, false)    /* Ints: 1 for each reversed axis, else 0 */                      \
  X(Stride, Movement, 1, false)  /* Ints: step >= 1 for each axis; keeps 0, s, 2s, ... */          \
  X(Affine, Movement, 1, false)  /* Ints: rank, shape; per source axis: offset, factor per axis */ \
  X(Limit, Movement, 2,                                                                            \
    false) /* Ints{axis}; x, n: of the axis, only the first n elements count */                    \
  X(Whole, Movement, 1, false) /* all elements of axes with a limit; those beyond are anything */  \
  /* the rest of a tensor graph */                                                                 \
  X(ReduceAxis, Tensor, 1, false)    /* ReduceArg; reduced axes stay with size 1 */                \
  X(Gather, Tensor, -1, false)       /* data, one index per data axis; outside: zero */            \
  X(Scatter, Tensor, -1, false)      /* base, values, one index per base axis; ScatterArg */       \
  X(Contiguous, Tensor, 1, false)    /* the same values, in memory of their own */                 \
  X(Detach, Tensor, 1, false)        /* no gradient passes */                                      \
  X(RoundGradient, Tensor, 1, false) /* int64 Scalar: to which its gradient is rounded */          \
  X(Leaf, Tensor, 1, false)          /* int64 id: a tensor whose gradient is wanted */             \
  X(Copy, Tensor, -1, false)         /* int64 device id; of several: Ints{id, SumBy, Together} */  \
  X(Shard, Tensor, 1, false)       /* Ints{group, axis}: the same values on a group of devices */  \
  X(Multi, Tensor, -1, false)      /* Ints{group, axis}: a piece on each device of a group */      \
  X(Assign, Tensor, 2, false)      /* old, new: `new`, in the memory of `old` where possible */    \
  X(After, Tensor, 2, false)       /* the first source, once the second has been computed */       \
  X(Checkpoint, Tensor, -1, false) /* the first; its gradient computes it again from the others */ \
  X(WithDerivative, Tensor, 3,                                                                     \
    false) /* the first; the third is added to its derivative by the second */                     \
  X(CustomGradient, Tensor, -1,                                                                    \
    false) /* value, seed, [input, gradient]...: in which the seed stands for the value's */       \
  X(Sink, Tensor, -1, false) /* all outputs of a graph or stores of a kernel */                    \
  /* a kernel */                                                                                   \
  X(Load, Kernel, -1, false)   /* param, index, [gate]: zero where the gate is false */            \
  X(Store, Kernel, -1, false)  /* param, index, value, [gate]; OpArg: old op value */              \
  X(Reduce, Kernel, -1, false) /* OpArg; value, ranges...: closes the ranges */                    \
  X(Prefix, Kernel, -1, false) /* OpArg; value, ranges...: over all earlier iterations */          \
  X(Roll, Kernel, 2,                                                                               \
    false) /* value, scale: a Reduce's term; what is summed so far is scaled first, in order */    \
  X(Stage, Kernel, -1,                                                                             \
    false) /* Ints; codegen/options/stage.h: values in shared memory, for loads */                 \
  X(Ramp, Kernel, 0, false)      /* a vector 0, 1, ... lanes-1 */                                  \
  X(Broadcast, Kernel, 1, false) /* a scalar in every lane */                                      \
  X(Reverse, Kernel, 1, false)   /* lanes in reverse order */                                      \
  X(Matrix, Kernel, -1, false)   /* codegen/wgmma/tile.h; where in the operands a tile begins */   \
  X(Mma, Kernel, -1,                                                                               \
    false) /* codegen/options/mma.h; two operands' elements, which of the results */               \
  X(Column, Kernel, -1, false) /* n vectors of n lanes, index c: lane c of each of them */         \
  X(Shuffle, Kernel, 2, false) /* Ints: for each lane one of the sources' lanes, a then b */       \
  X(Fold, Kernel, 1, false)    /* OpArg; all lanes of a vector combined to one */                  \
  /* a linear program: statements in order (codegen/kernel/linear.h) */                            \
  X(Loop, Statement, -1, false)    /* range: opens its loop */                                     \
  X(EndLoop, Statement, 1, false)  /* range: closes it */                                          \
  X(Acc, Statement, 1, false)      /* reduce: declares its accumulator, set to the identity */     \
  X(Update, Statement, 1, false)   /* reduce: accumulator = combine(accumulator, reduce.src 0) */  \
  X(Rescale, Statement, -1, false) /* reduces: accumulators times the scale of their Rolls */      \
  X(Group, Statement, 1, false)    /* reduce: combines its accumulators over a group of threads */ \
  X(Fetch, Statement, 1, false)    /* store of a load to a stage: a copy that arrives later */     \
  X(Barrier, Statement, 1, false)  /* copies that may still be under way, when all threads meet */

enum class Op : uint8_t {
#define X(name, cls, arity, comm) name,
  TINY_OPS(X)
#undef X
      Count
};

inline constexpr int kOps = static_cast<int>(Op::Count);

struct OpInfo {
  const char* name;
  OpClass cls;
  int8_t arity;
  bool commutative;
};

inline constexpr OpInfo kOpTable[kOps] = {
#define X(name, cls, arity, comm) {#name, OpClass::cls, arity, comm},
    TINY_OPS(X)
#undef X
};

constexpr const OpInfo& info(Op op) { return kOpTable[static_cast<int>(op)]; }
constexpr bool is_movement(Op op) { return info(op).cls == OpClass::Movement; }
constexpr bool is_elementwise(Op op) {
  return info(op).cls >= OpClass::Unary && info(op).cls <= OpClass::Ternary;
}
// The value of the source, but for gradients.
constexpr bool is_for_gradients(Op op) {
  return op == Op::Leaf || op == Op::Detach || op == Op::RoundGradient;
}
constexpr bool is_comparison(Op op) { return op >= Op::Lt && op <= Op::Ne; }

using OpSet = std::bitset<kOps>;
template <class... Ops> OpSet op_set(Ops... ops) {
  OpSet set;
  (set.set(static_cast<size_t>(ops)), ...);
  return set;
}

inline std::ostream& operator<<(std::ostream& out, Op op) { return out << info(op).name; }

}  // namespace tiny
