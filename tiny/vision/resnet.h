// Convolutional backbones of detectors: ResNets of bottleneck blocks and the pyramid of features on
// top of them. Names of tensors, initial values and arithmetic are torchvision's.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tiny/nn/layers.h"

namespace tiny::nn {

// What normalises the channels of a backbone: a batch's own statistics, or those of a file.
enum class PictureNorm { Batch, Frozen };

struct ResNetOptions {
  std::vector<int64_t> depths = {3, 4, 6, 3};  // blocks of the four stages: those of ResNet-50
  int64_t width = 64;  // channels of the first stage's 3x3 convolutions; a stage's result has
                       // four times as many, the next stage twice as many
  PictureNorm norm = PictureNorm::Batch;
};

// A ResNet without its classifier (K. He et al., arXiv 1512.03385, with the stride in the 3x3
// convolution): "conv1", "bn1", "layer1.0.conv1", ... Weights are normal of variance 2 / fan-out.
class ResNet : public Module {
 public:
  // Error for other than four stages of at least one block.
  explicit ResNet(const ResNetOptions& options = {});
  // x (N, 3, H, W) to the results of the last three stages, (N, 8 width, H / 8, W / 8), (N, 16
  // width, H / 16, ...) and (N, 32 width, H / 32, ...), sizes rounded up.
  std::vector<Tensor> features(const Tensor& x);
  // The last of them.
  Tensor forward(const Tensor& x) override { return features(x).back(); }
  Children children() override;

 private:
  class Block;
  struct Named {
    std::string name;
    std::shared_ptr<Block> block;
  };

  Conv2d conv1_;
  std::shared_ptr<Module> bn1_;
  std::vector<std::vector<Named>> stages_;
};

// Five maps of features from the three of a backbone (T.-Y. Lin et al., "Feature pyramid networks",
// arXiv 1612.03144): "inner_blocks.0.0", "layer_blocks.0.0", "extra_blocks.p6". P3 to P5 have the
// sizes of their inputs, P6 and P7 half of the one before, rounded up.
class FeaturePyramid : public Module {
 public:
  // `in`: channels of the three inputs.
  FeaturePyramid(const std::vector<int64_t>& in, int64_t channels);
  std::vector<Tensor> features(const std::vector<Tensor>& x);  // five (N, channels, h, w)
  Children children() override;

 private:
  std::vector<Conv2d> inner_, layers_, extra_;
};

}  // namespace tiny::nn
