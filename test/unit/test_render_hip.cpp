// Kernels in HIP, compiled with clang (neither a GPU nor ROCm is needed) for four generations of
// AMD GPUs, and with hiprtc where that is and knows the GPU. Where clang 19 is missing only their
// text is looked at.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "codegen/kernel/facts.h"
#include "codegen/lower.h"
#include "devices/hip/clang.h"
#include "devices/hip/hiprtc.h"
#include "devices/hip/llvm.h"
#include "test/all_cores.h"
#include "test/unit/cuda_kernels.h"
#include "test/unit/kernels.h"
#include "tiny/base/error.h"

using namespace tiny;
using namespace tiny::test;

namespace {

void check_text_compiles(const Source& source, const std::string& arch) {
  if (hiprtc_missing_reason(arch).empty()) CHECK(!compile_hiprtc(source.text, arch).empty());
  if (!hip_clang_available()) return;
  const HipResources used = hip_resources(compile_hip(source.text, arch, source.entry));
  INFO(source.text, "\n", arch);
  CHECK(used.registers > 0);
  CHECK(used.private_bytes == 0);
  CHECK(used.spilled_registers == 0);
}

void check_compiles(const Linear& linear, const std::string& arch) {
  check_text_compiles(render_c(linear, gpu_target(arch)), arch);
}

}  // namespace

TEST_CASE("HIP: operations of all dtypes and casts between them compile, as scalars and vectors") {
  for (DType t : all_dtypes()) {
    const int lanes = std::max(2, 16 / t.size());
    const auto program = [&](const std::string& arch, int n, const std::vector<Formula>& formulas) {
      return elementwise(cat("all_", t.name(), "_", n), t, n, formulas, gpu_target(arch));
    };
    check_compiles(program("gfx942", lanes, formulas_of(t)), "gfx942");
    check_compiles(program("gfx1201", 1, casts_of(t)), "gfx1201");
  }
}

TEST_CASE("HIP: groups of threads and atomics of every dtype compile") {
  for (const char* arch : {"gfx90a", "gfx1100"})
    for (int width : {8, 32, 64, 1024}) check_compiles(grouped(Op::Add, kF32, width, 1, 3), arch);
  for (DType t : all_dtypes()) {
    const Node thread = range(0, 96, RangeKind::Thread, kI32);
    const Node at = make(Op::Load, kI32, {param(1, kI32), thread});
    const Node x = make(Op::Load, t, {param(0, t), thread});
    Statements s(cat("combine_", t.name()));
    s.loop(thread);
    for (Op o : {Op::Add, Op::Mul, Op::Max, Op::Min})
      s.values(make(Op::Store, kVoid, {param(2, t), at, x}, OpArg{o}));
    check_compiles(s.end(thread).linear(), "gfx90a");
  }
}

TEST_CASE("HIP: kernels of rows and transposed tiles compile from tensors to machine code") {
  for (const char* arch : {"gfx90a", "gfx942", "gfx1100", "gfx1201"}) {
    const Node x = tensor_param(1, {1000, 4096}, kF32);
    const Node flipped = build::permute(tensor_param(2, {4096, 1000}, kF32), Shape{1, 0});
    const std::vector<std::pair<const char*, Node>> values = {
        {"k_softmax", softmax(x, 2)},
        {"k_transposed", build::binary(Op::Add, x, flipped)},
    };
    for (const auto& [name, value] : values)
      check_text_compiles(lower(kernel_of({value}), name, gpu_target(arch)).source, arch);
  }
}

TEST_CASE("HIP: waves have the lanes of their architecture, and no ROCm header is included") {
  const auto text = [](const char* arch, int width) {
    return render_c(grouped(Op::Add, kF32, width, 1, 1), gpu_target(arch)).text;
  };
  CHECK(text("gfx942", 64).find("#define WARP 64\n") != std::string::npos);
  CHECK(text("gfx1201", 64).find("#define WARP 32\n") != std::string::npos);
  CHECK(text("gfx942", 256).find("SHARED(f32, shared1, 4);") != std::string::npos);
  CHECK(text("gfx1201", 256).find("SHARED(f32, shared1, 8);") != std::string::npos);
  CHECK(text("gfx942", 256).find("#include") == std::string::npos);
  CHECK(text("gfx942", 256).find("__shfl") == std::string::npos);
}

namespace {

struct MatrixCase {
  const char* arch;
  DType dtype;
  const char *instruction, *other;  // the assembler's names for it
};
constexpr MatrixCase kMatrixCases[] = {
    {"gfx90a", kF32, "v_mfma_f32_16x16x4f32", "v_mfma_f32_16x16x4_f32"},
    {"gfx90a", kF16, "v_mfma_f32_16x16x16f16", "v_mfma_f32_16x16x16_f16"},
    {"gfx90a", kBF16, "v_mfma_f32_16x16x16bf16_1k", "v_mfma_f32_16x16x16_bf16"},
    {"gfx90a", kI8, "v_mfma_i32_16x16x16i8", "v_mfma_i32_16x16x16_i8"},
    {"gfx942", kF32, "v_mfma_f32_16x16x4_f32", nullptr},
    {"gfx942", kF16, "v_mfma_f32_16x16x16_f16", nullptr},
    {"gfx942", kBF16, "v_mfma_f32_16x16x16_bf16", nullptr},
    {"gfx942", kI8, "v_mfma_i32_16x16x32_i8", nullptr},
    {"gfx942", kF8E4M3, "v_mfma_f32_16x16x32_fp8_fp8", nullptr},
    {"gfx1100", kF16, "v_wmma_f32_16x16x16_f16", nullptr},
    {"gfx1100", kBF16, "v_wmma_f32_16x16x16_bf16", nullptr},
    {"gfx1100", kI8, "v_wmma_i32_16x16x16_iu8", nullptr},
    {"gfx1200", kF16, "v_wmma_f32_16x16x16_f16", nullptr},
    {"gfx1200", kBF16, "v_wmma_f32_16x16x16_bf16", nullptr},
    {"gfx1201", kF16, "v_wmma_f32_16x16x16_f16", nullptr},
    {"gfx1201", kBF16, "v_wmma_f32_16x16x16_bf16", nullptr},
    {"gfx1201", kI8, "v_wmma_i32_16x16x16_iu8", nullptr},
    {"gfx1201", kF8E4M3, "v_wmma_f32_16x16x16_fp8_fp8", nullptr},
    {"gfx1201", kF8E5M2, "v_wmma_f32_16x16x16_bf8_bf8", nullptr},
};

// (size, size) by (size, size), the second transposed or not.
Source product(const MatrixCase& c, int64_t size, bool turned, Target::Language language) {
  const std::string arch = c.arch;
  Target target = gpu_target(arch == "gfx1200" ? "gfx1201" : arch);  // a smaller one of the kind
  target.arch = arch;
  target.language = language;
  const auto operand = [&](int slot) { return tensor_param(slot, {size, size}, c.dtype); };
  const DType sum = c.dtype == kI8 ? kI32 : kF32;
  const auto wide = [&](Node x) { return x->dtype == sum ? x : build::cast(x, sum); };
  Node b = operand(2);
  if (turned) b = build::permute(b, Shape{1, 0});
  return lower(kernel_of({matmul(wide(operand(1)), wide(b))}), "k", target).source;
}

}  // namespace

TEST_CASE("HIP: products are made by the matrix units, and spill nothing") {
  const bool has_clang = hip_clang_available(), has_llvm = amd_llvm_missing_reason().empty();
  struct Product {
    MatrixCase of;
    int64_t size;
    bool turned, ir;
    Source source;
    std::string assembly;
  };
  std::vector<Product> products;
  for (const MatrixCase& c : kMatrixCases)
    for (int64_t size : {64, 4096})
      for (bool turned : {false, true})
        for (bool ir : {false, true})
          products.push_back(
              {c, size, turned, ir,
               product(c, size, turned, ir ? Target::Language::LlvmIr : Target::Language::Hip),
               ""});
  on_all_cores(products.size(), [&](size_t i) {
    Product& p = products[i];
    if (!(p.ir ? has_llvm : has_clang)) return;
    try {
      p.assembly =
          p.ir ? amd_llvm_assembly(p.source, p.of.arch) : hip_assembly(p.source.text, p.of.arch);
    } catch (const std::exception& e) {
      p.assembly = e.what();
    }
  });
  for (const Product& p : products) {
    CAPTURE(std::string(p.of.arch));
    CAPTURE(p.of.dtype);
    CAPTURE(p.size);
    CAPTURE(p.turned);
    CAPTURE(p.ir);
    CHECK(p.source.text.find(p.ir ? "32.16x16x" : "32_16x16x") != std::string::npos);
    if (!(p.ir ? has_llvm : has_clang)) continue;
    const auto has = [&](const char* name) { return p.assembly.find(name) != std::string::npos; };
    const bool multiplies = has(p.of.instruction) || (p.of.other && has(p.of.other));
    CHECK_MESSAGE(multiplies, p.assembly);
    CHECK(has(".private_segment_fixed_size: 0\n"));
    CHECK(has(".vgpr_spill_count: 0\n"));
    CHECK(!has("scratch_store"));
  }
}

TEST_CASE("HIP: an array that is indexed, spilled registers and errors are found in a kernel") {
  if (!hip_clang_available()) return;
  const auto compile = [](const std::string& body) {
    const std::string head =
        "extern \"C\" __attribute__((global, amdgpu_flat_work_group_size(1, 1024))) void k";
    return hip_resources(compile_hip(head + "(float* p, int n) {" + body + "}", "gfx1100"));
  };
  CHECK(compile("p[0] = n;").private_bytes == 0);
  CHECK(compile("float a[64]; for (int i = 0; i < n; ++i) a[i] = p[i]; p[0] = a[n / 2];")
            .private_bytes >= 256);
  // 300 values that all live at once, in threads of at most 256 registers.
  const HipResources spilled = compile(
      "float a[300];\n#pragma unroll\nfor (int i = 0; i < 300; ++i) a[i] = ((volatile float*)p)[i "
      "* n];\n"
      "__builtin_amdgcn_s_barrier();\n#pragma unroll\n"
      "for (int i = 0; i < 300; ++i) ((volatile float*)p)[i + n] = a[299 - i];");
  CHECK(spilled.spilled_registers > 0);
  CHECK_THROWS_AS(compile("oops;"), DeviceError);
  CHECK_THROWS_AS(gpu_target("gfx1"), Error);
}

TEST_CASE("HIP: what each of several kernels of a code object uses is told apart") {
  if (!hip_clang_available()) return;
  const auto kernel = [](const std::string& name, const std::string& body) {
    return "extern \"C\" __attribute__((global)) void " + name + "(float* p, int n) {" + body +
           "}\n";
  };
  const std::string array =
      "float a[64]; for (int i = 0; i < n; ++i) a[i] = p[i]; p[0] = a[n / 2];";
  const std::string longer(40, 'x');  // than what has its length in the byte before
  const std::string object = compile_hip(
      kernel("k", "p[0] = n;") + kernel("kk", array) + kernel(longer, "p[1] = n;"), "gfx1201");
  CHECK(hip_resources(object, "k").private_bytes == 0);
  CHECK(hip_resources(object, "kk").private_bytes >= 256);
  CHECK(hip_resources(object, longer).private_bytes == 0);
  CHECK(hip_resources(object, longer).registers > 0);
  CHECK(hip_resources(object, "kkk").registers == -1);
}
