// Emulates LLVM IR for AMD's GPUs (codegen/render/llvm/amdgpu.h): the same text, with the
// intrinsics of such a GPU replaced by calls, is compiled by LLVM for this processor, with the
// hooks of its thread sanitizer on accesses to memory.
#pragma once
#include <string>

#include "runtime/device/device.h"

namespace tiny {

// C++ text that stands for the kernel behind the emulator's prelude: the calls, and the kernel in
// this processor's assembler. Throws DeviceError without LLVM, or with its message.
std::string emulated_llvm_text(const Source& source);

// The IR that is compiled for this processor, and what it depends on besides, for cache keys.
std::string emulated_llvm_ir(const std::string& text);
std::string emulated_llvm_id();

}  // namespace tiny
