// Chains of products on a warp's matrix units: on the emulator, beside the same kernel without any
// options.
#include "codegen/options/fragments.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "codegen/kernel/access.h"
#include "codegen/lower.h"
#include "codegen/options/launchable.h"
#include "codegen/proof/prove.h"
#include "runtime/device/device.h"
#include "test/unit/kernels.h"
#include "test/unit/schedules.h"
#include "tiny/base/error.h"
#include "tiny/base/text.h"
#include "tiny/tiny.h"

using namespace tiny;
using namespace tiny::test;
namespace B = tiny::build;

namespace {

struct Sizes {
  int64_t batch = 2, m = 64, n = 128, e = 32, d = 32;
};

Node widened(Node n) { return n->dtype == kF32 ? n : B::cast(n, kF32); }
Node product(Node a, Node b, Shape first, Shape second, Shape all, int axis, Shape out) {
  Node mul = B::binary(Op::Mul, B::expand(B::reshape(a, first), all),
                       B::expand(B::reshape(b, second), all));
  return B::reshape(sum(mul, 1u << axis), out);
}
Node scores(const Sizes& s, Node q, Node k) {
  return product(widened(q), widened(k), {s.batch, s.m, 1, s.e}, {s.batch, 1, s.n, s.e},
                 {s.batch, s.m, s.n, s.e}, 3, {s.batch, s.m, s.n});
}
Node weighted(const Sizes& s, Node p, Node v) {
  return product(widened(p), widened(v), {s.batch, s.m, s.n, 1}, {s.batch, 1, s.n, s.d},
                 {s.batch, s.m, s.n, s.d}, 2, {s.batch, s.m, s.d});
}

Node attention(const Sizes& s, Node q, Node k, Node v) {
  Node x = scores(s, q, k);
  x = B::binary(Op::Mul, x, B::full(to_shape(x->shape()), kF32, 0.25));
  Node e = B::unary(Op::Exp2, B::binary(Op::Sub, x, spread(B::reduce(Op::Max, x, 4), x)));
  e = widened(B::cast(e, q->dtype));
  Node total = B::reshape(sum(e, 4), Shape{s.batch, s.m, 1});
  return B::binary(Op::Div, weighted(s, e, v), B::expand(total, Shape{s.batch, s.m, s.d}));
}

class OnDevice {
 public:
  OnDevice(Device& d, size_t bytes) : d_(d), bytes_(bytes), data_(d.alloc(bytes)) {}
  ~OnDevice() { d_.free(data_, bytes_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  void* data() const { return data_; }

 private:
  Device& d_;
  size_t bytes_;
  void* data_;
};

std::vector<float> run(Node value, Device& device, const Choice* choice,
                       const std::vector<std::vector<uint16_t>>& in, bool check,
                       bool together = false, const std::string& without = "") {
  Lowered lowered = lower(kernel_of({value}), "chain", device.target(), nullptr, choice);
  std::string& text = lowered.source.text;
  CHECK((without.empty() || text.find(without) != std::string::npos));
  for (size_t at = 0; !without.empty() && (at = text.find(without)) != std::string::npos;)
    text.erase(at, without.size());
  if (check) {
    const std::string options = to_text(lowered.options);
    CHECK(options.find(together ? "warpgroups" : "fragments") != std::string::npos);
    ProofSettings settings;
    read_kernel(kernel_of({value}), device.target(), settings);
    const Proof proof = prove(lowered.machine, settings);
    INFO(proof.text);
    CHECK(proof.verdict == Verdict::Proved);
  }
  const auto program = device.load(device.compile(lowered.source), lowered.source.entry);
  std::vector<float> out(static_cast<size_t>(numel(value->shape())));
  OnDevice to(device, out.size() * 4);
  std::vector<std::unique_ptr<OnDevice>> buffers;
  std::vector<void*> args{to.data()};
  for (const auto& v : in) {
    buffers.push_back(std::make_unique<OnDevice>(device, v.size() * 2));
    device.upload(buffers.back()->data(), v.data(), v.size() * 2);
    args.push_back(buffers.back()->data());
  }
  device.launch(*program, lowered.launch, args);
  device.download(out.data(), to.data(), out.size() * 4);
  return out;
}

// Attention of random numbers.
struct Problem {
  explicit Problem(const Sizes& s) {
    Node q = tensor_param(1, {s.batch, s.m, s.e}, kBF16),
         k = tensor_param(2, {s.batch, s.n, s.e}, kBF16),
         v = tensor_param(3, {s.batch, s.n, s.d}, kBF16);
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (Node p : {q, k, v})
      for (int64_t i = 0; i < numel(p->shape()); ++i) {
        const float x = normal(random);
        uint32_t bits = 0;
        std::memcpy(&bits, &x, 4);
        in[static_cast<size_t>(p->ints()[0] - 1)].push_back(static_cast<uint16_t>(bits >> 16));
      }
    value = attention(s, q, k, v);
  }

  Node value = nullptr;
  std::vector<std::vector<uint16_t>> in{3};
};

// `together`: by the matrix units of four warps.
void check_chain(const Sizes& s, const std::string& name, bool together = false) {
  CAPTURE(name);
  Device& device = find_device(name);
  Arena arena;
  ArenaScope scope(arena);
  const Problem p(s);
  const Choice none;
  const std::vector<float> plain = run(p.value, device, &none, p.in, false),
                           fused = run(p.value, device, nullptr, p.in, true, together);
  double worst = 0, size = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    CHECK(std::isnan(plain[i]) == std::isnan(fused[i]));
    worst = std::fmax(worst, std::fabs(plain[i] - fused[i]));
    size = std::fmax(size, std::fabs(plain[i]));
  }
  INFO(worst, " of ", size);
  CHECK(worst <= 4e-3 * size);
}

}  // namespace

TEST_CASE("fragments: attention in one kernel") {
  for (const char* name :
       {"EMU:CUDA:sm_80", "EMU:CUDA:sm_90a", "EMU:HIP:gfx942", "EMU:HIP:gfx1201"})
    check_chain({}, name);
  check_chain({1, 70, 90, 48, 24}, "EMU:CUDA:sm_90a");  // the last tiles are not whole
  check_chain({1, 32, 48, 16, 8}, "EMU:CUDA:sm_90a");   // one tile of columns: nothing rolls
}

namespace {

struct Attention {
  Tensor result;
  std::vector<Tensor> gradients;
};

// Of small random values, the same on each device.
Attention attend(const Shape& shape, const AttentionOptions& options, const std::string& device,
                 DType dtype) {
  Attention out;
  std::vector<Tensor> leaves;
  for (uint64_t seed : {1, 2, 3, 4}) {
    manual_seed(seed);
    leaves.push_back(Tensor::randn(shape).to(kBF16).to(dtype).to(device).realize());
  }
  for (int i = 0; i < 3; ++i) leaves[static_cast<size_t>(i)].requires_grad_();
  out.result = scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], options);
  (out.result * leaves[3]).sum().backward();
  for (int i = 0; i < 3; ++i) out.gradients.push_back(leaves[static_cast<size_t>(i)].grad());
  return out;
}

// Infinite where one of them alone is NaN.
double largest_difference(const Tensor& a, const Tensor& b) {
  const std::vector<float> x = a.to(kF32).to("CPU").to_vector<float>(),
                           y = b.to(kF32).to("CPU").to_vector<float>();
  double worst = 0, size = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i]) != std::isnan(y[i])) return INFINITY;
    worst = std::fmax(worst, std::fabs(x[i] - y[i]));
    size = std::fmax(size, std::fabs(y[i]));
  }
  return worst / size;
}

// Results and gradients beside those in f64 on the CPU.
void check_attention(const Shape& shape, const AttentionOptions& options, const char* device) {
  CAPTURE(to_text(shape));
  CAPTURE(device);
  const Attention on = attend(shape, options, device, kBF16),
                  off = attend(shape, options, "CPU", kF64);
  CHECK(largest_difference(on.result, off.result) < 0.01);
  for (size_t i = 0; i < 3; ++i) {
    CAPTURE(i);
    CHECK(largest_difference(on.gradients[i], off.gradients[i]) < 0.02);
  }
}

}  // namespace

TEST_CASE("warpgroups: attention in one kernel") {
  check_chain({2, 128, 128, 64, 64}, "EMU:CUDA:sm_90a", true);
  check_chain({1, 64, 48, 64, 128}, "EMU:CUDA:sm_90a", true);    // one tile of columns
  check_chain({1, 200, 170, 128, 64}, "EMU:CUDA:sm_90a", true);  // the last tiles are not whole
}

TEST_CASE("warpgroups: the emulator finds what is missing around products") {
  Arena arena;
  ArenaScope scope(arena);
  Device& device = find_device("EMU:CUDA:sm_90a");
  const Problem p({1, 64, 128, 64, 64});
  const std::vector<float> right = run(p.value, device, nullptr, p.in, true, true);
  const auto found = [&](const std::string& without) {
    CAPTURE(without);
    try {
      return run(p.value, device, nullptr, p.in, false, true, without) != right;
    } catch (const std::exception&) {
      return true;
    }
  };
  CHECK(found("products_fence();"));
  CHECK(found("products_commit();"));
  CHECK(found("products_wait<0>();"));
  CHECK(found("barrier();"));
  CHECK(found("fence_async();"));
}

TEST_CASE("warpgroups: options that four warps cannot follow are not legal") {
  Arena arena;
  ArenaScope scope(arena);
  const Target target = find_device("EMU:CUDA:sm_90a").target();
  const Sizes s{1, 128, 128, 64, 64};
  Node value =
      attention(s, tensor_param(1, {1, s.m, s.e}, kBF16), tensor_param(2, {1, s.n, s.e}, kBF16),
                tensor_param(3, {1, s.n, s.d}, kBF16));
  Node loops = loops_of(kernel_of({value}), target);
  const std::vector<Opt> chosen = lower(kernel_of({value}), "chain", target).options;
  const auto is_of_rows = [](const Opt& o) { return o.kind == OptKind::Warpgroups; };
  const auto at = std::find_if(chosen.begin(), chosen.end(), is_of_rows);
  REQUIRE(at != chosen.end());
  const int rows = at->axis;
  const std::vector<Opt> begin(chosen.begin(), at + 1);
  const auto problem = [&](const std::vector<Opt>& more) {
    std::vector<Opt> all = begin;
    all.insert(all.end(), more.begin(), more.end());
    return launch_problem(loops, apply(loops, all, target), target);
  };
  constexpr auto kThread = static_cast<int64_t>(RangeKind::Thread),
                 kUnroll = static_cast<int64_t>(RangeKind::Unroll);
  CHECK(problem({{OptKind::Bind, rows, kThread, {}}}) == "");
  CHECK(problem({}) == "threads of a warpgroup are not 4 or more warps of 8 x 4");
  // Two neighbouring fragments for each warp: a warpgroup's rows would not lie side by side.
  const int second = next_range_id(apply(loops, begin, target));
  CHECK(problem({{OptKind::Split, rows, 2, {}},
                 {OptKind::Bind, rows, kThread, {}},
                 {OptKind::Bind, second, kUnroll, {}}}) == "warps of a warpgroup have other rows");
}

TEST_CASE("chains: attention and its gradients never store scores") {
  const Attention a = attend({1, 2, 160, 32}, {.is_causal = true}, "EMU:CUDA:sm_90a", kBF16);
  std::vector<Tensor> all = a.gradients;
  all.push_back(a.result);
  const auto made = schedule_on("EMU:CUDA:sm_90a", all);
  for (const auto& v : made->values) CHECK(v.size < 2 * 160 * 160);
}

TEST_CASE("chains: attention with masks of all kinds") {
  AttentionOptions causal, window, softcap;
  causal.is_causal = true;
  window.window = {24, 8};
  softcap.softcap = 2.0;
  for (const auto& options : {AttentionOptions(), causal, window, softcap}) {
    check_attention({1, 2, 80, 16}, options, "EMU:CUDA:sm_90a");
    check_attention({2, 1, 100, 32}, options, "EMU:CUDA:sm_90a");
  }
  check_attention({1, 1, 72, 64}, causal, "EMU:HIP:gfx942");
}

TEST_CASE("chains: what a large number hides throughout counts alike") {
  const int64_t rows = 72, columns = 96, seen = 50;
  for (double low : {-1e4, -1e9, -1e30, double(std::numeric_limits<float>::lowest())})
    for (DType half : {kBF16, kF16}) {
      CAPTURE(low);
      CAPTURE(half);
      const auto attended = [&](const std::string& device, DType t) {
        manual_seed(5);
        const auto leaf = [&](int64_t n) {
          return Tensor::randn({n, 16}).to(half).to(t).to(device).realize();
        };
        Tensor q = leaf(rows), k = leaf(columns), v = leaf(columns);
        Tensor hidden = Tensor::arange(rows).unsqueeze(1) >= Tensor::full({1, columns}, seen);
        Tensor scores = q.matmul(k.transpose(0, 1), t == kF64 ? kF64 : kF32);
        return scores.masked_fill(hidden, low).softmax(-1).to(t).matmul(v);
      };
      const Tensor on = attended("EMU:CUDA:sm_90a", half);
      CHECK(schedule_on("EMU:CUDA:sm_90a", {on})->steps.size() == 1);
      CHECK(largest_difference(on, attended("CPU", kF64)) < 0.01);
    }
}

TEST_CASE("chains: an operand of odd rows that one warp copies element by element") {
  for (const char* device : {"EMU:CUDA:sm_90a", "EMU:HIP:gfx1201"}) {
    CAPTURE(device);
    const auto product = [](const std::string& on, DType t) {
      manual_seed(7);
      const auto leaf = [&](const Shape& shape) {
        return Tensor::randn(shape).to(kBF16).to(t).to(on).realize();
      };
      Tensor q = leaf({24, 16}), k = leaf({65, 16}), v = leaf({80, 65}), z = leaf({24, 1});
      Tensor scores = q.matmul(k.transpose(0, 1), t == kF64 ? kF64 : kF32) * 0.25;
      return (scores - z.to(scores.dtype())).exp().to(t).matmul(v.transpose(0, 1));
    };
    CHECK(largest_difference(product(device, kBF16), product("CPU", kF64)) < 0.01);
  }
}

namespace {

// Random sizes and masks beside those in f64; `wide`: for the matrix units of four warps.
void check_random_attention(bool wide) {
  const uint64_t seed = std::random_device()();
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t n) { return static_cast<int64_t>(random() % n); };
  const int64_t kv = 1 + below(2), groups = 1 + below(2);
  const int64_t queries = wide ? 64 + below(200) : 16 + below(90),
                keys = wide ? 16 + below(240) : 16 + below(90);
  const int64_t width = wide ? 64 * (1 + below(2)) : 16 * (1 + below(3)),
                columns = wide ? 64 * (1 + below(2)) : 8 * (1 + below(5));
  const DType half = below(2) ? kBF16 : kF16;
  AttentionOptions o;
  o.enable_gqa = true;
  o.is_causal = below(2);
  if (below(3) == 0) o.window = {below(50), below(50)};
  if (below(3) == 0) o.softcap = 3.0;
  if (below(3) == 0) o.scale = wide ? 0.1 : 0.3;
  const int64_t kind = below(3);  // of a mask: none, bool, float
  const auto attended = [&](const std::string& device, DType t, std::vector<Tensor>& gradients) {
    manual_seed(seed);
    const auto leaf = [&](const Shape& shape) {
      return Tensor::randn(shape).to(half).to(t).to(device).realize();
    };
    Tensor q = leaf({1, kv * groups, queries, width}), k = leaf({1, kv, keys, width}),
           v = leaf({1, kv, keys, columns}), z = leaf({1, kv * groups, queries, columns});
    AttentionOptions here = o;
    const Tensor noise = Tensor::randn({queries, keys}).to(half).to(kF32).to(device).realize();
    if (kind == 1) here.mask = noise > -1.0;
    if (kind == 2) here.mask = noise.to(t);
    for (Tensor* x : {&q, &k, &v}) x->requires_grad_();
    const Tensor out = scaled_dot_product_attention(q, k, v, here);
    // Rows that are masked throughout are NaN, and left alone.
    where(out == out, out * z, 0).sum().backward();
    gradients = {q.grad(), k.grad(), v.grad()};
    return where(out == out, out, 0);
  };
  std::vector<Tensor> on, off;
  const Tensor a = attended("EMU:CUDA:sm_90a", half, on), b = attended("CPU", kF64, off);
  CHECK(largest_difference(a, b) < 0.02);
  const bool is_open = !o.window && kind != 1;
  for (size_t i = 0; is_open && i < 3; ++i) {
    CAPTURE(i);
    CHECK(largest_difference(on[i], off[i]) < 0.03);
  }
}

}  // namespace

TEST_CASE("chains: attention of random sizes and masks") {
  for (int turn = 0; turn < 10; ++turn) check_random_attention(false);
}

TEST_CASE("warpgroups: attention of random sizes and masks") {
  for (int turn = 0; turn < 6; ++turn) check_random_attention(true);
}

TEST_CASE("chains: products that something else reads stay on their own") {
  manual_seed(1);
  const char* device = "EMU:CUDA:sm_90a";
  const auto random = [&](Shape shape) {
    return Tensor::randn(shape).to(kBF16).to(device).realize();
  };
  Tensor q = random({64, 32}), k = random({96, 32}), v = random({96, 16});
  const Tensor scores = q.matmul(k.transpose(0, 1), kF32), weights = scores.softmax(-1);
  const Tensor out = weights.to(kBF16).matmul(v);
  CHECK(schedule_on(device, {out})->steps.size() == 1);
  CHECK(schedule_on(device, {out, weights})->steps.size() > 1);
  // Rows of another length than the sum's, and a term that has no correction.
  const Tensor cosine = (scores - scores.max({-1}, true)).cos().to(kBF16).matmul(v);
  CHECK(schedule_on(device, {cosine})->steps.size() > 1);
}
