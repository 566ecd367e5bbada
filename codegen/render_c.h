// Prints a linear program as C, for reading and for hosts without LLVM. What differs between C and
// its relatives is in the table of dialects in codegen/dialect.h.
#pragma once
#include "codegen/linear.h"
#include "codegen/source.h"
#include "codegen/target.h"

namespace tiny {

// The dialect is that of target.language (C for LlvmIr). C needs gcc 12 or clang 14, includes no
// header, and has the same entry and the same results as render_llvm, but for the order in which
// the compiler fuses products and sums to FMA. Casts of halves must have been decomposed. To be
// compiled without fast-math, with -fno-math-errno.
Source render_c(const Linear& program, const Target& target);

}  // namespace tiny
