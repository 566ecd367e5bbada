// Prints a linear program in a language of the C family: C, for reading and for hosts without LLVM,
// CUDA or HIP. What differs between them is in the table of dialects in codegen/render/c/dialect.h.
#pragma once
#include "codegen/kernel/linear.h"
#include "codegen/target/source.h"
#include "codegen/target/target.h"

namespace tiny {

// The dialect is that of target.language (C for LlvmIr).
//
// C needs gcc 12 or clang 14, includes no header, and has the same entry and the same results as
// render_llvm, but for the order in which the compiler fuses products and sums to FMA. Casts of
// 16-bit floats must have been decomposed. To be compiled without fast-math, with -fno-math-errno.
//
// CUDA and HIP are a prelude (codegen/render/c/prelude_gpu.h) and a kernel that has a parameter for
// every slot, used or not, and must be launched with the extents of its Thread ranges, x last.
// Buffers are aligned to 16 bytes or more. Loops over a range of kind Core run over all of it.
Source render_c(const Linear& program, const Target& target);

}  // namespace tiny
