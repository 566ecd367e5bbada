// Every kernel of the operator cases, forward and gradient, through NVRTC for three generations of
// GPUs. No GPU is needed; where NVRTC is missing nothing is compiled, which is said once.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <iostream>
#include <map>
#include <set>
#include <thread>

#include "codegen/lower.h"
#include "devices/cuda_nvrtc.h"
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

// How many days the generations other than sm_90a take to see every kernel.
constexpr int64_t kParts = 3;

bool is_allowed(const std::string& entry) {
  return std::any_of(std::begin(kAllowed), std::end(kAllowed),
                     [&](const Allowed& a) { return entry.find(a.entry) != std::string::npos; });
}

// An A100, an H200 and a large RTX 50 (tables of the programming guide, "compute capabilities").
std::vector<Target> gpus() {
  std::vector<Target> out;
  for (const auto& [arch, cores, shared_kb, l2_mb] :
       {std::tuple{"sm_80", 108, 163, 40}, {"sm_90a", 132, 227, 50}, {"sm_120", 170, 99, 96}}) {
    Target target = find_device("EMULATOR").target();  // what they have in common
    target.arch = arch;
    target.cores = cores;
    target.shared_bytes = shared_kb << 10;
    target.l2_bytes = int64_t{l2_mb} << 20;
    target.has_wgmma = target.arch == "sm_90a";
    out.push_back(target);
  }
  return out;
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

struct GpuText {
  std::string arch, text, entry, owner;
};

// One of each text, whatever the kernel's name: all for sm_90a, of the others today's third.
std::vector<GpuText> texts_of(const std::vector<CaseKernel>& kernels) {
  std::vector<GpuText> texts;
  for (const Target& target : gpus()) {
    std::set<std::string> seen;
    for (const CaseKernel& k : kernels) {
      const Source source = lower(k.kernel.get(), "k", target).source;
      if (!seen.insert(source.text).second) continue;
      const int64_t parts = target.arch == "sm_90a" ? 1 : kParts;
      if (!is_in_turn(source.text, parts)) continue;
      texts.push_back({target.arch, source.text, k.name, k.owner});
    }
  }
  return texts;
}

// What the compiler says of a kernel, from the cache on disk where it has been asked before.
std::string log_of(const GpuText& of) {
  const std::string folder = cache_folder();
  const std::string key =
      cache_key({"k", of.text, Source::Language::Cuda}, cat("log of ", nvrtc_id(), " ", of.arch));
  if (!folder.empty())
    if (auto log = cache_get(folder, key)) return *std::move(log);
  std::string log;
  compile_cuda(of.text, of.arch, &log, of.entry);
  if (!folder.empty()) cache_put(folder, key, log);
  return log;
}

// What is wrong with a kernel in words, "" where nothing is.
std::string problem_of(const GpuText& of) {
  try {
    const std::string log = log_of(of);
    const CudaResources used = cuda_resources(log);
    if (used.registers < 0) return cat("no report of the assembler in:\n", log);
    if ((used.stack_bytes == 0 && used.spill_bytes == 0) || is_allowed(of.entry)) return "";
    return cat(used.spill_bytes, " bytes of spilled registers, ", used.stack_bytes,
               " of the stack, ", used.registers, " registers");
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

TEST_CASE("CUDA: kernels of the operator cases neither spill registers nor index arrays") {
  if (!nvrtc_available()) {
    std::cout << "kernels for GPUs are not compiled: " << nvrtc_missing_reason() << std::endl;
    return;
  }
  const std::vector<GpuText> texts = texts_of(kernels_of(all_cases()));
  std::map<std::string, int> count;
  for (const GpuText& t : texts) ++count[t.arch];
  std::cout << "kernels of the operator cases that NVRTC compiles:";
  for (const auto& [arch, n] : count) std::cout << ' ' << n << " for " << arch;
  std::cout << " (part " << today() % kParts << " of " << kParts << " except for sm_90a)"
            << std::endl;
  const std::vector<std::string> problems = problems_of(texts);
  for (size_t i = 0; i < texts.size(); ++i)
    CHECK_MESSAGE(problems[i] == "", texts[i].owner, ", kernel ", texts[i].entry, " for ",
                  texts[i].arch, ": ", problems[i]);
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
