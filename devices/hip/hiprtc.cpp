#include "devices/hip/hiprtc.h"

#include <mutex>
#include <vector>

#include "devices/hip/driver.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/base/exit_order.h"
#include "tiny/base/library.h"

namespace tiny {
namespace {

using HiprtcProgram = struct HiprtcProgramTag*;

constexpr const char* kOptions[] = {"-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno",
                                    "-w"};

// Every function that we call: name, parameters; the results are status numbers.
#define TINY_HIPRTC_FUNCTIONS(X)                                                             \
  X(CreateProgram,                                                                           \
    (HiprtcProgram*, const char*, const char*, int, const char* const*, const char* const*)) \
  X(DestroyProgram, (HiprtcProgram*))                                                        \
  X(CompileProgram, (HiprtcProgram, int, const char* const*))                                \
  X(GetProgramLogSize, (HiprtcProgram, size_t*))                                             \
  X(GetProgramLog, (HiprtcProgram, char*))                                                   \
  X(GetCodeSize, (HiprtcProgram, size_t*))                                                   \
  X(GetCode, (HiprtcProgram, char*))

struct Hiprtc {
#define TINY_DECLARE(name, parameters) int(*name) parameters = nullptr;
  TINY_HIPRTC_FUNCTIONS(TINY_DECLARE)
#undef TINY_DECLARE
  const char* (*GetErrorString)(int) = nullptr;
};

// The name of a function that the library lacks, or nothing.
std::string bind_functions(void* library, Hiprtc& hiprtc) {
  LibraryFunctions functions(library);
#define TINY_NEED(name, parameters) functions.need("hiprtc" #name, hiprtc.name);
  TINY_HIPRTC_FUNCTIONS(TINY_NEED)
  TINY_NEED(GetErrorString, )
#undef TINY_NEED
  return functions.missing();
}

struct HiprtcSearch {
  Hiprtc hiprtc;
  std::string failure;

  HiprtcSearch() {
    std::vector<std::string> files = rocm_files("hiprtc");
    const std::string file = env_text("HIPRTC_LIBRARY");
    if (!file.empty()) files = {file};
    const OpenedLibrary opened = open_library(files);
    void* library = opened.handle;
    // Up to HIP 5 its functions are in the runtime's library.
    if (library == nullptr && file.empty()) library = hip_library();
    if (library == nullptr)
      failure = cat("AMD's compiler hiprtc was not found: ", opened.failure,
                    ". It comes with ROCm (rocm.docs.amd.com); HIPRTC_LIBRARY names the file "
                    "libhiprtc.so where it lies elsewhere");
    else if (const std::string missing = bind_functions(library, hiprtc); !missing.empty())
      failure = cat("AMD's compiler hiprtc has no function ", missing);
    if (failure.empty()) end_objects_before_libraries();
  }
};

const HiprtcSearch& hiprtc_search() {
  static const HiprtcSearch& instance =
      *new HiprtcSearch;  // never destroyed: used until the process ends
  return instance;
}

class HiprtcCompilation {
 public:
  HiprtcCompilation(const Hiprtc& hiprtc, const std::string& text) : hiprtc_(hiprtc) {
    status_ = hiprtc.CreateProgram(&program_, text.c_str(), "kernel.hip", 0, nullptr, nullptr);
  }
  ~HiprtcCompilation() {
    if (program_) hiprtc_.DestroyProgram(&program_);
  }
  HiprtcCompilation(const HiprtcCompilation&) = delete;
  HiprtcCompilation& operator=(const HiprtcCompilation&) = delete;

  std::string run(const std::string& arch) {
    const std::string target = "--offload-arch=" + arch;
    std::vector<const char*> options = {target.c_str()};
    options.insert(options.end(), std::begin(kOptions), std::end(kOptions));
    if (status_ == 0)
      status_ = hiprtc_.CompileProgram(program_, static_cast<int>(options.size()), options.data());
    return status_ == 0 ? read(hiprtc_.GetCodeSize, hiprtc_.GetCode) : "";
  }

  std::string log() {
    const std::string text = read(hiprtc_.GetProgramLogSize, hiprtc_.GetProgramLog);
    const size_t end = text.find_last_not_of(std::string("\0\n", 2));
    return end == std::string::npos ? hiprtc_.GetErrorString(status_) : text.substr(0, end + 1);
  }

 private:
  std::string read(int (*size_of)(HiprtcProgram, size_t*), int (*copy_to)(HiprtcProgram, char*)) {
    size_t size = 0;
    if (program_ == nullptr || size_of(program_, &size) != 0) return "";
    std::string bytes(size, '\0');
    return copy_to(program_, bytes.data()) == 0 ? bytes : "";
  }

  const Hiprtc& hiprtc_;
  HiprtcProgram program_ = nullptr;
  int status_ = 0;
};

}  // namespace

// ROCm's release notes and the clang that each release has: where they differ, the later one.
int hip_version_for(const std::string& arch) {
  struct Row {
    const char* arch;
    int major, minor;
  };
  constexpr Row kRows[] = {{"gfx900", 5, 0},  {"gfx906", 5, 0},  {"gfx908", 5, 0},
                           {"gfx90a", 5, 0},  {"gfx1030", 5, 0}, {"gfx1100", 5, 5},
                           {"gfx1101", 5, 5}, {"gfx1102", 5, 5}, {"gfx942", 6, 0},
                           {"gfx1200", 6, 4}, {"gfx1201", 6, 4}, {"gfx950", 7, 0}};
  for (const Row& row : kRows)
    if (row.arch == arch) return row.major * 10000000 + row.minor * 100000;
  return 0;
}

std::string hiprtc_missing_reason(const std::string& arch) {
  if (!hiprtc_search().failure.empty()) return hiprtc_search().failure;
  const int needed = hip_version_for(arch), found = hip_version();
  if (needed == 0)
    return cat("which versions of hiprtc know ", arch,
               " is not known here, and those that do not abort the process");
  if (found >= needed) return "";
  return cat("hiprtc of HIP ", hip_version_text(found), " does not know ", arch, ", HIP ",
             hip_version_text(needed), " does");
}

std::string compile_hiprtc(const std::string& text, const std::string& arch,
                           const std::string& entry) {
  if (const std::string reason = hiprtc_missing_reason(arch); !reason.empty())
    throw DeviceError("HIP: " + reason);
  // hiprtc puts ROCm's headers before the text: some of our functions have the names of theirs.
  static std::mutex mutex;  // nothing says that it may be called from two threads
  std::lock_guard lock(mutex);
  HiprtcCompilation compilation(hiprtc_search().hiprtc,
                                "namespace tiny_kernel {\n" + text + "\n}\n");
  std::string binary = compilation.run(arch);
  if (!binary.empty()) return binary;
  throw DeviceError(cat("hiprtc of HIP ", hip_version_text(hip_version()),
                        " cannot compile kernel ", entry, " for ", arch, ":\n", compilation.log(),
                        "\nDEBUG=4 prints the source of every kernel"));
}

std::string hiprtc_id() {
  if (!hiprtc_search().failure.empty()) throw DeviceError("HIP: " + hiprtc_search().failure);
  std::string id = cat("hiprtc ", hip_version());
  for (const char* option : kOptions) id += cat(" ", option);
  return id;
}

}  // namespace tiny
