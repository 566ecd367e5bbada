// What a replay costs the host, and what a Jit saves: a chain of small kernels on the null device,
// which runs nothing, and on the CPU; a training step of the MNIST example's network with and
// without. One JSON line each.
#include <cstdio>

#include "extra/bench/networks.h"
#include "extra/bench/timing.h"
#include "runtime/realize/realize.h"
#include "tiny/tiny.h"

using namespace tiny;
using namespace tiny::nn;

namespace {

// The call alone, which on a GPU ends before its work does; the second time a plain step lies
// between two replays, which leaves its own data in the processor's caches.
void bench_chain(const char* device) {
  const EnvOverride on("DEVICE", device);
  const Tensor x = Tensor::from(std::vector<float>(16, 1.0f), {16}, device);
  const auto chain = [](const Tensor& in) {
    Tensor y = in;
    for (int i = 0; i < 200; ++i) y = (y * 1.5f + 0.5f).contiguous().flip().contiguous();
    return y;
  };
  Jit step(chain);
  const auto replays = [&](bool alternate) {
    std::vector<double> times;
    for (int i = -3; i < 200; ++i) {
      if (alternate) chain(x).to_vector<float>();
      Arena::global().collect();
      const double start = bench::seconds();
      const Tensor y = step(x);
      if (i >= 0) times.push_back(bench::seconds() - start);
      y.to_vector<float>();
    }
    return bench::summary(times).median * 1e6 / static_cast<double>(step.statistics().kernels);
  };
  const double alone = replays(false), alternating = replays(true);
  std::printf(
      "{\"name\": \"replay_%s\", \"kernels\": %zu, \"us_per_kernel\": %.3f, "
      "\"us_between_steps\": %.3f}\n",
      device, step.statistics().kernels, alone, alternating);
}

struct Network {
  Sequential model = bench::mnist_network();
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

// With the name of a device: that one alone.
int main(int count, char** arguments) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (count > 1) {
    bench_chain(arguments[1]);
    bench_mnist(arguments[1], 128);
    return 0;
  }
  bench_chain("NULL");
  bench_chain("CPU");
  bench_mnist("NULL", 128);  // the host's part
  bench_mnist("CPU", 16);
  bench_mnist("CPU", 128);
}
