#include "devices/cpu/cc.h"

#include "devices/compilers/system_compiler.h"
#include "devices/cpu/cpu.h"
#include "tiny/base/error.h"

namespace tiny {
namespace {

// No -ffast-math: NaN and infinity keep their meaning. The text says which products are
// fused with sums. Integers wrap as tensors' do. The C library's functions are found in this
// process when the kernel is loaded, so nothing is linked in. Vectors are chosen here: clang 14
// would make more of them, of the addresses of a tile.
const SystemCompiler& c_compiler() {
  static const auto& compiler = *new SystemCompiler{
      "C",
      "CC",
      {"clang", "gcc", "cc"},
      ".c",
      {
#if defined(__x86_64__)
          "-march=native", "-mprefer-vector-width=512",
#elif defined(__aarch64__)
          "-mcpu=native",
#endif
          "-O2", "-fPIC", "-shared", "-nostdlib", "-fno-math-errno", "-fno-trapping-math",
          "-fwrapv", "-fno-strict-aliasing", "-fno-tree-slp-vectorize", "-w"},
      "install one (apt install clang), set CC to one, or use CPU_COMPILER=llvm"};
  return compiler;
}

class CcProgram : public CpuProgram {
 public:
  CcProgram(CpuKernel kernel, std::unique_ptr<SharedObject> library)
      : CpuProgram(kernel), library_(std::move(library)) {}

 private:
  std::unique_ptr<SharedObject> library_;
};

}  // namespace

std::string cc_id() { return cat("cc ", system_compiler_id(c_compiler()), " ", host_cpu_id()); }

std::string compile_cc(const Source& source) {
  expect(source.language == Source::Language::C, "compile_cc: kernel ", source.entry, " is not C");
  return compile_shared_object(c_compiler(), source.entry, source.text);
}

// ELF's header: e_type, a half word at byte 16, is 3 for shared objects.
bool is_shared_object(const std::string& binary) {
  return binary.size() > 18 &&
         binary.starts_with(
             "\x7f"
             "ELF") &&
         binary[16] == 3;
}

std::string link_object(const std::string& object, const std::string& entry) {
  static const auto& linker =
      *new SystemCompiler{"C",
                          "CC",
                          {"clang", "gcc", "cc"},
                          ".o",
                          {"-shared", "-nostdlib"},
                          "install one (apt install gcc): its linker makes saved programs"};
  return compile_shared_object(linker, entry, object);
}

std::unique_ptr<Program> load_cc(const std::string& binary, const std::string& entry) {
  auto library = std::make_unique<SharedObject>(binary, entry);
  auto* kernel = reinterpret_cast<CpuKernel>(library->symbol(entry));
  return std::make_unique<CcProgram>(kernel, std::move(library));
}

}  // namespace tiny
