// Every kernel of the operator cases, forward and gradient, through NVRTC, through clang (HIP) and
// through LLVM in this process (AMD's GPUs) for each row of the table of GPUs. No GPU is needed;
// where a compiler is missing nothing is compiled, which is said once.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <iostream>
#include <map>
#include <set>
#include <thread>

#include "codegen/lower.h"
#include "devices/amd_llvm.h"
#include "devices/cuda_nvrtc.h"
#include "devices/hip_compiler.h"
#include "runtime/cache.h"
#include "runtime/schedule.h"
#include "test/devices.h"
#include "test/ops/ops.h"
#include "tiny/error.h"

namespace tiny::ops {
namespace {

// Kernels that may spill registers or have an array in local memory: a part of the entry's name,
// and why. Short, and read when it grows.
struct Allowed {
  std::string_view entry, reason;
};
constexpr std::array<Allowed, 0> kAllowed = {};

// How many days a generation takes to see every kernel: clang is a process for each, and so is the
// linker.
int64_t parts_of(const GpuRow& gpu, Target::Language language) {
  if (language != Target::Language::Cuda) return 16;
  return std::string_view(gpu.arch) == "sm_90a" ? 1 : 3;
}

bool is_allowed(const std::string& entry) {
  return std::any_of(std::begin(kAllowed), std::end(kAllowed),
                     [&](const Allowed& a) { return entry.find(a.entry) != std::string::npos; });
}

// A kernel in tensor form, with the case that it belongs to.
struct CaseKernel {
  NodeRef kernel;
  std::string name, owner;
};

void add_kernels(const Outputs& tensors, const std::string& owner, std::vector<CaseKernel>& out) {
  std::vector<Node> roots;
  for (const Tensor& t : tensors) roots.push_back(t.node());
  if (roots.empty()) return;
  const Normalized graph = normalize(roots);
  std::vector<int> devices;
  for (Node b : graph.buffers) devices.push_back(b->device);
  for (const Step& step : schedule(graph, devices, device_id("EMULATOR"))->steps)
    if (step.kernel) out.push_back({step.kernel, step.name, owner});
}

// As a GPU would get them: scheduled for the emulator, which looks like one.
std::vector<CaseKernel> kernels_of(const Cases& cases) {
  const EnvOverride device("DEVICE", "EMULATOR");  // of constants as well
  std::vector<CaseKernel> out;
  for (const Case& c : cases) {
    const Built b = built(c, "EMULATOR");
    add_kernels(b.outputs, c.name, out);
    add_kernels(b.gradients, c.name + ", gradient", out);
  }
  return out;
}

bool is_for(const GpuRow& gpu, Target::Language language) {
  const bool ir = language == Target::Language::LlvmIr;
  return gpu.language == (ir ? Target::Language::Hip : language);
}

struct GpuText {
  std::string arch, text, entry, owner;
  Source::Language language = Source::Language::Cuda;
};

// One of each text, whatever the kernel's name: those whose turn it is. LLVM IR is for AMD's GPUs.
std::vector<GpuText> texts_of(const std::vector<CaseKernel>& kernels, Target::Language language) {
  std::vector<GpuText> texts;
  for (const GpuRow& gpu : gpu_table()) {
    if (!is_for(gpu, language)) continue;
    Target target = gpu_target(gpu.arch);
    target.language = language;
    std::set<std::string> seen;
    for (const CaseKernel& k : kernels) {
      const Source source = lower(k.kernel.get(), "k", target).source;
      if (!seen.insert(source.text).second) continue;
      if (!is_in_turn(source.text, parts_of(gpu, language))) continue;
      texts.push_back({gpu.arch, source.text, k.name, k.owner, source.language});
    }
  }
  return texts;
}

// What the cache on disk has under the key, else what `make` gives.
template <class Make>
std::string cached(const GpuText& of, const std::string& compiler, const Make& make) {
  const std::string folder = cache_folder();
  const std::string key =
      cache_key({"k", of.text, Source::Language::Cuda}, cat("resources ", compiler, " ", of.arch));
  if (!folder.empty())
    if (auto found = cache_get(folder, key)) return *std::move(found);
  std::string made = make();
  if (!folder.empty()) cache_put(folder, key, made);
  return made;
}

// What is wrong with what a kernel uses in words, "" where nothing is.
std::string cuda_problem(const GpuText& of) {
  const std::string log = cached(of, nvrtc_id(), [&] {
    std::string text;
    compile_cuda(of.text, of.arch, &text, of.entry);
    // NVRTC's own cache gives back a binary without its report.
    if (cuda_resources(text).registers < 0)
      compile_cuda(of.text + "\n// once more\n", of.arch, &text, of.entry);
    return text;
  });
  const CudaResources used = cuda_resources(log);
  if (used.registers < 0) return cat("no report of the assembler in:\n", log);
  if ((used.stack_bytes == 0 && used.spill_bytes == 0) || is_allowed(of.entry)) return "";
  return cat(used.spill_bytes, " bytes of spilled registers, ", used.stack_bytes, " of the stack, ",
             used.registers, " registers");
}

std::string hip_problem(const GpuText& of) {
  const bool ir = of.language == Source::Language::LlvmIr;
  return cached(of, ir ? amd_llvm_id() : hip_clang_id(), [&]() -> std::string {
    const HipResources used =
        hip_resources(ir ? compile_amd_llvm({"k", of.text, of.language}, of.arch)
                         : compile_hip(of.text, of.arch, of.entry));
    if (used.registers < 0) return "no metadata in the code object";
    if ((used.private_bytes == 0 && used.spilled_registers == 0) || is_allowed(of.entry)) return "";
    return cat(used.spilled_registers, " spilled registers, ", used.private_bytes,
               " bytes of private memory, ", used.registers, " registers");
  });
}

std::string problem_of(const GpuText& of) {
  try {
    return of.arch.starts_with("gfx") ? hip_problem(of) : cuda_problem(of);
  } catch (const std::exception& e) {
    return e.what();
  }
}

// The problem of each, found on all cores: NVRTC's workers do the most of it.
std::vector<std::string> problems_of(const std::vector<GpuText>& texts) {
  std::vector<std::string> out(texts.size());
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i)
    threads.emplace_back([&] {
      for (size_t j; (j = next++) < texts.size();) out[j] = problem_of(texts[j]);
    });
  for (std::thread& t : threads) t.join();
  return out;
}

}  // namespace
}  // namespace tiny::ops

using namespace tiny;
using namespace tiny::ops;

namespace {

void check_all(Target::Language language, const std::string& compiler) {
  const std::vector<GpuText> texts = texts_of(kernels_of(all_cases()), language);
  std::map<std::string, int> count;
  for (const GpuText& t : texts) ++count[t.arch];
  std::cout << "kernels of the operator cases that " << compiler << " compiles today:";
  for (const GpuRow& gpu : gpu_table())
    if (is_for(gpu, language))
      std::cout << ' ' << count[gpu.arch] << " for " << gpu.arch << " (part "
                << today() % parts_of(gpu, language) << " of " << parts_of(gpu, language) << ")";
  std::cout << std::endl;
  const std::vector<std::string> problems = problems_of(texts);
  for (size_t i = 0; i < texts.size(); ++i)
    CHECK_MESSAGE(problems[i] == "", texts[i].owner, ", kernel ", texts[i].entry, " for ",
                  texts[i].arch, ": ", problems[i]);
}

}  // namespace

TEST_CASE("CUDA: kernels of the operator cases neither spill registers nor index arrays") {
  if (nvrtc_available()) return check_all(Target::Language::Cuda, "NVRTC");
  std::cout << "CUDA kernels are not compiled: " << nvrtc_missing_reason() << std::endl;
}

TEST_CASE("HIP: kernels of the operator cases neither spill registers nor index arrays") {
  if (hip_clang_available()) return check_all(Target::Language::Hip, "clang");
  std::cout << "HIP kernels are not compiled: " << hip_clang_missing_reason() << std::endl;
}

TEST_CASE("AMD: LLVM compiles kernels of the operator cases without spills and arrays") {
  const std::string missing = amd_llvm_missing_reason();
  if (missing.empty()) return check_all(Target::Language::LlvmIr, "LLVM");
  std::cout << "kernels for AMD's GPUs are not compiled in process: " << missing << std::endl;
}

TEST_CASE("CUDA: an array that is indexed, spilled registers and errors are found in a kernel") {
  if (!nvrtc_available()) return;
  const auto problem = [](const std::string& body) {
    const std::string head = "extern \"C\" __global__ void __launch_bounds__(1024) k";
    return problem_of(GpuText{"sm_90a", head + "(float* p, int n) {" + body + "}", "k", "test"});
  };
  CHECK(problem("p[0] = n;") == "");
  const std::string array =
      problem("float a[64]; for (int i = 0; i < n; ++i) a[i] = p[i]; p[0] = a[n / 2];");
  CHECK_MESSAGE(array.starts_with("0 bytes of spilled registers, 256 of the stack"), array);
  // 200 values that all live at once, in threads of at most 64 registers.
  std::string all = "float a[200];\n#pragma unroll\nfor (int i = 0; i < 200; ++i) a[i] = p[i * n];";
  all += "\n__syncthreads();\n#pragma unroll\nfor (int i = 0; i < 200; ++i) p[i + n] = a[199 - i];";
  const std::string spilled = problem(all);
  CHECK_MESSAGE(spilled.find(" bytes of spilled registers") != spilled.npos, spilled);
  CHECK_FALSE(spilled.starts_with("0 "));
  CHECK(problem("oops").find("kernel.cu(1): error") != std::string::npos);
}

TEST_CASE("in so many days each thing has had its turn once") {
  for (const char* name : {"", "add", "k_sum_64"}) {
    int turns = 0;
    for (int64_t day = 20000; day < 20007; ++day) turns += is_in_turn(name, 7, day);
    CHECK(turns == 1);
    CHECK(is_in_turn(name, 1));
  }
}
