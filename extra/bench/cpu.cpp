// Speed on the CPU, one JSON line per measurement: memory-bound work on 4096 x 4096 f32 beside a
// plain copy of as many bytes, matrix products, convolutions, attention, and a training step of the
// MNIST example's network. `extra/bench/compare.py` runs it beside PyTorch. An argument selects
// names that contain it.
#include <cstdio>
#include <cstring>
#include <functional>
#include <thread>

#include "extra/bench/networks.h"
#include "extra/bench/timing.h"
#include "runtime/realize/realize.h"
#include "tiny/tiny.h"

using namespace tiny;
using namespace tiny::nn;

namespace {

constexpr int64_t kSide = 4096;
const char* wanted = "";

bool is_wanted(const char* name) { return std::strstr(name, wanted) != nullptr; }

// Copies from one array to another with all cores, each its own part.
class Copy {
 public:
  Copy() : from_(kSide * kSide, 1.0f), to_(kSide * kSide) {}
  void operator()() {
    const size_t cores = std::max(1u, std::thread::hardware_concurrency());
    const size_t part = from_.size() / cores;
    std::vector<std::thread> pool;
    for (size_t i = 0; i < cores; ++i)
      pool.emplace_back([=, this] {
        std::memcpy(to_.data() + i * part, from_.data() + i * part, part * sizeof(float));
      });
    for (std::thread& t : pool) t.join();
  }

 private:
  std::vector<float> from_, to_;
};

// Work and copy take turns, so that both see the same state of the machine.
void bench_memory(const char* name, Copy& copy, const std::function<Tensor()>& work) {
  if (!is_wanted(name)) return;
  std::vector<double> times, copies;
  for (int i = -2; i < 15; ++i) {
    const double start = bench::seconds();
    copy();
    const double middle = bench::seconds();
    work().realize();
    if (i < 0) continue;
    copies.push_back(middle - start);
    times.push_back(bench::seconds() - middle);
  }
  const double t = bench::summary(times).median, c = bench::summary(copies).median;
  std::printf("{\"name\": \"%s\", \"ms\": %.3f, \"copy_ms\": %.3f, \"ratio_to_copy\": %.3f}\n",
              name, t * 1e3, c * 1e3, t / c);
}

// The Frobenius norm of a product's error relative to that of the product in f64; of some rows.
double error_of(const Tensor& a, const Tensor& b, const Tensor& product) {
  const auto rows = [](const Tensor& x) { return x.narrow(0, 0, 64).to(kF64); };
  const Tensor exact = rows(a).matmul(b.to(kF64)).realize(), error = rows(product) - exact;
  return ((error * error).sum() / (exact * exact).sum()).sqrt().item<double>();
}

// Halves give halves, bytes give i32, as on the processor's matrix units.
void bench_matmul(int64_t n, DType t) {
  const std::string name = (t == kF32 ? "matmul_" : "matmul_" + t.name() + "_") + std::to_string(n);
  if (!is_wanted(name.c_str())) return;
  const auto operand = [&] {
    return t == kI8 ? Tensor::randint(-128, 128, {n, n}).to(t).realize()
                    : Tensor::rand({n, n}).to(t).realize();
  };
  const Tensor a = operand(), b = operand();
  const DType sum = t == kI8 ? kI32 : t;
  const double seconds = bench::measure(9, [&] { a.to(sum).matmul(b.to(sum)).realize(); }).median;
  const double flops = 2.0 * static_cast<double>(n) * static_cast<double>(n * n);
  std::printf("{\"name\": \"%s\", \"ms\": %.3f, \"gflops\": %.1f, \"error\": %.3g}\n", name.c_str(),
              seconds * 1e3, flops / seconds * 1e-9, error_of(a, b, a.to(sum).matmul(b.to(sum))));
}

// 3 x 3, and the gradients of image and weight.
void bench_convolution(int64_t batch, int64_t channels, int64_t size, DType t) {
  const std::string name = "conv_" + t.name() + "_" + std::to_string(channels);
  if (!is_wanted(name.c_str())) return;
  const auto random = [&](const Shape& shape) { return Tensor::rand(shape).to(t).realize(); };
  const Tensor x = random({batch, channels, size, size}), w = random({channels, channels, 3, 3});
  const Tensor r = random({batch, channels, size, size});
  const auto seconds = [&](const char* of) {
    return bench::measure(9,
                          [&] {
                            Tensor a = x.detach(), b = w.detach();
                            const Tensor y =
                                conv2d(a.requires_grad_(), b.requires_grad_(), {}, {.padding = 1});
                            const Tensor loss = (y * r).to(kF32).sum();
                            Tensor out = *of ? Tensor::gradient(loss, {*of == 'x' ? a : b})[0] : y;
                            out.realize();
                          })
        .median;
  };
  std::printf("{\"name\": \"%s\", \"ms\": %.3f, \"image_ms\": %.3f, \"weight_ms\": %.3f}\n",
              name.c_str(), seconds("") * 1e3, seconds("x") * 1e3, seconds("w") * 1e3);
}

// 8 heads of width 64, with the largest memory of the program so far.
void bench_attention(int64_t length, DType t, bool causal, bool backward) {
  const std::string name = "attention_" + t.name() + "_" + std::to_string(length) +
                           (causal ? "_causal" : "") + (backward ? "_grad" : "");
  if (!is_wanted(name.c_str())) return;
  const auto input = [&] { return Tensor::randn({1, 8, length, 64}).to(t).realize(); };
  const Tensor q = input(), k = input(), v = input(), seed = input();
  Jit step([&](const Tensor& given_q, const Tensor& given_k, const Tensor& given_v) {
    Tensor x = given_q.detach(), y = given_k.detach(), z = given_v.detach();
    if (backward)
      for (Tensor* leaf : {&x, &y, &z}) leaf->requires_grad_();
    const Tensor out = scaled_dot_product_attention(x, y, z, {.is_causal = causal});
    if (!backward) return std::vector<Tensor>{out};
    out.backward(seed);
    return std::vector<Tensor>{out, x.grad(), y.grad(), z.grad()};
  });
  const auto run = [&] {
    for (const Tensor& out : step(q, k, v)) out.flatten().narrow(0, 0, 1).to(kF32).item<float>();
  };
  run();  // plainly, then as it is captured
  const double seconds = bench::measure(7, run).median;
  int64_t peak = 0;
  for (const DeviceMemory& d : memory_report(0).devices) peak = std::max(peak, d.peak_bytes);
  std::printf("{\"name\": \"%s\", \"ms\": %.3f, \"peak_mb\": %.1f}\n", name.c_str(), seconds * 1e3,
              static_cast<double>(peak) * 1e-6);
}

void bench_mnist() {
  if (!is_wanted("mnist_step")) return;
  Sequential model = bench::mnist_network();
  Adam optimizer(model.tensors());
  const Training mode;
  const Tensor x = Tensor::rand({128, 1, 28, 28}).realize();
  const Tensor y = Tensor::randint(0, 10, {128}).realize();
  const double first = bench::seconds();
  std::vector<double> times;
  for (int i = -5; i < 20; ++i) {
    const double start = bench::seconds();
    Tensor loss = cross_entropy(model(x), y);
    loss.backward();
    optimizer.step({&loss});
    if (i == -5)
      std::printf("{\"name\": \"mnist_first_step\", \"ms\": %.1f}\n",
                  (bench::seconds() - first) * 1e3);
    if (i >= 0) times.push_back(bench::seconds() - start);
  }
  std::printf("{\"name\": \"mnist_step\", \"ms\": %.3f}\n", bench::summary(times).median * 1e3);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) wanted = argv[1];
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  // First, while the peak of memory is theirs: gradients last.
  for (bool backward : {false, true})
    for (DType t : {kBF16, kF32})
      for (bool causal : {false, true}) bench_attention(2048, t, causal, backward);
  {
    Copy copy;
    const Tensor x = Tensor::rand({kSide, kSide}).realize();
    bench_memory("sin", copy, [&] { return ((x + 1.0) * 2.0).sin(); });
    bench_memory("softmax", copy, [&] { return x.softmax(1); });
    bench_memory("layer_norm", copy, [&] { return layer_norm(x, {kSide}); });
    bench_memory("transpose_add", copy, [&] { return x + x.t(); });
    bench_memory("sum_all", copy, [&] { return x.sum(); });
    bench_memory("sum_rows", copy, [&] { return x.sum({1}); });
    bench_memory("sum_columns", copy, [&] { return x.sum({0}); });
  }
  for (DType t : {kF32, kBF16, kI8})
    for (int64_t n : {512, 1024, 2048}) bench_matmul(n, t);
  for (DType t : {kF32, kBF16}) {
    bench_convolution(16, 64, 28, t);
    bench_convolution(8, 256, 14, t);
  }
  bench_mnist();
}
