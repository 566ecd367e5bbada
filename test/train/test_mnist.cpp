// Training as a user does it, on a network small enough for a test.
#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>

#include "runtime/realize/realize.h"
#include "tiny/tiny.h"

using namespace tiny;

namespace {

constexpr int64_t kBatch = 32;

nn::Sequential small_network() {
  const auto pool = [](const Tensor& x) { return max_pool2d(x, 2); };
  const auto flatten = [](const Tensor& x) { return x.flatten(1); };
  return nn::Sequential(nn::Conv2d(1, 8, 5, {.stride = 2}), &Tensor::relu, nn::BatchNorm2d(8), pool,
                        nn::Conv2d(8, 16, 3), &Tensor::relu, nn::BatchNorm2d(16), pool, flatten,
                        nn::Linear(64, 10));
}

struct Digits {
  explicit Digits(const DigitSet& set)
      : images(Tensor::from(set.images, {set.size(), 1, kDigitSide, kDigitSide})),
        labels(Tensor::from(set.labels)) {}
  Tensor images, labels;
};

Tensor scaled(const Tensor& images) { return images.to(kF32) / 255; }

float train_step(nn::Module& network, Optimizer& optimizer, const Digits& digits) {
  const Tensor at = Tensor::randint(0, digits.labels.size(0), {kBatch}, kI32);
  const Tensor logits = network(scaled(digits.images.index_select(0, at)));
  Tensor loss = cross_entropy(logits, digits.labels.index_select(0, at).to(kI32));
  loss.backward();
  optimizer.step({&loss});
  return loss.item<float>();
}

double accuracy(nn::Module& network, const Digits& digits) {
  const NoGrad no_grad;
  const Tensor predicted = network(scaled(digits.images)).argmax(1);
  return (predicted == digits.labels.to(kI64)).to(kF32).mean().item<float>();
}

// Mean loss of the first and of the last ten steps, and what lived after step 10 and at the end.
struct Run {
  double first = 0, last = 0;
  Live early, late;
};

Run train(nn::Module& network, const Digits& digits, int steps) {
  const nn::Training training;
  Adam optimizer(network.tensors(), 3e-3);
  Run run;
  for (int step = 0; step < steps; ++step) {
    optimizer.set_lr(3e-3 * (steps - step) / steps);
    const float loss = train_step(network, optimizer, digits);
    if (step < 10) run.first += loss / 10;
    if (step >= steps - 10) run.last += loss / 10;
    if (step == 10) run.early = live();
  }
  run.late = live();
  return run;
}

}  // namespace

TEST_CASE("a small network learns drawn digits, and a step leaves nothing behind") {
  manual_seed(1);
  const MnistData data = draw_digits(1000, 300, 1);
  const Digits training(data.train), testing(data.test);
  nn::Sequential network = small_network();
  CHECK(accuracy(network, testing) < 0.3);
  const Run run = train(network, training, 200);
  CHECK(run.first > 1);
  CHECK(run.last < 0.25 * run.first);
  CHECK(accuracy(network, testing) > 0.85);
  CHECK(run.late.nodes == run.early.nodes);
  CHECK(run.late.buffers == run.early.buffers);
  CHECK(run.late.bytes == run.early.bytes);
}

TEST_CASE("the same seed trains the same network") {
  const Digits digits(draw_digits(100, 10, 1).train);
  const auto weights = [&] {
    manual_seed(7);
    nn::Sequential network = small_network();
    train(network, digits, 5);
    return network.parameters()[0]->to_vector<float>();
  };
  const auto once = weights();
  CHECK(weights() == once);
}

TEST_CASE("a network that was never used takes over a saved one") {
  manual_seed(2);
  const Digits digits(draw_digits(100, 10, 2).train);
  nn::Sequential trained = small_network(), fresh = small_network();
  train(trained, digits, 3);
  const auto path = std::filesystem::temp_directory_path() / cat("tiny_train_", getpid());
  save(path, trained.state_dict());
  load(path, fresh.state_dict());
  std::filesystem::remove(path);
  const NoGrad no_grad;
  const Tensor x = scaled(digits.images);
  CHECK(fresh(x).to_vector<float>() == trained(x).to_vector<float>());
}
