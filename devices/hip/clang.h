// HIP text to code objects for AMD GPUs by clang, run as a child process: neither a GPU nor ROCm is
// needed, clang 19 or later is. gfx numbers that a version does not know are errors of its.
#pragma once
#include <string>

namespace tiny {

// The code object of a source without includes, for an architecture such as "gfx942". Throws
// DeviceError with the compiler's messages, or when there is no compiler.
std::string compile_hip(const std::string& text, const std::string& arch,
                        const std::string& entry = "kernel");

// The instructions of the same kernel, as text.
std::string hip_assembly(const std::string& text, const std::string& arch,
                         const std::string& entry = "kernel");

bool hip_clang_available();
std::string hip_clang_missing_reason();  // empty when it is available
std::string hip_clang_id();              // command, version and options, for cache keys

// Resources of a kernel in a code object, of the first one where none is named, from its metadata
// note ("User Guide for AMDGPU Backend", Code Object V5 Metadata); -1 where it says nothing. Bytes
// of a thread's private memory are arrays that are indexed dynamically or registers that did not
// fit.
struct HipResources {
  int registers = -1, private_bytes = -1, spilled_registers = -1;
};
HipResources hip_resources(const std::string& code_object, const std::string& entry = "");

}  // namespace tiny
