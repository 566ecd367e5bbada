// Prints a linear program as textual LLVM IR (versions 16 to 21): SSA form, opaque pointers and
// explicit vector types.
#pragma once
#include "codegen/kernel/linear.h"
#include "codegen/target/source.h"
#include "codegen/target/target.h"

namespace tiny {

// The entry is `void name(ptr args, i64 begin, i64 end)`; `args` holds the buffers' addresses in
// slot order. The caller guarantees that a written buffer overlaps no other one, and that every
// buffer has at least one element to read (a gated load reads element 0 where its gate is false).
// Products are fused with sums where a MulAdd says so, and nothing of the arithmetic is relaxed.
// Casts of f16 need target.has_f16; decompose() removes them elsewhere, and those of bf16.
// Throws Bug for an operation that has no place in a linear program.
Source render_llvm(const Linear& program, const Target& target);

}  // namespace tiny
