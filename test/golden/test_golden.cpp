// The text of each stage for a few small kernels, compared with the files beside this one: a
// refactor shows an empty diff. `make golden-update` (GOLDEN_UPDATE=1) writes the files anew.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "codegen/heuristics/heuristics.h"
#include "codegen/lower.h"
#include "runtime/device/device.h"
#include "runtime/schedule/schedule.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/ir/print.h"
#include "tiny/nn/functional.h"

using namespace tiny;

namespace {

// Inputs live on the null device, and the target is written down here: nothing depends on the
// machine.
Tensor input(const Shape& shape) {
  return Tensor::from(std::vector<float>(static_cast<size_t>(numel(shape))), shape, "NULL");
}

Target fixed_target(Target::Language language) {
  Target t;
  t.language = language;
  t.vector_bytes = 32;
  t.vector_registers = 16;
  t.cores = 2;
  return t;
}

std::string section(const std::string& title, const std::string& text) {
  return cat("--- ", title, "\n", text, text.ends_with('\n') ? "" : "\n");
}

std::string kernel_text(const Step& step) {
  std::string ranges, linear;
  const auto viewer = [&](const char* pass, const std::string& text) {
    if (std::string(pass) == "ranges") ranges = text;
    if (std::string(pass) == "linearize") linear = text;
  };
  Node kernel = step.kernel.get();
  const Lowered llvm = lower(kernel, step.name, fixed_target(Target::Language::LlvmIr), viewer);
  const Lowered c = lower(kernel, step.name, fixed_target(Target::Language::C));
  return section(cat("kernel ", step.name), to_text(kernel)) + section("ranges", ranges) +
         section("options", to_text(llvm.options)) + section("linearize", linear) +
         section("LLVM IR", llvm.source.text) + section("C", c.source.text);
}

std::string stages(const Tensor& result) {
  const EnvOverride opt("OPT", "1"), fuse("FUSE", "1");
  const Node root = result.node();
  const Normalized graph = normalize(std::span(&root, 1));
  const std::vector<int> devices(graph.buffers.size(), device_id("NULL"));
  const auto s = schedule(graph, devices, device_id("NULL"));
  std::string out = section("tensors", to_text(graph.roots[0]));
  for (const Step& step : s->steps)
    if (step.kernel) out += kernel_text(step);
  return out;
}

std::filesystem::path golden_path(const std::string& name) {
  return std::filesystem::path(TINY_ROOT) / "test" / "golden" / (name + ".txt");
}

std::string read(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// The first line in which two texts differ, as a message; empty where they are the same.
std::string first_difference(const std::string& found, const std::string& expected) {
  std::istringstream a(found), b(expected);
  std::string x, y;
  for (int line = 1;; ++line) {
    const bool more_a = static_cast<bool>(std::getline(a, x));
    const bool more_b = static_cast<bool>(std::getline(b, y));
    if (!more_a && !more_b) return "";
    if (!more_a || !more_b || x != y)
      return cat("line ", line, "\n  is:     ", more_a ? x : "(end)",
                 "\n  golden: ", more_b ? y : "(end)",
                 "\nmake golden-update writes the files anew");
  }
}

// The product alone, as a processor with AMX gets it: its operands lie as tiles in memory.
std::string product_on_tiles() {
  const EnvOverride units("CPU_UNITS", "amx-bf16"), opt("OPT", "1"), fuse("FUSE", "1");
  const std::string device = "CPU:39";
  const auto operand = [&](const Shape& shape) {
    return Tensor::from(std::vector<BFloat16>(static_cast<size_t>(numel(shape))), shape, device);
  };
  const Tensor result = operand({64, 128}).matmul(operand({128, 40}), kF32).relu();
  const Node root = result.node();
  const Normalized graph = normalize(std::span(&root, 1));
  const std::vector<int> devices(graph.buffers.size(), device_id(device));
  const auto s = schedule(graph, devices, device_id(device));
  Target target = fixed_target(Target::Language::LlvmIr);
  target.arch = "amx-bf16";
  const Step& product = s->steps.back();
  std::string linear;
  const auto viewer = [&](const char* pass, const std::string& text) {
    if (std::string(pass) == "linearize") linear = text;
  };
  const Lowered llvm = lower(product.kernel.get(), product.name, target, viewer);
  const size_t end = llvm.source.text.find("  call void @llvm.x86.tilestored64");
  return section(cat("kernel ", product.name), to_text(product.kernel.get())) +
         section("options", to_text(llvm.options)) + section("linearize", linear) +
         section("LLVM IR, up to where the sums are", llvm.source.text.substr(0, end));
}

// A product whose fragments the threads of a warp read as matrices, and its kernel up to where the
// sums are.
std::string product_of_matrices() {
  const EnvOverride opt("OPT", "1"), fuse("FUSE", "1");
  const std::string device = "EMU:CUDA:sm_80";
  const auto operand = [&](const Shape& shape) {
    const std::vector<BFloat16> zeros(static_cast<size_t>(numel(shape)));
    return Tensor::from(zeros, shape, device);
  };
  const Node root = operand({64, 128}).matmul(operand({128, 64})).node();
  const Normalized graph = normalize(std::span(&root, 1));
  const std::vector<int> devices(graph.buffers.size(), device_id(device));
  const Step step = schedule(graph, devices, device_id(device))->steps.back();
  const Target target = gpu_target("sm_80");
  const TilePlan plan{1, 2, 2, 2, 1, 16, 2, true, true};
  Arena arena;
  std::optional<Choice> choice;
  {
    ArenaScope scope(arena);
    choice = choose_stage_options(loops_of(step.kernel.get(), target), target, {&plan, 1});
  }
  REQUIRE(choice);
  const Lowered low = lower(step.kernel.get(), step.name, target, nullptr, &*choice);
  const std::string& text = low.source.text;
  const size_t begin = text.find("extern \"C\""), end = text.find("  *(bf16x2*)");
  return section("options", to_text(low.options)) +
         section("CUDA", text.substr(begin, end - begin));
}

void check_golden(const std::string& name, const std::string& text) {
  if (std::getenv("GOLDEN_UPDATE")) {
    std::ofstream(golden_path(name)) << text;
    return;
  }
  CAPTURE(name);
  REQUIRE(std::filesystem::exists(golden_path(name)));
  CHECK(first_difference(text, read(golden_path(name))) == "");
}

void check_golden(const std::string& name, const Tensor& result) {
  check_golden(name, stages(result));
}

}  // namespace

TEST_CASE("the golden text of an element-wise kernel") {
  check_golden("elementwise", ((input({64, 48}) + 1) * input({48})).relu());
}

// docs/how-it-works.md shows this one.
TEST_CASE("the golden text of an element-wise chain summed over rows") {
  check_golden("row_sum", (input({8, 64}) * 2 + 1).relu().sum(1));
}

TEST_CASE("the golden text of a softmax over rows") {
  check_golden("softmax", input({8, 16}).softmax(1));
}

TEST_CASE("the golden text of a matrix product with an epilogue") {
  check_golden("matmul", (input({64, 32}).matmul(input({32, 48})) + input({48})).relu());
}

TEST_CASE("the golden text of a convolution") {
  check_golden("conv", conv2d(input({2, 4, 6, 6}), input({8, 4, 3, 3}), input({8})).relu());
}

TEST_CASE("the golden comparison names the first line that differs") {
  CHECK(first_difference("a\nb\n", "a\nb\n") == "");
  CHECK(first_difference("a\nb\n", "a\nc\n").starts_with("line 2\n  is:     b\n  golden: c"));
  CHECK(first_difference("a\n", "a\nc\n").starts_with("line 2\n  is:     (end)\n  golden: c"));
}

TEST_CASE("the golden text of a product on the tiles of a CPU") {
  if (find_device("CPU").target().language != Target::Language::LlvmIr) return;
  check_golden("tiles", product_on_tiles());
}

TEST_CASE("the golden text of a product whose fragments are read as matrices") {
  check_golden("ldmatrix", product_of_matrices());
}
