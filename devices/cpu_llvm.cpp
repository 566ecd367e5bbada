#include "devices/cpu_llvm.h"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>

#include "devices/cpu.h"
#include "tiny/env.h"
#include "tiny/error.h"

#if defined(__x86_64__)
#define TINY_LLVM_TARGET(part) "LLVMInitializeX86" part
#elif defined(__aarch64__)
#define TINY_LLVM_TARGET(part) "LLVMInitializeAArch64" part
#else
#define TINY_LLVM_TARGET(part) "LLVMInitializeNoSuch" part
#endif

namespace tiny {
namespace {

// LLVM's types are opaque to us; the constants and the two structures below are those of
// llvm-c/Core.h, TargetMachine.h, Orc.h, unchanged from LLVM 16 to 21.
using Context = struct LlvmContext*;
using Module = struct LlvmModule*;
using Buffer = struct LlvmBuffer*;
using Machine = struct LlvmMachine*;
using Layout = struct LlvmLayout*;
using TargetRef = struct LlvmTarget*;
using PassOptions = struct LlvmPassOptions*;
using Failure = struct LlvmFailure*;
using Diagnostic = struct LlvmDiagnostic*;
using Session = struct LlvmSession*;
using JitRef = struct LlvmJit*;
using Dylib = struct LlvmDylib*;
using Tracker = struct LlvmTracker*;
using Generator = struct LlvmGenerator*;
using SymbolName = struct LlvmSymbolName*;

constexpr int kOptimizeAggressive = 3, kRelocPic = 2, kCodeModelSmall = 3, kObjectFile = 1;
constexpr int kReturnStatus = 2, kSeverityError = 0, kMatchAllSymbols = 1;

struct SearchedDylib {
  Dylib dylib;
  int flags;
};

struct WantedSymbol {
  SymbolName name;
  int flags;
};

struct FoundSymbol {
  SymbolName name;
  uint64_t address;
  uint8_t flags[2];
};

// Every function that we call: result, name, parameters.
#define TINY_LLVM_FUNCTIONS(X)                                                             \
  X(void, GetVersion, (unsigned*, unsigned*, unsigned*))                                   \
  X(void, DisposeMessage, (char*))                                                         \
  X(void, InstallFatalErrorHandler, (void (*)(const char*)))                               \
  X(Context, ContextCreate, ())                                                            \
  X(void, ContextDispose, (Context))                                                       \
  X(void, ContextSetDiagnosticHandler, (Context, void (*)(Diagnostic, void*), void*))      \
  X(char*, GetDiagInfoDescription, (Diagnostic))                                           \
  X(int, GetDiagInfoSeverity, (Diagnostic))                                                \
  X(Buffer, CreateMemoryBufferWithMemoryRange, (const char*, size_t, const char*, int))    \
  X(Buffer, CreateMemoryBufferWithMemoryRangeCopy, (const char*, size_t, const char*))     \
  X(const char*, GetBufferStart, (Buffer))                                                 \
  X(size_t, GetBufferSize, (Buffer))                                                       \
  X(void, DisposeMemoryBuffer, (Buffer))                                                   \
  X(int, ParseIRInContext, (Context, Buffer, Module*, char**))                             \
  X(int, VerifyModule, (Module, int, char**))                                              \
  X(void, DisposeModule, (Module))                                                         \
  X(void, SetTarget, (Module, const char*))                                                \
  X(void, SetModuleDataLayout, (Module, Layout))                                           \
  X(Layout, CreateTargetDataLayout, (Machine))                                             \
  X(void, DisposeTargetData, (Layout))                                                     \
  X(char*, GetDefaultTargetTriple, ())                                                     \
  X(char*, GetHostCPUName, ())                                                             \
  X(char*, GetHostCPUFeatures, ())                                                         \
  X(int, GetTargetFromTriple, (const char*, TargetRef*, char**))                           \
  X(Machine, CreateTargetMachine,                                                          \
    (TargetRef, const char*, const char*, const char*, int, int, int))                     \
  X(void, DisposeTargetMachine, (Machine))                                                 \
  X(PassOptions, CreatePassBuilderOptions, ())                                             \
  X(void, PassBuilderOptionsSetLoopVectorization, (PassOptions, int))                      \
  X(void, PassBuilderOptionsSetSLPVectorization, (PassOptions, int))                       \
  X(void, DisposePassBuilderOptions, (PassOptions))                                        \
  X(Failure, RunPasses, (Module, const char*, Machine, PassOptions))                       \
  X(char*, GetErrorMessage, (Failure))                                                     \
  X(void, DisposeErrorMessage, (char*))                                                    \
  X(int, TargetMachineEmitToMemoryBuffer, (Machine, Module, int, char**, Buffer*))         \
  X(Failure, OrcCreateLLJIT, (JitRef*, void*))                                             \
  X(Session, OrcLLJITGetExecutionSession, (JitRef))                                        \
  X(char, OrcLLJITGetGlobalPrefix, (JitRef))                                               \
  X(void, OrcExecutionSessionSetErrorReporter, (Session, void (*)(void*, Failure), void*)) \
  X(Dylib, OrcExecutionSessionCreateBareJITDylib, (Session, const char*))                  \
  X(Failure, OrcCreateDynamicLibrarySearchGeneratorForProcess,                             \
    (Generator*, char, int (*)(void*, SymbolName), void*))                                 \
  X(void, OrcJITDylibAddGenerator, (Dylib, Generator))                                     \
  X(Tracker, OrcJITDylibCreateResourceTracker, (Dylib))                                    \
  X(Failure, OrcResourceTrackerRemove, (Tracker))                                          \
  X(void, OrcReleaseResourceTracker, (Tracker))                                            \
  X(Failure, OrcLLJITAddObjectFileWithRT, (JitRef, Tracker, Buffer))                       \
  X(SymbolName, OrcLLJITMangleAndIntern, (JitRef, const char*))                            \
  X(void, OrcExecutionSessionLookup,                                                       \
    (Session, int, SearchedDylib*, size_t, WantedSymbol*, size_t,                          \
     void (*)(Failure, FoundSymbol*, size_t, void*), void*))

struct Functions {
#define TINY_DECLARE(result, name, parameters) result(*name) parameters = nullptr;
  TINY_LLVM_FUNCTIONS(TINY_DECLARE)
#undef TINY_DECLARE
};

// The library once it is open, and what was found out about the machine.
struct Llvm : Functions {
  unsigned major = 0, minor = 0, patch = 0;
  std::string triple, cpu, features;
  TargetRef target = nullptr;
};

// Set when the process exits: LLVM's own globals may be gone before the last program is.
std::atomic<bool> exiting{false};

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

std::string take_failure(const Functions& llvm, Failure failure) {
  char* message = llvm.GetErrorMessage(failure);  // consumes the failure
  std::string text = without_line_end(message);
  llvm.DisposeErrorMessage(message);
  return text;
}

// Fills the table of functions; gives the name of one that the library lacks, or nothing.
std::string bind_functions(void* library, Functions& llvm) {
#define TINY_BIND(result, name, parameters)                                        \
  llvm.name = reinterpret_cast<decltype(llvm.name)>(dlsym(library, "LLVM" #name)); \
  if (llvm.name == nullptr) return "LLVM" #name;
  TINY_LLVM_FUNCTIONS(TINY_BIND)
#undef TINY_BIND
  return "";
}

// Makes LLVM's code generator for this processor known; gives a missing function's name.
std::string initialize_target(void* library) {
  for (const char* name :
       {TINY_LLVM_TARGET("TargetInfo"), TINY_LLVM_TARGET("Target"), TINY_LLVM_TARGET("TargetMC"),
        TINY_LLVM_TARGET("AsmPrinter"), TINY_LLVM_TARGET("AsmParser")}) {
    auto initialize = reinterpret_cast<void (*)()>(dlsym(library, name));
    if (initialize == nullptr) return name;
    initialize();
  }
  return "";
}

// Opens one file as LLVM; gives the reason when it is unfit.
std::string open_file(const std::string& file, void*& library, Llvm& llvm) {
  library = dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return dlerror();
  std::string missing = bind_functions(library, llvm);
  if (missing.empty()) missing = initialize_target(library);
  if (!missing.empty()) {
    dlclose(library);
    return cat(file, ": has no function ", missing, ", LLVM 16 or later is needed");
  }
  llvm.GetVersion(&llvm.major, &llvm.minor, &llvm.patch);
  // Up to 18, LLVM's JIT looks its own functions up among the symbols of the whole process.
  if (llvm.major <= 18) dlopen(file.c_str(), RTLD_LAZY | RTLD_GLOBAL | RTLD_NOLOAD);
  return "";
}

std::string describe_search(const std::vector<std::string>& files, const std::string& reasons) {
  std::string text = "LLVM's library was not found: searched for";
  for (const std::string& file : files) text += (&file == &files[0] ? " " : ", ") + file;
  if (!reasons.empty()) text += " (" + reasons + ")";
  return text +
         ". Install it (Debian, Ubuntu: apt install libllvm19), set LLVM_PATH to the file "
         "libLLVM.so of version 16 or later, or use CPU_COMPILER=cc";
}

// Opens the first file that is there and fit; else gives the reason.
std::string open_first(const std::vector<std::string>& files, void*& library, Llvm& llvm) {
  std::string reasons;
  for (const std::string& file : files) {
    const std::string reason = open_file(file, library, llvm);
    if (reason.empty()) return "";
    // That a file of the usual places is not there needs no second mention.
    const bool absent = reason.find("No such file") != std::string::npos;
    if (!absent || files.size() == 1) reasons += (reasons.empty() ? "" : "; ") + reason;
  }
  return describe_search(files, reasons);
}

void on_fatal_error(const char* reason);

struct Search {
  Llvm llvm;
  std::string failure;

  Search() {
    void* library = nullptr;
    failure = open_first(files_to_search(), library, llvm);
    if (!failure.empty()) return;
    llvm.triple = take_message(llvm, llvm.GetDefaultTargetTriple());
    llvm.cpu = take_message(llvm, llvm.GetHostCPUName());
    llvm.features = take_message(llvm, llvm.GetHostCPUFeatures());
    char* message = nullptr;
    if (llvm.GetTargetFromTriple(llvm.triple.c_str(), &llvm.target, &message))
      failure = cat("LLVM cannot compile for ", llvm.triple, ": ", take_message(llvm, message));
    llvm.InstallFatalErrorHandler(on_fatal_error);
    // Registered after the library's own destructors, so this runs before them.
    std::atexit([] { exiting = true; });
  }
};

const Search& search() {
  static const Search& instance = *new Search;  // never destroyed: used until the process ends
  return instance;
}

const Llvm& library() {
  if (!search().failure.empty()) throw DeviceError(search().failure);
  return search().llvm;
}

// ---------------------------------------------------------------------------- compiling

// The kernel that this thread compiles, or null; an error of LLVM names it.
thread_local const Source* compiling = nullptr;

[[noreturn]] void fail(const Llvm& llvm, const std::string& entry, const std::string& message) {
  throw DeviceError(cat("LLVM ", llvm.major, ".", llvm.minor, ".", llvm.patch,
                        " cannot compile kernel ", entry, ": ", message));
}

// LLVM calls this for what it has no code for, such as an intrinsic that the processor lacks, and
// aborts the process if it returns. Throwing through its frames leaks what they own, which is
// better. Other users of the same library keep LLVM's behaviour.
void on_fatal_error(const char* reason) {
  if (compiling) fail(search().llvm, compiling->entry, reason);
}

// One compilation with its own context, so that types and constants do not pile up.
class Compilation {
 public:
  Compilation(const Llvm& llvm, const Source& source, Machine& machine)
      : llvm_(llvm), source_(source), machine_(machine), context_(llvm.ContextCreate()) {
    llvm_.ContextSetDiagnosticHandler(context_, on_diagnostic, this);
    compiling = &source;
  }

  // After a fatal error the context and the machine are in an unknown state: they are left alone.
  ~Compilation() {
    compiling = nullptr;
    if (!finished_) {
      machine_ = nullptr;
      return;
    }
    if (module_) llvm_.DisposeModule(module_);
    llvm_.ContextDispose(context_);
  }

  std::string run() {
    std::string object;
    const std::string message = compile(object);
    finished_ = true;
    if (!message.empty()) fail(llvm_, source_.entry, message);
    return object;
  }

 private:
  // The steps give LLVM's message, empty when all went well.
  std::string compile(std::string& object) {
    std::string message = parse();
    if (message.empty()) message = run_passes();
    if (message.empty()) message = emit(object);
    return message.empty() ? errors_ : message;
  }

  std::string parse() {
    const std::string& text = source_.text;
    Buffer buffer = llvm_.CreateMemoryBufferWithMemoryRange(text.data(), text.size(),
                                                            source_.entry.c_str(), true);
    char* message = nullptr;
    if (llvm_.ParseIRInContext(context_, buffer, &module_, &message))  // consumes the buffer
      return take_message(llvm_, message);
    llvm_.SetTarget(module_, llvm_.triple.c_str());
    Layout layout = llvm_.CreateTargetDataLayout(machine_);
    llvm_.SetModuleDataLayout(module_, layout);
    llvm_.DisposeTargetData(layout);
    const bool broken = llvm_.VerifyModule(module_, kReturnStatus, &message);
    const std::string reason = take_message(llvm_, message);
    return broken ? reason : "";
  }

  std::string run_passes() {
    // Kernels carry their vectors explicitly, so vectorising again only costs time.
    PassOptions options = llvm_.CreatePassBuilderOptions();
    llvm_.PassBuilderOptionsSetLoopVectorization(options, false);
    llvm_.PassBuilderOptionsSetSLPVectorization(options, false);
    const char* light = llvm_.major >= 18
                            ? "function(sroa,early-cse,instcombine<no-verify-fixpoint>,simplifycfg)"
                            : "function(sroa,early-cse,instcombine,simplifycfg)";
    const char* passes = source_.heavy ? "default<O2>" : light;
    Failure failure = llvm_.RunPasses(module_, passes, machine_, options);
    llvm_.DisposePassBuilderOptions(options);
    return failure ? take_failure(llvm_, failure) : "";
  }

  std::string emit(std::string& object) {
    Buffer buffer = nullptr;
    char* message = nullptr;
    if (llvm_.TargetMachineEmitToMemoryBuffer(machine_, module_, kObjectFile, &message, &buffer))
      return take_message(llvm_, message);
    object.assign(llvm_.GetBufferStart(buffer), llvm_.GetBufferSize(buffer));
    llvm_.DisposeMemoryBuffer(buffer);
    return "";
  }

  // Without a handler LLVM prints an error and exits.
  static void on_diagnostic(Diagnostic diagnostic, void* self) {
    auto& compilation = *static_cast<Compilation*>(self);
    const Llvm& llvm = compilation.llvm_;
    if (llvm.GetDiagInfoSeverity(diagnostic) != kSeverityError) return;
    compilation.errors_ += take_message(llvm, llvm.GetDiagInfoDescription(diagnostic)) + " ";
  }

  const Llvm& llvm_;
  const Source& source_;
  Machine& machine_;
  Context context_;
  Module module_ = nullptr;
  std::string errors_;
  bool finished_ = false;
};

// A target machine serves one thread at a time, and making one takes longer than many a kernel.
struct ThreadMachine {
  Machine machine = nullptr;

  ~ThreadMachine() {
    if (machine && !exiting) search().llvm.DisposeTargetMachine(machine);
  }

  Machine& get(const Llvm& llvm) {
    if (machine == nullptr)
      machine = llvm.CreateTargetMachine(llvm.target, llvm.triple.c_str(), llvm.cpu.c_str(),
                                         llvm.features.c_str(), kOptimizeAggressive, kRelocPic,
                                         kCodeModelSmall);
    return machine;
  }
};

// ------------------------------------------------------------------------------ loading

// What went wrong in a load of this thread; LLVM's lookup itself only says that it failed.
thread_local std::string load_errors;

// One JIT for the process. Each program has a dylib of its own, so that two may define the same
// symbols; LLVM cannot destroy a dylib, hence an emptied one waits for the next program.
class Jit {
 public:
  struct Place {
    Dylib dylib = nullptr;
    Tracker tracker = nullptr;
  };

  explicit Jit(const Llvm& llvm) : llvm_(llvm) {
    check_failure(llvm_.OrcCreateLLJIT(&jit_, nullptr), "starting the JIT");
    session_ = llvm_.OrcLLJITGetExecutionSession(jit_);
    llvm_.OrcExecutionSessionSetErrorReporter(session_, collect_error, this);
  }

  CpuKernel load(const std::string& object, const std::string& entry, Place& place) {
    load_errors.clear();
    place.dylib = take_dylib();
    place.tracker = llvm_.OrcJITDylibCreateResourceTracker(place.dylib);
    try {
      Buffer buffer =
          llvm_.CreateMemoryBufferWithMemoryRangeCopy(object.data(), object.size(), entry.c_str());
      check_failure(llvm_.OrcLLJITAddObjectFileWithRT(jit_, place.tracker, buffer), entry);
      return look_up(place.dylib, entry);
    } catch (...) {
      remove(place);  // the dylib is not used again: it may hold symbols in an error state
      throw;
    }
  }

  void unload(Place& place) {
    if (exiting) return;
    if (remove(place)) give_dylib(place.dylib);
  }

 private:
  struct Answer {
    const Llvm& llvm;
    explicit Answer(const Llvm& l) : llvm(l) {}
    std::atomic<bool> done{false};
    uint64_t address = 0;
    std::string error;
  };

  CpuKernel look_up(Dylib dylib, const std::string& entry) {
    Answer answer(llvm_);
    SearchedDylib order{dylib, kMatchAllSymbols};
    WantedSymbol symbol{llvm_.OrcLLJITMangleAndIntern(jit_, entry.c_str()), 0};
    llvm_.OrcExecutionSessionLookup(session_, 0, &order, 1, &symbol, 1, receive, &answer);
    answer.done.wait(false);  // linking may have been handed to another thread
    if (!answer.error.empty())
      throw DeviceError(cat("LLVM cannot load kernel ", entry, ": ", load_errors, answer.error));
    return reinterpret_cast<CpuKernel>(answer.address);
  }

  static void receive(Failure failure, FoundSymbol* found, size_t, void* context) {
    auto& answer = *static_cast<Answer*>(context);
    if (failure)
      answer.error = take_failure(answer.llvm, failure);
    else
      answer.address = found[0].address;
    answer.done = true;
    answer.done.notify_one();
  }

  static void collect_error(void* self, Failure failure) {
    load_errors += take_failure(static_cast<Jit*>(self)->llvm_, failure) + "; ";
  }

  Dylib take_dylib() {
    std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      Dylib dylib = free_.back();
      free_.pop_back();
      return dylib;
    }
    // A bare one: the others get platform code, which LLVM would compile for each of them.
    Dylib dylib =
        llvm_.OrcExecutionSessionCreateBareJITDylib(session_, cat("kernel", dylibs_++).c_str());
    Generator generator = nullptr;  // finds memset, fmod and their like in this process
    check_failure(llvm_.OrcCreateDynamicLibrarySearchGeneratorForProcess(
                      &generator, llvm_.OrcLLJITGetGlobalPrefix(jit_), nullptr, nullptr),
                  "the search in this process's symbols");
    llvm_.OrcJITDylibAddGenerator(dylib, generator);
    return dylib;
  }

  void give_dylib(Dylib dylib) {
    std::lock_guard lock(mutex_);
    free_.push_back(dylib);
  }

  bool remove(Place& place) {
    Failure failure = llvm_.OrcResourceTrackerRemove(place.tracker);
    llvm_.OrcReleaseResourceTracker(place.tracker);
    if (failure) take_failure(llvm_, failure);
    return failure == nullptr;
  }

  void check_failure(Failure failure, const std::string& what) {
    if (failure) throw DeviceError(cat("LLVM: ", what, ": ", take_failure(llvm_, failure)));
  }

  const Llvm& llvm_;
  JitRef jit_ = nullptr;
  Session session_ = nullptr;
  std::mutex mutex_;
  std::vector<Dylib> free_;
  int dylibs_ = 0;
};

Jit& jit() {
  static Jit& instance = *new Jit(library());  // never destroyed, like the library
  return instance;
}

class LlvmProgram : public CpuProgram {
 public:
  LlvmProgram(CpuKernel kernel, Jit::Place place) : CpuProgram(kernel), place_(place) {}
  ~LlvmProgram() override { jit().unload(place_); }

 private:
  Jit::Place place_;
};

}  // namespace

bool llvm_available() { return search().failure.empty(); }

std::string llvm_missing_reason() { return search().failure; }

std::string llvm_search_failure(const std::vector<std::string>& files) {
  void* library = nullptr;
  Llvm llvm;
  std::string failure = open_first(files, library, llvm);
  if (failure.empty()) dlclose(library);
  return failure;
}

std::string llvm_id() {
  const Llvm& llvm = library();
  return cat("llvm ", llvm.major, ".", llvm.minor, ".", llvm.patch, " ", llvm.triple, " ", llvm.cpu,
             " ", llvm.features, " aggressive pic passes 1");
}

std::string compile_llvm(const Source& source) {
  expect(source.language == Source::Language::LlvmIr, "compile_llvm: kernel ", source.entry,
         " is not LLVM IR");
  thread_local ThreadMachine machine;
  const Llvm& llvm = library();
  return Compilation(llvm, source, machine.get(llvm)).run();
}

std::unique_ptr<Program> load_llvm(const std::string& object, const std::string& entry) {
  Jit::Place place;
  CpuKernel kernel = jit().load(object, entry, place);
  return std::make_unique<LlvmProgram>(kernel, place);
}

}  // namespace tiny
