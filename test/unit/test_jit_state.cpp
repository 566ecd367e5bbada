// A Jit beside plain calls: what a step assigns to, outside tensors as results, nothing at all.
#include "tiny/run/jit.h"

#include <doctest/doctest.h>

#include <random>
#include <stdexcept>

#include "test/error_of.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/nn/layers.h"
#include "tiny/train/optim.h"

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
  same([](Tensor& s, const Tensor& x) {  // the first in place, the second not
    s.assign(x.cos());
    s.assign(s.flip());
    return s * 3;
  });
}

namespace {

// A step that assigns at random to some of these tensors, whole or in part, and from one another.
std::vector<Tensor> assign_at_random(std::vector<Tensor>& states, const Tensor& x, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % uint64_t(n)); };
  const int64_t rows = x.size(0);
  std::vector<Tensor> seen{x}, out;
  for (int64_t steps = 2 + below(6); steps; --steps) {
    Tensor& s = states[static_cast<size_t>(below(std::ssize(states)))];
    const Tensor& other = states[static_cast<size_t>(below(std::ssize(states)))];
    const Tensor known = seen[static_cast<size_t>(below(std::ssize(seen)))];
    const int64_t length = 1 + below(rows), from = below(rows - length + 1),
                  to = below(rows - length + 1);
    switch (below(7)) {
      case 0: s.assign(s * 0.5 + known * 0.25); break;
      case 1: s.assign(s.flip(0)); break;
      case 2: s.assign(other.cos()); break;
      case 3: s.assign({Slice{to, to + length}}, other.narrow(0, from, length)); break;
      case 4: s.assign({Slice{0, {}, 2}}, known.narrow(0, 0, (rows + 1) / 2)); break;
      case 5: seen.push_back(s.sin()), out.push_back(seen.back()); break;
      default: out.push_back(s.sum(0)); break;
    }
  }
  out.push_back(states[0] * 3);
  return out;
}

std::vector<Floats> after_random_steps(bool jit, uint64_t seed) {
  const EnvOverride on("JIT", jit ? "1" : "0");
  const auto values = [](int64_t n) {
    return Tensor::arange(0, 10, 1, kF32).reshape({5, 2}) * 0.1 + static_cast<double>(n);
  };
  std::vector<Tensor> states;
  for (int64_t i = 0; i < 3; ++i) states.push_back(values(i).contiguous().realize());
  Jit call([&](const Tensor& x) { return assign_at_random(states, x, seed); });
  std::vector<Floats> out;
  for (int64_t i = 0; i < 4; ++i) {
    for (const Tensor& t : call(values(10 + i).contiguous().realize()))
      out.push_back(t.to_vector<float>());
    for (const Tensor& t : states) out.push_back(t.to_vector<float>());
  }
  return out;
}

}  // namespace

TEST_CASE("replays of random assignments give what calls give") {
  for (uint64_t seed = 0; seed < 25; ++seed) {
    CAPTURE(seed);
    CHECK(after_random_steps(true, seed) == after_random_steps(false, seed));
  }
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

TEST_CASE("a replay computes what was known of a tensor from outside at the capture") {
  for (const bool by_state : {true, false}) {
    CAPTURE(by_state);
    Tensor weight = floats({1}).realize(), state = floats({0, 0}).realize();
    Tensor known, copy;
    if (!by_state) {
      known = weight * 2;
      copy = known;
      copy.realize();
    }
    Jit step([&](const Tensor& x) {
      Tensor twice = weight * 2;
      if (by_state) state.assign({Slice{}}, twice);
      return std::array{twice, twice + x};
    });
    for (const float w : {1.0f, 1.0f, 3.0f, 4.0f}) {
      if (w != 1) weight.assign(floats({w})).realize();
      const auto [twice, sum] = step(floats({0.5f}));
      CHECK(twice.to_vector<float>() == Floats{2 * w});
      CHECK(sum.to_vector<float>() == Floats{2 * w + 0.5f});
    }
    CHECK(step.statistics().replays == 2);
    if (by_state) CHECK(state.to_vector<float>() == Floats{8, 8});
    if (!by_state) CHECK(known.to_vector<float>() == Floats{2});
  }
}

TEST_CASE("a step repeats elements so often as a list says") {
  Jit step([](const Tensor& x) { return x.repeat_interleave(Shape{2, 0, 0, 3, 1}, 0); });
  for (int i = 0; i < 4; ++i) {
    const auto f = static_cast<float>(i);
    CHECK(step(floats({f, 1, 2, f + 3, 4})).to_vector<float>() ==
          Floats{f, f, f + 3, f + 3, f + 3, 4});
  }
  CHECK(floats({1, 2}).repeat_interleave(Shape{0, 0}, 0).to_vector<float>().empty());
}

TEST_CASE("a parameter without elements is trained in a Jit beside others") {
  Tensor none = Tensor::zeros({0, 2}).requires_grad_();
  Tensor weight = floats({1, 2}).requires_grad_();
  Adam optimizer({&none, &weight}, 0.5);
  Jit step([&] {
    Tensor loss = none.sum() + weight.sum();
    loss.backward();
    optimizer.step({&loss});
    return loss;
  });
  for (const float loss : {3.0f, 2.0f, 1.0f, 0.0f})
    CHECK(step().item<float>() == doctest::Approx(loss));
  CHECK(step.statistics().replays == 2);
  CHECK(none.to_vector<float>().empty());
}

TEST_CASE("a copy that a step assigns to leaves the tensor from outside as it was") {
  Tensor state = floats({1.5f, 2.5f});
  state.realize();
  Jit step([&](const Tensor& x) {
    Tensor copy = state;
    copy.assign(x);
    return std::vector<Tensor>{copy, state * 3, state};
  });
  for (int i = 0; i < 5; ++i) {
    const Floats x{static_cast<float>(i), 1};
    const std::vector<Tensor> out = step(floats(x));
    CHECK(out[0].to_vector<float>() == x);
    CHECK(out[1].to_vector<float>() == Floats{4.5f, 7.5f});
    CHECK(out[2].to_vector<float>() == Floats{1.5f, 2.5f});
  }
}

TEST_CASE("a copy and the tensor that it was made from are both assigned to") {
  Tensor state = floats({1.5f, 2.5f});
  state.realize();
  Jit step([&](const Tensor& x) {
    Tensor copy = state;
    copy.assign(state + 1);
    state.assign(x);
    return copy;
  });
  Floats before{1.5f, 2.5f};
  Tensor last;  // holds the memory that the state had
  for (int i = 0; i < 6; ++i) {
    const Floats x{static_cast<float>(i), 1};
    last = step(floats(x));
    CHECK(last.to_vector<float>() == Floats{before[0] + 1, before[1] + 1});
    CHECK(state.to_vector<float>() == x);
    before = x;
    if (i != 2) continue;
    state.assign({1}, 7);
    before[1] = 7;
  }
}

TEST_CASE("an old value that a step returns keeps its memory after a call between replays") {
  Tensor state = floats({1, 2});
  state.realize();
  Jit step([&](const Tensor& x) {
    const Tensor old = state;
    state.assign(x * 1.5);
    return old;
  });
  Floats before{1, 2};
  Tensor last;
  for (int i = 0; i < 8; ++i) {
    const Floats x{static_cast<float>(i), 4};
    const Floats kept = last.defined() ? last.to_vector<float>() : Floats();
    const Tensor got = step(floats(x));
    CHECK(got.to_vector<float>() == before);
    if (last.defined()) CHECK(last.to_vector<float>() == kept);
    before = {x[0] * 1.5f, x[1] * 1.5f};
    last = got;
    if (i != 1 && i != 4) continue;
    state.assign(state + 1);  // waits: the next call is no replay
    before = {before[0] + 1, before[1] + 1};
  }
}

TEST_CASE("a step gives tensors from outside back as copies, and who lets those go loses nothing") {
  Tensor p = floats({1, 2});
  p.realize();
  std::vector<std::function<Tensor(const Tensor&)>> steps{
      [&](const Tensor&) { return p; },
      [&](const Tensor&) { return p.flip({0}).flip({0}); },
      [&](const Tensor&) {
        return p.reshape({2, 1}).reshape({2});
      },
      [&](const Tensor&) { return p.detach(); },
  };
  for (const auto& body : steps) {
    Jit step(body);
    Tensor last;
    for (int i = 0; i < 6; ++i) {
      const float value = static_cast<float>(i);
      p.assign(floats({value, 2}));
      p.realize();
      const Tensor got = step(floats({value, 5}));
      CHECK(got.to_vector<float>() == Floats{value, 2});
      if (last.defined()) CHECK(last.to_vector<float>() == Floats{value - 1, 2});
      last = got;
    }
    CHECK(step.statistics().replays >= 3);
  }
}

TEST_CASE("a step gives its argument back as a copy") {
  Jit step([&](const Tensor& x) { return x; });
  Tensor x = floats({1, 2});
  x.realize();
  Tensor last;
  for (int i = 0; i < 5; ++i) {
    last = step(x);
    x.assign(x + 1);
    x.realize();
    const float value = static_cast<float>(i);
    CHECK(last.to_vector<float>() == Floats{value + 1, value + 2});
  }
}

TEST_CASE(
    "a tensor from outside that others hold while a step is captured is none that is let go") {
  Tensor state = floats({1, 2}).realize();
  Jit step([&](const Tensor& x) { return std::vector<Tensor>{state, state + x}; });
  std::vector<Tensor> last;  // each result is a copy of the state
  for (int i = 0; i < 5; ++i) {
    last = step(floats({3, 4}));
    CHECK(last[0].to_vector<float>() == Floats{1, 2});
    CHECK(last[1].to_vector<float>() == Floats{4, 6});
  }
  CHECK(step.statistics().replays > 1);
  Tensor other = state;
  Jit again([&](const Tensor& x) { return state * x; });
  for (int i = 0; i < 2; ++i) again(floats({3, 4}));
  state = floats({5, 5}).realize();  // which is a loss
  CHECK(again(floats({3, 4})).to_vector<float>() == Floats{15, 20});
}

TEST_CASE("a view from outside is watched where the step makes another view of it") {
  const Tensor x = floats({1, 2});
  Tensor base = floats({1.5f, 2.5f});
  base.realize();
  Tensor view = base.flip({0});  // flipped back, it is the base
  Jit step([&](const Tensor& y) { return view.flip({0}) + y; });
  for (int i = 0; i < 4; ++i) CHECK(step(x).to_vector<float>() == Floats{2.5f, 4.5f});
  view = floats({3, 4}).realize();
  CHECK_THROWS_WITH_AS(
      step(x), doctest::Contains("was replaced by another or let go since the capture"), Error);
}

TEST_CASE("a tensor that was assigned to between calls is watched further") {
  const Tensor x = floats({1, 2});
  Tensor rate = floats({0.5f, 1});
  rate.realize();
  Jit step([&](const Tensor& y) { return y * rate; });
  for (int i = 0; i < 4; ++i) {
    rate.assign(floats({static_cast<float>(i), 3}));
    rate.realize();
    CHECK(step(x).to_vector<float>() == Floats{static_cast<float>(i), 6});
  }
  rate.assign(rate + 1);
  CHECK_THROWS_WITH_AS(step(x), doctest::Contains("was assigned to without realize()"), Error);
  rate.realize();
  CHECK(step(x).to_vector<float>() == Floats{4, 8});
}

TEST_CASE("what somebody made of an old value before the capture is no part of the step") {
  Tensor state = floats({1, 2});
  state.realize();
  Jit step([&](const Tensor& x) {
    state.assign(state + x);
    return state.sum();
  });
  const Tensor one = floats({1, 1}).realize();
  step(one);
  Tensor factor = floats({3, 4}).realize();
  const Tensor product = state * factor;
  step(one);  // records, and replaces what the product is made of
  factor = Tensor();
  for (int i = 0; i < 3; ++i) CHECK(step(one).item<float>() == 9.0f + 2 * static_cast<float>(i));
  CHECK(product.to_vector<float>() == Floats{6, 12});
}
