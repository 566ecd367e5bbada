// nn::Pipeline (tiny/nn/layers.h): stages on devices of this process.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "test/error_of.h"
#include "tiny/base/env.h"
#include "tiny/nn/functional.h"
#include "tiny/nn/layers.h"
#include "tiny/run/devices.h"
#include "tiny/run/jit.h"
#include "tiny/run/memory.h"
#include "tiny/tensor/random.h"
#include "tiny/train/optim.h"

using namespace tiny;

namespace {

using Names = std::vector<std::string>;
using Floats = std::vector<float>;

constexpr int64_t kIn = 24, kWidth = 32, kOut = 10;

// A network of so many blocks, as stages of equally many.
std::vector<std::unique_ptr<nn::Sequential>> stages_of(int count) {
  std::vector<std::unique_ptr<nn::Sequential>> out;
  constexpr int kBlocks = 4;
  for (int b = 0; b < kBlocks; ++b) {
    if (b % (kBlocks / count) == 0) out.push_back(std::make_unique<nn::Sequential>());
    nn::Sequential& to = *out.back();
    to.append(nn::Linear(b ? kWidth : kIn, kWidth));
    to.append(nn::LayerNorm(kWidth));
    to.append(&Tensor::tanh);
    if (b + 1 == kBlocks) to.append(nn::Linear(kWidth, kOut));
  }
  return out;
}

Tensor mean_loss(const Tensor& y, const Tensor& target) { return cross_entropy(y, target); }

struct Outcome {
  Floats losses, weights;
};

Outcome train(const Names& devices, int64_t micro_batches, bool has_jit = false) {
  manual_seed(3);
  const auto stages = stages_of(static_cast<int>(devices.size()));
  std::vector<nn::Module*> modules;
  for (const auto& s : stages) modules.push_back(s.get());
  nn::Pipeline pipeline(modules, devices, {.micro_batches = micro_batches});
  Adam optimizer(pipeline.tensors(), 1e-2);
  const auto body = [&](const Tensor& x, const Tensor& target) {
    Tensor loss = pipeline.backward(x, target, mean_loss);
    optimizer.step({&loss});
    return loss;
  };
  Jit step(body);
  Outcome out;
  for (int i = 0; i < 4; ++i) {
    const Tensor x = Tensor::randn({16, kIn}).realize();
    const Tensor target = Tensor::randint(0, kOut, {16}).realize();
    out.losses.push_back((has_jit ? step(x, target) : body(x, target)).item<float>());
  }
  for (Tensor* t : pipeline.tensors())
    for (float v : t->to_vector<float>()) out.weights.push_back(v);
  return out;
}

}  // namespace

TEST_CASE("stages on several devices train to the bits of one device") {
  const EnvOverride device("DEVICE", "CPU");
  for (const int64_t micro_batches : {1, 2, 8}) {
    const Outcome one = train({"CPU:1"}, micro_batches);
    CHECK(one.losses.back() < one.losses.front());
    for (const Names& devices : {Names{"CPU:1", "CPU:2"}, Names{"CPU:1", "CPU:2", "CPU:3", "CPU:4"}})
      for (const bool has_jit : {false, true}) {
        const Outcome several = train(devices, micro_batches, has_jit);
        CHECK(several.losses == one.losses);
        CHECK(several.weights == one.weights);
      }
  }
}
