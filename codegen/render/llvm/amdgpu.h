// Prints a linear program as LLVM IR for AMD's GPUs (amdgcn), to be compiled by LLVM itself rather
// than by a compiler of HIP: the entry is a kernel `name(buffers...)`, with a parameter for each
// slot, as in HIP. Waves have target.warp lanes. No device library is needed.
#pragma once
#include "codegen/kernel/linear.h"
#include "codegen/target/source.h"
#include "codegen/target/target.h"

namespace tiny {

Source render_amdgpu(const Linear& program, const Target& target);

}  // namespace tiny
