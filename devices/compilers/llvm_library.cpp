#include "devices/compilers/llvm_library.h"

#include <map>

#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/base/exit_order.h"
#include "tiny/base/library.h"
#include "tiny/base/thread.h"

namespace tiny {
namespace llvm_c {
namespace {

#if defined(__x86_64__)
constexpr const char* kHostTarget = "X86";
#elif defined(__aarch64__)
constexpr const char* kHostTarget = "AArch64";
#else
constexpr const char* kHostTarget = "NoSuch";
#endif

constexpr int kOptimizeAggressive = 3, kRelocPic = 2, kCodeModelDefault = 0, kCodeModelSmall = 3;
constexpr int kReturnStatus = 2, kSeverityError = 0;

std::vector<std::string> files_to_search() {
  if (std::string path = env_text("LLVM_PATH"); !path.empty()) return {path};
  std::vector<std::string> files;
  for (int version = 21; version >= 16; version--) {
    const std::string v = std::to_string(version);
    if (version >= 18) files.push_back("libLLVM.so." + v + ".1");
    for (const char* ending : {".so.1", ".so"}) files.push_back("libLLVM-" + v + ending);
    files.push_back("/usr/lib/llvm-" + v + "/lib/libLLVM.so.1");
  }
  return files;
}

// Some messages end with an empty line, others with nothing.
std::string without_line_end(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::string take_message(const Functions& llvm, char* message) {
  std::string text = without_line_end(message ? message : "");
  if (message) llvm.DisposeMessage(message);
  return text;
}

}  // namespace

std::string take_failure(const Functions& llvm, Failure failure) {
  char* message = llvm.GetErrorMessage(failure);  // consumes the failure
  std::string text = without_line_end(message);
  llvm.DisposeErrorMessage(message);
  return text;
}

std::string initialize_target(void* library, const std::string& target) {
  LibraryFunctions functions(library);
  for (const char* part : {"TargetInfo", "Target", "TargetMC", "AsmPrinter", "AsmParser"}) {
    const std::string name = cat("LLVMInitialize", target, part);
    void (*initialize)() = nullptr;
    if (!functions.find(name, initialize)) return name;
    initialize();
  }
  return "";
}

namespace {

// Fills the table of functions; gives the name of one that the library lacks, or nothing.
std::string bind_functions(void* library, Functions& llvm) {
  LibraryFunctions functions(library);
#define TINY_NEED(result, name, parameters) functions.need("LLVM" #name, llvm.name);
  TINY_LLVM_FUNCTIONS(TINY_NEED)
#undef TINY_NEED
  return functions.missing();
}

// Why an open library is no LLVM that can be used; nothing of one that is, which fills the table.
std::string fault_of(void* library, const std::string& file, Llvm& llvm) {
  std::string missing = bind_functions(library, llvm);
  if (missing.empty()) missing = initialize_target(library, kHostTarget);
  if (!missing.empty()) return cat("has no function ", missing, ", LLVM 16 or later is needed");
  llvm.library = library;
  llvm.GetVersion(&llvm.major, &llvm.minor, &llvm.patch);
  // Up to 18, LLVM's JIT looks its own functions up among the symbols of the whole process.
  if (llvm.major <= 18) dlopen(file.c_str(), RTLD_LAZY | RTLD_GLOBAL | RTLD_NOLOAD);
  return "";
}

OpenedLibrary open_llvm(const std::vector<std::string>& files, Llvm& llvm) {
  OpenedLibrary opened = open_library(files, RTLD_LAZY, [&](void* library, const auto& file) {
    return fault_of(library, file, llvm);
  });
  if (!opened.handle)
    opened.failure = cat("LLVM's library was not found: ", opened.failure,
                         ". Install it (Debian, Ubuntu: apt install libllvm19), set LLVM_PATH to "
                         "the file libLLVM.so of version 16 or later, or use CPU_COMPILER=cc");
  return opened;
}

void on_fatal_error(const char* reason);

struct LlvmSearch {
  Llvm llvm;
  std::string failure;

  LlvmSearch() {
    failure = open_llvm(files_to_search(), llvm).failure;
    if (!failure.empty()) return;
    llvm.triple = take_message(llvm, llvm.GetDefaultTargetTriple());
    llvm.cpu = take_message(llvm, llvm.GetHostCPUName());
    llvm.features = take_message(llvm, llvm.GetHostCPUFeatures());
    leave_alone("avx512bf16", 18);
    llvm.InstallFatalErrorHandler(on_fatal_error);
  }

  // Versions before this one cannot select, or crash on, code with this feature: 16.0.6 does both
  // on conversions to bf16.
  void leave_alone(const std::string& feature, unsigned version) {
    const size_t at = llvm.features.find('+' + feature);
    if (llvm.major < version && at != std::string::npos) llvm.features[at] = '-';
  }
};

const LlvmSearch& search() {
  static const LlvmSearch& instance =
      *new LlvmSearch;  // never destroyed: used until the process ends
  return instance;
}

// ---------------------------------------------------------------------------- compiling

// The kernel that this thread compiles, or null; an error of LLVM names it.
thread_local const Source* compiling = nullptr;

[[noreturn]] void fail(const Llvm& llvm, const std::string& entry, const std::string& message) {
  throw DeviceError(cat("LLVM ", llvm.version(), " cannot compile kernel ", entry, ": ", message));
}

// LLVM calls this for what it has no code for, such as an intrinsic that the processor lacks, and
// aborts the process if it returns. Throwing through its frames leaks what they own, which is
// better. Other users of the same library keep LLVM's behaviour.
void on_fatal_error(const char* reason) {
  if (compiling) fail(search().llvm, compiling->entry, reason);
}

// One compilation with its own context, so that types and constants do not pile up.
class LlvmCompilation {
 public:
  LlvmCompilation(const Llvm& llvm, const Source& source, const Processor& processor,
                  Machine& machine)
      : llvm_(llvm),
        source_(source),
        processor_(processor),
        machine_(machine),
        context_(llvm.ContextCreate()) {
    llvm_.ContextSetDiagnosticHandler(context_, on_diagnostic, this);
    compiling = &source;
  }

  // After a fatal error the context and the machine are in an unknown state: they are left alone.
  ~LlvmCompilation() {
    compiling = nullptr;
    if (!finished_) {
      machine_ = nullptr;
      return;
    }
    if (module_) llvm_.DisposeModule(module_);
    llvm_.ContextDispose(context_);
  }

  std::string run(const char* passes, Output output) {
    std::string object;
    const std::string message = compile(passes, output, object);
    finished_ = true;
    if (!message.empty()) fail(llvm_, source_.entry, message);
    return object;
  }

 private:
  // The steps give LLVM's message, empty when all went well.
  std::string compile(const char* passes, Output output, std::string& object) {
    std::string message = parse();
    if (message.empty()) message = run_passes(passes);
    if (message.empty()) message = emit(output, object);
    return message.empty() ? errors_ : message;
  }

  std::string parse() {
    const std::string& text = source_.text;
    llvm_c::Buffer buffer = llvm_.CreateMemoryBufferWithMemoryRange(text.data(), text.size(),
                                                                    source_.entry.c_str(), true);
    char* message = nullptr;
    if (llvm_.ParseIRInContext(context_, buffer, &module_, &message))  // consumes the buffer
      return take_message(llvm_, message);
    llvm_.SetTarget(module_, processor_.triple.c_str());
    Layout layout = llvm_.CreateTargetDataLayout(machine_);
    llvm_.SetModuleDataLayout(module_, layout);
    llvm_.DisposeTargetData(layout);
    const bool broken = llvm_.VerifyModule(module_, kReturnStatus, &message);
    const std::string reason = take_message(llvm_, message);
    return broken ? reason : "";
  }

  std::string run_passes(const char* passes) {
    // Kernels carry their vectors explicitly, so vectorising again only costs time.
    PassOptions options = llvm_.CreatePassBuilderOptions();
    llvm_.PassBuilderOptionsSetLoopVectorization(options, false);
    llvm_.PassBuilderOptionsSetSLPVectorization(options, false);
    Failure failure = llvm_.RunPasses(module_, passes, machine_, options);
    llvm_.DisposePassBuilderOptions(options);
    return failure ? take_failure(llvm_, failure) : "";
  }

  std::string emit(Output output, std::string& object) {
    llvm_c::Buffer buffer = nullptr;
    char* message = nullptr;
    if (llvm_.TargetMachineEmitToMemoryBuffer(machine_, module_, static_cast<int>(output), &message,
                                              &buffer))
      return take_message(llvm_, message);
    object.assign(llvm_.GetBufferStart(buffer), llvm_.GetBufferSize(buffer));
    llvm_.DisposeMemoryBuffer(buffer);
    return "";
  }

  // Without a handler LLVM prints an error and exits.
  static void on_diagnostic(Diagnostic diagnostic, void* self) {
    auto& compilation = *static_cast<LlvmCompilation*>(self);
    const Llvm& llvm = compilation.llvm_;
    if (llvm.GetDiagInfoSeverity(diagnostic) != kSeverityError) return;
    compilation.errors_ += take_message(llvm, llvm.GetDiagInfoDescription(diagnostic)) + " ";
  }

  const Llvm& llvm_;
  const Source& source_;
  const Processor& processor_;
  Machine& machine_;
  Context context_;
  Module module_ = nullptr;
  std::string errors_;
  bool finished_ = false;
};

// Target machines serve one thread at a time, and making one takes longer than many a kernel.
struct ThreadMachines {
  std::map<std::string, Machine> machines;

  ~ThreadMachines() {
    for (const auto& [key, machine] : machines)
      if (machine && !are_libraries_ending()) search().llvm.DisposeTargetMachine(machine);
  }

  Machine& get(const Llvm& llvm, const Processor& p) {
    Machine& machine = machines[cat(p.triple, " ", p.cpu)];
    if (machine) return machine;
    TargetRef target = nullptr;
    char* message = nullptr;
    if (llvm.GetTargetFromTriple(p.triple.c_str(), &target, &message))
      throw DeviceError(
          cat("LLVM cannot compile for ", p.triple, ": ", take_message(llvm, message)));
    const int code_model = p.triple == llvm.triple ? kCodeModelSmall : kCodeModelDefault;
    machine = llvm.CreateTargetMachine(target, p.triple.c_str(), p.cpu.c_str(), p.features.c_str(),
                                       kOptimizeAggressive, kRelocPic, code_model);
    return machine;
  }
};

}  // namespace

std::string Llvm::version() const { return cat(major, ".", minor, ".", patch); }

const Llvm& library() {
  if (!search().failure.empty()) throw DeviceError(search().failure);
  if (are_libraries_ending())
    throw DeviceError("LLVM has ended with the program, and compiles nothing more");
  return search().llvm;
}

Processor host() { return {library().triple, library().cpu, library().features}; }

std::string compile(const Source& source, const Processor& processor, const char* passes,
                    Output output) {
  const Llvm& llvm = library();
  auto& machines = of_thread<ThreadMachines>();
  std::string out =
      LlvmCompilation(llvm, source, processor, machines.get(llvm, processor)).run(passes, output);
  end_objects_before_libraries();
  return out;
}

}  // namespace llvm_c

bool llvm_available() { return llvm_c::search().failure.empty(); }

std::string llvm_missing_reason() { return llvm_c::search().failure; }

std::string llvm_search_failure(const std::vector<std::string>& files) {
  llvm_c::Llvm llvm;
  const OpenedLibrary opened = llvm_c::open_llvm(files, llvm);
  if (opened.handle) dlclose(opened.handle);
  return opened.failure;
}

}  // namespace tiny
