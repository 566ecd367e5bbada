// CPU kernels through LLVM's C interface. Compiling and loading may run on any number of threads at
// once.
#pragma once
#include <memory>
#include <string>

#include "devices/compilers/llvm_library.h"
#include "runtime/device/device.h"

namespace tiny {

// Compiler, version, processor, features and flags: what an object depends on besides its source.
std::string llvm_id();

// Textual LLVM IR to the bytes of an object file. Throws DeviceError with LLVM's message, which
// shows the offending line, and the kernel's name.
std::string compile_llvm(const Source& source);

// Loads an object file; the code is given back when the program is destroyed. Functions of the
// C library may be referenced. Throws DeviceError when `entry` or a symbol is missing.
std::unique_ptr<Program> load_llvm(const std::string& object, const std::string& entry);

}  // namespace tiny
