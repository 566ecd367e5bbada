// Weights that a replay packs once: new ones are packed again, however they came.
#include <doctest/doctest.h>

#include <cmath>

#include "tiny/nn/layers.h"
#include "tiny/run/jit.h"
#include "tiny/tensor/random.h"
#include "tiny/train/optim.h"
#include "tiny/train/state_dict.h"

using namespace tiny;

namespace {

// Wide enough that the CPU packs the weight.
constexpr int64_t kIn = 96, kOut = 160, kRows = 64;

double difference(const Tensor& x, const Tensor& y) {
  return static_cast<double>((x - y).abs().max().item<float>());
}

}  // namespace

TEST_CASE("a replay runs what it makes of weights alone once, and again for new weights") {
  manual_seed(1);
  const NoGrad no_grad;
  Tensor w = Tensor::randn({kOut, kIn}).contiguous().realize();
  const Tensor x = Tensor::randn({kRows, kIn}).contiguous().realize();
  Jit step([&](const Tensor& in) { return in.matmul(w.t()).relu(); });
  const auto check_now = [&] {
    const Tensor got = step(x);
    CHECK(difference(got, x.matmul(w.t()).relu()) < 1e-4);
    return got;
  };
  for (int i = 0; i < 3; ++i) check_now();
  REQUIRE(step.statistics().replays >= 1);
  const int64_t calls = step.statistics().calls;
  for (int i = 0; i < 3; ++i) {
    const Tensor before = check_now();
    w.assign(w * 0.5 + static_cast<double>(i));
    w.realize();
    const Tensor after = check_now();
    CHECK(difference(before, after) > 1e-2);
  }
  CHECK(step.statistics().calls == calls);  // all were replays
}

TEST_CASE("weights that another Jit trains in place are those of a replay's next run") {
  manual_seed(2);
  nn::Linear layer(kIn, kOut);
  for (Tensor* t : layer.tensors()) t->realize().requires_grad_();
  Adam optimizer(layer.tensors(), 1e-2);
  const Tensor x = Tensor::randn({kRows, kIn}).contiguous().realize();
  const Tensor y = Tensor::randn({kRows, kOut}).contiguous().realize();
  Jit train([&](const Tensor& in, const Tensor& target) {
    Tensor loss = (layer(in) - target).square().mean();
    loss.backward();
    optimizer.step({&loss});
    return loss;
  });
  Jit run([&](const Tensor& in) {
    const NoGrad no_grad;
    return layer(in);
  });
  for (int i = 0; i < 6; ++i) {
    const Tensor got = run(x);
    CHECK(difference(got, x.matmul(layer.weight.detach().t()) + layer.bias.detach()) < 1e-4);
    const Tensor before = got.contiguous().realize();
    train(x, y);
    CHECK(difference(run(x), before) > 1e-3);
  }
  CHECK(run.statistics().replays >= 3);
  CHECK(train.statistics().replays >= 3);
}

TEST_CASE("a replay whose weights are packed launches fewer kernels than a call") {
  manual_seed(3);
  const NoGrad no_grad;
  const Tensor w = Tensor::randn({960, 160, 1, 1}).contiguous().realize();
  const Tensor x = Tensor::randn({1, 160, 7, 7}).contiguous().realize();
  Jit step([&](const Tensor& in) { return conv2d(in, w); });
  Jit own([&](const Tensor& in, const Tensor& weight) { return conv2d(in, weight); });
  for (int i = 0; i < 3; ++i) CHECK(difference(step(x), own(x, w)) < 1e-5);
  // An argument may be another one each time.
  if (runtime_seam::default_device() == "CPU")
    CHECK(step.statistics().kernels < own.statistics().kernels);
}

TEST_CASE("what a replay makes of weights and of a Variable is made for each number") {
  const NoGrad no_grad;
  const Tensor w = Tensor::arange(0, 24, 1, kF32).reshape({6, 4}).contiguous().realize();
  Jit step([&](const Variable& n) { return w.narrow(0, 0, n).exp2().contiguous().sum(0).log2(); });
  Variable n("n", 1, 6);
  for (int64_t i : {3, 6, 1, 4, 2}) {
    const Tensor wanted = w.narrow(0, 0, i).exp2().sum(0).log2();
    CHECK(difference(step(n.bind(i)), wanted) < 1e-5);
  }
  CHECK(step.statistics().replays >= 3);
}
