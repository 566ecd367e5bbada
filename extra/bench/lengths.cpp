// What a step of attention over the first n of 4096 positions costs, with a Variable for n and one
// capture for all: beside the same with kernels made for each n, and with a mask over all
// positions. One JSON line for each n.
#include <cstdio>

#include "extra/bench/timing.h"
#include "tiny/tiny.h"

using namespace tiny;

int main() {
  constexpr int64_t kHeads = 8, kMax = 4096, kWidth = 64;
  const Tensor keys = Tensor::randn({kHeads, kMax, kWidth}).realize();
  const Tensor values = Tensor::randn({kHeads, kMax, kWidth}).realize();
  const Tensor q = Tensor::randn({kHeads, 1, kWidth}).realize();
  Jit step([&](const Tensor& x, const Variable& n) {
    return scaled_dot_product_attention(x, keys.narrow(1, 0, n), values.narrow(1, 0, n));
  });
  Jit masked([&](const Tensor& x, const Variable& n) {
    AttentionOptions o;
    o.mask = Tensor::arange(kMax) < n.tensor();
    return scaled_dot_product_attention(x, keys, values, o);
  });
  Variable n("n", 1, kMax);
  for (int64_t i = 1; i <= kMax; i *= 4) {
    Jit fixed([&](const Tensor& x) {
      return scaled_dot_product_attention(x, keys.narrow(1, 0, i), values.narrow(1, 0, i));
    });
    n = i;
    for (int warm = 0; warm < 3; ++warm) step(q, n), masked(q, n), fixed(q);
    const double with = bench::measure(50, [&] { step(q, n); }).median;
    const double all = bench::measure(50, [&] { masked(q, n); }).median;
    const double own = bench::measure(50, [&] { fixed(q); }).median;
    std::printf(
        "{\"name\": \"attention_over_n\", \"n\": %lld, \"us\": %.1f, \"us_own_kernels\": "
        "%.1f, \"us_masked\": %.1f, \"captures\": %lld}\n",
        static_cast<long long>(i), with * 1e6, own * 1e6, all * 1e6,
        static_cast<long long>(step.statistics().captures));
  }
}
