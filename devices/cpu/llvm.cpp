#include "devices/cpu/llvm.h"

#include <atomic>
#include <mutex>

#include "devices/cpu/cpu.h"
#include "tiny/base/error.h"
#include "tiny/base/exit_order.h"
#include "tiny/base/thread.h"

namespace tiny {
namespace {

using namespace llvm_c;

// ------------------------------------------------------------------------------ loading

// The reason of a failed load of this thread; LLVM's lookup itself only says that it failed.
struct LoadErrors {
  std::string text;
};
std::string& load_errors() { return of_thread<LoadErrors>().text; }

// One JIT for the process. Each program has a dylib of its own, so that two may define the same
// symbols; LLVM cannot destroy a dylib, hence an emptied one waits for the next program.
class CpuJit {
 public:
  struct Place {
    Dylib dylib = nullptr;
    Tracker tracker = nullptr;
  };

  explicit CpuJit(const Llvm& llvm) : llvm_(llvm) {
    check_failure(llvm_.OrcCreateLLJIT(&jit_, nullptr), "starting the JIT");
    session_ = llvm_.OrcLLJITGetExecutionSession(jit_);
    llvm_.OrcExecutionSessionSetErrorReporter(session_, collect_error, this);
  }

  CpuKernel load(const std::string& object, const std::string& entry, Place& place) {
    load_errors().clear();
    place.dylib = take_dylib();
    place.tracker = llvm_.OrcJITDylibCreateResourceTracker(place.dylib);
    try {
      llvm_c::Buffer buffer =
          llvm_.CreateMemoryBufferWithMemoryRangeCopy(object.data(), object.size(), entry.c_str());
      check_failure(llvm_.OrcLLJITAddObjectFileWithRT(jit_, place.tracker, buffer), entry);
      return look_up(place.dylib, entry);
    } catch (...) {
      remove(place);  // the dylib is not used again: it may hold symbols in an error state
      throw;
    }
  }

  void unload(Place& place) {
    if (are_libraries_ending()) return;
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
      throw DeviceError(cat("LLVM cannot load kernel ", entry, ": ", load_errors(), answer.error));
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
    load_errors() += take_failure(static_cast<CpuJit*>(self)->llvm_, failure) + "; ";
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

CpuJit& jit() {
  static CpuJit& instance = *new CpuJit(library());  // never destroyed, like the library
  return instance;
}

class LlvmProgram : public CpuProgram {
 public:
  LlvmProgram(CpuKernel kernel, CpuJit::Place place) : CpuProgram(kernel), place_(place) {}
  ~LlvmProgram() override { jit().unload(place_); }

 private:
  CpuJit::Place place_;
};

}  // namespace

std::string llvm_id() {
  const Llvm& llvm = library();
  return cat("llvm ", llvm.version(), " ", llvm.triple, " ", llvm.cpu, " ", llvm.features,
             " aggressive pic passes 1");
}

std::string compile_llvm(const Source& source) {
  expect(source.language == Source::Language::LlvmIr, "compile_llvm: kernel ", source.entry,
         " is not LLVM IR");
  const char* light = library().major >= 18
                          ? "function(sroa,early-cse,instcombine<no-verify-fixpoint>,simplifycfg)"
                          : "function(sroa,early-cse,instcombine,simplifycfg)";
  return compile(source, host(), source.is_gemm ? "default<O2>" : light);
}

std::unique_ptr<Program> load_llvm(const std::string& object, const std::string& entry) {
  CpuJit::Place place;
  CpuKernel kernel = jit().load(object, entry, place);
  end_objects_before_libraries();
  return std::make_unique<LlvmProgram>(kernel, place);
}

}  // namespace tiny
