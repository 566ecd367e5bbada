// The rows of the benchmarks of GPUs (../shared/peers/README.md), and how long one takes there.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "extra/bench/gpu_fused.h"
#include "extra/bench/gpu_products.h"
#include "extra/bench/row.h"
#include "extra/bench/timing.h"
#include "runtime/launch/launch.h"
#include "tiny/tiny.h"

namespace tiny::bench {

constexpr int64_t kClasses = 50257, kWidth = 768;  // GPT-2's tokens and embedding

inline void add_elementwise(std::vector<Row>& rows, int64_t n) {
  const double square = static_cast<double>(n * n);
  rows.push_back({"copy", peer("copy fp32 8192^2"), 8 * square, 0, [n] {
                    const Tensor x = normal({n, n});
                    return [x] { return Outputs{x.contiguous()}; };
                  }});
  rows.push_back({"sin", peer("fused (x+1)*2 sin"), 8 * square, 0, [n] {
                    const Tensor x = normal({n, n});
                    return [x] { return Outputs{((x + 1) * 2).sin()}; };
                  }});
  rows.push_back({"transpose_add", peer("transpose+add"), 12 * square, 0, [n] {
                    const Tensor x = normal({n, n}), y = normal({n, n});
                    return [x, y] { return Outputs{x.t() + y}; };
                  }});
  rows.push_back({"transpose", {}, 8 * square, 0, [n] {
                    const Tensor x = normal({n, n});
                    return [x] { return Outputs{x.t().contiguous()}; };
                  }});
  rows.push_back({"gelu", peer("gelu(x+b)*y"), 12 * square, 0, [n] {
                    const Tensor x = normal({n, n}), y = normal({n, n}), b = normal({n});
                    return [x, y, b] { return Outputs{(x + b).gelu() * y}; };
                  }});
}

inline void add_reductions(std::vector<Row>& rows, int64_t n) {
  const double square = static_cast<double>(n * n);
  // A row of a function of one matrix; `bytes`: of an element, read and written.
  const auto add = [&](const char* name, const char* peer_name, double bytes, DType dtype,
                       Tensor (*f)(const Tensor&)) {
    rows.push_back({name, peer(peer_name), bytes * square, 0, [=] {
                      const Tensor x = normal({n, n}, dtype);
                      return [=] { return Outputs{f(x)}; };
                    }});
  };
  add("softmax_f32", "softmax fp32 8192^2", 8, kF32, [](const Tensor& x) { return x.softmax(1); });
  add("softmax_bf16", "softmax bf16 8192^2", 4, kBF16,
      [](const Tensor& x) { return x.softmax(1); });
  add("sum_all", "sum all fp32", 4, kF32, [](const Tensor& x) { return x.sum(); });
  add("sum_axis0", "sum axis0 fp32", 4, kF32, [](const Tensor& x) { return x.sum(0); });
  add("sum_axis1", "sum axis1 fp32", 4, kF32, [](const Tensor& x) { return x.sum(1); });
  add("argmax", "argmax axis1", 4, kF32, [](const Tensor& x) { return x.argmax(1); });
  add("cumsum", "cumsum axis1", 8, kF32, [](const Tensor& x) { return x.cumsum(1); });
  rows.push_back({"layer_norm", peer("layernorm fp32 8192^2"), 8 * square, 0, [n] {
                    const Tensor x = normal({n, n}), w = normal({n});
                    return [=] { return Outputs{layer_norm(x, {n}, w, w)}; };
                  }});
  rows.push_back({"rms_norm", peer("rmsnorm fp32 8192^2"), 8 * square, 0, [n] {
                    const Tensor x = normal({n, n}), w = normal({n});
                    return [=] { return Outputs{rms_norm(x, {n}, w)}; };
                  }});
}

inline void add_network(std::vector<Row>& rows, int64_t n) {
  const double logits = static_cast<double>(n * kClasses);
  rows.push_back({"cross_entropy", peer("cross_entropy 8192x50257 bf16"), 2 * logits, 0, [n] {
                    const Tensor x = normal({n, kClasses}, kBF16);
                    const Tensor y = Tensor::randint(0, kClasses, {n}).realize();
                    return [=] { return Outputs{cross_entropy(x.to(kF32), y)}; };
                  }});
  const int64_t tokens = 4 * n;
  const double picked = 4.0 * static_cast<double>(tokens * kWidth);
  const double table = 4.0 * static_cast<double>(kClasses * kWidth);
  rows.push_back({"embedding", peer("embedding 50257x768 fp32"), 2 * picked, 0, [tokens] {
                    const Tensor w = normal({kClasses, kWidth});
                    const Tensor i = Tensor::randint(0, kClasses, {tokens}).realize();
                    return [=] { return Outputs{w.embedding(i)}; };
                  }});
  rows.push_back({"embedding_gradient", peer("embedding gradient 50257x768 fp32"), picked + table,
                  0, [tokens] {
                    const Tensor w = normal({kClasses, kWidth}).requires_grad_();
                    const Tensor i = Tensor::randint(0, kClasses, {tokens}).realize();
                    const Tensor g = normal({tokens, kWidth});
                    return [=] { return Tensor::gradient((w.embedding(i) * g).sum(), {w}); };
                  }});
  const int64_t batch = n / 32;
  const double pixels = static_cast<double>(batch * 64 * 112 * 112);
  rows.push_back({"max_pool", peer("max pool 3/2 256x64x112^2 fp32"), 5 * pixels, 0, [batch] {
                    const Tensor x = normal({batch, 64, 112, 112});
                    const PoolOptions options{.stride = 2, .padding = 1};
                    return [=] { return Outputs{max_pool2d(x, 3, options)}; };
                  }});
}

// Statistics take a pass of their own over what does not fit into the cache.
inline void add_batch_norm(std::vector<Row>& rows, int64_t n) {
  const Shape shape{n / 32, 64, 56, 56};
  const double bytes = 4.0 * static_cast<double>(numel(shape));
  const BatchNormOptions options{.training = true};
  rows.push_back({"batch_norm", peer("batch norm 256x64x56^2 fp32"), 3 * bytes, 0, [=] {
                    const Tensor x = normal(shape), w = normal({64}), m = normal({64});
                    return [=] {
                      const BatchNormResult r = batch_norm(x, w, w, m, m, options);
                      return Outputs{r.y, r.running_mean, r.running_var};
                    };
                  }});
  rows.push_back(
      {"batch_norm_both", peer("batch norm forward+backward 256x64x56^2 fp32"), 8 * bytes, 0, [=] {
         const Tensor x = normal(shape).requires_grad_(), g = normal(shape);
         const Tensor w = normal({64}).requires_grad_(), m = normal({64});
         const Tensor b = normal({64}).requires_grad_();
         return [=] {
           const BatchNormResult r = batch_norm(x, w, b, m, m, options);
           Outputs out = Tensor::gradient((r.y * g).sum(), {x, w, b});
           out.insert(out.end(), {r.y, r.running_mean, r.running_var});
           return out;
         };
       }});
}

// Images of h x h pixels, kernels of k x k.
struct Convolution {
  int64_t images, in, h, out, k, stride;
};

// All of it with channels innermost in memory, as the peer's: the result, and the gradients of
// input and weight from the result's.
inline void add_convolution(std::vector<Row>& rows, const Convolution& c, DType dtype) {
  const int64_t padding = c.k / 2, after = (c.h + 2 * padding - c.k) / c.stride + 1;
  const double flops = 2.0 * static_cast<double>(c.images * c.out * after * after) *
                       static_cast<double>(c.in * c.k * c.k);
  std::string shape;
  for (int64_t v : {c.images, c.in, c.h, c.out, c.k, c.stride}) shape += cat(", ", v);
  const std::string type = dtype == kBF16 ? "bf16" : "f16",
                    name = cat("conv_", type, '_', c.in, 'x', c.h, "_", c.out, "_k", c.k);
  const auto channels_last = [dtype](int64_t n, int64_t channels, int64_t size) {
    return normal({n, size, size, channels}, dtype).permute({0, 3, 1, 2});
  };
  for (const char* what : {"", "_dx", "_dw"}) {
    const std::string peer_name = *what == 0       ? "conv2d"
                                  : what[2] == 'x' ? "conv2d gradient of input"
                                                   : "conv2d gradient of weight";
    const auto prepare = [=]() -> Work {
      const Tensor x = channels_last(c.images, c.in, c.h), w = channels_last(c.out, c.in, c.k);
      const Tensor g = channels_last(c.images, c.out, after);
      return [=] {
        Tensor input = x.detach(), weight = w.detach();
        if (what[0] != 0) (what[2] == 'x' ? input : weight).requires_grad_();
        Tensor y = conv2d(input, weight, {}, {.stride = c.stride, .padding = padding});
        if (what[0] != 0) {
          y.backward(g);
          y = (what[2] == 'x' ? input : weight).grad();
        }
        return Outputs{y.permute({0, 2, 3, 1}).contiguous()};
      };
    };
    rows.push_back({name + what,
                    {cat("\"name\": \"", peer_name, '"'), type == "bf16" ? "bfloat16" : "float16",
                     cat("\"shape\": [", shape.substr(2), ']')},
                    0,
                    flops,
                    prepare});
  }
}

inline void add_convolutions(std::vector<Row>& rows, int64_t n) {
  const int64_t large = n == kPeerSize ? 1 : 64;  // tried with a few images elsewhere
  for (const Convolution& c : {Convolution{256, 64, 56, 64, 3, 1},
                               {256, 128, 28, 128, 3, 1},
                               {256, 256, 14, 256, 3, 1},
                               {256, 3, 224, 64, 7, 2},
                               {256, 256, 56, 64, 1, 1},
                               {512, 64, 31, 64, 3, 1}})
    add_convolution(rows, {c.images / large, c.in, c.h, c.out, c.k, c.stride}, kBF16);
  for (const Convolution& c : {Convolution{2000, 24, 31, 64, 3, 1},
                               {2000, 32, 31, 64, 3, 1},
                               {2000, 64, 15, 64, 3, 1},
                               {2000, 64, 15, 256, 3, 1},
                               {2000, 256, 7, 256, 3, 1}})
    add_convolution(rows, {c.images / large, c.in, c.h, c.out, c.k, c.stride}, kF16);
}

// All of them; sizes other than kPeerSize have no peers.
inline std::vector<Row> gpu_rows(int64_t size) {
  std::vector<Row> rows;
  add_elementwise(rows, size);
  add_reductions(rows, size);
  add_network(rows, size);
  add_batch_norm(rows, size);
  add_products(rows, size);
  add_fused(rows, size);
  add_convolutions(rows, size);
  return rows;
}

// Medians of device time from the first kernel to the last, caches cold at first, and of the
// host's.
struct Measured {
  double seconds = 0, host_seconds = 0;
  int kernels = 0;
};

inline void realize(Outputs outputs) {
  std::vector<Tensor*> all;
  for (Tensor& t : outputs) all.push_back(&t);
  Tensor::realize(all);
}

inline Measured measure(const Work& work, Device& device) {
  Measured m;
  std::vector<double> times, host;
  double total = 0;
  for (int i = -3; i < 5 || (total < 0.3 && i < 50); ++i) {
    Arena::global().collect();  // what the last round computed is computed again
    KernelClock clock;
    realize(work());
    if (i < 0) continue;
    times.push_back(clock.seconds);
    total += clock.seconds;
    m.kernels = clock.kernels;
  }
  for (int i = 0; i < 9; ++i) {
    device.synchronize();
    Arena::global().collect();
    const double start = seconds();
    realize(work());
    host.push_back(seconds() - start);
  }
  device.synchronize();
  m.seconds = summary(times).median;
  m.host_seconds = summary(host).median;
  return m;
}

// Bytes read and written per second by a copy that no cache holds.
inline double copy_rate(Device& device) {
  const size_t bytes = device.target().kind == Target::Kind::Gpu ? size_t{1} << 30 : 64 << 20;
  void *from = device.alloc(bytes), *to = device.alloc(bytes);
  constexpr int kTimes = 4;
  const Timing t = bench::measure(9, [&] {
    for (int i = 0; i < kTimes; ++i) device.copy(to, from, bytes);
    device.synchronize();
  });
  device.free(from, bytes);
  device.free(to, bytes);
  return 2.0 * kTimes * static_cast<double>(bytes) / t.median;
}

}  // namespace tiny::bench
