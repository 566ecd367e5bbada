// HIP text to code objects for AMD GPUs by hiprtc, a library that is opened when the first kernel
// is compiled. Needs no GPU.
#pragma once
#include <string>

namespace tiny {

// The code object of a source without includes, for an architecture such as "gfx942"; any number of
// threads may call it. Throws DeviceError with the compiler's messages, when there is no hiprtc, or
// for an architecture that its version does not know: old ones abort the process then.
std::string compile_hiprtc(const std::string& text, const std::string& arch,
                           const std::string& entry = "kernel");

// Why hiprtc cannot compile for the architecture; empty when it can.
std::string hiprtc_missing_reason(const std::string& arch);
std::string hiprtc_id();  // version and options, for cache keys

// The first version of HIP, as hip_version() numbers it, that compiles for an architecture; 0 where
// that is not known.
int hip_version_for(const std::string& arch);

}  // namespace tiny
