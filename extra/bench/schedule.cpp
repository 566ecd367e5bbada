// How scheduling grows with its graph: training steps of transformers of 4 to 200 layers, Adam
// included, from a graph of tensors to kernels. Processor time of one thread; nothing is compiled
// or computed. The slope is that of the least squares line through log(seconds) over log(kernels).
//   schedule [DEVICE]   whose kernels these are; none: CPU
#include <cmath>
#include <cstdio>
#include <ctime>
#include <vector>

#include "runtime/device/buffer.h"
#include "runtime/device/device.h"
#include "runtime/schedule/normalize.h"
#include "runtime/schedule/schedule.h"
#include "tiny/ir/build.h"
#include "tiny/nn/functional.h"
#include "tiny/tiny.h"

using namespace tiny;

namespace {

double processor_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

class Transformer {
 public:
  explicit Transformer(std::string device) : device_(std::move(device)) {}

  // The roots of a step: the loss, and all that Adam assigns.
  std::vector<Node> step(int layers) {
    constexpr int64_t kWords = 1000;
    const Tensor words = parameter({kWords, kWidth});
    const Tensor ids = memory({kBatch, kLength}, kI64);
    Tensor x = words.index({ids}) + parameter({kLength, kWidth});
    for (int i = 0; i < layers; ++i) x = block(x);
    const Tensor logits = norm(x).matmul(words.transpose(0, 1));
    const Tensor loss =
        cross_entropy(logits.reshape({kBatch * kLength, kWords}), ids.reshape({kBatch * kLength}));
    std::vector<Node> roots{loss.node()};
    const std::vector<Tensor> gradients = Tensor::gradient(loss, parameters_);
    for (size_t i = 0; i < gradients.size(); ++i) adam(parameters_[i], gradients[i], roots);
    return roots;
  }

 private:
  static constexpr int64_t kBatch = 4, kLength = 64, kWidth = 64, kHeads = 4;

  Tensor memory(const Shape& shape, DType dtype = kF32) const {  // that nobody touches
    const auto buffer = std::make_shared<Buffer>(device_, dtype, numel(shape));
    return Tensor(build::reshape(buffer_node(buffer), shape));
  }
  Tensor parameter(const Shape& shape) {
    parameters_.push_back(memory(shape).requires_grad_());
    return parameters_.back();
  }
  Tensor linear(const Tensor& x, int64_t out) {
    return x.matmul(parameter({out, x.size(-1)}).transpose(0, 1)) + parameter({out});
  }
  Tensor norm(const Tensor& x) {
    const Tensor weight = parameter({kWidth}), bias = parameter({kWidth});
    return layer_norm(x, {kWidth}, weight, bias);
  }
  Tensor block(const Tensor& x) {
    const auto heads = [](const Tensor& t) {
      return t.reshape({kBatch, kLength, kHeads, kWidth / kHeads}).transpose(1, 2);
    };
    const std::vector<Tensor> qkv = linear(norm(x), 3 * kWidth).split(kWidth, 2);
    const Tensor seen = scaled_dot_product_attention(heads(qkv[0]), heads(qkv[1]), heads(qkv[2]),
                                                     {.is_causal = true});
    const Tensor y = x + linear(seen.transpose(1, 2).reshape({kBatch, kLength, kWidth}), kWidth);
    return y + linear(linear(norm(y), 4 * kWidth).gelu(), kWidth);
  }
  void adam(const Tensor& p, const Tensor& gradient, std::vector<Node>& roots) const {
    const Shape shape = to_shape(p.shape());
    const Tensor m = memory(shape), v = memory(shape);
    const Tensor m2 = m * 0.9 + gradient * 0.1, v2 = v * 0.99 + gradient.square() * 0.01;
    roots.push_back(build::assign(m.node(), m2.node()));
    roots.push_back(build::assign(v.node(), v2.node()));
    roots.push_back(build::assign(p.node(), (p - m2 / (v2.sqrt() + 1e-8) * 1e-3).node()));
  }

  std::string device_;
  std::vector<Tensor> parameters_;
};

}  // namespace

int main(int count, char** arguments) {
  const std::string device = count > 1 ? arguments[1] : "CPU";
  double x = 0, y = 0, xx = 0, xy = 0, n = 0;
  for (const int layers : {4, 15, 48, 96, 200}) {
    const std::vector<Node> roots = Transformer(device).step(layers);
    const double begin = processor_seconds();
    const Normalized graph = normalize(roots);
    const std::vector<int> devices(graph.buffers.size(), device_id(device));
    const auto s = schedule(graph, devices, device_id(device));
    const double seconds = processor_seconds() - begin;
    size_t kernels = 0;
    for (const Step& step : s->steps) kernels += step.kernel.get() != nullptr;
    std::printf("%4d layers %6zu kernels %8.1f ms %6.1f us a kernel\n", layers, kernels,
                seconds * 1e3, seconds / static_cast<double>(kernels) * 1e6);
    const double a = std::log(static_cast<double>(kernels)), b = std::log(seconds);
    x += a, y += b, xx += a * a, xy += a * b, ++n;
  }
  std::printf("slope %.2f\n", (n * xy - x * y) / (n * xx - x * x));
}
