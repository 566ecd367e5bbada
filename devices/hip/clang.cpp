#include "devices/hip/clang.h"

#include "devices/compilers/system_compiler.h"
#include "tiny/base/error.h"

namespace tiny {
namespace {

SystemCompiler clang_for(const std::string& arch) {
  return {
      "HIP",
      "HIP_CLANG",
      {"clang-21", "clang-20", "clang-19"},
      ".hip",
      {"-x", "hip", "--offload-arch=" + arch, "--offload-device-only", "--no-gpu-bundle-output",
       "-nogpuinc", "-nogpulib", "-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-w"},
      "install clang 19 or later with its linker (apt install clang-19 lld-19) or set HIP_CLANG "
      "to ROCm's, /opt/rocm/llvm/bin/clang"};
}

// Where the metadata, which is MessagePack, has a kernel's name: what is asked of it comes after
// that, as keys are in alphabetical order. Names of up to 31 bytes have their length beside a bit
// pattern, longer ones behind another byte.
size_t find_kernel(const std::string& bytes, const std::string& entry) {
  const auto length = static_cast<char>(entry.size() < 32 ? 0xa0 | entry.size() : entry.size());
  const std::string key = ".name";
  for (size_t at = 0; (at = bytes.find(key, at)) != std::string::npos;) {
    at += key.size() + (entry.size() >= 32);
    if (at < bytes.size() && bytes[at] == length && bytes.compare(at + 1, entry.size(), entry) == 0)
      return at;
  }
  return std::string::npos;
}

// The unsigned integer after the first such key from a place on.
int number_after(const std::string& bytes, size_t from, const std::string& key) {
  const size_t at = bytes.find(key, from);
  if (at == std::string::npos || at + key.size() + 5 > bytes.size()) return -1;
  const auto byte = [&](size_t i) {
    return static_cast<unsigned char>(bytes[at + key.size() + i]);
  };
  switch (byte(0)) {
    case 0xcc: return byte(1);
    case 0xcd: return byte(1) << 8 | byte(2);
    case 0xce: return byte(1) << 24 | byte(2) << 16 | byte(3) << 8 | byte(4);
    default: return byte(0) < 0x80 ? byte(0) : -1;
  }
}

}  // namespace

std::string compile_hip(const std::string& text, const std::string& arch,
                        const std::string& entry) {
  return compile_shared_object(clang_for(arch), entry, text);
}

std::string hip_assembly(const std::string& text, const std::string& arch,
                         const std::string& entry) {
  SystemCompiler compiler = clang_for(arch);
  compiler.flags.push_back("-S");
  return compile_shared_object(compiler, entry, text);
}

std::string hip_clang_missing_reason() {
  try {
    hip_clang_id();
    return "";
  } catch (const DeviceError& error) {
    return error.what();
  }
}

bool hip_clang_available() { return hip_clang_missing_reason().empty(); }

std::string hip_clang_id() { return system_compiler_id(clang_for("any")); }

HipResources hip_resources(const std::string& code_object, const std::string& entry) {
  const size_t kernel = entry.empty() ? 0 : find_kernel(code_object, entry);
  HipResources out;
  if (kernel == std::string::npos) return out;
  out.registers = number_after(code_object, kernel, ".vgpr_count");
  out.private_bytes = number_after(code_object, kernel, ".private_segment_fixed_size");
  out.spilled_registers = number_after(code_object, kernel, ".vgpr_spill_count");
  return out;
}

}  // namespace tiny
