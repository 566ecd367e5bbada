// A transformer's layer beside PyTorch 1.13's numbers, and rotary positions beside their formula.
#include "tiny/nn/transformer.h"

#include <doctest/doctest.h>

#include <cmath>

#include "test/error_of.h"
#include "tiny/run/jit.h"
#include "tiny/tensor/random.h"

using namespace tiny;
using namespace tiny::nn;

namespace {

using Floats = std::vector<float>;

// Parameter i is 0.4 sin(0.37 k + i) at its element k, and that plus 1 where it is a norm's weight.
void fill(Module& m) {
  double i = 0;
  for (const NamedTensor& named : m.state_dict()) {
    Tensor& t = *named.tensor;
    const Tensor at = Tensor::arange(t.numel()).to(kF64) * 0.37 + i++;
    const double more = named.name.starts_with("norm") && named.name.ends_with("weight") ? 1 : 0;
    t = (at.sin() * 0.4 + more).to(kF32).reshape(to_shape(t.shape())).requires_grad_();
  }
}

// Results (24) and first gradients of a sum of them with the weights 0 to 23.
struct Expected {
  Floats y, weight_grad, x_grad;
};

void check_layer(const TransformerEncoderLayerOptions& options, bool is_causal,
                 const Expected& expected) {
  TransformerEncoderLayer layer(4, 2, options);
  fill(layer);
  const Tensor at = Tensor::arange(24).to(kF64) * 0.7;
  Tensor x = at.cos().to(kF32).reshape({2, 3, 4}).requires_grad_();
  const Tensor y = layer.forward(x, {.is_causal = is_causal});
  (y * Tensor::arange(24).reshape({2, 3, 4})).sum().backward();
  const auto near = [](const Tensor& t, const Floats& wanted, double bound) {
    const Floats got = t.flatten().to_vector<float>();
    REQUIRE(got.size() >= wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) CHECK(std::abs(got[i] - wanted[i]) < bound);
  };
  near(y, expected.y, 2e-5);
  near(layer.self_attn.in_proj_weight.grad(), expected.weight_grad, 2e-4);
  near(x.grad(), expected.x_grad, 2e-4);
}

}  // namespace

TEST_CASE("an encoder layer has PyTorch's names, results and gradients") {
  TransformerEncoderLayer layer(4, 2, {.dim_feedforward = 6});
  std::vector<std::string> names;
  for (const NamedTensor& named : layer.state_dict()) names.push_back(named.name);
  CHECK(names == std::vector<std::string>{"self_attn.in_proj_weight", "self_attn.in_proj_bias",
                                          "self_attn.out_proj.weight", "self_attn.out_proj.bias",
                                          "linear1.weight", "linear1.bias", "linear2.weight",
                                          "linear2.bias", "norm1.weight", "norm1.bias",
                                          "norm2.weight", "norm2.bias"});
  check_layer(
      {.dim_feedforward = 6}, false,
      {{0.29933f,  0.25042f, -0.48687f, -1.08082f, -1.71395f, -0.24708f, 0.23761f, 0.20131f,
        -0.02266f, 0.40876f, -0.34379f, -1.11467f, -0.79144f, 0.2538f,   0.30054f, -1.01777f,
        -1.00298f, 0.49915f, 0.09648f,  -0.87303f, 0.62485f,  0.00152f,  -0.6517f, -0.94754f},
       {-0.0135f, -0.0933f, -0.1292f, -0.1044f, -0.3233f, -0.6323f, -0.6439f, -0.3527f},
       {-0.7166f, 0.3396f, 0.1282f, 0.0319f}});
  check_layer({.dim_feedforward = 6,
               .activation = Activation::Gelu,
               .batch_first = true,
               .norm_first = true},
              true,
              {{0.97656f, 1.0499f,  0.88316f, -0.394f,  -0.58371f, -0.45954f, -0.07931f, 0.17391f,
                0.8771f,  1.35553f, 1.36955f, 0.15894f, -0.41166f, -0.43557f, -0.29658f, -0.62001f,
                0.46641f, 1.3517f,  1.51042f, 0.52887f, 0.26594f,  -0.12457f, -0.3811f,  -0.93947f},
               {-0.8884f, -0.4192f, 0.3555f, 1.0617f, 0.3093f, 0.084f, -0.1378f, -0.2579f},
               {0.3111f, 0.7602f, 1.7675f, 3.1613f}});
}

TEST_CASE("an encoder layer has PyTorch's defaults, and no biases where none are wanted") {
  int64_t count = 0;
  for (Tensor* t : TransformerEncoderLayer(16, 4).parameters()) count += t->numel();
  CHECK(count == 68752);  // of torch.nn.TransformerEncoderLayer(16, 4)
  TransformerEncoderLayer plain(4, 2, {.has_bias = false});
  for (const NamedTensor& named : plain.state_dict()) CHECK(!has(named.name, "bias"));
  CHECK(plain.forward(Tensor::ones({1, 1, 4})).numel() == 4);
  CHECK(has(error_of([] { TransformerEncoderLayer(5, 2); }), "5 elements in 2 heads"));
  CHECK(has(error_of([] { TransformerEncoderLayer(4, 2, {.dropout = 2}); }), "dropout 2"));
}

TEST_CASE("dropout changes an encoder layer in training alone") {
  manual_seed(3);
  TransformerEncoderLayer layer(8, 2, {.dim_feedforward = 16, .dropout = 0.5});
  const Tensor x = Tensor::randn({3, 2, 8}).realize();
  const Floats still = layer(x).to_vector<float>();
  CHECK(layer(x).to_vector<float>() == still);
  const Training training;
  const Floats once = layer(x).to_vector<float>();
  CHECK(once != still);
  CHECK(layer(x).to_vector<float>() != once);
}

TEST_CASE("attention whose weights may be dropped is attention where none is") {
  manual_seed(4);
  // So seldom that none is: the way with dropout beside the one without.
  MultiheadAttention layer(8, 2, {.batch_first = true, .dropout = 1e-9}),
      often(8, 2, {.batch_first = true, .dropout = 0.5});
  const Tensor x = Tensor::randn({2, 5, 8}).realize();
  const Tensor added = Tensor::randn({5, 5}).realize(), seen = added < 0.8;
  for (const AttentionOptions& o :
       {AttentionOptions{}, AttentionOptions{.is_causal = true}, AttentionOptions{.mask = added},
        AttentionOptions{.mask = logical_or(seen, Tensor::eye(5) == 1), .is_causal = true}}) {
    const Floats wanted = layer.forward(x, x, x, o).to_vector<float>();
    const Training training;
    const Floats got = layer.forward(x, x, x, o).to_vector<float>();
    for (size_t i = 0; i < got.size(); ++i) CHECK(std::abs(got[i] - wanted[i]) < 1e-5);
    CHECK(often.forward(x, x, x, o).to_vector<float>() !=
          often.forward(x, x, x, o).to_vector<float>());
  }
}

TEST_CASE("rotary positions turn pairs by their angle, also far ones") {
  manual_seed(5);
  const Tensor x = Tensor::randn({2, 3, 8}).realize();
  const Floats in = x.to_vector<float>();
  const std::vector<int64_t> positions{0, 7, 1'000'000};
  for (const bool interleaved : {false, true}) {
    RotaryEmbedding rotary(6, {.theta = 1000, .interleaved = interleaved});
    CHECK(rotary.state_dict().empty());
    const Floats out = rotary.forward(x, Tensor::from(positions)).to_vector<float>();
    for (size_t row = 0; row < 6; ++row) {
      const float *a = &in[row * 8], *b = &out[row * 8];
      for (size_t i = 0; i < 3; ++i) {
        const double angle = static_cast<double>(positions[row % 3]) *
                             std::pow(1000, -2 * static_cast<double>(i) / 6);
        const size_t p = interleaved ? 2 * i : i, q = interleaved ? 2 * i + 1 : i + 3;
        CHECK(std::abs(b[p] - (a[p] * std::cos(angle) - a[q] * std::sin(angle))) < 1e-5);
        CHECK(std::abs(b[q] - (a[q] * std::cos(angle) + a[p] * std::sin(angle))) < 1e-5);
      }
      CHECK(b[6] == a[6]);
      CHECK(b[7] == a[7]);
    }
  }
}

TEST_CASE("rotary positions count from 0, keep the dtype and can be captured") {
  RotaryEmbedding rotary(4);
  const Tensor x = Tensor::ones({1, 2, 3, 4});
  CHECK(rotary(x).to_vector<float>() == rotary.forward(x, Tensor::arange(3)).to_vector<float>());
  CHECK(rotary(x.to(kBF16)).dtype() == kBF16);
  Jit step([&](const Tensor& t) { return rotary(t); });
  for (int i = 0; i < 3; ++i)
    CHECK(step(Tensor(x * 1.0).realize()).to_vector<float>() == rotary(x).to_vector<float>());
  CHECK(has(error_of([] { RotaryEmbedding(3); }), "3 elements are no pairs"));
  CHECK(has(error_of([&] { rotary(Tensor::ones({2, 3})); }), "(2,3) has fewer"));
  CHECK(has(error_of([&] { rotary.forward(x, Tensor::ones({3})); }), "positions of f32"));
}
