// CPU kernels through LLVM's C interface, versions 16 to 21 and later ones that still offer the
// same functions. The library is opened at run time; nothing of it is needed to build. Compiling
// and loading may run on any number of threads at once.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/device.h"

namespace tiny {

// Whether LLVM's library was found, and if not, what was searched and how to install it. The
// search runs once in a process and obeys LLVM_PATH.
bool llvm_available();
std::string llvm_missing_reason();

// Tries to open LLVM from the first of these files that is there: empty when one is fit for us,
// else the reason as above. Has no lasting effect.
std::string llvm_search_failure(const std::vector<std::string>& files);

// Compiler, version, processor, features and flags: what an object depends on besides its source.
std::string llvm_id();

// Textual LLVM IR to the bytes of an object file. Throws DeviceError with LLVM's message, which
// shows the offending line, and the kernel's name.
std::string compile_llvm(const Source& source);

// Loads an object file; the code is given back when the program is destroyed. Functions of the
// C library may be referenced. Throws DeviceError when `entry` or a symbol is missing.
std::unique_ptr<Program> load_llvm(const std::string& object, const std::string& entry);

}  // namespace tiny
