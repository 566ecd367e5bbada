// Kernels of codegen/render/llvm/amdgpu.h to code objects for AMD GPUs: LLVM compiles them in this
// process, lld, run as a child process, links them. Neither ROCm nor a GPU is needed.
#pragma once
#include <string>
#include <vector>

#include "runtime/device/device.h"

namespace tiny {

// The code object for an architecture such as "gfx942". Throws DeviceError with LLVM's message.
std::string compile_amd_llvm(const Source& source, const std::string& arch);
// One code object of several kernels, whose entries differ.
std::string compile_amd_llvm(const std::vector<Source>& kernels, const std::string& arch);

// The instructions of the same kernel, as text.
std::string amd_llvm_assembly(const Source& source, const std::string& arch);

std::string amd_llvm_missing_reason();  // empty when both are there
std::string amd_llvm_id();              // versions and options, for cache keys

}  // namespace tiny
