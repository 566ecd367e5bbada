#include "devices/emulator/llvm.h"

#include <algorithm>
#include <vector>

#include "devices/compilers/llvm_library.h"
#include "tiny/base/error.h"
#include "tiny/base/text.h"

namespace tiny {
namespace {

constexpr const char* kPasses = "default<O1>,tsan-module,function(tsan)";

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

// A name with its sigil, where it is not the beginning of another one.
void rename(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos;) {
    const char next = at + from.size() < text.size() ? text[at + from.size()] : ' ';
    const bool longer = is_letter(next) || is_digit(next) || next == '_' || next == '.';
    if (longer) {
      at += from.size();
      continue;
    }
    text.replace(at, from.size(), to);
    at += to.size();
  }
}

std::string c_name(std::string name) {  // "llvm.amdgcn.s.barrier" as "amdgcn_s_barrier"
  name = name.substr(name.find("amdgcn"));
  std::ranges::replace(name, '.', '_');
  return name;
}

// "declare R @llvm.amdgcn.mfma...(A, A, R, ...)", with flags (i1) before operands and behind them:
// operands go to the call by their addresses, as compilers differ in how they pass vectors.
std::string matrix_wrapper(const std::string& result, const std::string& name,
                           const std::string& types) {
  std::string parameters, operand;
  TextReader in(types);
  const char* const names[] = {" %a", " %b", " %c"};
  size_t operands = 0;
  for (std::string type; std::getline(in >> std::ws, type, ',');) {
    const bool flag = type == "i1" || operands == 3;
    if (!flag && operands == 0) operand = type;
    parameters += cat(parameters.empty() ? "" : ", ", type, flag ? "" : names[operands++]);
  }
  return cat("declare void @", name, "_at(ptr, ptr, ptr)\ndefine internal ", result, " @", name,
             "(", parameters, ") {\n  %pa = alloca ", operand, ", align 64\n  %pb = alloca ",
             operand, ", align 64\n  %pc = alloca ", result, ", align 64\n  store ", operand,
             " %a, ptr %pa\n  store ", operand, " %b, ptr %pb\n  store ", result,
             " %c, ptr %pc\n  call void @", name, "_at(ptr %pc, ptr %pa, ptr %pb)\n  %d = load ",
             result, ", ptr %pc\n  ret ", result, " %d\n}\n");
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  TextReader in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// What the calls do. Lanes meet without a line number: there is none.
constexpr const char* kCalls = R"TEXT(
#define TINY_CALL extern "C" __attribute__((visibility("hidden"))) UNHOOKED
TINY_CALL int amdgcn_workgroup_id_x() { return block_x(); }
TINY_CALL int amdgcn_workgroup_id_y() { return block_y(); }
TINY_CALL int amdgcn_workgroup_id_z() { return block_z(); }
TINY_CALL int amdgcn_workitem_id_x() { return thread_x(); }
TINY_CALL int amdgcn_workitem_id_y() { return thread_y(); }
TINY_CALL int amdgcn_workitem_id_z() { return thread_z(); }
TINY_CALL void amdgcn_s_barrier() { barrier(0); }
// How many of the mask's lanes, of the first or the last 32, come before this one.
TINY_CALL int amdgcn_mbcnt_lo(u32 mask, int count) {
  const int lane = emulated().lane;
  return count + __builtin_popcount(lane < 32 ? mask & ((1u << lane) - 1) : mask);
}
TINY_CALL int amdgcn_mbcnt_hi(u32 mask, int count) {
  const int lane = emulated().lane - 32;
  return lane <= 0 ? count : count + __builtin_popcount(mask & ((1u << lane) - 1));
}
TINY_CALL int amdgcn_ds_bpermute(int address, int x) {
  return exchange(x, address / 4 % emulated().lanes, 1 << 17, 0);
}
TINY_CALL char* amdgcn_shared(long long* place, long long bytes) {
  return shared_array(place, bytes < 0 ? emulated().dynamic_shared : bytes, 0);
}
#define TINY_MATRIX_CALL(name, S, T, function)                        \
  TINY_CALL void amdgcn_##name##_at(S* d, const T* a, const T* b) {   \
    function(d, a, b, 0);                                             \
  }
TINY_MATRIX_CALL(mfma_f32_16x16x4f32, f32, f32, mfma_f32_16x16x4_f32)
TINY_MATRIX_CALL(mfma_i32_16x16x16i8, i32, i8, mfma_i32_16x16x16_i8)
TINY_MATRIX_CALL(mfma_i32_16x16x32_i8, i32, i8, mfma_i32_16x16x32_i8)
TINY_MATRIX_CALL(mfma_f32_16x16x32_fp8_fp8, f32, u32, mfma_f32_16x16x32_fp8_fp8)
TINY_MATRIX_CALL(wmma_i32_16x16x16_iu8_v8i32_v4i32, i32, i8, wmma_i32_16x16x16_iu8)
TINY_MATRIX_CALL(wmma_i32_16x16x16_iu8_v8i32_v2i32, i32, i8, wmma_i32_16x16x16_iu8_gfx12)
TINY_MATRIX_CALL(wmma_f32_16x16x16_fp8_fp8_v8f32_v2i32, f32, f8e4m3,
                 wmma_f32_16x16x16_fp8_fp8_gfx12)
TINY_MATRIX_CALL(wmma_f32_16x16x16_bf8_bf8_v8f32_v2i32, f32, f8e5m2,
                 wmma_f32_16x16x16_bf8_bf8_gfx12)
TINY_MATRIX_CALL(mfma_f32_16x16x16f16, f32, f16, mfma_f32_16x16x16_f16)
TINY_MATRIX_CALL(mfma_f32_16x16x16bf16_1k, f32, bf16, mfma_f32_16x16x16_bf16)
TINY_MATRIX_CALL(wmma_f32_16x16x16_f16_v8f32_v16f16, f32, f16, wmma_f32_16x16x16_f16)
TINY_MATRIX_CALL(wmma_f32_16x16x16_bf16_v8f32_v16i16, f32, bf16, wmma_f32_16x16x16_bf16)
TINY_MATRIX_CALL(wmma_f32_16x16x16_f16_v8f32_v8f16, f32, f16, wmma_f32_16x16x16_f16_gfx12)
TINY_MATRIX_CALL(wmma_f32_16x16x16_bf16_v8f32_v8i16, f32, bf16, wmma_f32_16x16x16_bf16_gfx12)
// What the sanitizer makes of atomics.
#define TINY_FETCH(T, bits, name, what)                                                     \
  TINY_CALL T __tsan_atomic##bits##_fetch_##name(T* p, T x, int) {                          \
    note_access(p, sizeof(T), 1, __builtin_return_address(0));                              \
    return __atomic_fetch_##what(p, x, __ATOMIC_RELAXED);                                   \
  }
#define TINY_ATOMICS(T, bits)                                                               \
  TINY_CALL T __tsan_atomic##bits##_load(T* p, int) {                                       \
    note_access(p, sizeof(T), 0, __builtin_return_address(0));                              \
    return __atomic_load_n(p, __ATOMIC_RELAXED);                                            \
  }                                                                                         \
  TINY_CALL T __tsan_atomic##bits##_compare_exchange_val(T* p, T expected, T next, int, int) { \
    note_access(p, sizeof(T), 1, __builtin_return_address(0));                              \
    __atomic_compare_exchange_n(p, &expected, next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED); \
    return expected;                                                                        \
  }                                                                                         \
  TINY_FETCH(T, bits, add, add)                                                             \
  TINY_FETCH(T, bits, and, and)                                                             \
  TINY_FETCH(T, bits, or, or)                                                               \
  TINY_FETCH(T, bits, xor, xor)
TINY_ATOMICS(u8, 8)
TINY_ATOMICS(u16, 16)
TINY_ATOMICS(u32, 32)
TINY_ATOMICS(u64, 64)
TINY_CALL void __tsan_atomic_thread_fence(int) {}
)TEXT";

}  // namespace

std::string emulated_llvm_ir(const std::string& text) {
  std::string body, shared, places, wrappers;
  std::vector<std::string> names;
  for (const std::string& line : lines_of(text)) {
    if (const size_t at = line.find(" addrspace(3) global ["); line[0] == '@') {
      // An array in shared memory: its address is asked for when the kernel begins, and its place
      // is kept beside the kernel, as many as there are.
      const std::string name = line.substr(1, line.find(' ') - 1);
      const size_t open = line.find('[', at), close = line.find(']', open);
      const std::string type = line.substr(open, close + 1 - open);
      const std::string bytes = type.starts_with("[0 x") ? "-1"
                                                         : cat("ptrtoint (ptr getelementptr (",
                                                               type, ", ptr null, i32 1) to i64)");
      shared += cat("  %", name, ".at = call ptr @amdgcn_shared(ptr @", name, ".place, i64 ", bytes,
                    ")\n");
      places += cat("@", name, ".place = internal global i64 -1\n");
      names.push_back(name);
      continue;
    }
    if (line.starts_with("declare ") && line.find("32.16x16x") != line.npos) {
      const size_t at = line.find(" @"), open = line.find('(');
      const std::string result = line.substr(8, at - 8);
      const std::string name = c_name(line.substr(at + 2, open - at - 2));
      wrappers += matrix_wrapper(result, name, line.substr(open + 1, line.find(')') - open - 1));
      continue;
    }
    body += line + "\n";
  }
  for (const std::string& name : names) rename(body, "@" + name, "%" + name + ".at");
  if (!names.empty()) body += "declare ptr @amdgcn_shared(ptr, i64)\n";
  replace_all(body, "entry:\n", "entry:\n" + shared);
  for (size_t at; (at = body.find("@llvm.amdgcn.")) != std::string::npos;) {
    const size_t end = body.find('(', at);
    body.replace(at + 1, end - at - 1, c_name(body.substr(at + 1, end - at - 1)));
  }
  for (const char* space : {", addrspace(5)", " addrspace(1)", " addrspace(3)", " addrspace(5)",
                            " syncscope(\"agent\")", " syncscope(\"workgroup\")", "amdgpu_kernel "})
    replace_all(body, space, "");
  replace_all(body, "convergent nounwind ", "convergent nounwind sanitize_thread ");
  return body + places + wrappers;
}

std::string emulated_llvm_text(const Source& source) {
  const std::string assembly =
      llvm_c::compile({source.entry, emulated_llvm_ir(source.text), Source::Language::LlvmIr},
                      llvm_c::host(), kPasses, llvm_c::Output::Assembly);
  const std::string limit = "\"amdgpu-flat-work-group-size\"=\"1,";
  const size_t at = source.text.find(limit);
  expect(at != std::string::npos, "the IR of kernel ", source.entry, " does not say its threads");
  const int threads = std::stoi(source.text.substr(at + limit.size()));
  const size_t open = source.text.find('(', source.text.find("define amdgpu_kernel"));
  const std::string head = source.text.substr(open, source.text.find('\n', open) - open);
  std::string parameters;
  for (size_t p = 0; (p = head.find("ptr addrspace(1)", p)) != std::string::npos; ++p)
    parameters += parameters.empty() ? "void*" : ", void*";
  return cat(kCalls, "extern \"C\" const int tiny_threads EXPORTED = ", threads,
             ";\nextern \"C\" void ", source.entry, "(", parameters, ");\nasm(R\"ASSEMBLY(\n",
             assembly, "\n.text\n)ASSEMBLY\");\n");
}

std::string emulated_llvm_id() {
  return cat("llvm ", llvm_c::library().version(), " ", kPasses, " ",
             std::hash<std::string>()(kCalls));
}

}  // namespace tiny
