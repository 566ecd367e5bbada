// CPU kernels through the system's C compiler, run as a child process: slower than LLVM in this
// process, but needs no library and its source can be read and debugged as any C program.
#pragma once
#include <memory>
#include <string>

#include "runtime/device/device.h"

namespace tiny {

// The compiler's version, flags and the processor: what a binary depends on besides its source.
// Throws DeviceError when there is no compiler.
std::string cc_id();

// C text to the bytes of a shared object. Throws DeviceError with the compiler's messages.
std::string compile_cc(const Source& source);

// Whether the bytes are a shared object; an object file of LLVM as one, by the system's linker.
bool is_shared_object(const std::string& binary);
std::string link_object(const std::string& object, const std::string& entry);

// Loads a shared object; it is unloaded when the program is destroyed. Throws DeviceError.
std::unique_ptr<Program> load_cc(const std::string& binary, const std::string& entry);

}  // namespace tiny
