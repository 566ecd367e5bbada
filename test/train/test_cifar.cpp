// The CIFAR example in small: pictures shifted and mirrored on the device, convolutions with batch
// norm, SGD with Nesterov momentum.
#include <doctest/doctest.h>

#include "runtime/realize/realize.h"
#include "tiny/tiny.h"

using namespace tiny;

namespace {

constexpr int64_t kBatch = 50;

struct Pictures {
  explicit Pictures(const PictureSet& set)
      : images(Tensor::from(set.images, {set.size(), 3, kPictureSide, kPictureSide})),
        labels(Tensor::from(set.labels)) {}
  Tensor images, labels;
};

Tensor scaled(const Tensor& images) { return (images.to(kF32) - 128) / 64; }

// The pictures at these positions, shifted by up to two pixels and every second one mirrored.
Tensor augmented(const Tensor& images, const Tensor& at) {
  const int64_t n = at.size(0);
  const Tensor line = Tensor::arange(0, kPictureSide, 1, kI32);
  const auto shifted = [&](const Tensor& positions) {
    const Tensor p = positions + Tensor::randint(-2, 3, {n, 1}, kI32).contiguous();
    return 31 - (31 - p.abs()).abs();
  };
  const Tensor flip = Tensor::randint(0, 2, {n, 1}, kI32).contiguous() == 1;
  const Tensor y = shifted(line), x = shifted(where(flip, 31 - line, line));
  return images.index({at.reshape({n, 1, 1, 1}), Tensor::arange(3).reshape({3, 1, 1}),
                       y.reshape({n, 1, 32, 1}), x.reshape({n, 1, 1, 32})});
}

nn::Sequential convolutional() {
  const auto pool = [](const Tensor& x) { return max_pool2d(x, 2); };
  const auto strongest = [](const Tensor& x) { return x.max({2, 3}); };
  const auto conv = [](int64_t in, int64_t out) {
    return nn::Conv2d(in, out, 3, {.padding = 1}, false);
  };
  return nn::Sequential(conv(3, 8), nn::BatchNorm2d(8), &Tensor::relu, pool,     //
                        conv(8, 16), nn::BatchNorm2d(16), &Tensor::relu, pool,   //
                        conv(16, 32), nn::BatchNorm2d(32), &Tensor::relu, pool,  //
                        conv(32, 32), nn::BatchNorm2d(32), &Tensor::relu, strongest,
                        nn::Linear(32, 10));
}

nn::Sequential linear() {
  return nn::Sequential([](const Tensor& x) { return x.flatten(1); }, nn::Linear(3072, 10));
}

double accuracy(nn::Module& network, const Pictures& pictures) {
  const NoGrad no_grad;
  const Tensor predicted = network(scaled(pictures.images)).argmax(1);
  return (predicted == pictures.labels.to(kI64)).to(kF32).mean().item<float>();
}

void train(nn::Module& network, const Pictures& pictures, int steps, double lr) {
  const nn::Training training;
  SGD optimizer(network.tensors(), lr, {.momentum = 0.9, .nesterov = true, .weight_decay = 5e-4});
  Live early, late;
  for (int step = 0; step < steps; ++step) {
    optimizer.set_lr(lr * (steps - step) / steps);
    const Tensor at = Tensor::randint(0, pictures.labels.size(0), {kBatch}, kI32).contiguous();
    const Tensor logits = network(scaled(augmented(pictures.images, at)).contiguous());
    Tensor loss = cross_entropy(logits, pictures.labels.index_select(0, at).to(kI32),
                                {.label_smoothing = 0.1});
    loss.backward();
    optimizer.step({&loss});
    if (step == 10) early = live();
    if (step == steps - 1) late = live();
  }
  CHECK(late.nodes == early.nodes);
  CHECK(late.bytes == early.bytes);
}

}  // namespace

TEST_CASE("convolutions learn drawn pictures, where a linear classifier does not") {
  manual_seed(1);
  const PictureData data = draw_pictures(2000, 500, 1);
  const Pictures training(data.train), testing(data.test);
  nn::Sequential network = convolutional(), baseline = linear();
  train(baseline, training, 150, 0.001);
  const double least = accuracy(baseline, testing);
  train(network, training, 300, 0.02);
  const double reached = accuracy(network, testing);
  CHECK(reached > 0.5);
  CHECK(reached > least + 0.3);
}

TEST_CASE("shifts and flips move pictures as a loop over their pixels does") {
  manual_seed(3);
  const Pictures pictures(draw_pictures(6, 0, 2).train);
  const Tensor at = Tensor::from({5, 0, 3, 3});
  const auto all = pictures.images.to_vector<uint8_t>();
  const auto got = augmented(pictures.images, at).to_vector<uint8_t>();
  const std::vector<int> from{5, 0, 3, 3};
  const auto mirror = [](int p) { return 31 - std::abs(31 - std::abs(p)); };
  const auto matches = [&](int i, int dy, int dx, bool flip) {
    for (int c = 0; c < 3; ++c)
      for (int y = 0; y < 32; ++y)
        for (int x = 0; x < 32; ++x) {
          const int sx = mirror((flip ? 31 - x : x) + dx), sy = mirror(y + dy);
          if (got[((i * 3 + c) * 32 + y) * 32 + x] != all[((from[i] * 3 + c) * 32 + sy) * 32 + sx])
            return false;
        }
    return true;
  };
  for (int i = 0; i < 4; ++i) {
    int found = 0;
    for (int dy = -2; dy <= 2; ++dy)
      for (int dx = -2; dx <= 2; ++dx)
        for (bool flip : {false, true}) found += matches(i, dy, dx, flip);
    CHECK(found == 1);
  }
}
