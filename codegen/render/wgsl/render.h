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
// changes its part by compare and exchange, unless it has all of the word. Integers of 64 bits are
// pairs of words; what is computed with is the low one alone where bounds say that this is the
// value, or where nothing depends on the high one, as in an index.
// Throws Error, with the kernel, for f64 and where threads add to integers of 64 bits in memory.
//
// The text declares `@group(0) @binding(slot) var<access> b<slot>: type;  // n bytes[, written]`
// for each slot in use: `uniform` for lengths (Op::Bound of a scalar), else `storage, read_write`,
// also of what is only read, since one buffer of a WebGPU device cannot be bound in both ways at
// once. Runners read these lines. The entry point is `main`.
// Lines that end with `//+subgroups` are for devices with the feature of this name and the builtin
// subgroup_id, those with `//-subgroups` for others: who makes a shader of the text leaves out one
// or the other. With them, the threads of a subgroup combine theirs by shuffles before they meet in
// workgroup memory; how many they are is known when the kernel runs.
// Those with `//+f16` and `//-f16` are in the same way for devices with the feature shader-f16, to
// which f16 is a type of its own, in memory as well, and for others, to which it is its bits in a
// u32. Either computes in f32 and rounds each result.
// Where a dimension of the grid is larger than target.most_blocks, workgroups are counted through
// x and y of the dispatch (dispatch_size).
Source render_wgsl(const Linear& program, const Target& target);

}  // namespace tiny
