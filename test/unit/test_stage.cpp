// Operands of products in shared memory: what the option makes, the values on the emulator, faults
// that are planted into the order of copies and into a kernel's text.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>

#include "codegen/heuristics/heuristics.h"
#include "codegen/kernel/access.h"
#include "codegen/lower.h"
#include "codegen/options/mma.h"
#include "codegen/options/stage.h"
#include "codegen/passes/passes.h"
#include "codegen/proof/stages.h"
#include "devices/cuda/cuda.h"
#include "runtime/device/buffer.h"
#include "runtime/realize/realize.h"
#include "runtime/schedule/schedule.h"
#include "runtime/search/space.h"
#include "test/unit/integers.h"
#include "test/unit/staged_kernel.h"
#include "tiny/base/env.h"
#include "tiny/ir/build.h"
#include "tiny/rewrite/algebra.h"
#include "tiny/tiny.h"

using namespace tiny;

namespace {

constexpr TilePlan kThreads{2, 1, 4, 4, 1, 16, 2}, kDeep{1, 2, 8, 8, 1, 8, 4};
constexpr TilePlan kWarps{2, 1, 1, 4, 1, 16, 3, true}, kOne{1, 2, 2, 4, 1, 32, 1, true};

std::vector<std::string> devices() {
  std::vector<std::string> out{"EMU:CUDA:sm_80", "EMU:HIP:gfx942"};
  if (cuda_available()) out.push_back("CUDA");
  return out;
}

}  // namespace

TEST_CASE("stage: products are right in all forms, of sizes that no tile divides") {
  const EnvOverride allow("ALLOW_TF32", "1");
  for (const std::string& device : devices())
    for (auto [m, n, k] : {std::array<int64_t, 3>{64, 64, 64}, {33, 129, 65}, {31, 45, 72}})
      for (int form = 0; form < 5; ++form)
        for (const TilePlan& plan : {form % 2 ? kThreads : kDeep, form % 3 ? kWarps : kOne}) {
          CAPTURE(device);
          CAPTURE(m);
          CAPTURE(form);
          CAPTURE(plan.step);
          const auto product = [&, m = m, n = n, k = k](const std::string& on) {
            const auto x = [&](Shape s) { return integers(s, kF32, on); };
            if (form == 0) return x({m, k}).matmul(x({k, n}));
            if (form == 1) return x({m, k}).matmul(x({n, k}).t());
            if (form == 2) return x({k, m}).t().matmul(x({k, n}));
            if (form == 3) return (x({2, m, k}).matmul(x({2, k, n})) + x({n})).relu();
            return (x({k, m}) * 2).t().matmul(where(x({k, n}) > 0, x({k, n}) + 1, 0));
          };
          const StagedKernel kernel(product(device));
          const Lowered low = kernel.lowered(plan);
          if (!plan.mma || n % 16 != 1) prove_all(kernel, low);  // one column of a fragment is left
          CHECK(kernel.run(low.source, low.launch) == product("CPU").to_vector<float>());
        }
}

TEST_CASE("stage: products on AMD's matrix units are right in all forms, of ragged sizes") {
  for (const std::string device :
       {"EMU:HIP:gfx90a", "EMU:HIP:gfx942", "EMU:HIP:gfx1100", "EMU:HIP:gfx1201"})
    for (int form = 0; form < 8; ++form) {
      CAPTURE(device);
      CAPTURE(form);
      const bool has_f8 = mma_unit(find_device(device).target(), kF8E4M3);
      const DType t = form < 4 ? form % 2 ? kF16 : kBF16 : form % 2 && has_f8 ? kF8E4M3 : kI8;
      const DType sum = t == kI8 ? kI32 : kF32;
      const auto product = [&, form = form % 4](const std::string& on) {
        const auto x = [&](Shape s) { return integers(s, t, on).to(sum); };
        const int64_t k = 64 * (t.size() == 1) + (form % 2 ? 65 : 72);
        if (form == 0) return x({33, k}).matmul(x({k, 49}));
        if (form == 1) return x({33, k}).matmul(x({49, k}).t());
        if (form == 2) return x({k, 33}).t().matmul(x({k, 49}));
        return (x({2, 40, k}).matmul(x({2, k, 48})) + x({48})).relu();
      };
      const StagedKernel kernel(product(device));
      const Lowered low = kernel.lowered(kWarps);
      CHECK(low.source.text.find("32_16x16x") != std::string::npos);
      prove_all(kernel, low);
      CHECK(kernel.run<int32_t>(low.source, low.launch) ==
            product("CPU").bitcast(kI32).to_vector<int32_t>());
    }
}

TEST_CASE("stage: 16-bit floats are staged as they are") {
  for (const std::string& device : devices())
    for (DType t : {kF16, kBF16}) {
      CAPTURE(device);
      const auto product = [&](const std::string& on) {
        return integers({40, 72}, t, on).to(kF32).matmul(integers({72, 48}, t, on).to(kF32));
      };
      const StagedKernel kernel(product(device));
      for (const TilePlan& plan : {kThreads, kWarps}) {
        const Lowered low = kernel.lowered(plan);
        for (Node s : all_of(low.machine, Op::Stage)) CHECK(s->dtype == t);
        CHECK(kernel.run(low.source, low.launch) == product("CPU").to_vector<float>());
      }
    }
}

TEST_CASE("stage: convolutions and both of their gradients are right") {
  const EnvOverride allow("ALLOW_TF32", "1");
  for (const std::string& device : devices())
    for (int which = 0; which < 3; ++which)
      for (const TilePlan& plan : {kThreads, kWarps}) {
        CAPTURE(device);
        CAPTURE(which);
        const auto result = [&](const std::string& on) {
          const Tensor x = integers({2, 8, 7, 7}, kF32, on).requires_grad_();
          const Tensor w = integers({16, 8, 3, 3}, kF32, on).requires_grad_();
          const Tensor y = conv2d(x, w, Tensor(), {.padding = 1});
          if (which == 2) return y;
          const Tensor g = integers(to_shape(y.shape()), kF32, on);
          return Tensor::gradient((y * g).sum(), {x, w})[static_cast<size_t>(which)];
        };
        const StagedKernel kernel(result(device));
        const Lowered low = kernel.lowered(plan);
        prove_all(kernel, low);
        CHECK(kernel.run(low.source, low.launch) == result("CPU").to_vector<float>());
      }
}

TEST_CASE("stage: what windows share is in shared memory once, of sums over channels and pixels") {
  const EnvOverride allow("ALLOW_TF32", "1");
  enum Of { kResults, kFilters, kImage };
  struct Case {
    Of of;  // the convolution's results, or the gradient
    Shape image;
    int64_t padding;
    struct {
      int64_t down, across, depth, lines = 0;
    } tile;
  };
  const std::vector<Case> cases{
      {kResults, {2, 16, 6, 10}, 0, {1, 2, 1}},     {kResults, {2, 16, 6, 10}, 0, {1, 4, 2}},
      {kResults, {4, 16, 4, 8}, 1, {1, 2, 2}},      {kResults, {4, 16, 5, 8}, 0, {1, 9, 1}},
      {kFilters, {2, 16, 10, 10}, 0, {1, 9, 1, 2}}, {kFilters, {2, 16, 10, 10}, 0, {1, 2, 2, 4}},
      {kFilters, {2, 8, 8, 12}, 1, {1, 3, 2, 2}},   {kImage, {2, 16, 8, 8}, 0, {1, 4, 2}},
      {kImage, {4, 32, 6, 6}, 0, {2, 9, 1}},        {kResults, {2, 16, 10, 14}, 0, {1, 3, 2}},
  };
  for (const std::string& device : devices())
    for (const Case& c : cases) {
      if (device.find("HIP") != device.npos) continue;  // its fragments hold 16 columns
      const auto result = [&](const std::string& on) {
        const Tensor x = integers(c.image, kF32, on).requires_grad_();
        const Tensor w = integers({16, c.image[1], 3, 3}, kF32, on).requires_grad_();
        const Tensor y = conv2d(x, w, Tensor(), {.padding = static_cast<int>(c.padding)});
        if (c.of == kResults) return y;
        const Tensor g = integers(to_shape(y.shape()), kF32, on);
        return Tensor::gradient((y * g).sum(), {c.of == kFilters ? w : x})[0];
      };
      const StagedKernel kernel(result(device));
      CAPTURE(device);
      CAPTURE(&c - cases.data());
      const auto& [down, across, depth, lines] = c.tile;
      const TilePlan plan{.down = down, .across = across, .step = lines, .depth = depth};
      const Lowered low = kernel.lowered([&](Node loops, const Target& target) {
        return choose_window_options(loops, target, plan);
      });
      CAPTURE(to_text(low.choice));
      // 8 channels of 6 x 10 pixels, 8 elements apart to keep them in different banks.
      const std::vector<Node> stages = all_of(low.machine, Op::Stage);
      const auto is_image = [](Node s) { return s->ints()[1] == 8 * (6 * 10 + 8); };
      CHECK(stages.size() == 2);
      if (&c == &cases[0]) CHECK(std::any_of(stages.begin(), stages.end(), is_image));
      // Around all other loops of the sum goes the one that stages are filled along.
      for (Node stage : stages)
        for (Node r : ranges_of(low.machine))
          if (kind(r) == RangeKind::Reduce && !(stage->ranges & r->ranges))
            for (Node outer : ranges_of(low.machine))
              if (kind(outer) == RangeKind::Reduce && (stage->ranges & outer->ranges))
                CHECK(range_id(outer) < range_id(r));
      prove_all(kernel, low);
      CHECK(kernel.run(low.source, low.launch) == result("CPU").to_vector<float>());
    }
}

TEST_CASE("stage: what an iteration would fill in part and read as a whole is refused") {
  const EnvOverride allow("ALLOW_TF32", "1");
  const std::string device = "EMU:CUDA:sm_80";
  const Tensor a = integers({64, 64}, kF32, device), b = integers({64, 64}, kF32, device);
  const StagedKernel kernel(a.matmul(b));
  Choice choice = kernel.lowered(kWarps).choice;
  // The warps that share the copies out become a loop: each turn copies its part alone.
  const auto at = std::find_if(choice.options.begin(), choice.options.end(), [](const Opt& o) {
    return o.kind == OptKind::Bind && o.amount == static_cast<int64_t>(RangeKind::Thread);
  });
  REQUIRE(at != choice.options.end());
  choice.options.erase(at);
  CHECK_THROWS_WITH_AS(lower(kernel.node(), "k", kernel.device.target(), nullptr, &choice),
                       doctest::Contains("fills a part of a stage that it reads all of"), Error);
}

TEST_CASE("stage: a loop that asks for each of several tiles twice is refused") {
  const EnvOverride allow("ALLOW_TF32", "1");
  const std::string device = "EMU:CUDA:sm_80";
  const Tensor a = integers({64, 64}, kF32, device), b = integers({64, 64}, kF32, device);
  const StagedKernel kernel(a.matmul(b));
  for (const TilePlan& plan : {kWarps, kOne}) {
    const std::vector<Opt> all = kernel.lowered(plan).choice.options;
    const Target& target = kernel.device.target();
    Arena arena;
    ArenaScope scope(arena);
    Node loops = loops_of(kernel.node(), target);
    const auto at =
        std::find_if(all.begin(), all.end(), [](const Opt& o) { return o.kind == OptKind::Mma; });
    const auto stage =
        std::find_if(all.begin(), all.end(), [](const Opt& o) { return o.kind == OptKind::Stage; });
    REQUIRE(at != all.end());
    std::vector<Opt> options(all.begin(), at + 1);
    CHECK(staging_problem(simplify(apply(loops, options, target))) == "");
    options.push_back({OptKind::Merge, stage->axis, at->axes[1], {}});
    const std::string why = staging_problem(simplify(apply(loops, options, target)));
    CHECK(why == (plan.depth > 1 ? "a tile is copied again by the next iteration" : ""));
  }
}

TEST_CASE("stage: the emulator finds a missing barrier, and copies that are not waited for") {
  const std::string device = "EMU:CUDA:sm_90a";
  const Tensor a = integers({32, 64}, kF32, device), b = integers({64, 32}, kF32, device);
  const StagedKernel kernel(a.matmul(b));
  const auto want = a.to("CPU").matmul(b.to("CPU")).to_vector<float>();
  for (int64_t depth : {1, 2, 3}) {
    TilePlan plan = kThreads;
    plan.depth = depth;
    const Lowered low = kernel.lowered(plan);
    const auto run = [&](const std::string& from, const std::string& to) {
      Source source = low.source;
      const size_t at = source.text.find(from);
      REQUIRE(at != std::string::npos);
      source.text.replace(at, from.size(), to);
      try {
        return kernel.run(source, low.launch) == want;
      } catch (const DeviceError&) {  // a race, or what nobody wrote
        return false;
      }
    };
    CAPTURE(depth);
    CHECK(run("barrier();", "barrier();"));
    CHECK(!run("barrier();", ""));
    if (depth == 1) {
      CHECK(!run("copies.wait<0>();\n    barrier();\n    UNROLL", "barrier();\n    UNROLL"));
    } else {
      CHECK(!run(cat("wait<", depth - 2, ">();\n"), cat("wait<", depth - 1, ">();\n")));
      CHECK(!run(cat(" + ", depth - 1, ";"), cat(" + ", depth, ";")));
    }
  }
}

TEST_CASE("stage: which orders of copies are right") {
  for (int64_t depth = 1; depth <= 8; ++depth) {
    StageSchedule s = stage_schedule(depth);
    CHECK(prove_schedule(s).verdict == Verdict::Proved);
    if (depth < 2) continue;
    ++s.pending;
    CHECK(prove_schedule(s).verdict == Verdict::Wrong);
    --s.pending;
    ++s.lead;
    CHECK(prove_schedule(s).verdict == Verdict::Wrong);
  }
}

TEST_CASE("stage: large products are staged, small ones are not") {
  const auto options = [](int64_t size, const std::string& device = "EMU:CUDA:sm_90a") {
    const Tensor a = integers({size, size}, kF32, device), b = integers({size, size}, kF32, device);
    const StagedKernel kernel(a.matmul(b));
    return to_text(lower(kernel.node(), "k", kernel.device.target()).options);
  };
  CHECK(options(2048).find("stage r") != std::string::npos);
  CHECK(options(2048).find("mma") == std::string::npos);
  CHECK(options(128).find("stage r") == std::string::npos);
  for (const int64_t k : {16, 17, 40}) {  // short sums, of no whole steps
    const auto product = [&](const std::string& on) {
      return integers({1100, k}, kF32, on).matmul(integers({k, 1028}, kF32, on));
    };
    const StagedKernel kernel(product("EMU:CUDA:sm_90a"));
    const Lowered low = lower(kernel.node(), "k", kernel.device.target());
    CHECK(to_text(low.options).find("stage r") != std::string::npos);
    CHECK(kernel.run(low.source, low.launch) == product("CPU").to_vector<float>());
  }
  const EnvOverride allow("ALLOW_TF32", "1");
  const std::string text = options(2048, "EMU:CUDA:sm_80");  // Hopper's are fed by TMA
  CHECK(text.find("mma r") != std::string::npos);
  CHECK(to_text(options_from_text(text)) == text);
}

TEST_CASE("stage: large tiles with long steps are right, and windows take short ones") {
  const std::string device = "EMU:CUDA:sm_90a";
  const auto x = [](Shape s, const std::string& on) { return integers(s, kF32, on); };
  const Tensor image = x({132, 16, 16, 16}, device), filter = x({128, 16, 3, 3}, device);
  const StagedKernel windows(conv2d(image, filter, {}, {.padding = 1}));
  const std::string text = to_text(lower(windows.node(), "k", windows.device.target()).options);
  const std::string tile = text.substr(0, text.find(", stage r"));
  CHECK_MESSAGE(tile.find(" 64, split") != std::string::npos, text);  // of pixels, by all filters
  CHECK_MESSAGE(tile.ends_with(" 16"), text);
  const auto small = [&](const std::string& on) {
    return x({203, 140}, on).t().matmul(x({203, 132}, on));
  };
  const StagedKernel kernel(small(device));
  const Lowered low = kernel.lowered({4, 2, 8, 8, 1, 32, 2});
  prove_all(kernel, low);
  CHECK(kernel.run(low.source, low.launch) == small("CPU").to_vector<float>());
}

// One factor lies along the sum, the other one does not: of columns by rows, or of rows by columns.
TEST_CASE("stage: copies are spread over the arithmetic, and a factor is transposed on its way") {
  const std::string device = "EMU:CUDA:sm_90a";
  for (const bool columns : {true, false})
    for (auto [m, n, k] :
         {std::array<int64_t, 3>{136, 1032, 96}, {131, 1031, 64}, {136, 1032, 72}}) {
      CAPTURE(columns);
      CAPTURE(m);
      CAPTURE(k);
      const auto product = [&, m = m, n = n, k = k](const std::string& on) {
        const auto x = [&](Shape s) { return integers(s, kF32, on); };
        return columns ? x({k, m}).t().matmul(x({n, k}).t()) : x({n, k}).matmul(x({k, m}));
      };
      const StagedKernel kernel(product(device));
      const auto want = product("CPU").to_vector<float>();
      const Lowered low = kernel.lowered({4, 2, 8, 8, 1, 16, 2});
      prove_all(kernel, low);
      CHECK(kernel.run(low.source, low.launch) == want);
      const auto has = [&](const char* text) {
        return low.source.text.find(text) != std::string::npos;
      };
      // Rows of 131 are copied element by element, and steps of 32 do not divide 72.
      CHECK(has("held1[") == (m == 136 && k == 96));
      CHECK(has("iteration(") == (m == 136));
      if (!has("held1[")) continue;
      // Stored too early, a tile is overwritten that others read; too late, it is read before.
      for (const std::string from : {"barrier();", "= held1["}) {
        Source source = low.source;
        source.text.replace(source.text.find(from), from.size(),
                            from[0] == 'b' ? "" : "= 1 + held1[");
        bool is_right = false;
        try {
          is_right = kernel.run(source, low.launch) == want;
        } catch (const DeviceError&) {
        }
        CHECK(!is_right);
      }
    }
}

TEST_CASE("stage: weights along the sum stay as they are which a product uses seldom") {
  const std::string device = "EMU:CUDA:sm_90a";
  // Kernels more than where they do not lie along the sum.
  const auto packs = [&](int64_t rows, int64_t k) {
    const Tensor x = integers({rows, k}, kF32, device);
    const Tensor along = integers({2048, k}, kF32, device), w = integers({k, 2048}, kF32, device);
    const StagedKernel packed(x.matmul(along.t())), plain(x.matmul(w));
    return packed.made->steps.size() - plain.made->steps.size();
  };
  CHECK(packs(256, 256) == 0);
  CHECK(packs(2048, 256) == 1);
  CHECK(packs(256, 260) == 1);  // no whole steps
  // As many tiles as multiprocessors: halves of long sums, where something is transposed.
  const auto zeros = [&](Shape s) { return Tensor::zeros(s).contiguous().to(device).realize(); };
  const Tensor x = zeros({1024, 4096});
  CHECK(StagedKernel(x.matmul(zeros({2048, 4096}).t())).made->steps.size() == 3);  // x is packed
  CHECK(StagedKernel(x.matmul(zeros({4096, 2048}))).made->steps.size() == 2);
}

TEST_CASE("stage: an option that fits nothing says why") {
  const std::string device = "EMU:CUDA:sm_80";
  const Target& target = find_device(device).target();
  const Tensor a = integers({64, 64}, kF32, device), b = integers({64, 64}, kF32, device);
  const auto why = [&](const Tensor& t, const std::string& option, const Target& on) {
    std::string reason;
    const StagedKernel kernel(t);
    CHECK(!is_legal(simplify(to_ranges(kernel.node())), options_from_text(option)[0], on, &reason));
    return reason;
  };
  const Tensor product = a.matmul(b);
  CHECK(why(product, "stage r2 factor 0 pad 4 r0 x 2", find_device("CPU").target()) ==
        "a CPU stages values, and one tile of them");
  CHECK(why(product, "stage r2 factor 6 pad 4 r0 x 2", target) ==
        "a factor, a padding, ranges of a tile and a depth of 1 to 8 are wanted");
  CHECK(why(product, "stage r2 factor 2 pad 4 r0 x 2", target) ==
        "the factor is what lies in memory");
  CHECK(why(product, "stage r2 factor 0 pad 4 r1 x 2", target) ==
        "the factor has no tile along r1");
  CHECK(why(product, "stage r1 factor 0 pad 4 r0 x 2", target) == "no range of a sum");
  CHECK(why(a + b, "stage r2 factor 0 pad 4 r0 x 2", target) == "no range of a sum");
}

TEST_CASE("stage: a search is offered other tiles, which can be compiled") {
  const std::string gpu = "EMU:CUDA:sm_90a";
  const Shape square{4096, 4096};
  const auto buffer = [&] {
    const auto b = std::make_shared<Buffer>(gpu, kF32, numel(square));
    return Tensor(build::reshape(buffer_node(b), square));
  };
  const Node root = buffer().matmul(buffer()).node();
  const Normalized graph = normalize({&root, 1});
  const std::vector<int> devices(graph.buffers.size(), device_id(gpu));
  const auto made = schedule(graph, devices, device_id(gpu));
  const Node kernel = made->steps.back().kernel.get();
  const Target& target = find_device(gpu).target();
  const Node loops = loops_of(kernel, target);
  const Choice first = choose_options(loops, target);
  CAPTURE(to_text(first));
  CHECK(to_text(first).find("stage r") != std::string::npos);
  int tiles = 0;
  for (const Choice& c : neighbours(loops, first, target)) {
    if (c.options.front() == first.options.front()) continue;  // an edit of what there is
    if (to_text(c).find("stage r") == std::string::npos) continue;
    CAPTURE(to_text(c));
    CHECK(lower(kernel, "k", target, nullptr, &c).launch.shared_bytes <= target.shared_bytes);
    CHECK(choice_from_text(to_text(c)).options == c.options);
    ++tiles;
  }
  CHECK(tiles >= 2);
}
