// Groups of parameters beside PyTorch 1.13's numbers, and beside an optimizer for each group.
#include <doctest/doctest.h>

#include <cmath>
#include <memory>

#include "test/error_of.h"
#include "tiny/base/env.h"
#include "tiny/nn/transformer.h"
#include "tiny/run/jit.h"
#include "tiny/train/optim.h"

using namespace tiny;

namespace {

using Numbers = std::vector<double>;

Tensor parameter() { return Tensor::from({1.0, -2.0}).requires_grad_(); }

// Two parameters after three steps with the same gradients, of which the third has half the rate.
template <class Make> void check_steps(Make make, const Numbers& expected) {
  Tensor a = parameter(), b = parameter();
  const std::unique_ptr<Optimizer> optimizer = make(a, b);
  for (const std::vector<double>& g : {Numbers{1, 2}, Numbers{-0.5, 1}, Numbers{0.25, 0}}) {
    if (g[1] == 0) optimizer->set_lr(0.05);
    for (Tensor* t : {&a, &b}) t->set_grad(Tensor::from(g));
    optimizer->step();
  }
  Numbers got = a.to_vector<double>();
  for (double value : b.to_vector<double>()) got.push_back(value);
  for (size_t i = 0; i < 4; ++i) CHECK(std::abs(got[i] - expected[i]) < 1e-14);
}

}  // namespace

TEST_CASE("groups have rates and decays of their own, as PyTorch's do") {
  check_steps(
      [](Tensor& a, Tensor& b) {
        return std::make_unique<AdamW>(
            ParameterGroups{{.tensors = {&a}}, {.tensors = {&b}, .lr = 0.02, .weight_decay = 0.5}},
            0.1);
      },
      {0.8540101065681901, -2.2240542806588257, 0.9467941017442141, -1.995856150166148});
  check_steps(
      [](Tensor& a, Tensor& b) {
        const std::vector<ParameterGroup> groups{{.tensors = {&a}, .weight_decay = 0},
                                                 {.tensors = {&b}}};
        return std::make_unique<AdamW>(groups, 0.1, AdamOptions{.beta2 = 0.95});
      },
      {0.8558289753673197, -2.230702525395868, 0.8534943433380534, -2.2255096097435025});
  const auto decayed_and_slow = [](Tensor& a, Tensor& b) {
    return ParameterGroups{{.tensors = {&a}, .weight_decay = 0.3}, {.tensors = {&b}, .lr = 0.01}};
  };
  check_steps(
      [&](Tensor& a, Tensor& b) {
        return std::make_unique<SGD>(decayed_and_slow(a, b), 0.1, SgdOptions{.momentum = 0.9});
      },
      {0.7108514999999999, -2.340083, 0.98295, -2.0606});
  check_steps(
      [&](Tensor& a, Tensor& b) { return std::make_unique<Adam>(decayed_and_slow(a, b), 0.1); },
      {0.8164487173417263, -2.2001305964454114, 0.9856344840217875, -2.022924684063972});
}

TEST_CASE("two groups of an optimizer are two optimizers") {
  const auto check_both = [](auto make) {
    const auto matrix = [] {
      return Tensor::from({1.0f, -2.0f, 0.5f, 3.0f, 1.5f, 2.0f}, {2, 3}).requires_grad_();
    };
    Tensor a = matrix(), b = matrix(), c = matrix(), d = matrix();
    auto both = make(ParameterGroups{{.tensors = {&a}, .weight_decay = 0.3},
                                     {.tensors = {&b}, .lr = 0.025, .weight_decay = 0}},
                     0.1, 0.7);
    auto first = make({&c}, 0.1, 0.3), second = make({&d}, 0.025, 0.0);
    for (int i = 0; i < 3; ++i) {
      for (Tensor* t : {&a, &b, &c, &d}) (t->square() * 0.3 + *t).sum().backward();
      for (Optimizer* o : {both.get(), first.get(), second.get()}) o->step();
    }
    CHECK(a.to_vector<float>() == c.to_vector<float>());
    CHECK(b.to_vector<float>() == d.to_vector<float>());
    CHECK(a.to_vector<float>() != b.to_vector<float>());
  };
  using Groups = ParameterGroups;
  check_both([](const Groups& g, double lr, double decay) {
    return std::make_unique<SGD>(g, lr, SgdOptions{.momentum = 0.5, .weight_decay = decay});
  });
  check_both([](const Groups& g, double lr, double decay) {
    return std::make_unique<Adam>(g, lr, AdamOptions{.weight_decay = decay});
  });
  check_both([](const Groups& g, double lr, double decay) {
    return std::make_unique<AdamW>(g, lr, AdamOptions{.weight_decay = decay});
  });
  check_both([](const Groups& g, double lr, double decay) {
    return std::make_unique<LAMB>(g, lr, AdamOptions{.weight_decay = decay});
  });
  check_both([](const Groups& g, double lr, double decay) {
    return std::make_unique<LARS>(g, lr, LarsOptions{.weight_decay = decay});
  });
  check_both([](const Groups& g, double lr, double decay) {
    return std::make_unique<Muon>(g, lr, MuonOptions{.weight_decay = decay});
  });
}

TEST_CASE("a captured step follows the learning rate in all groups") {
  const auto trained = [](const char* jit) {
    const EnvOverride on("JIT", jit);
    Tensor a = parameter(), b = parameter();
    AdamW optimizer({{.tensors = {&a}}, {.tensors = {&b}, .lr = 0.4}}, 0.1);
    Jit step([&] {
      (a.square() + b.square() * 2).sum().backward();
      optimizer.step();
    });
    Numbers out;
    for (int i = 1; i <= 5; ++i) {
      optimizer.set_lr(0.1 / i);
      step();
      for (Tensor* t : {&a, &b})
        for (double value : t->to_vector<double>()) out.push_back(value);
    }
    return out;
  };
  CHECK(trained("1") == trained("0"));
}

TEST_CASE("weights of two axes and more decay, the others do not") {
  nn::TransformerEncoderLayer layer(4, 2, {.dim_feedforward = 6});
  const std::vector<ParameterGroup> groups = decay_matrices(layer.tensors(), 0.1);
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].weight_decay == 0.1);
  CHECK(groups[1].weight_decay == 0);
  CHECK(groups[0].tensors.size() == 4);  // in_proj, out_proj, linear1, linear2
  CHECK(groups[0].tensors.size() + groups[1].tensors.size() == layer.tensors().size());
  for (Tensor* t : groups[0].tensors) CHECK(t->rank() == 2);
}

TEST_CASE("groups that cannot work say why") {
  Tensor a = parameter(), b = parameter();
  CHECK(error_of([&] {
          SGD({&a, &b, &a}, 0.1);
        }) == "optimizer: a tensor of shape (2) is given twice");
  CHECK(has(error_of([&] { SGD({{.tensors = {&a}}, {.tensors = {&a}}}, 0.1); }), "is given twice"));
  CHECK(has(error_of([&] {
              SGD({{.tensors = {&a}}, {.tensors = {&b}, .lr = 0.5}}, 0);
            }),
            "a group with the learning rate 0.5 beside 0"));
  CHECK(has(error_of([] { SGD(ParameterGroups{}, 0.1); }), "none of 0 tensors"));
}
