// What a replay costs the host, and what a Jit saves: a chain of small kernels on the null device,
// which runs nothing, and on the CPU; a training step of the MNIST example's network with and
// without. One JSON line each.
#include <cstdio>

#include "extra/bench/timing.h"
#include "runtime/realize.h"
#include "tiny/tiny.h"

using namespace tiny;
using namespace tiny::nn;

namespace {

void bench_chain(const char* device) {
  const EnvOverride on("DEVICE", device);
  const Tensor x = Tensor::from(std::vector<float>(16, 1.0f), {16}, device);
  Jit step([](const Tensor& in) {
    Tensor y = in;
    for (int i = 0; i < 200; ++i) y = (y * 1.5f + 0.5f).contiguous().flip().contiguous();
    return y;
  });
  for (int i = 0; i < 3; ++i) step(x);
  const double t = bench::measure(200, [&] { step(x); }).median;
  const auto kernels = static_cast<double>(step.statistics().kernels);
  std::printf("{\"name\": \"replay_%s\", \"kernels\": %.0f, \"us_per_kernel\": %.3f}\n", device,
              kernels, t * 1e6 / kernels);
}

struct Network {
  Sequential model{Conv2d(1, 32, 5),  &Tensor::relu,
                   Conv2d(32, 32, 5), &Tensor::relu,
                   BatchNorm2d(32),   [](const Tensor& x) { return max_pool2d(x, 2); },
                   Conv2d(32, 64, 3), &Tensor::relu,
                   Conv2d(64, 64, 3), &Tensor::relu,
                   BatchNorm2d(64),   [](const Tensor& x) { return max_pool2d(x, 2).flatten(1); },
                   Linear(576, 10)};
  Adam optimizer{model.tensors()};
  Jit<std::function<Tensor(const Tensor&, const Tensor&)>> step{
      [this](const Tensor& x, const Tensor& y) {
        Tensor loss = cross_entropy(model(x), y);
        loss.backward();
        optimizer.step({&loss});
        return loss;
      }};
};

// Both take turns, so that they see the same state of the machine.
void bench_mnist(const char* device, int64_t batch) {
  const EnvOverride on("DEVICE", device);
  const Training mode;
  Network plain, jit;
  const Tensor x = Tensor::rand({batch, 1, 28, 28}).realize();
  const Tensor y = Tensor::randint(0, 10, {batch}).realize();
  std::vector<double> without, with;
  for (int i = -4; i < 30; ++i) {
    const double start = bench::seconds();
    {
      const EnvOverride off("JIT", "0");
      plain.step(x, y);
    }
    Arena::global().collect();  // what a plain step leaves behind is its own cost
    const double middle = bench::seconds();
    jit.step(x, y);
    if (i < 0) continue;
    without.push_back(middle - start);
    with.push_back(bench::seconds() - middle);
  }
  const double a = bench::summary(without).median, b = bench::summary(with).median;
  const double alone = bench::measure(30, [&] { jit.step(x, y); }).median;
  std::printf(
      "{\"name\": \"mnist_step_%s\", \"batch\": %lld, \"ms\": %.3f, \"jit_ms\": %.3f, "
      "\"jit_alone_ms\": %.3f, "
      "\"kernels\": %zu, \"arena_mb\": %.1f}\n",
      device, static_cast<long long>(batch), a * 1e3, b * 1e3, alone * 1e3,
      jit.step.statistics().kernels, static_cast<double>(jit.step.statistics().arena_bytes) * 1e-6);
}

}  // namespace

int main() {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  bench_chain("NULL");
  bench_chain("CPU");
  bench_mnist("NULL", 128);  // the host's part
  bench_mnist("CPU", 16);
  bench_mnist("CPU", 128);
}
