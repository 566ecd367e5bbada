// Fragments that are read from shared memory by ldmatrix: which are, by how many matrices at once,
// out of different banks, and inside what is staged.
#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <set>

#include "codegen/kernel/access.h"
#include "codegen/kernel/choice.h"
#include "codegen/options/load_matrix.h"
#include "codegen/passes/passes.h"
#include "devices/cuda/nvrtc.h"
#include "runtime/search/space.h"
#include "test/unit/integers.h"
#include "test/unit/staged_kernel.h"
#include "tiny/base/env.h"
#include "tiny/rewrite/algebra.h"

using namespace tiny;

namespace {

// Enough tiles that operands are staged as they lie.
constexpr std::array<int64_t, 3> kLarge{2048, 2048, 256};

std::string device_of(DType t) { return t.is_f8() ? "EMU:CUDA:sm_120" : "EMU:CUDA:sm_80"; }

constexpr TilePlan kWarps{2, 1, 1, 4, 1, 16, 3, true, true};
constexpr TilePlan kTall{1, 2, 2, 2, 1, 16, 1, true, true};

// A product of m x k and k x n, each of which may lie in memory as its transpose ("nt": the
// second).
Tensor product(const std::string& form, DType t, const std::array<int64_t, 3>& sizes,
               const std::string& device) {
  const auto [m, n, k] = sizes;
  const Tensor a = form[0] == 't' ? integers({k, m}, t, device).t() : integers({m, k}, t, device);
  const Tensor b = form[1] == 't' ? integers({n, k}, t, device).t() : integers({k, n}, t, device);
  return a.matmul(b, t == kI8 ? kI32 : kF32);
}

std::vector<Node> matrix_loads(Node sink) {
  std::vector<Node> out;
  for (Node load : all_of(sink, Op::Load))
    if (is_matrix_load(load)) out.push_back(load);
  return out;
}

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++n;
  return n;
}

// The index of a load where the thread of the warp is this one, and all other ranges are 0.
int64_t index_of(Node load, int64_t thread) {
  Arena arena;
  ArenaScope scope(arena);
  NodeMap<Node> map;
  Node lane = nullptr;  // innermost of the block's threads
  for (Node r : topological(load->src(1))) {
    if (r->op != Op::Range) continue;
    map[r] = index(0);
    if (kind(r) == RangeKind::Thread && extent(r) == 32) lane = r;
  }
  REQUIRE(lane);
  map[lane] = index(thread);
  return simplify(substitute(load->src(1), map))->int_value();
}

}  // namespace

TEST_CASE("ldmatrix: operands are read so where rows of 16 bytes lie in shared memory") {
  const EnvOverride allow("ALLOW_TF32", "1");
  struct Expected {
    DType t;
    std::string form, rows, columns;  // empty: no plan
  };
  const std::vector<Expected> all{{kBF16, "nn", "<bf16x8, false>", "<bf16x8, true>"},
                                  {kBF16, "nt", "<bf16x8, false>", "<bf16x8, false>"},
                                  {kF16, "tn", "<f16x8, true>", "<f16x8, true>"},
                                  {kF16, "tt", "<f16x8, true>", "<f16x8, false>"},
                                  {kF32, "nt", "<f32x4, false>", "<f32x4, false>"},
                                  {kF32, "nn", "", ""},
                                  {kI8, "nt", "<i8x16, false>", "<i8x16, false>"},
                                  {kI8, "nn", "", ""},
                                  {kF8E4M3, "nt", "<f8e4m3x16, false>", "<f8e4m3x16, false>"}};
  for (const auto& [t, form, rows, columns] : all) {
    CAPTURE(t);
    CAPTURE(form);
    const StagedKernel kernel(product(form, t, kLarge, device_of(t)));
    const std::optional<Lowered> low = kernel.try_plan(kWarps);
    CHECK(low.has_value() == !rows.empty());
    if (!low) continue;
    // A fragment of rows, and two pairs of columns.
    const std::string& text = low->source.text;
    CHECK(count(text, "= load_matrices<") == 3);
    CHECK(count(text, cat("= load_matrices", rows)) == (rows == columns ? 3 : 1));
    CHECK(count(text, cat("= load_matrices", columns)) == (rows == columns ? 3 : 2));
  }
}

TEST_CASE("ldmatrix: products are right in all forms, of sizes that no tile divides, and proved") {
  const EnvOverride allow("ALLOW_TF32", "1");
  for (const auto& [t, form] : {std::pair<DType, std::string>{kBF16, "nn"},
                                {kBF16, "nt"},
                                {kBF16, "tn"},
                                {kBF16, "tt"},
                                {kF16, "tn"},
                                {kF32, "nt"},
                                {kI8, "nt"},
                                {kF8E5M2, "nt"}}) {
    CAPTURE(t);
    CAPTURE(form);
    const TilePlan& plan = form[0] == 'n' ? kWarps : kTall;
    const std::array<int64_t, 3> sizes{210, t.is_f8() ? 801 : 501, t.size() == 1 ? 136 : 72};
    const StagedKernel kernel(product(form, t, sizes, device_of(t)));
    const Lowered low = kernel.lowered(plan);
    prove_all(kernel, low);
    const auto want = product(form, t, sizes, "CPU");
    const std::vector<float> have = kernel.run(low.source, low.launch);
    if (t == kI8)
      CHECK(std::memcmp(have.data(), want.to_vector<int>().data(), have.size() * 4) == 0);
    else
      CHECK(have == want.to_vector<float>());
  }
}

TEST_CASE("ldmatrix: the rows of a matrix lie in different banks") {
  const EnvOverride allow("ALLOW_TF32", "1");
  const Target target = gpu_target("sm_80");
  for (const auto& [t, form] :
       {std::pair<DType, std::string>{kBF16, "nn"}, {kBF16, "tt"}, {kF32, "nt"}, {kI8, "nt"}})
    for (const TilePlan& plan : stage_plans(true)) {
      if (!plan.matrices) continue;
      CAPTURE(t);
      CAPTURE(form);
      const StagedKernel kernel(product(form, t, kLarge, "EMU:CUDA:sm_80"));
      const Lowered low = kernel.lowered(plan);
      const std::vector<Node> loads = matrix_loads(low.loops);
      REQUIRE(loads.size() == 2);
      for (Node load : loads)
        for (int64_t first = 0; first < 32; first += 8) {
          std::set<int64_t> banks;  // of 16 bytes
          for (int64_t row = 0; row < 8; ++row)
            banks.insert(index_of(load, first + row) * t.size() / 16 % 8);
          CHECK(banks.size() == 8);
        }
    }
}

TEST_CASE("ldmatrix: a fragment of columns without a neighbour is two matrices") {
  const std::string device = "EMU:CUDA:sm_80";
  for (const std::string form : {"nn", "nt"}) {
    const std::array<int64_t, 3> sizes{32, 24, 64};
    const StagedKernel kernel(product(form, kBF16, sizes, device));
    const std::string options =
        cat("split r0 16, split r1 8, split r2 32, stage r2 factor 0 pad 8 r3 r5 x 2, stage r2 "
            "factor 1 "
            "pad 8 ",
            form == "nn" ? "r5 r4" : "r4 r5",
            " x 2, mma r3 r4 r5 matrices, bind r0 block, bind r1 block, bind r5 unroll");
    const Choice choice{options_from_text(options)};
    const Lowered low = lower(kernel.node(), "k", kernel.device.target(), nullptr, &choice);
    CHECK(count(low.source.text,
                cat("load_matrices<bf16x4, ", form == "nn" ? "true" : "false", ">(s")) == 1);
    prove_all(kernel, low);
    CHECK(kernel.run(low.source, low.launch) ==
          product(form, kBF16, sizes, "CPU").to_vector<float>());
  }
}

TEST_CASE("ldmatrix: a proof finds a row that begins outside of the stage") {
  const StagedKernel kernel(product("nt", kBF16, kLarge, "EMU:CUDA:sm_80"));
  const Lowered low = kernel.lowered(kWarps);
  ProofSettings settings;
  settings.steps = 50 * kSolverSteps;
  read_kernel(kernel.node(), kernel.device.target(), settings);
  Arena arena;
  ArenaScope scope(arena);
  for (int64_t by : {0, 8}) {
    NodeMap<Node> map;
    for (Node load : matrix_loads(low.machine)) {
      Node at = load->src(1);
      const int64_t last = load->src(0)->ints()[1] - 8 - at->vmax + by;
      at = make(Op::Add, at->dtype, {at, constant(at->dtype, last)});
      map[load] = make(Op::Load, load->dtype, {load->src(0), at}, load->payload);
    }
    REQUIRE(map.find(matrix_loads(low.machine)[0]));
    const Verdict verdict = prove(substitute(low.machine, map), settings).verdict;
    CHECK(verdict == (by ? Verdict::Wrong : Verdict::Proved));
  }
}

TEST_CASE("ldmatrix: the emulator finds other rows, other forms and rows that are not aligned") {
  const std::array<int64_t, 3> sizes{256, 512, 64};
  const StagedKernel kernel(product("nt", kBF16, sizes, "EMU:CUDA:sm_80"));
  const Lowered low = kernel.lowered(kWarps);
  const auto want = product("nt", kBF16, sizes, "CPU").to_vector<float>();
  std::string problem;
  const auto run = [&](const std::string& from, const std::string& to) {
    Source source = low.source;
    const size_t at = source.text.find(from, source.text.find("extern \"C\""));
    REQUIRE(at != std::string::npos);
    source.text.replace(at, from.size(), to);
    problem.clear();
    try {
      return kernel.run(source, low.launch) == want;
    } catch (const DeviceError& e) {
      problem = e.what();
      return false;
    }
  };
  CHECK(run("load_matrices<bf16x8, false>(s0 + ", "load_matrices<bf16x8, false>(s0 + "));
  CHECK(!run("load_matrices<bf16x8, false>", "load_matrices<bf16x8, true>"));
  CHECK(!run("thread_x();", "thread_x() ^ 8;"));
  CHECK(!run("load_matrices<bf16x8, false>(s0 + ", "load_matrices<bf16x8, false>(s0 + 4 + "));
  CHECK(problem.find("not at a multiple of 16 bytes") != std::string::npos);
}

TEST_CASE("ldmatrix: kernels compile without spills for each generation") {
  if (!nvrtc_available()) return;
  for (const std::string arch : {"sm_80", "sm_90a", "sm_120"})
    for (const std::string form : {"nn", "nt", "tn"})
      for (const TilePlan& plan : stage_plans(true)) {
        if (!plan.matrices) continue;
        CAPTURE(arch);
        const StagedKernel kernel(product(form, kBF16, kLarge, "EMU:CUDA:sm_80"));
        std::string log;
        CHECK(!compile_cuda(kernel.lowered(plan).source.text, arch, &log).empty());
        CHECK(cuda_resources(log).spill_bytes <= 0);  // -1: NVRTC had it in a cache of its own
      }
}

TEST_CASE("ldmatrix: a plan that a small product has no room for gives no options") {
  const EnvOverride allow("ALLOW_TF32", "1");
  int with = 0, without = 0;
  for (const DType t : {kBF16, kF32, kI8})
    for (const std::string form : {"nn", "nt", "tn", "tt"})
      for (const auto& sizes : {std::array<int64_t, 3>{32, 32, 64},
                                {64, 8, 128},
                                {96, 40, 64},
                                {8, 64, 256},
                                {256, 256, 256},
                                {60, 120, 128}}) {
        const StagedKernel kernel(product(form, t, sizes, "EMU:CUDA:sm_80"));
        for (const TilePlan& plan : stage_plans(true)) {
          if (!plan.matrices) continue;
          CAPTURE(t);
          CAPTURE(form);
          CAPTURE(sizes[1]);
          CAPTURE(plan.step);
          std::optional<Lowered> low;
          REQUIRE_NOTHROW(low = kernel.try_plan(plan));
          ++(low ? with : without);
          if (low) CHECK(matrix_loads(low->loops).size() == 2);
        }
      }
  CHECK(with > 0);
  CHECK(without > 0);
}

TEST_CASE("ldmatrix: a search alone takes it") {
  const std::string device = "EMU:CUDA:sm_80";
  const Target& target = find_device(device).target();
  const StagedKernel kernel(product("nt", kBF16, kLarge, device));
  Arena arena;
  ArenaScope scope(arena);
  Node loops = loops_of(kernel.node(), target);
  const Choice first = choose_options(loops, target);
  CHECK(to_text(first).find("mma r") != std::string::npos);
  CHECK(to_text(first).find("matrices") == std::string::npos);
  int tried = 0;
  for (const Choice& c : neighbours(loops, first, target)) {
    if (to_text(c).find("matrices") == std::string::npos) continue;
    CAPTURE(to_text(c));
    CHECK(options_from_text(to_text(c.options)) == c.options);
    CHECK(lower(loops, "k", target, nullptr, &c).source.text.find("load_matrices<") !=
          std::string::npos);
    ++tried;
  }
  CHECK(tried > 0);
  // Where they lie in shared memory alone.
  std::string why;
  const Node plain = simplify(to_ranges(kernel.node()));
  CHECK(!is_legal(plain, options_from_text("mma r0 r1 r2 matrices")[0], target, &why));
  CHECK(why == "an operand's fragments are no rows of 16 bytes in shared memory");
  CHECK(is_legal(plain, options_from_text("mma r0 r1 r2")[0], target));
  CHECK_THROWS_AS(options_from_text("mma r0 r1 r2 vectors"), Error);
}
