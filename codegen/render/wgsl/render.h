// Prints a linear program in WGSL, the language of WebGPU (https://www.w3.org/TR/WGSL).
#pragma once
#include "codegen/kernel/linear.h"
#include "codegen/target/source.h"
#include "codegen/target/target.h"

namespace tiny {

// WGSL has no pointers, no vectors of more than four lanes, no memory of less than 32 bits and no
// arithmetic of 64: it shares no text with the C family, so that it has a printer of its own.
//
// Vectors are as many scalars. 8- and 16-bit elements lie in words of 32 bits, of which a store
// changes its part by compare and exchange, unless it has all of the word. A buffer of i64 holds
// pairs of words, which kernels may move, compare and take for indices; what else is computed with
// is the low one, where bounds say that this is the value.
// Throws Error, with the kernel, where they do not, and for f64.
//
// The text declares `@group(0) @binding(slot) var<access> b<slot>: type;  // n bytes[, written]`
// for each slot in use: `uniform` for lengths (Op::Bound of a scalar), else `storage, read_write`,
// also of what is only read, since one buffer of a WebGPU device cannot be bound in both ways at
// once. Runners read these lines. The entry point is `main`.
// Where a dimension of the grid is larger than target.most_blocks, workgroups are counted through
// x and y of the dispatch (dispatch_size).
Source render_wgsl(const Linear& program, const Target& target);

}  // namespace tiny
