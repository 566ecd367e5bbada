// A Jit beside plain calls: what a step assigns to, outside tensors as results, nothing at all.
#include "tiny/run/jit.h"

#include <doctest/doctest.h>

#include <stdexcept>

#include "test/error_of.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/nn/layers.h"

using namespace tiny;

namespace {

using Floats = std::vector<float>;

Tensor floats(const Floats& values) { return Tensor::from(values); }

// The text of the Error that a call throws.
}  // namespace

namespace {

// What a step gives, and what its state is after each call.
template <class F> std::vector<Floats> states_after(bool jit, F step) {
  const EnvOverride on("JIT", jit ? "1" : "0");
  Tensor state = floats({0.5f, 1});
  state.realize();
  Jit call([&](const Tensor& x) { return step(state, x); });
  std::vector<Floats> out;
  std::vector<Tensor> results;
  for (int i = 0; i < 6; ++i) {
    try {
      results.push_back(call(floats({1.0f + static_cast<float>(i), 2})));
    } catch (const std::runtime_error& e) {
      CHECK(std::string(e.what()) == "mine");
    }
    out.push_back(state.to_vector<float>());
  }
  for (const Tensor& r : results) out.push_back(r.to_vector<float>());
  if (jit) CHECK(call.statistics().replays >= 3);
  return out;
}

}  // namespace

TEST_CASE("what a step assigns to is assigned by replays, whether a result depends on it or not") {
  const auto same = [](auto step) { CHECK(states_after(true, step) == states_after(false, step)); };
  same([](Tensor& s, const Tensor& x) {
    s.assign(s * 0.5 + x.mean());
    return x * 2;
  });
  same([](Tensor& s, const Tensor& x) {
    s.assign(s + x);
    s.assign(s * x);
    return x + 1;
  });
  same([](Tensor& s, const Tensor& x) {
    s.assign({0}, x.sum());
    return x.flip();
  });
}

TEST_CASE("results that are tensors from outside keep their value when those are assigned to") {
  const auto same = [](auto step) { CHECK(states_after(true, step) == states_after(false, step)); };
  same([](Tensor& s, const Tensor& x) {
    s.assign(s + x);
    return s;
  });
  same([](Tensor& s, const Tensor& x) {
    s.assign(s.flip() + x);
    s.realize();
    return s.flip();
  });
  same([](Tensor& s, const Tensor& x) {
    s.assign(x);
    return s;
  });
}

TEST_CASE("an exception while a Jit records leaves tensors as it does without a Jit") {
  const auto states = [](bool jit) {
    int turn = 0;
    return states_after(jit, [&](Tensor& s, const Tensor& x) {
      s.assign(s + x);
      if (++turn == 2) throw std::runtime_error("mine");
      return x * 2;
    });
  };
  CHECK(states(true) == states(false));
}

TEST_CASE("a network with batch norm runs forward in a Jit and moves its statistics") {
  const auto means = [](bool jit) {
    const EnvOverride on("JIT", jit ? "1" : "0");
    const nn::Training training;
    nn::BatchNorm2d norm(3);
    Jit forward([&](const Tensor& x) { return norm.forward(x); });
    Floats out;
    for (int i = 0; i < 6; ++i) {
      const Tensor x = Tensor::arange(0, 12, 1, kF32).reshape({2, 3, 2}) * (i + 1);
      out.push_back(forward(Tensor(x).realize()).to_vector<float>()[0]);
      for (float f : norm.running_mean.to_vector<float>()) out.push_back(f);
    }
    if (jit) CHECK(forward.statistics().replays == 4);
    return out;
  };
  CHECK(means(true) == means(false));
}

TEST_CASE("an argument and a result may have no elements") {
  Jit step([](const Tensor& x, const Tensor& none) {
    return std::array{none, none + 1, x + none.sum(), Tensor::cat({x, none.sum(0)})};
  });
  for (int i = 0; i < 4; ++i) {
    const auto f = static_cast<float>(i);
    const auto [a, b, c, d] = step(floats({f}), Tensor::zeros({0, 2}));
    CHECK(to_text(a.shape()) == "(0,2)");
    CHECK(b.to_vector<float>().empty());
    CHECK(c.to_vector<float>() == Floats{f});
    CHECK(d.to_vector<float>() == Floats{f, 0, 0});
  }
  CHECK(step.statistics().replays == 2);
  CHECK(has(error_of([&] {
              step(floats({1}), Tensor::zeros({0, 3}));
            }),
            "argument 1 is f32 (0,3)"));
}
