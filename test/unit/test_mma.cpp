// GEMMs on the tensor cores of a warp (mma.sync): the plan, the values on the emulator and on a GPU
// where there is one, faults that are planted into a kernel's text.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "codegen/heuristics/heuristics.h"
#include "codegen/kernel/access.h"
#include "codegen/lower.h"
#include "codegen/options/mma.h"
#include "codegen/passes/passes.h"
#include "devices/cuda/cuda.h"
#include "devices/cuda/nvrtc.h"
#include "runtime/device/buffer.h"
#include "runtime/schedule/schedule.h"
#include "runtime/search/model.h"
#include "runtime/search/space.h"
#include "test/unit/integers.h"
#include "tiny/base/env.h"
#include "tiny/rewrite/algebra.h"
#include "tiny/tiny.h"

using namespace tiny;

namespace {

struct Scheduled {
  std::shared_ptr<const Schedule> schedule;
  std::vector<void*> inputs;

  const Step& last() const { return schedule->steps.back(); }
};

Scheduled schedule_of(const Tensor& t, const std::string& device) {
  const Node root = t.node();
  const Normalized graph = normalize({&root, 1});
  Scheduled out;
  std::vector<int> devices;
  for (Node b : graph.buffers) {
    devices.push_back(b->device);
    out.inputs.push_back(b->arg<BufferArg>().buffer->data());
  }
  out.schedule = schedule(graph, devices, device_id(device));
  return out;
}

// The kernel that computes the tensor, the last one of several.
Node kernel_of(const Tensor& t, const std::string& device) {
  return schedule_of(t, device).last().kernel.get();
}

std::string options_of(const Tensor& t, const std::string& device) {
  return to_text(lower(kernel_of(t, device), "k", find_device(device).target()).options);
}

bool uses_mma(const Tensor& t, const std::string& device) {
  return options_of(t, device).find("mma r") != std::string::npos;
}

constexpr const char* kAmd[] = {"EMU:HIP:gfx90a", "EMU:HIP:gfx942", "EMU:HIP:gfx1100",
                                "EMU:HIP:gfx1201"};

std::vector<std::string> devices() {
  std::vector<std::string> out{"EMU:CUDA:sm_80", "EMU:CUDA:sm_90a", "EMU:CUDA:sm_120"};
  out.insert(out.end(), std::begin(kAmd), std::end(kAmd));
  if (cuda_available()) out.push_back("CUDA");
  return out;
}

Tensor convolution(DType t, int64_t padding, int64_t stride, const std::string& device) {
  const Tensor x = integers({2, 16, 10, 10}, t, device), w = integers({32, 16, 3, 3}, t, device);
  const Tensor b = integers({32}, t, device);
  return conv2d(x, w, b, {.stride = stride, .padding = padding}).relu();
}

}  // namespace

TEST_CASE("mma: f32 is multiplied as TF32 only where that is allowed") {
  const std::string device = "EMU:CUDA:sm_80";
  const Tensor a = integers({64, 64}, kF32, device), b = integers({64, 64}, kF32, device);
  CHECK(!uses_mma(a.matmul(b), device));
  const EnvOverride allow("ALLOW_TF32", "1");
  CHECK(uses_mma(a.matmul(b), device));
  const Tensor c = integers({64, 63}, kF32, device), d = integers({63, 64}, kF32, device);
  CHECK(!uses_mma(c.matmul(d), device));  // no whole steps of the sum
}

TEST_CASE("mma: a search leaves the threads of a warp side by side") {
  const std::string device = "EMU:CUDA:sm_80";
  const Target& target = find_device(device).target();
  const Tensor a = integers({64, 64}, kF16, device), b = integers({64, 64}, kF16, device);
  const NodeRef kernel(kernel_of(a.matmul(b), device));
  Arena arena;
  ArenaScope scope(arena);
  Node loops = loops_of(kernel.get(), target);
  const Choice start = lower(loops, "k", target).choice;
  int kept = 0;
  for (const Choice& c : neighbours(loops, start, target)) {
    if (to_text(c).find("mma r") == std::string::npos) continue;
    CHECK_MESSAGE(lower(loops, "k", target, nullptr, &c).launch.block[0] == 32, to_text(c));
    ++kept;
  }
  CHECK(kept > 0);
  Choice parted = start;  // by the block's warps
  std::vector<int>& order = parted.options.back().axes;
  std::vector<Opt> before(start.options.begin(), start.options.end() - 1);
  const Node sink = apply(loops, before, target);
  const auto is_thread = [&](int id) { return kind(range_with_id(sink, id)) == RangeKind::Thread; };
  const auto first = std::find_if(order.begin(), order.end(), is_thread);
  const auto second = std::find_if(first + 1, order.end(), is_thread);
  REQUIRE(second != order.end());
  std::swap(*first, *second);
  CHECK_THROWS_WITH_AS(lower(loops, "k", target, nullptr, &parted),
                       doctest::Contains("do not lie side by side"), Error);
}

TEST_CASE("mma: a search is offered other fragments, which the model tells apart") {
  const std::string device = "EMU:CUDA:sm_80";
  const Target& target = find_device(device).target();
  const Tensor a = integers({512, 64}, kF16, device), b = integers({64, 512}, kF16, device);
  const NodeRef kernel(kernel_of(a.matmul(b), device));
  Arena arena;
  ArenaScope scope(arena);
  Node loops = loops_of(kernel.get(), target);
  const std::vector<Choice> all = mma_choices(loops, target, 1000);
  CHECK(mma_choices(loops, target, 3).size() == 3);
  std::set<std::string> texts;
  std::map<int64_t, double> least;  // by fragments of a warp
  for (const Choice& c : all) {
    const Lowered low = lower(loops, "k", target, nullptr, &c);
    const int64_t* grid = low.launch.grid;
    const int64_t warps = grid[0] * grid[1] * low.launch.block[1];
    const int64_t held = 512 / 16 * 512 / 8 / warps;
    const double t = estimate_seconds(low, target);
    texts.insert(to_text(c));
    least[held] = least.contains(held) ? std::min(least[held], t) : t;
  }
  CHECK(texts.size() == all.size());
  CHECK(least.size() >= 4);
  CHECK(least.at(8) < least.at(1));  // each load serves several multiplications
  const std::vector<Choice> offered = neighbours(loops, lower(loops, "k", target).choice, target);
  for (const char* columns : {"split r1 2,", "split r1 8,"})
    CHECK(std::any_of(offered.begin(), offered.end(), [&](const Choice& c) {
      return to_text(c).find(columns) != std::string::npos;
    }));
}

TEST_CASE("mma: AMD's units multiply f32 as it is, where they multiply it at all") {
  for (const std::string device : kAmd) {
    CAPTURE(device);
    const bool wave64 = find_device(device).target().warp == 64;
    const auto product = [&](DType t) {
      return integers({64, 64}, t, device).matmul(integers({64, 64}, t, device));
    };
    CHECK(uses_mma(product(kF32), device) == wave64);
    CHECK(uses_mma(product(kF16), device));
    CHECK(uses_mma(product(kBF16), device));
  }
}

TEST_CASE("mma: gfx90a alone takes subnormal halves, and sums of their products, for zeros") {
  // 64 times x * y, of which x or one step's sum is subnormal in some dtype.
  const auto product = [](const char* device, DType t, float x, float y) {
    const auto all = [&](float v) {
      return Tensor::full({64, 64}, v, kF32).to(device).to(t).realize();
    };
    const Tensor out = all(x).matmul(all(y));
    CHECK(uses_mma(out, device));
    return out.to(kF32).to_vector<float>()[0];
  };
  for (const char* device : {"EMU:HIP:gfx90a", "EMU:LLVM:gfx90a", "EMU:HIP:gfx942"}) {
    CAPTURE(device);
    const bool flushes = std::string(device).ends_with("gfx90a");
    CHECK(product(device, kF16, 0x1p-14f, 0x1p10f) == 4);
    CHECK(product(device, kF16, 0x1p-15f, 0x1p10f) == (flushes ? 0 : 2));
    CHECK(product(device, kF16, 0x1p10f, -0x1p-24f) == (flushes ? 0 : -0x1p-8f));
    CHECK(product(device, kBF16, 0x1p-15f, 0x1p10f) == 2);
    CHECK(product(device, kBF16, 0x1p-130f, 0x1p100f) == (flushes ? 0 : 0x1p-24f));
    CHECK(product(device, kBF16, 0x1p-68f, 0x1p-68f) == (flushes ? 0 : 0x1p-130f));
    CHECK(product(device, kF32, 0x1p-130f, 0x1p100f) == 0x1p-24f);
    CHECK(product(device, kF32, 0x1p-68f, 0x1p-68f) == 0x1p-130f);
  }
}

TEST_CASE("mma: products of each dtype are right, transposed, batched and with what follows") {
  const EnvOverride allow("ALLOW_TF32", "1");
  for (const std::string& device : devices())
    for (DType t : {kF32, kF16, kBF16}) {
      const int64_t n = device.starts_with("EMU:HIP") ? 64 : 40;
      const auto run = [&](const std::string& on) {
        const Tensor a = integers({3, 48, 32}, t, on), b = integers({3, 32, n}, t, on);
        const Tensor c = integers({3, n, 32}, t, on), bias = integers({n}, t, on);
        return std::vector<Tensor>{a.matmul(b), a.matmul(c.transpose(-1, -2)),
                                   b.transpose(-1, -2).matmul(a.transpose(-1, -2)),
                                   (a.matmul(b) + bias).relu() * 2};
      };
      const auto have = run(device), want = run("CPU");
      for (size_t i = 0; i < have.size(); ++i) {
        CAPTURE(device);
        CAPTURE(t);
        CAPTURE(i);
        CHECK(have[i].to(kF32).to_vector<float>() == want[i].to(kF32).to_vector<float>());
      }
    }
}

namespace {

// Whether warps multiply this dtype there.
bool multiplies_bytes(const std::string& device, DType t) {
  if (t == kI8 || device.ends_with("gfx1201")) return true;
  return find_device(device).target().has_f8_mma || (t == kF8E4M3 && device.ends_with("gfx942"));
}

Tensor byte_product(const Tensor& a, const Tensor& b) {
  return a.matmul(b, a.dtype() == kI8 ? kI32 : kF32);
}

}  // namespace

TEST_CASE("mma: products of bytes and of 8-bit floats are right, in all orders") {
  for (const std::string& device : devices())
    for (DType t : {kI8, kF8E4M3, kF8E5M2}) {
      CAPTURE(device);
      CAPTURE(t);
      const auto run = [&](const std::string& on) {
        const auto x = [&](const Shape& shape) { return integers(shape, t, on); };
        const int64_t n = device.starts_with("EMU:HIP") ? 64 : 40;
        const Tensor bias = integers({n}, t == kI8 ? kI32 : kF32, on);
        return std::vector<Tensor>{
            byte_product(x({3, 48, 64}), x({3, 64, n})), byte_product(x({48, 64}), x({n, 64}).t()),
            byte_product(x({64, 48}).t(), x({64, n})),
            (byte_product(x({64, 48}).t(), x({n, 64}).t()) + bias).relu() * 2};
      };
      const auto have = run(device), want = run("CPU");
      for (size_t i = 0; i < have.size(); ++i) {
        CAPTURE(i);
        CHECK(have[i].to(kF32).to_vector<float>() == want[i].to(kF32).to_vector<float>());
      }
      const Tensor a = integers({64, 64}, t, device), b = integers({64, 64}, t, device);
      // What lacks units for 8-bit floats may have some for f32.
      if (const Target& target = find_device(device).target();
          !target.has_wgmma && (target.warp == 32 || multiplies_bytes(device, t)))
        CHECK(uses_mma(byte_product(a, b.t()), device) == multiplies_bytes(device, t));
    }
}

TEST_CASE("mma: bytes are staged as bytes, at ragged sizes too") {
  using Case = std::pair<std::string, DType>;
  for (const auto& [device, t] : {Case{"EMU:CUDA:sm_80", kI8}, Case{"EMU:CUDA:sm_120", kF8E4M3},
                                  Case{"EMU:CUDA:sm_120", kF8E5M2}, Case{"EMU:HIP:gfx1201", kI8},
                                  Case{"EMU:HIP:gfx1201", kF8E5M2}}) {
    CAPTURE(device);
    CAPTURE(t);
    // Enough tiles for the chip, and edges along all three sizes.
    const auto run = [t = t](const std::string& on) {
      return byte_product(integers({11, 97, 130}, t, on), integers({11, 130, 103}, t, on));
    };
    CHECK(options_of(run(device), device).find("stage ") != std::string::npos);
    CHECK(uses_mma(run(device), device));
    CHECK(run(device).to(kF32).to_vector<float>() == run("CPU").to(kF32).to_vector<float>());
  }
}

TEST_CASE("mma: products of bytes compile without spills, for each generation that has them") {
  if (!nvrtc_available()) return;
  for (const auto& [t, instruction] : {std::pair<DType, const char*>{kI8, "k32.row.col.s32.s8.s8"},
                                       {kF8E4M3, "k32.row.col.f32.e4m3.e4m3"},
                                       {kF8E5M2, "k32.row.col.f32.e5m2.e5m2"}})
    for (const std::string arch : {"sm_80", "sm_89", "sm_90a", "sm_120"}) {
      if (t != kI8 && (arch == "sm_80" || !nvrtc_is_at_least(12, 4))) continue;
      CAPTURE(arch);
      CAPTURE(t);
      Target target = gpu_target(arch == "sm_80" ? "sm_80" : "sm_120");
      target.arch = arch;
      const std::string device = "EMU:CUDA:sm_120";
      const Tensor a = integers({2048, 256}, t, device), b = integers({2048, 256}, t, device);
      const Lowered low = lower(kernel_of(byte_product(a, b.t()), device), "k", target);
      CHECK(low.source.text.find(instruction) != std::string::npos);
      std::string log;
      CHECK(!compile_cuda(low.source.text, arch, &log).empty());
      CHECK(cuda_resources(log).spill_bytes <= 0);  // -1: NVRTC had it in a cache of its own
    }
}

TEST_CASE("mma: a GPU that NVRTC does not know has the units of those that it knows") {
  Target newer = gpu_target("sm_120");
  newer.arch = "compute_120";
  for (DType t : {kF16, kBF16, kI8, kF8E4M3}) CHECK(mma_unit(newer, t) != nullptr);
  newer.has_f8_mma = false;
  CHECK(mma_unit(newer, kF8E4M3) == nullptr);
  for (const char* arch : {"gfx90a", "gfx1100"})
    CHECK(mma_unit(gpu_target(arch), kF8E4M3) == nullptr);
  CHECK(mma_unit(gpu_target("gfx942"), kF8E5M2) == nullptr);  // its own has no infinities
}

TEST_CASE("mma: convolutions and both of their gradients are right") {
  const EnvOverride allow("ALLOW_TF32", "1");
  for (const std::string& device : devices())
    for (auto [padding, stride] : {std::pair<int64_t, int64_t>{0, 1}, {1, 1}, {1, 2}}) {
      CAPTURE(device);
      CAPTURE(padding);
      CAPTURE(stride);
      const bool is_amd = device.starts_with("EMU:HIP");  // which has larger fragments
      if (stride == 1 && !(is_amd && padding == 1))
        CHECK(uses_mma(convolution(is_amd ? kBF16 : kF32, padding, stride, device), device));
      for (DType t : {kF32, kBF16}) {
        const auto have = convolution(t, padding, stride, device).to(kF32).to_vector<float>();
        CHECK(have == convolution(t, padding, stride, "CPU").to(kF32).to_vector<float>());
      }
      const auto gradients = [&, p = padding, s = stride](const std::string& on) {
        const Tensor x = integers({2, 16, 10, 10}, kF32, on).requires_grad_();
        const Tensor w = integers({32, 16, 3, 3}, kF32, on).requires_grad_();
        const Tensor y = conv2d(x, w, Tensor(), {.stride = s, .padding = p});
        std::vector<float> all;
        for (const Tensor& g :
             Tensor::gradient((y * integers(to_shape(y.shape()), kF32, on)).sum(), {x, w})) {
          const auto values = g.to_vector<float>();
          all.insert(all.end(), values.begin(), values.end());
        }
        return all;
      };
      CHECK(gradients(device) == gradients("CPU"));
    }
}

TEST_CASE("mma: an option that fits nothing says why") {
  const EnvOverride allow("ALLOW_TF32", "1");
  const std::string device = "EMU:CUDA:sm_80";
  const Target& target = find_device(device).target();
  const auto why = [&](const Tensor& t, const Opt& opt) {
    std::string reason;
    CHECK(!is_legal(simplify(to_ranges(kernel_of(t, device))), opt, target, &reason));
    return reason;
  };
  const Tensor a = integers({64, 64}, kF32, device), b = integers({64, 64}, kF32, device);
  CHECK(why(a.matmul(b), {OptKind::Mma, 0, 0, {}}) == "no ranges of the columns and the sum");
  CHECK(why(a + b, {OptKind::Mma, 0, 0, {1, 2}}) == "no range of the sum");
}

namespace {

// A product's kernel, whose text can be changed before it runs.
struct Changed {
  Changed(const std::string& name, DType t)
      : device(find_device(name)), a(integers({32, 32}, t, name)), b(integers({32, 16}, t, name)) {
    // Both contiguous along the results: neither is stored in another order first.
    made = schedule_of(product(a, b), name);
    REQUIRE(made.schedule->steps.size() == 1);
    low = lower(made.last().kernel.get(), "k", device.target());
    want = product(a.to("CPU"), b.to("CPU")).bitcast(kI32).to_vector<int32_t>();
  }

  static Tensor product(const Tensor& x, const Tensor& y) {
    const DType sum = x.dtype() == kI8 ? kI32 : kF32;
    return x.to(sum).t().matmul(y.to(sum));
  }

  // Whether it is right with another text in place of one that it has.
  bool run(const std::string& from, const std::string& to) {
    Source source = low.source;
    const size_t at = source.text.find(from);
    INFO(from, "\n", source.text);
    REQUIRE(at != std::string::npos);
    source.text.replace(at, from.size(), to);
    std::vector<int32_t> out(want.size());
    void* memory = device.alloc(out.size() * 4);
    std::vector<void*> args;
    for (int v : made.last().values)
      args.push_back(static_cast<size_t>(v) < made.inputs.size() ? made.inputs[v] : memory);
    try {
      const auto program = device.load(device.compile(source), source.entry);
      device.launch(*program, low.launch, args);
      device.download(out.data(), memory, out.size() * 4);
    } catch (const DeviceError&) {  // it reads outside of its buffers
    }
    device.free(memory, out.size() * 4);
    return out == want;
  }

  Device& device;
  Tensor a, b;
  Scheduled made;
  Lowered low;
  std::vector<int32_t> want;  // the bits of each
};

}  // namespace

TEST_CASE("mma: the emulator finds another order of registers, rows and columns") {
  const EnvOverride allow("ALLOW_TF32", "1");
  Changed k("EMU:CUDA:sm_80", kF32);
  CHECK(k.run("mma_tf32", "mma_tf32"));
  CHECK(!k.run("a.v[0], a.v[2], a.v[1]", "a.v[0], a.v[1], a.v[2]"));
  CHECK(!k.run("mma_m16n8k8_tf32(c.v, x, b.v);",
               "const u32 y[] = {b.v[1], b.v[0]}; mma_m16n8k8_tf32(c.v, x, y);"));
  CHECK(!k.run("thread_x();", "thread_x() ^ 1;"));
  CHECK(!k.run("shuffle<2, 3>", "shuffle<0, 1>"));
}

TEST_CASE("mma: the emulator finds another order of bytes in registers") {
  for (DType t : {kF8E4M3, kF8E5M2}) {
    Changed k("EMU:CUDA:sm_120", t);
    CHECK(k.run("thread_x();", "thread_x();"));
    CHECK(!k.run("x.v[0], x.v[2], x.v[1]", "x.v[0], x.v[1], x.v[2]"));
    CHECK(!k.run("rows, y.v", "rows, x.v"));
    CHECK(!k.run("c.v[i] += d.v[i]", "c.v[i] = d.v[i] + d.v[i]"));
    CHECK(!k.run("thread_x();", "thread_x() ^ 1;"));
  }
}

TEST_CASE("mma: AMD's units multiply each 8-bit float as the number that it is") {
  for (const char* device :
       {"EMU:HIP:gfx942", "EMU:LLVM:gfx942", "EMU:HIP:gfx1201", "EMU:LLVM:gfx1201"})
    for (DType t : {kF8E4M3, kF8E5M2}) {
      if (!multiplies_bytes(device, t)) continue;
      CAPTURE(device);
      CAPTURE(t);
      // Each number by 1, once as a row's and once as a column's only one that is not zero.
      const auto run = [t = t](const std::string& on) {
        const Tensor first = (Tensor::arange(0, 64) < 1).to(kF32).reshape({1, 64});
        const Tensor all = Tensor::arange(0, 256).to(kU8).bitcast(t).reshape({256, 1});
        const Tensor rows = where(first.expand({256, 64}) > 0, all.to(kF32), 0).to(t);
        const Tensor ones = first.t().expand({64, 64}).to(t);
        const auto there = [&](const Tensor& x) { return x.to("CPU").to(on).realize(); };
        return std::vector<Tensor>{byte_product(there(rows), there(ones)),
                                   byte_product(there(ones.t()), there(rows.t()))};
      };
      const auto have = run(device), want = run("CPU");
      CHECK(uses_mma(have[0], device));
      for (size_t i = 0; i < 2; ++i) {
        const auto x = have[i].to_vector<float>(), y = want[i].to_vector<float>();
        int64_t wrong = 0;
        for (size_t at = 0; at < x.size(); ++at)
          wrong += x[at] != y[at] && !(std::isnan(x[at]) && std::isnan(y[at]));
        CHECK(wrong == 0);
        CHECK(std::count_if(x.begin(), x.end(), [](float v) { return std::isnan(v); }) >= 64);
      }
    }
}

TEST_CASE("mma: the emulator finds wrong lane layouts of AMD's units") {
  for (const std::string device : kAmd)
    for (DType t : {kF32, kBF16, kI8, kF8E4M3}) {
      const bool wave64 = find_device(device).target().warp == 64, twice = device.ends_with("1100");
      if ((t == kF32 && !wave64) || (t.is_f8() && !multiplies_bytes(device, t))) continue;
      CAPTURE(device);
      CAPTURE(t);
      Changed k(device, t);
      CHECK(k.run("thread_x();", "thread_x();"));
      CHECK(!k.run("thread_x();", "thread_x() ^ 1;"));   // along rows and columns
      CHECK(!k.run("thread_x();", "thread_x() ^ 16;"));  // along the sum, and of the result
      const bool converts = t.is_f8() && wave64;
      const std::string operands = t == kF32 ? "&b, &a" : twice ? "a.v, b.v" : "b.v, a.v";
      if (!converts)
        CHECK(!k.run(operands, t == kF32 ? "&a, &b" : twice ? "b.v, a.v" : "a.v, b.v"));
      if (converts) CHECK(!k.run("columns, rows", "rows, columns"));
      // The second half of a wave must have what the first has, on gfx11 alone.
      if (twice && t == kBF16)
        CHECK(!k.run("wmma_f32_16x16x16_bf16(c.v,",
                     "for (bf16& x : a.v) if (thread_x() > 15) x.bits = 0;\n"
                     "  wmma_f32_16x16x16_bf16(c.v,"));
    }
}
