#include "devices/cuda/nvrtc.h"

#include <algorithm>
#include <cstdlib>
#include <set>

#include "devices/cuda/nvrtc_worker.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/base/exit_order.h"
#include "tiny/base/library.h"
#include "tiny/base/text.h"
#include "tiny/ir/node.h"

namespace tiny {
namespace {

using NvrtcProgram = struct NvrtcProgramTag*;

constexpr int kInvalidOption = 5;
constexpr const char* kFileName = "kernel.cu";  // the source's name in the log

// -default-device: functions without __device__ are for the GPU too. Warnings would be about
// generated code, the assembler's report is wanted in the log. The text says what is contracted.
constexpr const char* kOptions[] = {"--std=c++17", "-default-device", "--disable-warnings",
                                    "--fmad=false", "--ptxas-options=-v"};

// Every function that we call: name, parameters; the results are status numbers.
#define TINY_NVRTC_FUNCTIONS(X)                                                             \
  X(Version, (int*, int*))                                                                  \
  X(GetNumSupportedArchs, (int*))                                                           \
  X(GetSupportedArchs, (int*))                                                              \
  X(CreateProgram,                                                                          \
    (NvrtcProgram*, const char*, const char*, int, const char* const*, const char* const*)) \
  X(DestroyProgram, (NvrtcProgram*))                                                        \
  X(CompileProgram, (NvrtcProgram, int, const char* const*))                                \
  X(GetProgramLogSize, (NvrtcProgram, size_t*))                                             \
  X(GetProgramLog, (NvrtcProgram, char*))                                                   \
  X(GetPTXSize, (NvrtcProgram, size_t*))                                                    \
  X(GetPTX, (NvrtcProgram, char*))                                                          \
  X(GetCUBINSize, (NvrtcProgram, size_t*))                                                  \
  X(GetCUBIN, (NvrtcProgram, char*))

struct Nvrtc {
#define TINY_DECLARE(name, parameters) int(*name) parameters = nullptr;
  TINY_NVRTC_FUNCTIONS(TINY_DECLARE)
#undef TINY_DECLARE
  const char* (*GetErrorString)(int) = nullptr;

  std::string file;
  int major = 0, minor = 0;
  std::vector<int> archs;  // 75, 80 .. in rising order

  std::string version() const { return cat(major, ".", minor); }
};

// ---------------------------------------------------------------------------- the library

std::vector<std::string> nvrtc_files() {
  if (std::string file = env_text("NVRTC_LIBRARY"); !file.empty()) return {file};
  std::vector<std::string> folders = {""};  // the linker's path
  if (const char* home = std::getenv("CUDA_HOME"); home && *home)
    folders.push_back(cat(home, "/lib64/"));
  folders.push_back("/usr/local/cuda/lib64/");
  folders.push_back("/usr/local/cuda/targets/x86_64-linux/lib/");
  std::vector<std::string> files;
  for (const std::string& folder : folders)
    for (const char* ending : {".13", ".12", ".11.2", ""})
      files.push_back(cat(folder, "libnvrtc.so", ending));
  return files;
}

// Fills the table of functions; gives the name of one that the library lacks, or nothing.
std::string bind_functions(void* library, Nvrtc& nvrtc) {
  LibraryFunctions functions(library);
#define TINY_NEED(name, parameters) functions.need("nvrtc" #name, nvrtc.name);
  TINY_NVRTC_FUNCTIONS(TINY_NEED)
  TINY_NEED(GetErrorString, )
#undef TINY_NEED
  return functions.missing();
}

// NVRTC opens a second library by its bare name, which the linker finds where it is open already:
// outside the linker's path it lies beside the first.
void open_builtins(const Nvrtc& nvrtc) {
  const size_t slash = nvrtc.file.rfind('/');
  if (slash == std::string::npos) return;
  const std::string file =
      cat(nvrtc.file.substr(0, slash), "/libnvrtc-builtins.so.", nvrtc.version());
  dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL);
}

// Why an open library is no NVRTC that can be used; nothing of one that is, which fills the table.
std::string fault_of(void* library, const std::string& file, Nvrtc& nvrtc) {
  const std::string missing = bind_functions(library, nvrtc);
  if (!missing.empty()) return cat("has no function ", missing, ", NVRTC 11.2 or later is needed");
  nvrtc.file = file;
  nvrtc.Version(&nvrtc.major, &nvrtc.minor);
  int count = 0;
  nvrtc.GetNumSupportedArchs(&count);
  nvrtc.archs.resize(count);
  nvrtc.GetSupportedArchs(nvrtc.archs.data());
  std::ranges::sort(nvrtc.archs);
  open_builtins(nvrtc);
  return "";
}

OpenedLibrary open_nvrtc(const std::vector<std::string>& files, Nvrtc& nvrtc) {
  OpenedLibrary opened = open_library(files, RTLD_LAZY, [&](void* library, const auto& file) {
    return fault_of(library, file, nvrtc);
  });
  if (!opened.handle)
    opened.failure =
        cat("CUDA's compiler NVRTC was not found: ", opened.failure,
            ". Install it (from NVIDIA's repository: apt install cuda-nvrtc-13-0; or pip install "
            "nvidia-cuda-nvrtc-cu12), or set NVRTC_LIBRARY to the file libnvrtc.so.12 or .13 that "
            "came with PyTorch or pip");
  return opened;
}

struct NvrtcSearch {
  Nvrtc nvrtc;
  std::string failure;

  NvrtcSearch() {
    failure = open_nvrtc(nvrtc_files(), nvrtc).failure;
    if (failure.empty()) end_objects_before_libraries();
  }
};

const NvrtcSearch& nvrtc_search() {
  static const NvrtcSearch& instance =
      *new NvrtcSearch;  // never destroyed: used until the process ends
  return instance;
}

const Nvrtc& library() {
  if (!nvrtc_search().failure.empty()) throw DeviceError(nvrtc_search().failure);
  return nvrtc_search().nvrtc;
}

// ---------------------------------------------------------------------------- compiling

class NvrtcCompilation {
 public:
  NvrtcCompilation(const Nvrtc& nvrtc, const std::string& text) : nvrtc_(nvrtc) {
    status_ = nvrtc.CreateProgram(&program_, text.c_str(), kFileName, 0, nullptr, nullptr);
  }
  ~NvrtcCompilation() {
    if (program_) nvrtc_.DestroyProgram(&program_);
  }
  NvrtcCompilation(const NvrtcCompilation&) = delete;
  NvrtcCompilation& operator=(const NvrtcCompilation&) = delete;

  NvrtcResult run(const std::string& arch) {
    const std::string target = "--gpu-architecture=" + arch;
    std::vector<const char*> options = {target.c_str()};
    options.insert(options.end(), std::begin(kOptions), std::end(kOptions));
    if (status_ == 0)
      status_ = nvrtc_.CompileProgram(program_, static_cast<int>(options.size()), options.data());
    const bool is_code = arch.rfind("sm_", 0) == 0;
    NvrtcResult result;
    result.log = trim(read(nvrtc_.GetProgramLogSize, nvrtc_.GetProgramLog));
    if (status_ == 0)
      result.binary = is_code ? read(nvrtc_.GetCUBINSize, nvrtc_.GetCUBIN)
                              : trim(read(nvrtc_.GetPTXSize, nvrtc_.GetPTX));
    result.ok = status_ == 0 && !result.binary.empty();
    if (!result.ok) explain(result.log);
    return result;
  }

 private:
  std::string read(int (*size_of)(NvrtcProgram, size_t*), int (*copy_to)(NvrtcProgram, char*)) {
    size_t size = 0;
    if (program_ == nullptr || size_of(program_, &size) != 0) return "";
    std::string bytes(size, '\0');
    return copy_to(program_, bytes.data()) == 0 ? bytes : "";
  }

  static std::string trim(std::string text) {  // texts end with a zero that counts
    while (!text.empty() && (text.back() == '\0' || text.back() == '\n')) text.pop_back();
    return text;
  }

  void explain(std::string& log) {
    if (log.empty()) log = nvrtc_.GetErrorString(status_);
    if (status_ != kInvalidOption) return;
    log += "; this NVRTC knows";
    for (int arch : nvrtc_.archs) log += cat(" sm_", arch);
  }

  const Nvrtc& nvrtc_;
  NvrtcProgram program_ = nullptr;
  int status_ = 0;
};

// The numbers in "kernel.cu(12): error".
std::set<int> lines_named(const std::string& log) {
  std::set<int> lines;
  const std::string mark = cat(kFileName, "(");
  for (size_t at = 0; (at = log.find(mark, at)) != std::string::npos;) {
    at += mark.size();
    lines.insert(std::atoi(log.c_str() + at));
  }
  return lines;
}

// The lines with their neighbours, numbered.
std::string excerpt(const std::string& text, const std::set<int>& lines) {
  TextReader in(text);
  std::string out, line;
  for (int number = 1; std::getline(in, line); ++number) {
    const auto near = lines.lower_bound(number - 1);
    if (near == lines.end() || *near > number + 1) continue;
    const std::string digits = cat(number);
    out += cat(std::string(digits.size() < 5 ? 5 - digits.size() : 0, ' '), digits,
               lines.count(number) ? " > " : " | ", line, "\n");
  }
  return out;
}

// The number before a mark of the log: "16 bytes spill stores".
int number_before(const std::string& log, const std::string& mark) {
  const size_t at = log.find(mark);
  if (at == std::string::npos) return -1;
  size_t begin = at;
  while (begin > 0 && log[begin - 1] >= '0' && log[begin - 1] <= '9') --begin;
  return std::atoi(log.c_str() + begin);
}

}  // namespace

NvrtcResult nvrtc_compile(const std::string& text, const std::string& arch) {
  return NvrtcCompilation(library(), text).run(arch);
}

std::string compile_cuda(const std::string& text, const std::string& arch, std::string* log,
                         const std::string& entry) {
  const Nvrtc& nvrtc = library();
  NvrtcResult result = compile_in_workers(text, arch);
  if (log) *log = result.log;
  if (result.ok) return std::move(result.binary);
  std::string message = cat("NVRTC ", nvrtc.version(), " cannot compile kernel ", entry, " for ",
                            arch, ":\n", result.log, "\n");
  const std::string lines = excerpt(text, lines_named(result.log));
  if (!lines.empty()) message += "the lines that it names:\n" + lines;
  throw DeviceError(message + "DEBUG=4 prints the source of every kernel");
}

CudaResources cuda_resources(const std::string& whole, const std::string& entry) {
  CudaResources out;
  std::string log = whole;
  if (!entry.empty()) {
    const std::string head = "Compiling entry function '";
    const size_t begin = whole.find(cat(head, entry, "'"));
    if (begin == std::string::npos) return out;
    log = whole.substr(begin, whole.find(head, begin + 1) - begin);
  }
  const std::string used = "Used ";
  if (const size_t at = log.find(used); at != std::string::npos)
    out.registers = std::atoi(log.c_str() + at + used.size());
  out.stack_bytes = number_before(log, " bytes stack frame");
  const int stores = number_before(log, " bytes spill stores");
  const int loads = number_before(log, " bytes spill loads");
  if (stores >= 0) out.spill_bytes = std::max(stores, loads);
  return out;
}

std::string cuda_arch(int major, int minor, const std::vector<int>& known) {
  const int wanted = major * 10 + minor;
  // Instructions of one generation alone (wgmma, tcgen05, block scales) need the letter.
  if (contains(known, wanted)) return cat("sm_", wanted, wanted >= 90 ? "a" : "");
  // Machine code of the same major version runs on later minor ones (programming guide, "binary
  // compatibility"), PTX on all that are newer.
  int nearest = 0;
  for (int arch : known)
    if (arch < wanted) nearest = std::max(nearest, arch);
  if (nearest == 0)
    throw DeviceError(cat("CUDA: a GPU of compute capability ", major, ".", minor,
                          " is older than what this NVRTC compiles for (sm_",
                          known.empty() ? 0 : known.front(),
                          " and later): set NVRTC_LIBRARY to an older one"));
  return cat(nearest / 10 == major ? "sm_" : "compute_", nearest);
}

std::string cuda_arch(int major, int minor) {
  std::string arch = cuda_arch(major, minor, library().archs);
  if (library().major < 12 && arch.back() == 'a') arch.pop_back();  // CUDA 11.8 knows sm_90 alone
  return arch;
}

bool nvrtc_available() { return nvrtc_search().failure.empty(); }

std::string nvrtc_missing_reason() { return nvrtc_search().failure; }

std::string nvrtc_version() { return library().version(); }

bool nvrtc_is_at_least(int major, int minor) {
  return std::pair(library().major, library().minor) >= std::pair(major, minor);
}

std::string nvrtc_id() {
  std::string id = cat("nvrtc ", library().version());
  for (const char* option : kOptions) id += cat(" ", option);
  return id;
}

std::string nvrtc_file() { return library().file; }

std::string nvrtc_search_failure(const std::vector<std::string>& files) {
  Nvrtc nvrtc;
  const OpenedLibrary opened = open_nvrtc(files, nvrtc);
  if (opened.handle) dlclose(opened.handle);
  return opened.failure;
}

}  // namespace tiny
