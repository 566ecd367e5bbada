#include "tiny/train/mixed_precision.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "tiny/nn/functional.h"
#include "tiny/nn/layers.h"
#include "tiny/run/jit.h"

using namespace tiny;

namespace {

Tensor numbers_to(int64_t n, const Shape& shape) {
  return Tensor::arange(0, n, 1, kF32).reshape(shape).contiguous();
}

Tensor parameter() { return Tensor::from({1.0f, -2.0f}).requires_grad_(); }

std::vector<float> values(const Tensor& t) { return t.to(kF32).to_vector<float>(); }

}  // namespace

TEST_CASE("autocast products take f32 operands as 16-bit floats, the rest computes as before") {
  const Tensor x = numbers_to(6, {2, 3}), picture = numbers_to(16, {1, 1, 4, 4});
  const Tensor filter = Tensor::ones({1, 1, 3, 3}), sequence = numbers_to(8, {1, 2, 4});
  const Autocast half(kBF16);
  CHECK(x.matmul(x.t()).dtype() == kBF16);
  CHECK(x.linear(x, Tensor::ones({2})).dtype() == kBF16);
  CHECK(Tensor::einsum("ij,ij->i", {x, x}).dtype() == kBF16);
  CHECK(conv2d(picture, filter).dtype() == kBF16);
  CHECK(conv_transpose2d(picture, filter).dtype() == kBF16);
  CHECK(scaled_dot_product_attention(sequence, sequence, sequence).dtype() == kBF16);
  CHECK((x + 1).dtype() == kF32);
  CHECK(x.to(kBF16).relu().dtype() == kBF16);
  CHECK(x.to(kBF16).softmax(1).dtype() == kF32);
  CHECK(x.to(kBF16).log_softmax(1).dtype() == kF32);
  CHECK(cross_entropy(x.to(kBF16), Tensor::from({0, 1})).dtype() == kF32);
  CHECK(mse_loss(x.to(kBF16), x.to(kBF16)).dtype() == kF32);
  CHECK(x.to(kF64).matmul(x.to(kF64).t()).dtype() == kF64);
  CHECK(x.to(kI32).matmul(x.to(kI32).t()).dtype() == kI32);
}

TEST_CASE("autocast rounds operands, ends with its scope and can be switched off in it") {
  const Tensor x = Tensor::from({1 + 1.0f / 512}, {1, 1}), y = Tensor::ones({1, 1});
  {
    const Autocast half(kBF16);
    CHECK(values(x.matmul(y))[0] == 1);  // bf16 has 8 bits of mantissa
    {
      const Autocast off(kF32);
      CHECK(x.matmul(y).dtype() == kF32);
    }
    CHECK(x.matmul(y).dtype() == kBF16);
  }
  CHECK(values(x.matmul(y))[0] == 1 + 1.0f / 512);
  for (const DType t : {kF64, kF8E5M2})
    CHECK_THROWS_WITH_AS(
        Autocast{t},
        cat("Autocast: takes f16, bf16, f8e4m3 or f32, which switches it off, and not ", t.name())
            .c_str(),
        Error);
  CHECK(x.matmul(y).dtype() == kF32);
}

TEST_CASE("gradients under autocast have the parameters' dtype and nearly their values") {
  nn::Linear layer(8, 4);
  const Tensor x = Tensor::randn({16, 8}).contiguous();
  const auto gradient = [&](DType dtype) {
    Tensor loss;
    {
      const Autocast half(dtype);
      loss = layer(x).square().mean();
    }
    const Tensor g = Tensor::gradient(loss, {layer.weight})[0];
    CHECK(g.dtype() == kF32);
    return values(g);
  };
  const std::vector<float> exact = gradient(kF32), half = gradient(kF16);
  bool differs = false;
  for (size_t i = 0; i < exact.size(); ++i) {
    CHECK(std::abs(half[i] - exact[i]) < 0.01 * std::abs(exact[i]) + 1e-3);
    differs |= half[i] != exact[i];
  }
  CHECK(differs);
}

TEST_CASE("a scaled loss moves the parameters as the loss itself does") {
  Tensor p = parameter(), q = parameter();
  const SgdOptions options{.momentum = 0.5};
  SGD plain({&p}, 0.25, options), scaled({&q}, 0.25, options);
  LossScaler scaler({&scaled}, {.start = 1024, .every = 2});
  for (int i = 0; i < 3; ++i) {
    p.square().sum().backward();
    plain.step();
    scaler.scaled(q.square().sum()).backward();
    CHECK(values(q.grad())[0] == 2 * values(q)[0] * scaler.scale());
    scaler.step();
  }
  CHECK(values(p) == values(q));
  CHECK(scaler.scale() == 2048);  // grown after the second
}

TEST_CASE("a step with an infinite gradient changes nothing but the scale") {
  Tensor p = parameter(), q = parameter();
  Adam first({&p}, 0.1), second({&q}, 0.1);
  LossScaler scaler({&first, &second}, {.start = 8, .every = 2});
  const auto step = [&](float factor) {
    scaler.scaled((p * factor + q).sum()).backward();
    scaler.step();
  };
  step(1);
  const std::vector<float> p1 = values(p), q1 = values(q),
                           m1 = values(*first.state_dict()[2].tensor);
  step(std::numeric_limits<float>::infinity());
  CHECK(values(p) == p1);
  CHECK(values(q) == q1);
  CHECK(values(*first.state_dict()[2].tensor) == m1);
  CHECK(scaler.scale() == 4);
  // Good steps count anew: the next growth comes after two.
  step(1);
  CHECK(scaler.scale() == 4);
  step(1);
  CHECK(scaler.scale() == 8);
  CHECK(values(p) != p1);
}

TEST_CASE("small gradients of f16 survive through the scale") {
  Tensor w = Tensor::from({1.0f}, {1, 1}).requires_grad_();
  const Tensor x = Tensor::from({1.0f}, {1, 1});
  SGD optimizer({&w}, 1);
  LossScaler scaler({&optimizer});
  const auto gradient = [&](bool scales) {
    Tensor loss;
    {
      const Autocast half(kF16);
      loss = (w.matmul(x).to(kF32) * 1e-9).sum();
    }
    return values(Tensor::gradient(scales ? scaler.scaled(loss) : loss, {w})[0])[0];
  };
  CHECK(gradient(false) == 0);
  CHECK(gradient(true) / 65536 == doctest::Approx(1e-9).epsilon(0.01));
}

TEST_CASE("a Jit replays scaled steps, and those that are dropped") {
  Tensor p = parameter();
  SGD optimizer({&p}, 0.5);
  LossScaler scaler({&optimizer}, {.start = 4});
  Jit step([&](const Tensor& factor) {
    scaler.scaled((p * factor).sum()).backward();
    scaler.step();
  });
  const float infinity = std::numeric_limits<float>::infinity();
  for (float factor : {1.0f, 1.0f, infinity, 1.0f}) step(Tensor::from({factor}));
  CHECK(values(p) == std::vector<float>{-0.5f, -3.5f});
  CHECK(scaler.scale() == 2);
}

TEST_CASE("a loss scaler says what cannot work") {
  Tensor p = parameter();
  SGD optimizer({&p}, 1);
  CHECK_THROWS_WITH_AS(LossScaler({}), "LossScaler: no optimizers", Error);
  CHECK_THROWS_WITH_AS(LossScaler({&optimizer}, {.start = 0}),
                       "LossScaler: a scale of 0, growth 2 every 2000 steps, backoff 0.5: takes a "
                       "scale > 0, a growth >= 1 and a backoff in (0, 1)",
                       Error);
  LossScaler scaler({&optimizer});
  CHECK_THROWS_WITH_AS(scaler.step(), "LossScaler: no parameter has a gradient", Error);
}
