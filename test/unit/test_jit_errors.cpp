// What a Jit says of steps that it cannot replay, and of what only looks like one.
#include <doctest/doctest.h>

#include "test/error_of.h"
#include "tiny/base/env.h"
#include "tiny/nn/layers.h"
#include "tiny/run/jit.h"
#include "tiny/train/optim.h"

using namespace tiny;

namespace {

using Floats = std::vector<float>;

Tensor floats(const Floats& values) { return Tensor::from(values); }
Tensor cache_of_zeros() { return Tensor::zeros({3, 2}).contiguous().realize(); }

// The error of the calls of a step with the arguments (0, 0), (1, 1), ...
template <class Step> std::string error_of_calls(Step& step, int calls = 5) {
  return error_of([&] {
    for (int i = 0; i < calls; ++i) step(floats({static_cast<float>(i), static_cast<float>(i)}));
  });
}

}  // namespace

TEST_CASE("a tensor that became an expression of itself keeps its value in a replay") {
  const auto rows = [](const char* jit, auto between) {
    const EnvOverride on("JIT", jit);
    Tensor cache = cache_of_zeros();
    Jit step([&](const Tensor& x) {
      cache.assign({1}, x + 1);
      return x * 2;
    });
    Floats out;
    for (int i = 0; i < 7; ++i) {
      if (i == 4) between(cache);
      step(floats({static_cast<float>(i), 1}));
      for (float value : cache.to_vector<float>()) out.push_back(value);
    }
    return out;
  };
  const auto same = [&](auto between) { CHECK(rows("1", between) == rows("0", between)); };
  same([](Tensor& t) { t = t + 1; });
  same([](Tensor& t) { t = (t + 1).realize(); });
  same([](Tensor& t) { t = t.flip(0); });
  same([](Tensor& t) { t = cache_of_zeros(); });
  same([](Tensor& t) { t.assign(t * 2); });
}

TEST_CASE("a capture for each micro-step says where micro-steps belong") {
  nn::Linear layer(2, 3);
  SGD optimizer(layer.tensors(), 0.1);
  Jit micro([&](const Tensor& x) {
    Tensor loss = layer(x).square().mean();
    loss.backward();
    return loss;
  });
  const std::string text = error_of_calls(micro);
  CHECK(has(text, "a gradient that backward() makes in the step"));
  CHECK((has(text, "f32 (3,2)") || has(text, "f32 (3) ")));
  CHECK(has(text, "put all micro-steps of a batch and optimizer.step() into one step"));

  optimizer.zero_grad();
  Jit whole([&](const Tensor& x) {
    Tensor sum = Tensor::zeros({});
    for (int i = 0; i < 3; ++i) {
      const Tensor loss = layer(x * (i + 1)).square().mean() / 3;
      loss.backward();
      sum = sum + loss.detach();
    }
    optimizer.step({&sum});
    return sum;
  });
  CHECK(error_of_calls(whole) == "no error");
  CHECK(whole.statistics().replays == 3);
}

TEST_CASE("a tensor without memory that a step assigns to is named, and what gives it some") {
  Tensor cache;
  Jit step([&](const Tensor& x) {
    cache.assign({1}, x);
    return x * 2;
  });
  const std::string text = error_of([&] {
    for (int i = 0; i < 3; ++i) {
      cache = Tensor::zeros({3, 2});  // a constant
      step(floats({1, static_cast<float>(i)}));
    }
  });
  CHECK(has(text, "assigns to a tensor from outside, f32 (3,2)"));
  CHECK(has(text, "t = t.contiguous(); t.realize()"));

  Jit again([&](const Tensor& x) {
    cache.assign({1}, x);
    return x * 2;
  });
  for (int i = 0; i < 4; ++i) {
    cache = cache_of_zeros();
    again(floats({1, static_cast<float>(i)}));
    CHECK(cache.to_vector<float>() == Floats{0, 0, 1, static_cast<float>(i), 0, 0});
  }
}

TEST_CASE("a cache that grows says what to do instead") {
  std::vector<Tensor> keys;
  Jit step([&](const Tensor& x) {
    keys.push_back(x + 1);
    return Tensor::cat(keys).sum();
  });
  const std::string text = error_of_calls(step);
  CHECK(has(text, "a tensor made in the step, f32 (2) of add, is still there after it"));
  CHECK(has(text, "a cache that grows has its full size from the beginning"));
}

TEST_CASE("an assignment that waits and a tensor that was replaced are different errors") {
  Tensor scale = floats({2, 2}).realize();
  Jit step([&](const Tensor& x) { return x * scale; });
  CHECK(error_of_calls(step) == "no error");
  scale.assign(scale + 1);
  CHECK(error_of_calls(step, 1) ==
        "Jit: a tensor from outside that the step reads, f32 (2), was assigned to without "
        "realize(): realize() it before the step");
  scale.realize();
  CHECK(step(floats({1, 1})).to_vector<float>() == Floats{3, 3});
  scale = floats({5, 5});
  CHECK(has(error_of_calls(step, 1), "was replaced by another or let go"));
}

TEST_CASE("numbers in a step are no tensors from outside, whoever else has the same constant") {
  Tensor state = Tensor::zeros({2}).contiguous().realize();
  Jit step([&](const Tensor& x) {
    state.assign(x + 1);
    return x * 2 + Tensor::full({2}, 3);
  });
  for (int i = 0; i < 6; ++i) {
    // While the step runs, somebody has i as a tensor of the shape that its own numbers have.
    const Tensor y = step(Tensor::full({2}, i).contiguous().realize());
    CHECK(y.to_vector<int64_t>() == std::vector<int64_t>(2, 2 * i + 3));
    CHECK(state.to_vector<float>() == Floats(2, static_cast<float>(i + 1)));
  }
  CHECK(step.statistics().replays > 0);
}

TEST_CASE("a constant from outside that is replaced is seen, and at last an error") {
  Tensor factor = Tensor::full({2}, 1.5f);
  Jit step([&](const Tensor& x) { return x * factor; });
  const std::string text = error_of([&] {
    for (int i = 0; i < 40; ++i) {
      const auto f = static_cast<float>(i) + 0.5f;
      factor = Tensor::full({2}, f);
      CHECK(step(floats({2, 4})).to_vector<float>() == Floats{2 * f, 4 * f});
    }
  });
  CHECK(has(text, "was replaced by another or let go"));
}
