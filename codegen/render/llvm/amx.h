// Prints GEMMs on the matrix units of CPUs (AMX, VNNI; codegen/options/mma.h) as LLVM IR: tile
// registers, which have numbers there, and vectors. Where the target has them emulated, as plain
// code.
#pragma once
#include "codegen/kernel/linear.h"
#include "codegen/target/source.h"
#include "codegen/target/target.h"

namespace tiny {

bool has_tiles(const Linear& program);

// As render_llvm. Throws Error for a kernel with more tiles than there are registers.
Source render_llvm_tiles(const Linear& program, const Target& target);

}  // namespace tiny
