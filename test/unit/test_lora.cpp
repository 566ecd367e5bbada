#include "tiny/nn/lora.h"

#include <doctest/doctest.h>

#include <cmath>

#include "test/error_of.h"
#include "test/unit/small_models.h"
#include "tiny/nn/transformer.h"
#include "tiny/run/jit.h"
#include "tiny/tensor/random.h"
#include "tiny/train/optim.h"

using namespace tiny;
using namespace tiny::nn;

namespace {

using Floats = std::vector<float>;

double distance(const Floats& a, const Floats& b) {
  REQUIRE(a.size() == b.size());
  double out = 0;
  for (size_t i = 0; i < a.size(); ++i) out = std::max<double>(out, std::abs(a[i] - b[i]));
  return out;
}

std::vector<std::string> names_of(const StateDict& state) {
  std::vector<std::string> names;
  for (const NamedTensor& named : state) names.push_back(named.name);
  return names;
}

}  // namespace

TEST_CASE("a Linear with an adapter adds the scaled product of both matrices") {
  manual_seed(1);
  nn::Linear base(3, 2);
  const Tensor x = Tensor::randn({4, 3}).realize();
  const Floats before = base(x).to_vector<float>();
  LoraLinear layer(std::move(base), {.rank = 2, .alpha = 6});
  CHECK(layer(x).to_vector<float>() == before);  // B is 0
  CHECK(names_of(layer.state_dict()) ==
        std::vector<std::string>{"weight", "bias", "lora_A.weight", "lora_B.weight"});
  CHECK(layer.parameters() == std::vector<Tensor*>{&layer.lora().a, &layer.lora().b});

  layer.lora().b = Tensor::from({1.0f, 2.0f, -1.0f, 0.5f}, {2, 2});
  const Floats a = layer.lora().a.to_vector<float>(), in = x.to_vector<float>();
  const Floats b{1, 2, -1, 0.5}, got = layer(x).to_vector<float>();
  for (size_t row = 0; row < 4; ++row)
    for (size_t out = 0; out < 2; ++out) {
      double sum = before[row * 2 + out];
      for (size_t r = 0; r < 2; ++r)
        for (size_t i = 0; i < 3; ++i) sum += 3.0 * b[out * 2 + r] * a[r * 3 + i] * in[row * 3 + i];
      CHECK(got[row * 2 + out] == doctest::Approx(sum).epsilon(1e-5));
    }
  for (const float value : a) CHECK(std::abs(value) <= 1 / std::sqrt(3.0f));
}

TEST_CASE("an adapter is merged into its weight and taken out again") {
  manual_seed(2);
  LoraLinear layer(nn::Linear(5, 4), {.rank = 2, .alpha = 4});
  layer.lora().b = Tensor::randn({4, 2}).realize();
  const Tensor x = Tensor::randn({3, 5}).realize();
  const Floats apart = layer(x).to_vector<float>(), weight = layer.base.weight.to_vector<float>();
  CHECK(has(error_of([&] { layer.unmerge(); }), "not merged"));
  layer.merge();
  CHECK(distance(layer.base.weight.to_vector<float>(), weight) > 0.1);
  CHECK(distance(layer(x).to_vector<float>(), apart) < 1e-5);
  CHECK(has(error_of([&] { layer.merge(); }), "merged already"));
  layer.unmerge();
  CHECK(distance(layer.base.weight.to_vector<float>(), weight) < 1e-6);
  CHECK(distance(layer(x).to_vector<float>(), apart) < 1e-5);
}

TEST_CASE("only adapters learn, and dropout takes from their input in training alone") {
  manual_seed(3);
  LoraLinear layer(nn::Linear(6, 6), {.rank = 3, .alpha = 6, .dropout = 0.5});
  const Floats weight = layer.base.weight.to_vector<float>();
  const Tensor x = Tensor::randn({16, 6}).realize(), y = x.flip(1).contiguous().realize();
  Adam optimizer(layer.tensors(), 0.02);
  Jit step([&] {
    Tensor loss = mse_loss(layer(x), y);
    loss.backward();
    optimizer.step({&loss});
    return loss;
  });
  const float first = step().item<float>();
  float last = first;
  for (int i = 0; i < 200; ++i) last = step().item<float>();
  CHECK(last < 0.7f * first);
  CHECK(layer.base.weight.to_vector<float>() == weight);
  CHECK(layer(x).to_vector<float>() == layer(x).to_vector<float>());
  const Training training;
  CHECK(layer(x).to_vector<float>() != layer(x).to_vector<float>());
}

TEST_CASE("adapters come to products by the patterns of their names") {
  const auto adapted = [](const std::vector<std::string>& patterns) {
    Sequential model(TransformerEncoderLayer(8, 2, {.dim_feedforward = 16}), &Tensor::relu,
                     nn::Linear(8, 3));
    const int64_t count = add_lora(model, patterns, {.rank = 2});
    std::vector<std::string> names = names_of(lora_state_dict(model));
    CHECK(static_cast<int64_t>(names.size()) == 2 * count);
    std::vector<std::string> out;
    for (size_t i = 0; i < names.size(); i += 2)
      out.push_back(names[i].substr(0, names[i].find(".lora_A.weight")));
    CHECK(model.parameters().size() == names.size());
    return out;
  };
  using Names = std::vector<std::string>;
  CHECK(adapted({"linear1", "linear2"}) == Names{"0.linear1", "0.linear2"});
  CHECK(adapted({"2", "0.linear1"}) == Names{"0.linear1", "2"});
  CHECK(adapted({"linear*", "linear1"}) == Names{"0.linear1", "0.linear2"});
  CHECK(adapted({"*proj"}) == Names{"0.self_attn.out_proj"});
  CHECK(adapted({"*"}) == Names{"0.self_attn.out_proj", "0.linear1", "0.linear2", "2"});
  CHECK(error_of([&] { adapted({"linear"}); }) ==
        "add_lora: no product fits 'linear'; there are 0.self_attn.out_proj, 0.linear1, 0.linear2, "
        "2");
  Sequential model(nn::Linear(2, 2));
  add_lora(model, {"0"});
  CHECK(error_of([&] { add_lora(model, {"0"}); }) == "add_lora: 0 has an adapter already");
}

TEST_CASE("a loaded model is adapted, trained, merged and bare again") {
  for (const char* type : {"gpt2", "llama"}) {
    CAPTURE(type);
    const bool is_gpt2 = std::string(type) == "gpt2";
    models::Transformer model = test::random_model(
        is_gpt2 ? R"({"model_type": "gpt2", "n_embd": 24, "n_head": 4, "n_layer": 2, "n_inner": 20,
                      "vocab_size": 101, "n_positions": 40})"
                : test::small_config(type));
    const Tensor ids = Tensor::randint(0, 101, {2, 9}).realize();
    const auto all = names_of(model.state_dict());
    const Floats before = model(ids).to_vector<float>();
    const int64_t count = is_gpt2 ? add_lora(model, {"c_attn", "mlp.c_fc"}, {.rank = 4})
                                  : add_lora(model, {"q_proj", "down_proj"}, {.rank = 4});
    CHECK(count == 4);
    CHECK(model.parameters().size() == 8);
    CHECK(model(ids).to_vector<float>() == before);
    Adam optimizer(model.tensors(), 0.01);
    Floats losses;
    for (int i = 0; i < 8; ++i) {
      Tensor loss = model.loss({ids}, ids);
      loss.backward();
      optimizer.step({&loss});
      losses.push_back(loss.item<float>());
    }
    CHECK(losses.back() < losses.front() - 0.1f);
    const Floats trained = model(ids).to_vector<float>();
    merge_lora(model);
    CHECK(distance(model(ids).to_vector<float>(), trained) < 1e-3);
    unmerge_lora(model);
    CHECK(distance(model(ids).to_vector<float>(), trained) < 1e-3);
    merge_lora(model);
    remove_lora(model);
    CHECK(names_of(model.state_dict()) == all);
    CHECK(distance(model(ids).to_vector<float>(), trained) < 1e-3);
    CHECK(distance(before, trained) > 0.01);
  }
}

TEST_CASE("adapters that cannot work say why") {
  const auto lora = [](const Tensor& w, const LoraOptions& o) {
    return error_of([&] { Lora(w, false, o); });
  };
  CHECK(has(lora(Tensor::zeros({4}), {}), "not f32 (4)"));
  CHECK(has(lora(Tensor::zeros({4, 4}, kI32), {}), "not i32 (4,4)"));
  CHECK(has(lora(Tensor::zeros({4, 4}), {.rank = 0}), "a rank of 0"));
  CHECK(has(lora(Tensor::zeros({4, 4}), {.dropout = -1}), "dropout -1"));
}
