// CUDA C++ to machine code by NVRTC, a library that is opened when the first kernel is compiled.
// Needs neither a GPU nor a driver nor the toolkit's headers.
#pragma once
#include <string>
#include <vector>

namespace tiny {

// The machine code (cubin) of a source without includes, for an architecture such as "sm_90a", or
// the PTX text for "compute_90"; any number of threads may call it at once (see cuda_worker.h).
// `log` receives what the compiler and its assembler say. Throws DeviceError with the log and the
// lines of the source that it names, or when there is no NVRTC.
std::string compile_cuda(const std::string& text, const std::string& arch,
                         std::string* log = nullptr, const std::string& entry = "kernel");

// Resources of a kernel as the assembler logs them, of the first one where none is named; -1 where
// it says nothing. Bytes of the stack are arrays that are indexed dynamically, spilled ones are
// registers that did not fit.
struct CudaResources {
  int registers = -1, stack_bytes = -1, spill_bytes = -1;
};
CudaResources cuda_resources(const std::string& log, const std::string& entry = "");

// The architecture to compile for on a GPU of that compute capability: with the features that only
// it has ("sm_90a") where there are such, and PTX ("compute_121") for the newest one that NVRTC
// knows where the GPU is newer. Throws DeviceError for one that NVRTC no longer knows.
std::string cuda_arch(int major, int minor);
// The same for an NVRTC that knows `known`, numbers such as 90, in rising order.
std::string cuda_arch(int major, int minor, const std::vector<int>& known);

bool nvrtc_available();
std::string nvrtc_missing_reason();  // empty when it is available
std::string nvrtc_version();         // "13.0"; throws DeviceError where there is none
bool nvrtc_is_at_least(int major, int minor);
std::string nvrtc_id();    // version and options, for cache keys
std::string nvrtc_file();  // the name that it was opened by

// The reason why none of the files is a fit NVRTC, or nothing; for tests.
std::string nvrtc_search_failure(const std::vector<std::string>& files);

// A compilation in this process, where only one runs at a time. It throws nothing but DeviceError
// for a missing library; `log` tells why it failed.
struct NvrtcResult {
  bool ok = false;
  std::string binary, log;
};
NvrtcResult nvrtc_compile(const std::string& text, const std::string& arch);

}  // namespace tiny
