// Chains of products on the CPU: attention and what is built like it, beside f64 and beside kernels
// of their own.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "codegen/lower.h"
#include "codegen/options/mma.h"
#include "codegen/proof/prove.h"
#include "runtime/device/device.h"
#include "runtime/kernels/kernel.h"
#include "test/unit/kernels.h"
#include "test/unit/schedules.h"
#include "tiny/base/env.h"
#include "tiny/tiny.h"

using namespace tiny;
using namespace tiny::test;

namespace {

// Lengths of queries and keys, and widths of heads, of keys and of values.
struct Sizes {
  int64_t queries = 80, keys = 80, width = 16, values = 16, heads = 2;
};

using Scores = std::function<Tensor(const Tensor&)>;

// Results, and the gradients of queries, keys and values: attention written by hand, of numbers
// that are the same in all dtypes.
std::vector<Tensor> attend(const Sizes& s, DType dtype, const Scores& change, bool back = true) {
  std::vector<Tensor> leaves;
  for (const auto& [length, width] :
       {std::pair(s.queries, s.width), std::pair(s.keys, s.width), std::pair(s.keys, s.values),
        std::pair(s.queries, s.values)}) {
    manual_seed(leaves.size() + 1);
    leaves.push_back(Tensor::randn({s.heads, length, width}).to(kBF16).to(dtype).realize());
  }
  if (back)
    for (size_t i = 0; i < 3; ++i) leaves[i].requires_grad_();
  const DType wide = dtype == kBF16 ? kF32 : dtype;
  const Tensor scores = leaves[0].matmul(leaves[1].transpose(-1, -2), wide) * 0.3;
  const Tensor seen = change(scores);
  const Tensor weights = (seen - seen.detach().max({-1}, true)).exp();
  const Tensor sums = weights.to(dtype).matmul(leaves[2], wide);
  const Tensor result = (sums / weights.to(dtype).to(wide).sum({-1}, true)).to(dtype);
  std::vector<Tensor> out{result};
  if (!back) return out;
  (result * leaves[3]).sum().backward();
  for (size_t i = 0; i < 3; ++i) out.push_back(leaves[i].grad());
  return out;
}

// Infinite where one of them alone is NaN.
double largest_difference(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = a.to(kF64).to_vector<double>(), y = b.to(kF64).to_vector<double>();
  double worst = 0, size = 1e-30;
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i]) != std::isnan(y[i])) return INFINITY;
    if (std::isnan(x[i]) || x[i] == y[i]) continue;
    worst = std::fmax(worst, std::fabs(x[i] - y[i]));
    size = std::fmax(size, std::fabs(y[i]));
  }
  return worst / size;
}

void check_near(const std::vector<Tensor>& some, const std::vector<Tensor>& others, double most) {
  for (size_t i = 0; i < some.size(); ++i) {
    CAPTURE(i);
    CHECK(largest_difference(some[i], others[i]) < most);
  }
}

Tensor position(const Tensor& scores, int axis) {
  const Shape shape = to_shape(scores.shape());
  Shape own(shape.size(), 1);
  own[static_cast<size_t>(axis)] = shape[static_cast<size_t>(axis)];
  return Tensor::arange(own[static_cast<size_t>(axis)]).to(kI32).reshape(own);
}

Tensor all_seen(const Tensor& s) { return s; }
Tensor causal(const Tensor& s) { return where(position(s, 2) <= position(s, 1), s, -INFINITY); }
Tensor window(const Tensor& s) {
  return where((position(s, 2) <= position(s, 1) + 8) & (position(s, 2) >= position(s, 1) - 24), s,
               -INFINITY);
}
Tensor softcap(const Tensor& s) { return (s * 0.5).tanh() * 2; }
Tensor biased(const Tensor& s) {
  return s - (position(s, 1) - position(s, 2)).abs().to(s.dtype()) * 0.05;
}

void check_sizes(const Sizes& s, const Scores& change) {
  CAPTURE(s.queries);
  CAPTURE(s.keys);
  CAPTURE(s.width);
  const std::vector<Tensor> right = attend(s, kF64, change);
  check_near(attend(s, kF32, change), right, 1e-5);
  check_near(attend(s, kBF16, change), right, 0.02);
}

const std::vector<Scores> kChanges{all_seen, causal, window, softcap, biased};

}  // namespace

TEST_CASE("chains on the CPU: results and gradients are those of f64") {
  for (const Scores& change : kChanges) check_sizes({}, change);
  check_sizes({100, 70, 32, 24}, window);
  check_sizes({37, 83, 20, 33}, causal);
  check_sizes({40, 45, 23, 19}, causal);  // widths that nothing divides
}

TEST_CASE("chains on the CPU: lengths around one vector and one tile, and none") {
  for (int64_t length : {1, 2, 15, 16, 17, 33}) {
    check_sizes({length, length, 16, 16}, causal);
    check_sizes({64, length, 16, 16}, all_seen);
  }
  check_sizes({17, 64, 16, 16}, all_seen);
  check_sizes({32, 40, 1, 1}, all_seen);
  for (DType t : {kF32, kBF16}) CHECK(attend({0, 32, 16, 16}, t, all_seen, false)[0].size(1) == 0);
}

TEST_CASE("chains on the CPU: one kernel, and no scores in memory") {
  for (DType t : {kF32, kBF16}) {
    CAPTURE(t);
    const MmaUnit* unit = tile_unit(find_device("CPU").target(), t, t);
    if (t == kBF16 && (!unit || unit->rows > 1)) continue;  // f32 or tiles are faster there
    const int64_t n = 320;
    const auto made = schedule_on("CPU", attend({n, n, 32, 32, 4}, t, causal, false));
    CHECK(made->steps.size() == 1);
    const auto all = schedule_on("CPU", attend({n, n, 32, 32, 4}, t, causal));
    for (const auto& v : all->values) CHECK(v.size < 4 * n * n);
    const EnvOverride without("CHAIN", "0");
    CHECK(schedule_on("CPU", attend({n, n, 32, 32, 4}, t, causal, false))->steps.size() > 2);
  }
}

TEST_CASE("chains on the CPU: kernels of their own compute the same") {
  for (const char* variable : {"CHAIN", "FUSE"})
    for (const Scores& change : {Scores(causal), Scores(softcap)}) {
      CAPTURE(variable);
      const Sizes s{90, 110, 16, 24};
      const std::vector<Tensor> all = attend(s, kF32, change), halves = attend(s, kBF16, change);
      for (const Tensor& x : all) x.to_vector<float>();
      for (const Tensor& x : halves) x.to(kF32).to_vector<float>();
      const EnvOverride without(variable, "0");
      check_near(all, attend(s, kF32, change), 1e-5);
      check_near(halves, attend(s, kBF16, change), 0.02);
    }
}

TEST_CASE("chains on the CPU: rows that see nothing, and values that are not finite") {
  const auto some_rows = [](const Tensor& s) {
    return where(mod(position(s, 1), 3) == 1, -INFINITY, s);
  };
  const auto infinite = [](const Tensor& s) {
    return where((position(s, 1) == 5) & (position(s, 2) == 40), INFINITY, s);
  };
  const auto nan = [](const Tensor& s) {
    return where((position(s, 1) == 50) & (position(s, 2) == 3), NAN, s);
  };
  for (const Scores& change : {Scores(some_rows), Scores(infinite), Scores(nan)}) {
    const Sizes s{70, 90, 16, 16};
    const std::vector<Tensor> right = attend(s, kF64, change, false);
    check_near(attend(s, kF32, change, false), right, 1e-5);
    check_near(attend(s, kBF16, change, false), right, 0.02);
  }
}

TEST_CASE("chains on the CPU: large numbers that hide") {
  for (double low : {-1e4, -1e9, -1e30, double(std::numeric_limits<float>::lowest())}) {
    const auto hidden = [&](const Tensor& s) {
      return where((position(s, 1) >= 50) | (mod(position(s, 2), 7) == 2), low, s);
    };
    CAPTURE(low);
    const Sizes s{72, 96, 16, 16};
    check_near(attend(s, kF32, hidden, false), attend(s, kF64, hidden, false), 1e-5);
  }
}

TEST_CASE("chains on the CPU: grouped queries and masks that are given") {
  const auto attended = [](DType t) {
    const auto leaf = [&](const Shape& shape, uint64_t seed) {
      manual_seed(seed);
      return Tensor::randn(shape).to(kBF16).to(t).realize();
    };
    const Tensor q = leaf({2, 6, 50, 16}, 1), k = leaf({2, 2, 70, 16}, 2),
                 v = leaf({2, 2, 70, 16}, 3);
    const Tensor bias = leaf({50, 70}, 4), padding = leaf({2, 1, 1, 70}, 5) > 0;
    return std::vector<Tensor>{
        scaled_dot_product_attention(q, k, v, {.mask = bias, .enable_gqa = true}),
        scaled_dot_product_attention(q, k, v, {.mask = padding, .enable_gqa = true})};
  };
  check_near(attended(kF32), attended(kF64), 1e-5);
  check_near(attended(kBF16), attended(kF64), 0.02);
  const auto made = schedule_on("CPU", {attended(kF32)[1]});
  for (const auto& v : made->values) CHECK(v.size < 2 * 6 * 50 * 70);
}

TEST_CASE("chains on the CPU: rows of scores that are summed and not multiplied again, on pairs") {
  constexpr const char* kPairs = "CPU:72";
  const EnvOverride units("CPU_UNITS", "plain avx512bf16");
  find_device(kPairs);
  const auto losses = [](const char* device) {
    manual_seed(3);
    const Tensor x = Tensor::randn({64, 16}).to(kBF16), w = Tensor::randn({4099, 16}).to(kBF16);
    const Tensor scores = x.to(device).realize().matmul(w.to(device).realize().t(), kF32);
    return std::vector<Tensor>{scores.logsumexp(1).to("CPU"), scores.max({1}).to("CPU")};
  };
  check_near(losses(kPairs), losses("CPU"), 1e-5);
}

TEST_CASE("chains on the CPU: every kernel of attention and its gradients is proved") {
  const Target& target = find_device("CPU").target();
  for (DType t : {kF32, kBF16})
    for (const Sizes& s : {Sizes{64, 64, 16, 16}, Sizes{70, 83, 20, 18}})
      for (const Step& step : schedule_on("CPU", attend(s, t, causal))->steps) {
        if (!step.kernel) continue;
        ProofSettings settings;
        read_kernel(step.kernel.get(), target, settings);
        const Proof p = prove(lower(step.kernel.get(), step.name, target).machine, settings);
        CHECK_MESSAGE(p.verdict == Verdict::Proved, step.name, ": ", p.text);
      }
}
