#include "devices/hip/llvm.h"

#include <algorithm>

#include "devices/compilers/llvm_library.h"
#include "devices/compilers/system_compiler.h"
#include "tiny/base/error.h"

namespace tiny {
namespace {

constexpr const char* kPasses = "default<O3>";
constexpr unsigned kNewestLinker = 21;  // that is looked for by a name with its version

// Objects of a newer LLVM a linker may not know ("unknown abi version"), those of an older one it
// does.
const SystemCompiler& linker() {
  static const SystemCompiler& lld = *[] {
    const unsigned least = llvm_c::library().major;
    std::vector<std::string> names;
    for (unsigned v = least; v <= std::max(least, kNewestLinker); ++v)
      names.push_back(cat("ld.lld-", v));
    names.push_back("ld.lld");
    const std::string advice = cat("install LLVM's linker (apt install lld-", least,
                                   ") or set AMD_LINKER to ROCm's, /opt/rocm/llvm/bin/ld.lld");
    return new SystemCompiler{
        "AMD",  "AMD_LINKER",           names, ".o", {"-shared", "--no-undefined"},
        advice, static_cast<int>(least)};
  }();
  return lld;
}

llvm_c::Processor gpu(const std::string& arch) { return {"amdgcn-amd-amdhsa", arch, ""}; }

// The library's missing function or target, found out once.
const std::string& llvm_problem() {
  static const auto& problem = *new std::string([] {
    if (!llvm_available()) return llvm_missing_reason();
    const llvm_c::Llvm& llvm = llvm_c::library();
    const std::string missing = llvm_c::initialize_target(llvm.library, "AMDGPU");
    if (missing.empty()) return std::string();
    return cat("LLVM ", llvm.version(), " was built without AMD's GPUs (it has no ", missing, ")");
  }());
  return problem;
}

void check_llvm() {
  if (!llvm_problem().empty()) throw DeviceError(llvm_problem());
}

}  // namespace

std::string compile_amd_llvm(const Source& source, const std::string& arch) {
  return compile_amd_llvm(std::vector<Source>{source}, arch);
}

std::string compile_amd_llvm(const std::vector<Source>& kernels, const std::string& arch) {
  check_llvm();
  std::vector<std::string> objects;
  for (const Source& k : kernels) objects.push_back(llvm_c::compile(k, gpu(arch), kPasses));
  return compile_shared_object(linker(), kernels.at(0).entry, objects);
}

std::string amd_llvm_assembly(const Source& source, const std::string& arch) {
  check_llvm();
  return llvm_c::compile(source, gpu(arch), kPasses, llvm_c::Output::Assembly);
}

std::string amd_llvm_missing_reason() {
  try {
    check_llvm();
    system_compiler_id(linker());
    return "";
  } catch (const DeviceError& error) {
    return error.what();
  }
}

std::string amd_llvm_id() {
  check_llvm();
  return cat("llvm ", llvm_c::library().version(), " amdgcn ", kPasses, " ",
             system_compiler_id(linker()));
}

}  // namespace tiny
