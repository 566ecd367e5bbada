// exp2, log2 and sin of f32 and f64 as straight-line arithmetic, for targets without such
// instructions. Scalars and vectors alike; no branches, every lane takes the same path.
#pragma once
#include "tiny/ir/node.h"

namespace tiny {

// Whether fused or not, products and sums stay within the errors that are stated in the source
// file at each function. Infinities, NaN and subnormal numbers are right in all of them.
// `plain`: of f32, with neither integers of 64 bits nor sums whose order counts, which WGSL lets
// compilers change.
Node lower_exp2(Node x, bool plain = false);
Node lower_exp(Node x, bool plain = false);
Node lower_log2(Node x);  // -inf at zero, NaN below
Node lower_sin(Node x, bool plain = false);

}  // namespace tiny
