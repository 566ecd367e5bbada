// Every kernel of the operator cases, forward and gradient, through NVRTC, through clang (HIP) and
// through LLVM in this process (AMD's GPUs) for each row of the table of GPUs. No GPU is needed;
// where a compiler is missing nothing is compiled, which is said once. Starting a compiler and
// reading what all kernels begin with takes longer than a kernel, so they are compiled by dozens;
// those that passed are remembered in the cache on disk.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <optional>
#include <set>
#include <sstream>

#include "codegen/lower.h"
#include "devices/cuda/nvrtc.h"
#include "devices/hip/clang.h"
#include "devices/hip/llvm.h"
#include "runtime/device/disk_cache.h"
#include "runtime/schedule/schedule.h"
#include "test/all_cores.h"
#include "test/devices.h"
#include "test/ops/ops.h"
#include "tiny/base/error.h"

namespace tiny::ops {
namespace {

// Kernels that may spill registers or have an array in local memory: a part of the entry's name,
// and why. Short, and read when it grows.
struct Allowed {
  std::string_view entry, reason;
};
constexpr std::array<Allowed, 1> kAllowed = {{
    {"k_matmul_grad_1x10x21", "f64 under a limit of 40 registers: one pair of them"},
}};

constexpr size_t kTogether = 64;  // kernels in a run of a compiler

bool is_allowed(const std::string& entry) {
  return std::any_of(std::begin(kAllowed), std::end(kAllowed),
                     [&](const Allowed& a) { return entry.find(a.entry) != std::string::npos; });
}

// --- the kernels ---------------------------------------------------------------------------------

// A case's outputs or gradients, with what keeps its nodes.
struct Graph {
  Built built;
  Normalized graph;
  NodeRef nodes;  // its roots in a Sink: a NodeRef of an assignment would count as a tensor that
                  // waits to be computed
  std::string owner;
};

std::vector<Graph> graphs_of(const Cases& cases) {
  const EnvOverride device("DEVICE", "EMULATOR");  // of constants as well
  std::vector<Graph> out;
  for (const Case& c : cases) {
    const Built b = built(c, "EMULATOR");
    const auto add = [&](const Outputs& tensors, const std::string& owner) {
      std::vector<Node> roots;
      for (const Tensor& t : tensors) roots.push_back(t.node());
      if (roots.empty()) return;
      Normalized graph = normalize(roots);
      NodeRef nodes(make(Op::Sink, kVoid, graph.roots));
      out.push_back({b, std::move(graph), std::move(nodes), owner});
    };
    add(b.outputs, c.name);
    add(b.gradients, c.name + ", gradient");
  }
  return out;
}

// A kernel's text for an architecture, with the case that it belongs to; or why there is none.
struct GpuText {
  std::string arch, name, owner;
  Source source;
  std::string failure;
};

bool is_for(const GpuRow& gpu, Target::Language language) {
  const bool ir = language == Target::Language::LlvmIr;
  return gpu.language == (ir ? Target::Language::Hip : language);
}

// Whose emulator has that GPU's target.
int device_of(const GpuRow& gpu, Target::Language language) {
  const bool ir = language == Target::Language::LlvmIr;
  return device_id(cat(ir                                  ? "EMU:LLVM:"
                       : language == Target::Language::Hip ? "EMU:HIP:"
                                                           : "EMU:CUDA:",
                       gpu.arch));
}

// One of each text that the GPU would get, whatever the kernel's name.
std::vector<GpuText> texts_of(const std::vector<Graph>& graphs, const GpuRow& gpu,
                              Target::Language language) {
  const int device = device_of(gpu, language);
  std::vector<GpuText> all;
  std::vector<NodeRef> kernels;
  for (const Graph& g : graphs)
    for (const Step& step :
         schedule(g.graph, std::vector<int>(g.graph.buffers.size(), device), device)->steps) {
      if (!step.kernel) continue;
      kernels.push_back(step.kernel);
      all.push_back({gpu.arch, step.name, g.owner, {}, ""});
    }
  const Target& target = find_device(device_name(device)).target();
  on_all_cores(all.size(), [&](size_t i) {
    try {
      all[i].source = lower(kernels[i].get(), "k", target).source;
    } catch (const std::exception& e) {
      all[i].failure = e.what();
    }
  });
  std::set<std::string> seen;
  std::erase_if(all, [&](const GpuText& t) {
    return t.failure.empty() && !seen.insert(t.source.text).second;
  });
  return all;
}

// --- compiling them ------------------------------------------------------------------------------

using Batch = std::vector<const GpuText*>;

std::string entry_of(const Batch& batch, size_t i) { return batch.size() == 1 ? "k" : cat("k", i); }

// The text with another name for its one kernel, k.
std::string renamed(std::string text, const std::string& entry) {
  const auto is_part = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
  };
  size_t found = std::string::npos;
  for (size_t at = 0; (at = text.find("k(", at)) != std::string::npos; ++at) {
    if (at && is_part(text[at - 1])) continue;
    expect(found == std::string::npos, "a kernel's text names it twice");
    found = at;
  }
  expect(found != std::string::npos, "a kernel's text does not name it");
  return text.replace(found, 1, entry);
}

// Lines that take back the macros of a text.
std::string without_macros(const std::string& text) {
  std::istringstream in(text);
  std::string out;
  const std::string define = "#define ";
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(define))
      out +=
          cat("#undef ",
              line.substr(define.size(), line.find_first_of(" (", define.size()) - define.size()),
              "\n");
  return out;
}

// The kernels as one text: each in a namespace, as all begin with the same declarations, and with
// lines that are counted anew.
std::string unit_of(const Batch& batch) {
  if (batch.size() == 1) return batch[0]->source.text;
  std::string out;
  for (size_t i = 0; i < batch.size(); ++i) {
    const std::string& text = batch[i]->source.text;
    const std::string entry = entry_of(batch, i);
    out += cat("namespace unit_", entry, " {\n#line 1 \"", entry, "\"\n", renamed(text, entry),
               "\n}\n", without_macros(text));
  }
  return out;
}

// What is wrong with what a kernel uses in words, "" where nothing is.
std::string cuda_problem(const CudaResources& used) {
  if (used.registers < 0) return "the assembler reports nothing";
  if (used.stack_bytes == 0 && used.spill_bytes == 0) return "";
  return cat(used.spill_bytes, " bytes of spilled registers, ", used.stack_bytes, " of the stack, ",
             used.registers, " registers");
}

std::string hip_problem(const HipResources& used) {
  if (used.registers < 0) return "no metadata in the code object";
  if (used.private_bytes == 0 && used.spilled_registers == 0) return "";
  return cat(used.spilled_registers, " spilled registers, ", used.private_bytes,
             " bytes of private memory, ", used.registers, " registers");
}

using Problems = std::vector<std::string>;  // of each kernel, "" where nothing is wrong

Problems cuda_problems(const Batch& batch) {
  const std::string unit = unit_of(batch), first = entry_of(batch, 0);
  std::string log;
  compile_cuda(unit, batch[0]->arch, &log, first);
  // NVRTC's own cache gives back a binary without its report.
  if (cuda_resources(log, first).registers < 0)
    compile_cuda(cat(unit, "\n// ", getpid(), ' ',
                     std::chrono::system_clock::now().time_since_epoch().count()),
                 batch[0]->arch, &log, first);
  Problems out;
  for (size_t i = 0; i < batch.size(); ++i)
    out.push_back(cuda_problem(cuda_resources(log, entry_of(batch, i))));
  return out;
}

// A product on the matrix units in a kernel's text, and in what a disassembler shows of it where
// that is looked at.
struct MatrixUnit {
  const char *text, *instruction;
};
constexpr MatrixUnit kMatrixUnits[] = {{"__builtin_amdgcn_mfma_", "v_mfma_"},
                                       {"__builtin_amdgcn_wmma_", "v_wmma_"},
                                       {"@llvm.amdgcn.mfma.", "v_mfma_"},
                                       {"@llvm.amdgcn.wmma.", "v_wmma_"},
                                       {"mma.sync.", nullptr},
                                       {"wgmma.mma_async.", nullptr}};

const MatrixUnit* matrix_unit_of(const GpuText& t) {
  for (const MatrixUnit& unit : kMatrixUnits)
    if (t.source.text.find(unit.text) != std::string::npos) return &unit;
  return nullptr;
}

std::string matrix_problem(const GpuText& of) {
  const MatrixUnit* unit = matrix_unit_of(of);
  if (!unit || !unit->instruction) return "";
  const std::string text = of.source.language == Source::Language::LlvmIr
                               ? amd_llvm_assembly(of.source, of.arch)
                               : hip_assembly(of.source.text, of.arch);
  if (text.find(unit->instruction) != std::string::npos) return "";
  return cat("no instruction ", unit->instruction, " in:\n", text);
}

Problems hip_problems(const Batch& batch) {
  std::string object;
  if (batch[0]->source.language == Source::Language::LlvmIr) {
    std::vector<Source> sources;
    for (size_t i = 0; i < batch.size(); ++i) {
      const std::string entry = entry_of(batch, i);
      sources.push_back({entry, renamed(batch[i]->source.text, entry), Source::Language::LlvmIr});
    }
    object = compile_amd_llvm(sources, batch[0]->arch);
  } else {
    object = compile_hip(unit_of(batch), batch[0]->arch, entry_of(batch, 0));
  }
  Problems out;
  for (size_t i = 0; i < batch.size(); ++i) {
    out.push_back(hip_problem(hip_resources(object, entry_of(batch, i))));
    if (out.back().empty()) out.back() = matrix_problem(*batch[i]);
  }
  return out;
}

// Where one of several does not compile, each is compiled alone: the message is about one.
Problems problems_of(const Batch& batch) {
  try {
    const bool amd = batch[0]->arch.starts_with("gfx");
    Problems out = amd ? hip_problems(batch) : cuda_problems(batch);
    for (size_t i = 0; i < batch.size(); ++i)
      if (is_allowed(batch[i]->name)) out[i].clear();
    return out;
  } catch (const std::exception& e) {
    if (batch.size() == 1) return {e.what()};
    Problems out;
    for (const GpuText* t : batch) out.push_back(problems_of(Batch{t})[0]);
    return out;
  }
}

// --- and what is known of them -------------------------------------------------------------------

// The texts that passed with one compiler and architecture, by hash: an entry of the cache on disk.
class Passed {
 public:
  Passed(const std::string& compiler, const std::string& arch)
      : folder_(cache_folder()),
        key_(cache_key({"", "", Source::Language::C}, cat("passed, 1: ", compiler, ' ', arch))) {
    if (folder_.empty()) return;
    std::istringstream hashes(cache_get(folder_, key_).value_or(""));
    for (std::string hash; hashes >> hash;) known_.insert(hash);
  }

  bool contains(const GpuText& t) const { return known_.contains(hash_of(t)); }

  // Keeps those of today.
  void save(const std::vector<GpuText>& texts, const Problems& problems) {
    std::string hashes;
    for (size_t i = 0; i < texts.size(); ++i)
      if (problems[i].empty()) hashes += hash_of(texts[i]) + '\n';
    if (!folder_.empty()) cache_put(folder_, key_, hashes);
  }

 private:
  static std::string hash_of(const GpuText& t) {
    return hex(std::string_view(sha256(t.source.text)).substr(0, 16));
  }

  std::string folder_, key_;
  std::set<std::string> known_;
};

struct Checked {
  Problems problems;
  size_t compiled = 0;  // the others had passed before
};

// All texts are for one architecture and in one language.
Checked check(const std::vector<GpuText>& texts, const std::string& compiler,
              size_t together = kTogether) {
  Checked out;
  if (texts.empty()) return out;
  for (const GpuText& t : texts) out.problems.push_back(t.failure);
  Passed passed(compiler, texts[0].arch);
  std::vector<size_t> open;
  for (size_t i = 0; i < texts.size(); ++i)
    if (texts[i].failure.empty() && !passed.contains(texts[i])) open.push_back(i);
  on_all_cores((open.size() + together - 1) / together, [&](size_t b) {
    Batch batch;
    const size_t begin = b * together, end = std::min(open.size(), begin + together);
    for (size_t i = begin; i < end; ++i) batch.push_back(&texts[open[i]]);
    const Problems found = problems_of(batch);
    for (size_t i = begin; i < end; ++i) out.problems[open[i]] = found[i - begin];
  });
  out.compiled = open.size();
  if (!open.empty()) passed.save(texts, out.problems);
  return out;
}

void check_all(Target::Language language, const std::string& compiler, const std::string& id) {
  static const std::vector<Graph> graphs = graphs_of(all_cases());
  std::cout << "kernels of the operator cases that " << compiler << " compiles:";
  const char* separator = " ";
  for (const GpuRow& gpu : gpu_table()) {
    if (!is_for(gpu, language)) continue;
    const auto begin = std::chrono::steady_clock::now();
    const std::vector<GpuText> texts = texts_of(graphs, gpu, language);
    const Checked checked = check(texts, id);
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    const auto products = std::count_if(
        texts.begin(), texts.end(), [](const GpuText& t) { return matrix_unit_of(t) != nullptr; });
    std::cout << separator << texts.size() << " for " << gpu.arch << " (" << products
              << " with matrix units; " << texts.size() - checked.compiled << " passed before; "
              << std::lround(time.count()) << " s)" << std::flush;
    separator = ", ";
    CHECK(texts.size() > 1000);
    CHECK(products > 0);
    for (size_t i = 0; i < texts.size(); ++i)
      CHECK_MESSAGE(checked.problems[i] == "", texts[i].owner, ", kernel ", texts[i].name, " for ",
                    gpu.arch, ": ", checked.problems[i]);
  }
  std::cout << std::endl;
}

}  // namespace
}  // namespace tiny::ops

using namespace tiny;
using namespace tiny::ops;

TEST_CASE("CUDA: kernels of the operator cases neither spill registers nor index arrays") {
  if (nvrtc_available()) return check_all(Target::Language::Cuda, "NVRTC", nvrtc_id());
  std::cout << "CUDA kernels are not compiled: " << nvrtc_missing_reason() << std::endl;
}

TEST_CASE("HIP: kernels of the operator cases neither spill registers nor index arrays") {
  if (hip_clang_available()) return check_all(Target::Language::Hip, "clang", hip_clang_id());
  std::cout << "HIP kernels are not compiled: " << hip_clang_missing_reason() << std::endl;
}

TEST_CASE("AMD: LLVM compiles kernels of the operator cases without spills and arrays") {
  const std::string missing = amd_llvm_missing_reason();
  if (missing.empty()) return check_all(Target::Language::LlvmIr, "LLVM", amd_llvm_id());
  std::cout << "kernels for AMD's GPUs are not compiled in process: " << missing << std::endl;
}

namespace {

// Texts as a program's, with a cache of their own.
class Planted {
 public:
  Planted(const std::string& arch, Source::Language language, const std::string& compiler)
      : arch_(arch), language_(language), compiler_(compiler) {
    REQUIRE(mkdtemp(folder_) != nullptr);
    cache_.emplace("CACHE_DIR", folder_);
  }
  ~Planted() { std::filesystem::remove_all(folder_); }

  Planted& add(const std::string& text) {
    texts_.push_back({arch_, cat("kernel ", texts_.size()), "test", {"k", text, language_}, ""});
    return *this;
  }
  // Four at a time.
  Checked check() const { return ops::check(texts_, compiler_, 4); }

 private:
  std::string arch_;
  Source::Language language_;
  std::string compiler_;
  char folder_[32] = "/tmp/tiny-passed-XXXXXX";
  std::optional<EnvOverride> cache_;
  std::vector<GpuText> texts_;
};

std::string in_cuda(const std::string& body) {
  return "#define SIZE 64\nextern \"C\" __global__ void __launch_bounds__(1024) k(float* p, int n) "
         "{" +
         body + "}";
}
std::string in_hip(const std::string& body) {
  return "#define SIZE 64\nextern \"C\" __attribute__((global, amdgpu_flat_work_group_size(1, "
         "1024)))"
         " void k(float* p, int n) {" +
         body + "}";
}
std::string in_ir(const std::string& body) {
  return "define amdgpu_kernel void @k(ptr addrspace(1) %p, i32 %n) {\n" + body + "\nret void\n}\n";
}

constexpr const char* kArray =
    "float a[SIZE]; for (int i = 0; i < n; ++i) a[i] = p[i]; p[0] = a[n / 2];";
// 150 values that all live at once, more than a thread of a block of 1024 has registers.
constexpr const char* kSpilled =
    "volatile float* q = p; float a[150];\n#pragma unroll\n"
    "for (int i = 0; i < 150; ++i) a[i] = q[i * n];\n#pragma unroll\n"
    "for (int i = 0; i < 150; ++i) q[i + n] = a[149 - i];";
constexpr const char* kIrArray =
    "%a = alloca [64 x i32], addrspace(5)\n"
    "%e = getelementptr [64 x i32], ptr addrspace(5) %a, i32 0, i32 %n\n"
    "store volatile i32 %n, ptr addrspace(5) %e";

// Of six kernels the second, the fourth and the last are faulty.
void check_finds(Planted&& planted, std::string (*in)(const std::string&),
                 const std::array<const char*, 3>& good, const std::array<const char*, 3>& faulty,
                 const std::array<const char*, 3>& said) {
  for (size_t i = 0; i < 3; ++i) planted.add(in(good[i])).add(in(faulty[i]));
  for (const size_t compiled : {6, 3}) {  // what passed is remembered, what did not is not
    const Checked checked = planted.check();
    CHECK(checked.compiled == compiled);
    for (size_t i = 0; i < 6; ++i) {
      CAPTURE(i);
      const std::string &problem = checked.problems[i], wanted = i % 2 ? said[i / 2] : "";
      CHECK_MESSAGE(problem.empty() == wanted.empty(), problem);
      CHECK_MESSAGE(problem.find(wanted) != problem.npos, problem);
    }
  }
}

}  // namespace

TEST_CASE("CUDA: an array that is indexed, spilled registers and errors are found in a kernel") {
  if (!nvrtc_available()) return;
  check_finds(
      {"sm_90a", Source::Language::Cuda, nvrtc_id()}, in_cuda,
      {"p[0] = n;", "p[1] = n;", "p[2] = n;"}, {kArray, kSpilled, "oops"},
      {"0 bytes of spilled registers, 256 of the stack", " of the stack, ", "kernel.cu(2): error"});
}

TEST_CASE("HIP: an array that is indexed, spilled registers and errors are found among kernels") {
  if (!hip_clang_available()) return;
  check_finds({"gfx942", Source::Language::Hip, hip_clang_id()}, in_hip,
              {"p[0] = n;", "p[1] = n;", "p[2] = n;"}, {kArray, kSpilled, "oops"},
              {"0 spilled registers, 272 bytes of private memory", " bytes of private memory",
               "cannot compile kernel k"});
}

TEST_CASE("AMD: an array that is indexed, unknown functions and errors are found in LLVM's IR") {
  if (!amd_llvm_missing_reason().empty()) return;
  check_finds({"gfx942", Source::Language::LlvmIr, amd_llvm_id()}, in_ir,
              {"", "store i32 %n, ptr addrspace(1) %p", "store i32 1, ptr addrspace(1) %p"},
              {kIrArray, "%x = add i32 %n", "%x = oops"},
              {"0 spilled registers, 260 bytes of private memory", "expected", "expected"});
}

TEST_CASE("a product that does not use the matrix units is found") {
  const char* intrinsic = "; @llvm.amdgcn.mfma.\n";
  if (!amd_llvm_missing_reason().empty()) return;
  Planted planted("gfx942", Source::Language::LlvmIr, amd_llvm_id());
  planted.add(intrinsic + in_ir(""));
  CHECK(planted.check().problems[0].starts_with("no instruction v_mfma_ in:"));
}

TEST_CASE("in so many days each thing has had its turn once") {
  for (const char* name : {"", "add", "k_sum_64"}) {
    int turns = 0;
    for (int64_t day = 20000; day < 20007; ++day) turns += is_in_turn(name, 7, day);
    CHECK(turns == 1);
    CHECK(is_in_turn(name, 1));
  }
}

TEST_CASE("each operator case is in one of the parts that processes run") {
  const auto part = [](const char* text) {
    const EnvOverride set("TEST_PART", text);
    return test_part();
  };
  for (const Case& c : unary_cases()) {
    CHECK(part("").has(c.name));
    CHECK(part("0/3").has(c.name) + part("1/3").has(c.name) + part("2/3").has(c.name) == 1);
  }
  for (const char* wrong : {"3", "3/3", "-1/3", "1/3x", "a/b"})
    CHECK_THROWS_WITH_AS(part(wrong), doctest::Contains("is no part such as 3/16"), Error);
}
