// The networks that benchmarks run.
#pragma once
#include <cmath>
#include <random>
#include <vector>

#include "tiny/nn/functional.h"
#include "tiny/nn/layers.h"

namespace tiny::bench {

// That of the MNIST example: (N, 1, 28, 28) to (N, 10). `groups`: of the batch, each with
// statistics of its own, in all of these.
inline nn::Sequential mnist_network(int64_t groups = 1) {
  const auto norm = [groups](int64_t channels) {
    nn::BatchNorm2d n(channels);
    n.groups = groups;
    return n;
  };
  const auto pool = [](const Tensor& x) { return max_pool2d(x, 2); };
  const auto flatten = [](const Tensor& x) { return x.flatten(1); };
  return nn::Sequential(nn::Conv2d(1, 32, 5), &Tensor::relu,                   //
                        nn::Conv2d(32, 32, 5), &Tensor::relu, norm(32), pool,  //
                        nn::Conv2d(32, 64, 3), &Tensor::relu,                  //
                        nn::Conv2d(64, 64, 3), &Tensor::relu, norm(64), pool,  //
                        flatten, nn::Linear(576, 10));
}

// That of the CIFAR-10 example (K. Jordan, "94% on CIFAR-10 in 3.29 seconds on a single GPU", arXiv
// 2404.00498), whose first filters are drawn here: (N, 3, 32, 32) to (N, 10).
inline nn::Sequential cifar_network(int64_t groups = 1) {
  const auto gelu = [](const Tensor& x) { return x.gelu(); };
  const auto pool = [](const Tensor& x) { return max_pool2d(x, 2); };
  const auto conv = [](int64_t in, int64_t out) {
    return nn::Conv2d(in, out, 3, {.padding = 1}, /*has_bias=*/false);
  };
  const auto norm = [groups](int64_t channels) {
    nn::BatchNorm2d n(channels, 1e-12, 0.4);
    n.groups = groups;
    n.weight = Tensor();
    return n;
  };
  const auto last = [](const Tensor& x) { return max_pool2d(x, 3).flatten(1); };
  return nn::Sequential(nn::Conv2d(3, 24, 2), gelu,                                        //
                        conv(24, 64), pool, norm(64), gelu, conv(64, 64), norm(64), gelu,  //
                        conv(64, 256), pool, norm(256), gelu, conv(256, 256), norm(256), gelu,
                        conv(256, 256), pool, norm(256), gelu, conv(256, 256), norm(256), gelu,
                        last, nn::Linear(256, 10, false));
}

// ResNet-50 (He et al., "Deep Residual Learning for Image Recognition", arXiv 1512.03385, with the
// stride in the 3x3 convolution). Weights are He's: normal, of variance 2 / fan-in; running
// statistics are not kept.
class ResNet50 {
 public:
  // `trained`: parameters want gradients, and batch statistics normalise.
  explicit ResNet50(bool trained, int64_t groups = 1);
  Tensor operator()(const Tensor& x);  // (N, 3, H, W) to (N, 1000)
  std::vector<Tensor>& parameters() { return parameters_; }
  std::vector<Tensor*> tensors();  // parameters and statistics

 private:
  struct Conv {
    size_t weight, scale, shift;
    Tensor mean, var;
    int64_t stride, padding;
  };
  struct Block {
    std::vector<Conv> convs;
    std::vector<Conv> shortcut;
  };
  size_t parameter(const Shape& shape, float value = 0);
  Conv conv(int64_t in, int64_t out, int64_t kernel, int64_t stride);
  Tensor apply(const Conv& c, const Tensor& x) const;

  bool trained_;
  int64_t groups_;
  std::minstd_rand random_;
  std::vector<Tensor> parameters_;
  std::vector<Conv> stem_;
  std::vector<Block> blocks_;
  size_t weight_ = 0, bias_ = 0;
};

inline ResNet50::ResNet50(bool trained, int64_t groups) : trained_(trained), groups_(groups) {
  stem_.push_back(conv(3, 64, 7, 2));
  int64_t in = 64;
  const int64_t depths[] = {3, 4, 6, 3};
  for (int stage = 0; stage < 4; ++stage) {
    const int64_t width = int64_t{64} << stage;
    for (int64_t i = 0; i < depths[stage]; ++i) {
      const int64_t stride = stage > 0 && i == 0 ? 2 : 1;
      Block b;
      b.convs = {conv(in, width, 1, 1), conv(width, width, 3, stride),
                 conv(width, 4 * width, 1, 1)};
      if (i == 0) b.shortcut = {conv(in, 4 * width, 1, stride)};
      blocks_.push_back(std::move(b));
      in = 4 * width;
    }
  }
  weight_ = parameter({1000, in});
  bias_ = parameter({1000});
}

inline std::vector<Tensor*> ResNet50::tensors() {
  std::vector<Tensor*> out;
  for (Tensor& t : parameters_) out.push_back(&t);
  const auto add = [&](std::vector<Conv>& convs) {
    for (Conv& c : convs) out.insert(out.end(), {&c.mean, &c.var});
  };
  add(stem_);
  for (Block& b : blocks_) {
    add(b.convs);
    add(b.shortcut);
  }
  return out;
}

inline size_t ResNet50::parameter(const Shape& shape, float value) {
  std::vector<float> values(static_cast<size_t>(numel(shape)), value);
  if (shape.size() > 1) {
    const auto fan_in = static_cast<float>(values.size()) / static_cast<float>(shape[0]);
    std::normal_distribution<float> normal(0, std::sqrt(2 / fan_in));
    for (float& v : values) v = normal(random_);
  }
  parameters_.push_back(Tensor::from(values, shape));
  if (trained_) parameters_.back().requires_grad_();
  return parameters_.size() - 1;
}

inline ResNet50::Conv ResNet50::conv(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
  const std::vector<float> ones(static_cast<size_t>(out), 1.0f);
  return {parameter({out, in, kernel, kernel}),
          parameter({out}, 1),
          parameter({out}),
          Tensor::from(ones),
          Tensor::from(ones),
          stride,
          kernel / 2};
}

inline Tensor ResNet50::apply(const Conv& c, const Tensor& x) const {
  const Tensor y =
      conv2d(x, parameters_[c.weight], Tensor(), {.stride = c.stride, .padding = c.padding});
  return batch_norm(y, parameters_[c.scale], parameters_[c.shift], c.mean, c.var,
                    {.training = trained_, .groups = groups_})
      .y;
}

inline Tensor ResNet50::operator()(const Tensor& x) {
  Tensor h = max_pool2d(apply(stem_[0], x).relu(), 3, {.stride = 2, .padding = 1});
  for (const Block& b : blocks_) {
    Tensor y = apply(b.convs[0], h).relu();
    y = apply(b.convs[2], apply(b.convs[1], y).relu());
    h = (y + (b.shortcut.empty() ? h : apply(b.shortcut[0], h))).relu();
  }
  return h.mean({2, 3}).linear(parameters_[weight_], parameters_[bias_]);
}

}  // namespace tiny::bench
