#include "tiny/vision/resnet.h"

#include <cmath>
#include <utility>

namespace tiny::nn {

namespace {

Conv2d picture_conv(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
  Conv2d conv(in, out, kernel, {.stride = stride, .padding = kernel / 2}, /*has_bias=*/false);
  const double fan_out = static_cast<double>(out * kernel * kernel);
  conv.weight =
      Tensor::normal({out, in, kernel, kernel}, 0, std::sqrt(2 / fan_out)).requires_grad_();
  return conv;
}

std::shared_ptr<Module> make_norm(PictureNorm norm, int64_t channels) {
  if (norm == PictureNorm::Frozen) return std::make_shared<FrozenBatchNorm2d>(channels);
  return std::make_shared<BatchNorm2d>(channels);
}

}  // namespace

// Three convolutions around which the input goes.
class ResNet::Block : public Module {
 public:
  Block(int64_t in, int64_t width, int64_t stride, bool has_shortcut, PictureNorm norm) {
    const int64_t out = 4 * width;
    add("1", picture_conv(in, width, 1, 1), norm);
    add("2", picture_conv(width, width, 3, stride), norm);
    add("3", picture_conv(width, out, 1, 1), norm);
    if (has_shortcut) add("downsample", picture_conv(in, out, 1, stride), norm);
  }

  Tensor forward(const Tensor& x) override {
    Tensor y = x;
    for (size_t i = 0; i < 3; ++i) {
      y = (*layers_[i].norm)(layers_[i].conv(y));
      if (i < 2) y = y.relu();
    }
    return (y + (layers_.size() > 3 ? (*layers_[3].norm)(layers_[3].conv(x)) : x)).relu();
  }

  Children children() override {
    Children out;
    for (Layer& l : layers_) {
      const bool is_shortcut = l.name == "downsample";
      out.push_back({is_shortcut ? "downsample.0" : "conv" + l.name, &l.conv});
      out.push_back({is_shortcut ? "downsample.1" : "bn" + l.name, l.norm.get()});
    }
    return out;
  }

 private:
  struct Layer {
    std::string name;
    Conv2d conv;
    std::shared_ptr<Module> norm;
  };

  void add(const std::string& name, Conv2d conv, PictureNorm norm) {
    const int64_t channels = conv.weight.size(0);
    layers_.push_back({name, std::move(conv), make_norm(norm, channels)});
  }

  std::vector<Layer> layers_;
};

ResNet::ResNet(const ResNetOptions& o)
    : conv1_(picture_conv(3, o.width, 7, 2)), bn1_(make_norm(o.norm, o.width)) {
  check(o.depths.size() == 4 && o.width >= 1, "ResNet: ", o.depths.size(), " stages of width ",
        o.width, ": there are four of width 1 or more");
  int64_t in = o.width;
  for (size_t stage = 0; stage < 4; ++stage) {
    check(o.depths[stage] >= 1, "ResNet: stage ", stage + 1, " has ", o.depths[stage], " blocks");
    const int64_t width = o.width << stage;
    std::vector<Named> blocks;
    for (int64_t i = 0; i < o.depths[stage]; ++i) {
      const int64_t stride = stage > 0 && i == 0 ? 2 : 1;
      blocks.push_back({cat("layer", stage + 1, ".", i),
                        std::make_shared<Block>(in, width, stride, i == 0, o.norm)});
      in = 4 * width;
    }
    stages_.push_back(std::move(blocks));
  }
}

std::vector<Tensor> ResNet::features(const Tensor& x) {
  Tensor y = (*bn1_)(conv1_(x)).relu();
  y = max_pool2d(y, 3, {.stride = 2, .padding = 1});
  std::vector<Tensor> out;
  for (const std::vector<Named>& stage : stages_) {
    for (const Named& b : stage) y = (*b.block)(y);
    out.push_back(y);
  }
  out.erase(out.begin());
  return out;
}

Children ResNet::children() {
  Children out{{"conv1", &conv1_}, {"bn1", bn1_.get()}};
  for (const std::vector<Named>& stage : stages_)
    for (const Named& b : stage) out.push_back({b.name, b.block.get()});
  return out;
}

// --- The pyramid ---------------------------------------------------------------------------------

namespace {

Conv2d pyramid_conv(int64_t in, int64_t out, int64_t kernel, int64_t stride = 1) {
  Conv2d conv(in, out, kernel, {.stride = stride, .padding = kernel / 2});
  conv.weight = Tensor::kaiming_uniform({out, in, kernel, kernel}, /*a=*/1).requires_grad_();
  conv.bias = Tensor::zeros({out}).contiguous().requires_grad_();
  return conv;
}

}  // namespace

FeaturePyramid::FeaturePyramid(const std::vector<int64_t>& in, int64_t channels) {
  for (const int64_t c : in) {
    inner_.push_back(pyramid_conv(c, channels, 1));
    layers_.push_back(pyramid_conv(channels, channels, 3));
  }
  for (int i = 0; i < 2; ++i) extra_.push_back(pyramid_conv(channels, channels, 3, 2));
}

std::vector<Tensor> FeaturePyramid::features(const std::vector<Tensor>& x) {
  check(x.size() == inner_.size(), "FeaturePyramid: ", x.size(), " maps of features and not ",
        inner_.size());
  std::vector<Tensor> out(x.size());
  Tensor above;
  for (size_t i = x.size(); i-- > 0;) {
    Tensor here = inner_[i](x[i]);
    if (above.defined()) here = here + interpolate(above, {here.size(2), here.size(3)});
    out[i] = layers_[i](here);
    above = here;
  }
  out.push_back(extra_[0](out.back()));
  out.push_back(extra_[1](out.back().relu()));
  return out;
}

Children FeaturePyramid::children() {
  Children out;
  for (size_t i = 0; i < inner_.size(); ++i) {
    out.push_back({cat("inner_blocks.", i, ".0"), &inner_[i]});
    out.push_back({cat("layer_blocks.", i, ".0"), &layers_[i]});
  }
  for (size_t i = 0; i < extra_.size(); ++i)
    out.push_back({cat("extra_blocks.p", 6 + i), &extra_[i]});
  return out;
}

}  // namespace tiny::nn
