// ResNet-50 (He et al., "Deep Residual Learning for Image Recognition", arXiv 1512.03385, with the
// stride in the 3x3 convolution) as a graph, for benchmarks of scheduling and compilation. Weights
// are fresh buffers; nothing is trained.
#pragma once
#include <vector>

#include "tiny/functional.h"

namespace tiny::bench {

class ResNet50 {
 public:
  // `trained`: parameters want gradients, and batch statistics normalise.
  explicit ResNet50(bool trained);
  Tensor operator()(const Tensor& x);  // (N, 3, H, W) to (N, 1000)
  std::vector<Tensor>& parameters() { return parameters_; }

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
  size_t parameter(const Shape& shape);
  Conv conv(int64_t in, int64_t out, int64_t kernel, int64_t stride);
  Tensor apply(const Conv& c, const Tensor& x) const;

  bool trained_;
  std::vector<Tensor> parameters_;
  std::vector<Conv> stem_;
  std::vector<Block> blocks_;
  size_t weight_ = 0, bias_ = 0;
};

}  // namespace tiny::bench
