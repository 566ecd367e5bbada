// Products of few rows whose operands go from memory straight into the fragments of a warp
// (codegen/heuristic_thin.cpp): what a search has to try, its text, its values, planted faults.
#include <doctest/doctest.h>

#include <algorithm>

#include "codegen/lower.h"
#include "codegen/mma.h"
#include "devices/cuda.h"
#include "devices/cuda_nvrtc.h"
#include "runtime/kernel.h"
#include "runtime/schedule.h"
#include "runtime/search_model.h"
#include "runtime/search_space.h"
#include "test/unit/matrix_kernel.h"
#include "tiny/tiny.h"

using namespace tiny;
using namespace tiny::test;

namespace {

constexpr const char* kNvidia[] = {"sm_80", "sm_90a", "sm_120"};

// x (rows, terms) times weights (columns, terms).
Form form_of(int64_t rows, int64_t columns, int64_t terms, DType t = kBF16) {
  return {{rows, terms}, {columns, terms}, false, true, t};
}

// Those that are legal.
std::vector<Choice> choices_of(Node kernel, const Target& target) {
  const NodeRef held(kernel);
  Arena arena;
  ArenaScope scope(arena);
  std::vector<Choice> out = thin_choices(loops_of(kernel, target), target);
  std::erase_if(out, [&](const Choice& c) {
    try {
      lower(kernel, "k", target, nullptr, &c);
      return false;
    } catch (const Error&) {  // too much memory for the sums of several warps
      return true;
    }
  });
  return out;
}

std::vector<std::string> devices() {
  std::vector<std::string> out;
  for (const char* arch : kNvidia) out.push_back(cat("EMU:CUDA:", arch));
  if (cuda_available()) out.push_back("CUDA");
  return out;
}

// The values of a tensor whose product has one of these choices; none where it has none.
std::vector<float> run(const Tensor& t, const std::string& device, size_t which) {
  const Node root = t.node();
  const Normalized graph = normalize({&root, 1});
  std::vector<int> ids;
  for (Node b : graph.buffers) ids.push_back(b->device);
  const auto made = schedule(graph, ids, device_id(device));
  bool found = false;
  for (const Step& step : made->steps) {
    if (!step.kernel) continue;
    const auto all = choices_of(step.kernel.get(), find_device(device).target());
    if (all.empty()) continue;
    replace_kernel(step, all[which % all.size()]);
    found = true;
  }
  return found ? t.to(kF32).to_vector<float>() : std::vector<float>();
}

}  // namespace

TEST_CASE("thin: a search tries to read operands straight into fragments") {
  for (const char* arch : kNvidia) {
    CAPTURE(std::string(arch));
    const Target target = gpu_target(arch);
    Arena arena;
    ArenaScope scope(arena);
    Node loops = loops_of(kernel(form_of(8, 11008, 4096)), target);
    const Choice start = lower(loops, "k", target).choice;
    const auto is_wide = [](const Choice& c) {
      return to_text(c).find("mma r1 r0 r2 wide") != std::string::npos;
    };
    CHECK(!is_wide(start));
    const auto next = neighbours(loops, start, target);
    CHECK(std::count_if(next.begin(), next.end(), is_wide) > 4);
    for (const Choice& c : next)
      if (is_wide(c)) CHECK(options_from_text(to_text(c.options)) == c.options);
    // And those that it has time for, by what the model expects, are tried on.
    const double known = estimate_seconds(lower(loops, "k", target), target);
    const auto all = thin_choices(loops, target);
    CHECK(std::count_if(all.begin(), all.end(), [&](const Choice& c) {
            return estimate_seconds(lower(loops, "k", target, nullptr, &c), target) < 2 * known;
          }) > 2);
    CHECK(neighbours(loops, all[0], target).size() > 16);
  }
}

TEST_CASE("thin: loads of 16 bytes, the large operand's past the first cache") {
  const Target target = gpu_target("sm_90a");
  const auto all = choices_of(kernel(form_of(8, 11008, 4096)), target);
  REQUIRE(!all.empty());
  for (const Choice& c : all) {
    const std::string text =
        lower(kernel(form_of(8, 11008, 4096)), "k", target, nullptr, &c).source.text;
    CHECK(text.find("load_once((const bf16x8*)(b2 + ") != std::string::npos);
    CHECK(text.find("*(const bf16x8*)(b1 + ") != std::string::npos);
    for (const char* element : {" = b1[", " = b2["}) CHECK(text.find(element) == std::string::npos);
  }
}

TEST_CASE("thin: none where a thread's elements do not lie together, or rows are many") {
  const auto count = [](const Form& f, const char* arch = "sm_80") {
    return choices_of(kernel(f), gpu_target(arch)).size();
  };
  CHECK(count(form_of(8, 512, 512)) > 0);
  CHECK(count(form_of(8, 512, 512, kF16)) > 0);
  CHECK(count(form_of(8, 512, 512, kI8)) == 0);
  CHECK(count(form_of(8, 512, 520)) == 0);
  CHECK(count(form_of(1, 512, 512)) == 0);
  CHECK(count(form_of(72, 512, 512)) == 0);
  CHECK(count({{8, 512}, {512, 512}, false, false, kBF16}) == 0);
  CHECK(count({{512, 8}, {512, 512}, true, true, kBF16}) == 0);
  CHECK(count(form_of(8, 512, 512), "gfx942") == 0);
}

TEST_CASE("thin: an option for what has no wide product says why") {
  std::string why;
  Arena arena;
  ArenaScope scope(arena);
  const Target target = gpu_target("sm_80");
  const Form form = form_of(16, 64, 64, kI8);
  const Opt opt = options_from_text("mma r0 r1 r2 wide")[0];
  CHECK(!is_legal(loops_of(kernel(form), target), opt, target, &why));
  CHECK(why == "no wide product of i8");
  CHECK(to_text(opt) == "mma r0 r1 r2 wide");
  CHECK_THROWS_AS(options_from_text("mma r0 r1 r2 wider"), Error);
}

TEST_CASE("thin: values are right, at ragged sizes, of several products and with what follows") {
  size_t which = 0;
  for (const std::string& device : devices())
    for (DType t : {kBF16, kF16}) {
      const auto outputs = [t](const std::string& on) {
        const auto x = [&](const Shape& shape) { return integers(shape, t, on).realize(); };
        const Tensor few = x({5, 512}), many = x({77, 512}), bias = x({77});
        return std::vector<Tensor>{few.matmul(many.t()), (few.matmul(many.t()) + bias).relu(),
                                   x({3, 16, 256}).matmul(x({3, 72, 256}).transpose(1, 2)),
                                   x({64, 1024}).matmul(x({24, 1024}).t()),
                                   x({24, 1024}).matmul(x({64, 1024}).t())};
      };
      const auto have = outputs(device), want = outputs("CPU");
      // Elsewhere an operand of the others is stored in another order first.
      const size_t count = find_device(device).target().has_wgmma ? have.size() : 2;
      for (size_t i = 0; i < count; ++i) {
        CAPTURE(device);
        CAPTURE(t);
        CAPTURE(i);
        CAPTURE(which);
        CHECK(run(have[i], device, which) == want[i].to(kF32).to_vector<float>());
        which += 3;  // another one of the choices
      }
    }
}

TEST_CASE("thin: the emulator finds another order of elements along the sum") {
  const std::string name = "EMU:CUDA:sm_80";
  Device& device = find_device(name);
  const Form form = form_of(8, 64, 256);
  const Choice choice = choices_of(kernel(form), device.target()).at(0);
  const Lowered low = lower(kernel(form), "k", device.target(), nullptr, &choice);
  const Tensor a = integers(form.a, kBF16, "CPU"), b = integers(form.b, kBF16, "CPU");
  const auto want = a.matmul(b.t()).to(kF32).to_vector<float>();
  const auto is_right = [&](const std::string& from, const std::string& to) {
    Source source = low.source;
    const size_t at = source.text.find(from);
    REQUIRE(at != std::string::npos);
    source.text.replace(at, from.size(), to);
    std::vector<void*> args;
    std::vector<uint16_t> bytes[3];
    bytes[0].resize(want.size());
    for (int i = 0; i < 2; ++i) {
      bytes[i + 1].resize(static_cast<size_t>(numel((i ? b : a).shape())));
      (i ? b : a).to_bytes(bytes[i + 1].data());
    }
    for (const auto& x : bytes) {
      args.push_back(device.alloc(2 * x.size()));
      device.upload(args.back(), x.data(), 2 * x.size());
    }
    const auto program = device.load(device.compile(source), source.entry);
    device.launch(*program, low.launch, args);
    device.download(bytes[0].data(), args[0], 2 * want.size());
    for (size_t i = 0; i < 3; ++i) device.free(args[i], 2 * bytes[i].size());
    return std::equal(want.begin(), want.end(), bytes[0].begin(),
                      [](float x, uint16_t y) { return x == bf16_to_f32(y); });
  };
  CHECK(is_right("a.v[8 + i + j]", "a.v[8 + i + j]"));
  CHECK(!is_right("a.v[8 + i + j]", "a.v[12 - i + j]"));
  CHECK(!is_right("y.v[j] = b.v[i + j]", "y.v[j] = b.v[j]"));
  CHECK(!is_right("thread_x();", "thread_x() ^ 1;"));
}

TEST_CASE("thin: kernels compile without spills") {
  if (!nvrtc_available()) return;
  for (const char* arch : kNvidia)
    for (int64_t rows : {8, 64}) {
      const Target target = gpu_target(arch);
      const auto all = choices_of(kernel(form_of(rows, 11008, 4096)), target);
      for (size_t i = 0; i < all.size(); i += 3) {
        CAPTURE(arch);
        CAPTURE(to_text(all[i]));
        const Lowered low =
            lower(kernel(form_of(rows, 11008, 4096)), "k", target, nullptr, &all[i]);
        std::string log;
        CHECK(!compile_cuda(low.source.text, arch, &log).empty());
        CHECK(cuda_resources(log).spill_bytes <= 0);
      }
    }
}
