// fully_shard (tiny/nn/layers.h): training with everything cut over devices.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <string>
#include <vector>

#include "runtime/partition/shard.h"
#include "runtime/schedule/schedule.h"
#include "test/error_of.h"
#include "test/temporary_folder.h"
#include "tiny/base/env.h"
#include "tiny/nn/functional.h"
#include "tiny/nn/layers.h"
#include "tiny/run/devices.h"
#include "tiny/run/jit.h"
#include "tiny/run/memory.h"
#include "tiny/tensor/checkpoint.h"
#include "tiny/tensor/random.h"
#include "tiny/train/mixed_precision.h"
#include "tiny/train/optim.h"
#include "tiny/train/safetensors.h"

using namespace tiny;

namespace {

using Names = std::vector<std::string>;
using Floats = std::vector<float>;

constexpr int64_t kWords = 256, kLength = 16, kWidth = 64, kHeads = 4, kBatch = 8;

struct Block : nn::Module {
  Block(bool has_checkpoint = false) : has_checkpoint(has_checkpoint) {}
  nn::Children children() override {
    return {{"n1", &n1}, {"n2", &n2}, {"qkv", &qkv}, {"out", &out}, {"up", &up}, {"down", &down}};
  }
  Tensor once(const Tensor& x) {
    const int64_t count = x.size(0);
    const auto heads = [&](const Tensor& t) {
      return t.reshape({count, kLength, kHeads, kWidth / kHeads}).transpose(1, 2);
    };
    const std::vector<Tensor> parts = qkv(n1(x)).split(kWidth, 2);
    const Tensor seen = scaled_dot_product_attention(heads(parts[0]), heads(parts[1]),
                                                     heads(parts[2]), {.is_causal = true});
    const Tensor y = x + out(seen.transpose(1, 2).reshape({count, kLength, kWidth}));
    return y + down(up(n2(y)).gelu());
  }
  Tensor forward(const Tensor& x) override {
    return has_checkpoint ? checkpoint([&](const Tensor& in) { return once(in); }, x) : once(x);
  }

  nn::LayerNorm n1{kWidth}, n2{kWidth};
  nn::Linear qkv{kWidth, 3 * kWidth}, out{kWidth, kWidth};
  nn::Linear up{kWidth, 4 * kWidth}, down{4 * kWidth, kWidth};
  bool has_checkpoint;
};

// A small GPT-2: the words' table is also what the scores are made with.
struct Network : nn::Module {
  Network(int layers, bool has_checkpoint = false) {
    for (int i = 0; i < layers; ++i) blocks.emplace_back(has_checkpoint);
  }
  nn::Children children() override {
    nn::Children all{{"words", &words}, {"places", &places}, {"last", &last}};
    for (size_t i = 0; i < blocks.size(); ++i) all.push_back({cat("h", i), &blocks[i]});
    return all;
  }
  Tensor forward(const Tensor& ids) override {
    Tensor x = words(ids) + places.weight;
    for (Block& b : blocks) x = b(x);
    return last(x).linear(words.weight);
  }

  nn::Embedding words{kWords, kWidth}, places{kLength, kWidth};
  std::deque<Block> blocks;
  nn::LayerNorm last{kWidth};
};

struct Run {
  int layers = 2;
  bool is_cut = true, has_jit = false, has_checkpoint = false, in_half = false;
  double clip = 0;
  int steps = 3;
};

struct Outcome {
  Floats losses, weights;
  int64_t bytes = 0;  // the highest peak of one of the devices
};

void place(Network& network, const Names& devices, bool is_cut) {
  if (is_cut) fully_shard(network, devices, {.least = 1024});
  if (!is_cut)
    for (Tensor* t : network.tensors()) t->shard_(devices);
}

Tensor tokens(const Shape& shape, const Names& devices) {
  return Tensor::randint(0, kWords, shape).realize().shard(devices, 0).realize();
}

Outcome train(const Names& devices, const Run& how) {
  const nn::Training mode;
  manual_seed(5);
  Network network(how.layers, how.has_checkpoint);
  for (Tensor* t : network.tensors()) t->realize();
  place(network, devices, how.is_cut);
  AdamW optimizer(network.tensors(), 1e-2);
  const Tensor x = tokens({kBatch, kLength}, devices), y = tokens({kBatch * kLength}, devices);
  const auto body = [&] {
    Tensor loss;
    {
      const Autocast products(how.in_half ? kBF16 : kF32);
      loss = cross_entropy(network(x).flatten(0, 1), y);
    }
    loss.backward();
    if (how.clip > 0) clip_grad_norm_(network.parameters(), how.clip);
    optimizer.step({&loss});
    return loss;
  };
  Jit step(body);
  Outcome out;
  for (int i = 0; i < how.steps; ++i)
    out.losses.push_back((how.has_jit ? step() : body()).to(kF32).item<float>());
  for (const DeviceMemory& m : memory_report(0).devices)
    if (std::ranges::count(devices, m.device)) out.bytes = std::max(out.bytes, m.peak_bytes);
  for (Tensor* t : network.tensors())
    for (float v : t->to_vector<float>()) out.weights.push_back(v);
  return out;
}

bool are_close(const Floats& a, const Floats& b, float share) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (!(std::abs(a[i] - b[i]) <= share * (1 + std::abs(b[i])))) return false;
  return true;
}

const Names kTwo{"CPU:1", "CPU:2"}, kThree{"CPU", "CPU:1", "CPU:2"};

}  // namespace

TEST_CASE("fully sharded training gives the numbers of training with whole weights") {
  const EnvOverride device("DEVICE", "CPU");
  const Floats one = train({"CPU"}, {.is_cut = false}).losses;
  CHECK(one.back() < one.front());
  for (const Names& devices : {kTwo, kThree})
    for (const bool has_jit : {false, true}) {
      const Outcome whole = train(devices, {.is_cut = false, .has_jit = has_jit});
      const Outcome cut = train(devices, {.has_jit = has_jit});
      // Devices add up the same shares in the same order, but other kernels make the shares.
      CHECK(are_close(cut.losses, whole.losses, 1e-5f));
      CHECK(are_close(cut.losses, one, 1e-5f));
      const Outcome again = train(devices, {.has_jit = has_jit});
      CHECK(again.losses == cut.losses);
      CHECK(again.weights == cut.weights);
    }
}

TEST_CASE("fully sharded training with checkpoints, in bf16 and with clipped gradients") {
  const EnvOverride device("DEVICE", "CPU");
  for (const Run& how : {Run{.has_checkpoint = true}, Run{.in_half = true}, Run{.clip = 0.5}}) {
    Run whole = how;
    whole.is_cut = false;
    CHECK(are_close(train(kTwo, how).losses, train(kTwo, whole).losses, 2e-3f));
  }
}

TEST_CASE(
    "two and four devices need 0.6 and 0.35 of the memory of one for fully sharded training") {
  const EnvOverride device("DEVICE", "CPU");
  const auto bytes = [](const Names& devices) {
    return static_cast<double>(train(devices, {.layers = 6, .has_jit = true}).bytes);
  };
  const double one = bytes({"CPU:5"});
  const double two = bytes({"CPU:6", "CPU:7"});
  const double four = bytes({"CPU:8", "CPU:9", "CPU:10", "CPU:11"});
  MESSAGE("bytes of one device ", one, ", two ", two / one, ", four ", four / one);
  CHECK(two <= 0.6 * one);
  CHECK(four <= 0.35 * one);
}

TEST_CASE("weights are gathered for each use, and gradients reduce-scattered") {
  const EnvOverride device("DEVICE", "CPU"), how("COLLECTIVE", "naive");
  nn::Sequential network(nn::Linear(64, 64, false), nn::Linear(64, 64, false),
                         nn::Linear(64, 64, false));
  fully_shard(network, kTwo, {.least = 1});
  for (Tensor* t : network.tensors()) {
    CHECK(t->shard_axis() == 0);
    CHECK(t->requires_grad());
  }
  const Tensor x = Tensor::randn({8, 64}).realize().shard(kTwo, 0).realize();
  network(x).square().sum().backward();
  std::vector<Node> roots;
  for (Tensor* t : network.tensors()) {
    CHECK(t->grad().shard_axis() == 0);
    roots.push_back(t->grad().node());
  }
  const Normalized graph = normalize(unshard(roots).pieces);
  std::vector<int> devices;
  for (Node b : graph.buffers) devices.push_back(b->device);
  int64_t gathered = 0, reduced = 0;
  const auto s = schedule(graph, devices, device_id("CPU"));
  for (const Step& step : s->steps) {
    gathered += !step.kernel && step.operations.find("all_gather") != std::string::npos;
    reduced += !step.kernel && step.operations.find("reduce_scatter") != std::string::npos;
  }
  CHECK(gathered == 2 * (3 + 2));  // all three forward, but the first again backward
  CHECK(reduced == 2 * 3);
}

TEST_CASE("a fully sharded run goes on from its checkpoint on another number of devices") {
  const EnvOverride device("DEVICE", "CPU");
  const nn::Training mode;
  const test::TemporaryFolder folder("fully_shard");
  const std::string path = folder.file("run.safetensors");
  const auto losses = [&](const Names& devices, int from, int steps) {
    manual_seed(6);
    Network network(1);
    for (Tensor* t : network.tensors()) t->realize();
    place(network, devices, true);
    AdamW optimizer(network.tensors(), 1e-2);
    const Tensor x = tokens({kBatch, kLength}, devices), y = tokens({kBatch * kLength}, devices);
    const auto state = [&] {
      StateDict all = network.state_dict("model.");
      for (const NamedTensor& t : optimizer.state_dict("optimizer.")) all.push_back(t);
      return all;
    };
    if (from) load(path, state());
    Floats out;
    for (int i = from; i < steps; ++i) {
      Tensor loss = cross_entropy(network(x).flatten(0, 1), y);
      loss.backward();
      optimizer.step({&loss});
      out.push_back(loss.item<float>());
      if (i + 1 == 2 && !from) save(path, state());
    }
    return out;
  };
  const Floats all = losses(kTwo, 0, 4);
  const Floats rest(all.begin() + 2, all.end());
  CHECK(losses(kTwo, 2, 4) == rest);
  CHECK(are_close(losses(kThree, 2, 4), rest, 1e-4f));
  CHECK(are_close(losses({"CPU:1"}, 2, 4), rest, 1e-4f));
}

TEST_CASE("fully_shard leaves small tensors whole, and cuts along an axis that is long enough") {
  const EnvOverride device("DEVICE", "CPU");
  Tensor small = Tensor::randn({8}), wide = Tensor::randn({2, 64}), tall = Tensor::randn({64, 2});
  fully_shard({&small, &wide, &tall}, kThree, {.least = 16});
  CHECK(small.shard_axis() == -1);
  CHECK(wide.shard_axis() == 1);
  CHECK(tall.shard_axis() == 0);
  Tensor alone = Tensor::randn({4, 4});
  fully_shard({&alone}, {"CPU:1"}, {.least = 1});
  CHECK(alone.device() == "CPU:1");
  Tensor none = Tensor::zeros({0, 3});
  CHECK(error_of([&] { fully_shard({&none}, kTwo); }) ==
        "fully_shard: a tensor of shape (0,3) has no elements");
  CHECK(error_of([&] { fully_shard({&tall}, Names{}); }) == "shard: no device is named");
}
