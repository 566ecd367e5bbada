// LLVM's C interface, versions 16 to 21 and later ones that still offer the same functions: opened
// at run time, nothing of it is needed to build. Compiling may run on any number of threads at
// once.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/device/device.h"

namespace tiny {

// Whether LLVM's library was found, and if not, what was searched and how to install it. The
// search runs once in a process and obeys LLVM_PATH.
bool llvm_available();
std::string llvm_missing_reason();

// Tries to open LLVM from the first of these files that is there: empty when one is fit for us,
// else the reason as above. Has no lasting effect.
std::string llvm_search_failure(const std::vector<std::string>& files);

namespace llvm_c {

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

constexpr int kMatchAllSymbols = 1;

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
  void* library = nullptr;
  unsigned major = 0, minor = 0, patch = 0;
  std::string triple, cpu, features;

  std::string version() const;  // "19.1.7"
};

// Throws DeviceError where there is none.
const Llvm& library();

// LLVM's message; consumes the failure.
std::string take_failure(const Functions& llvm, Failure failure);

// The processor that code is generated for.
struct Processor {
  std::string triple, cpu, features;
};

// The processor that this process runs on.
Processor host();

// Textual LLVM IR to an object file, or to the assembler's text of it, after these passes (the
// syntax of opt's -passes). Throws DeviceError with LLVM's message, which shows the offending line,
// and the kernel's name.
enum class Output { Assembly, Object };
std::string compile(const Source& source, const Processor& processor, const char* passes,
                    Output output = Output::Object);

// Makes a target's code generator known, such as "X86"; gives a missing function's name.
std::string initialize_target(void* library, const std::string& target);

}  // namespace llvm_c
}  // namespace tiny
