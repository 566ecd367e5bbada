// nn::Pipeline (tiny/nn/layers.h): stages on devices of this process.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/launch/launch.h"
#include "runtime/partition/shard.h"
#include "runtime/schedule/schedule.h"
#include "test/error_of.h"
#include "test/temporary_folder.h"
#include "tiny/base/env.h"
#include "tiny/nn/functional.h"
#include "tiny/nn/layers.h"
#include "tiny/nn/transformer.h"
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

struct Model {
  Model(const Names& devices, const nn::PipelineOptions& options, bool is_cut = false)
      : devices(devices) {
    manual_seed(3);
    stages = stages_of(static_cast<int>(devices.size()));
    std::vector<nn::Module*> modules;
    for (const auto& s : stages) modules.push_back(s.get());
    for (size_t i = 0; is_cut && i < stages.size(); ++i)
      fully_shard(*stages[i], members_of(devices[i]), {.least = 64});
    pipeline = std::make_unique<nn::Pipeline>(modules, devices, options);
  }
  static Names members_of(const std::string& devices) {
    Names out;
    for (size_t begin = 0; begin <= devices.size();) {
      const size_t end = std::min(devices.find(',', begin), devices.size());
      out.push_back(devices.substr(begin, end - begin));
      begin = end + 1;
    }
    return out;
  }

  Names devices;
  std::vector<std::unique_ptr<nn::Sequential>> stages;
  std::unique_ptr<nn::Pipeline> pipeline;
};

struct Outcome {
  Floats losses, weights;
};

Outcome train(const Names& devices, const nn::PipelineOptions& options, bool has_jit = false,
              bool is_cut = false) {
  Model model(devices, options, is_cut);
  Adam optimizer(model.pipeline->tensors(), 1e-2);
  const auto body = [&](const Tensor& x, const Tensor& target) {
    Tensor loss = model.pipeline->backward(x, target, mean_loss);
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
  for (Tensor* t : model.pipeline->tensors())
    for (float v : t->to_vector<float>()) out.weights.push_back(v);
  return out;
}

}  // namespace

TEST_CASE("stages on several devices train to the bits of one device") {
  const EnvOverride device("DEVICE", "CPU");
  for (const int64_t micro_batches : {1, 2, 8}) {
    const Outcome one = train({"CPU:1"}, {.micro_batches = micro_batches});
    CHECK(one.losses.back() < one.losses.front());
    for (const Names& devices :
         {Names{"CPU:1", "CPU:2"}, Names{"CPU:1", "CPU:2", "CPU:3", "CPU:4"}})
      for (const bool has_jit : {false, true}) {
        const Outcome several = train(devices, {.micro_batches = micro_batches}, has_jit);
        CHECK(several.losses == one.losses);
        CHECK(several.weights == one.weights);
      }
  }
}

namespace {

// When the devices have done the steps, one after the other on each: a kernel takes as long as any
// other, a copy nothing once both sides have come to it.
int64_t turns_of(const Schedule& s) {
  std::map<int, int64_t> now;
  std::vector<int64_t> there(s.values.size());
  for (const Step& step : s.steps) {
    const auto written = written_slots(step);
    int64_t& at = now[step.device];
    for (size_t i = 0; i < step.values.size(); ++i)
      if (!written[i]) at = std::max(at, there[static_cast<size_t>(step.values[i])]);
    if (!step.kernel)
      at = std::max(at, now[s.values[static_cast<size_t>(step.values[1])].device]);
    else
      ++at;
    for (size_t i = 0; i < step.values.size(); ++i)
      if (written[i]) there[static_cast<size_t>(step.values[i])] = at;
  }
  int64_t latest = 0;
  for (const auto& [device, at] : now) latest = std::max(latest, at);
  return latest;
}

std::shared_ptr<const Schedule> schedule_of_roots(const std::vector<Node>& roots) {
  const Normalized graph = normalize(unshard(roots).pieces);
  std::vector<int> devices;
  for (Node b : graph.buffers) devices.push_back(b->device);
  return schedule(graph, devices, device_id("CPU"));
}

// Of the loss and the gradients of a batch, which is where it is used.
std::shared_ptr<const Schedule> schedule_of(const Model& model, int64_t batch) {
  const Tensor x = Tensor::randn({batch, kIn}).to(model.devices.front()).realize();
  const Tensor target = Tensor::randint(0, kOut, {batch}).to(model.devices.back()).realize();
  const Tensor loss = model.pipeline->backward(x, target, mean_loss);
  std::vector<Node> roots{loss.node()};
  for (Tensor* t : model.pipeline->tensors()) roots.push_back(t->grad().node());
  return schedule_of_roots(roots);
}

}  // namespace

TEST_CASE("stages work at the same time") {
  const EnvOverride device("DEVICE", "CPU");
  for (const int stages : {2, 4})
    for (const int64_t count : {1, 2, 4, 8}) {
      Names devices;
      for (int i = 0; i < stages; ++i) devices.push_back(cat("CPU:", i + 1));
      const Model model(devices, {.micro_batches = count});
      const auto s = schedule_of(model, count * 2);
      std::map<int, int64_t> own;
      for (const Step& step : s->steps) own[step.device] += step.kernel ? 1 : 0;
      int64_t most = 0;
      for (const auto& [id, turns] : own) most = std::max(most, turns);
      // As in a pipeline of stages that have as much to do, which wait for the first and the last.
      const int64_t turns = turns_of(*s);
      CHECK(turns * count <= most * (count + stages - 1));
      MESSAGE(stages, " stages, ", count, " micro-batches: ", turns, " turns of ", most);
    }
}

TEST_CASE("a stage keeps as many micro-batches as there are stages from it on") {
  const EnvOverride device("DEVICE", "CPU");
  const auto peaks = [](int64_t count) {
    const Names devices{"CPU:5", "CPU:6", "CPU:7", "CPU:8"};
    const Model model(devices, {.micro_batches = count});
    const auto s = schedule_of(model, 256 * count);
    std::vector<int64_t> out;
    for (const std::string& d : devices) out.push_back(s->memory.arenas.at(device_id(d)));
    return out;
  };
  const std::vector<int64_t> one = peaks(1), two = peaks(2), four = peaks(4), sixteen = peaks(16);
  for (size_t i = 0; i < 4; ++i) {
    MESSAGE("stage ", i, ": ", one[i], ", ", two[i], ", ", four[i], " and ", sixteen[i],
            " bytes of 1, 2, 4 and 16 micro-batches");
    const int64_t each = two[i] - one[i];
    CHECK(2 * (sixteen[i] - four[i]) < each);  // twelve losses
    if (i == 0) CHECK(10 * (four[i] - one[i]) > 29 * each);
    if (i == 3) CHECK(2 * (four[i] - two[i]) < each);
  }
}

TEST_CASE("stages on groups of devices share each micro-batch, or its weights") {
  const EnvOverride device("DEVICE", "CPU");
  const Floats one = train({"CPU:1"}, {.micro_batches = 4}).losses;
  for (const Names& devices : {Names{"CPU:1,CPU:2", "CPU:3,CPU:4"}, Names{"CPU,CPU:1", "CPU:2"}})
    for (const bool is_cut : {false, true})
      for (const bool cut_batch : {false, true}) {
        const auto several =
            train(devices, {.micro_batches = 4, .cut_batch = cut_batch}, true, is_cut).losses;
        REQUIRE(several.size() == one.size());
        for (size_t i = 0; i < one.size(); ++i)
          CHECK(several[i] == doctest::Approx(one[i]).epsilon(1e-5));
      }
}

TEST_CASE("gradients of a stage on several devices are summed once for all micro-batches") {
  const EnvOverride device("DEVICE", "CPU"), how("COLLECTIVE", "naive");
  for (const int64_t count : {1, 4}) {
    const Model model({"CPU:1,CPU:2", "CPU:3,CPU:4"}, {.micro_batches = count});
    const auto s = schedule_of(model, 2 * count);
    const auto copies = std::ranges::count_if(s->steps, [&](const Step& step) {
      return !step.kernel && s->values[static_cast<size_t>(step.values[0])].size == kWidth * kWidth;
    });
    CHECK(copies == 2 * 3);  // three weights of that size, to each of two devices
  }
}

TEST_CASE("a batch that is cut goes from one group of devices to another piece by piece") {
  const EnvOverride device("DEVICE", "CPU");
  const Tensor x = Tensor::randn({8, 4}).realize().shard({"CPU:1", "CPU:2"}, 0).realize();
  for (const std::optional<int64_t> axis : {std::optional<int64_t>(0), {}}) {
    const Tensor y = (x * 2).shard({"CPU:3", "CPU:4"}, axis);
    const auto s = schedule_of_roots({y.node()});
    const auto copies = std::ranges::count_if(s->steps, [](const Step& t) { return !t.kernel; });
    CHECK(copies == (axis ? 2 : 3));  // else it is brought together first
    CHECK(y.to_vector<float>() == (x * 2).to_vector<float>());
  }
}

namespace {

// The words' table is also what the scores are made with, on another device.
struct Words : nn::Module {
  nn::Children children() override { return {{"words", &words}}; }
  Tensor forward(const Tensor& ids) override { return words(ids); }
  nn::Embedding words{32, 16};
};
struct Scores : nn::Module {
  explicit Scores(Words& first) : first(first) {}
  nn::Children children() override { return {{"between", &between}, {"words", &first.words}}; }
  Tensor forward(const Tensor& x) override {
    const Tensor y = between(x);
    return y.linear(first.words.weight.to(y.device()));
  }
  Words& first;
  nn::Linear between{16, 16};
};

Floats losses_of_tied(const Names& devices) {
  manual_seed(9);
  Words words;
  Scores scores(words);
  nn::Pipeline pipeline({&words, &scores}, devices, {.micro_batches = 4});
  SGD optimizer({&words.words.weight, &scores.between.weight, &scores.between.bias}, 0.5);
  const Tensor ids = Tensor::randint(0, 32, {16}).realize();
  Floats out;
  for (int i = 0; i < 4; ++i) {
    Tensor loss = pipeline.backward(ids, ids, mean_loss);
    optimizer.step({&loss});
    out.push_back(loss.item<float>());
  }
  return out;
}

}  // namespace

namespace {

struct Language {
  bool has_checkpoint = false, in_half = false;
  double clip = 0;
};

// A small language model: words and a layer, a layer and scores.
Floats train_language(const Names& devices, const Language& how) {
  const nn::Training mode;
  manual_seed(4);
  const nn::TransformerEncoderLayerOptions options{
      .dim_feedforward = 64, .dropout = 0, .batch_first = true};
  nn::TransformerEncoderLayer first(32, 2, options), second(32, 2, options);
  const auto layer = [&](nn::TransformerEncoderLayer& of) {
    return [&of, how](const Tensor& x) {
      const auto body = [&](const Tensor& in) { return of(in); };
      return how.has_checkpoint ? checkpoint(body, x) : body(x);
    };
  };
  nn::Embedding words(64, 32);
  nn::Linear scores(32, 64);
  struct Stage : nn::Module {
    nn::Children children() override { return parts; }
    Tensor forward(const Tensor& x) override { return function(x); }
    nn::Children parts;
    std::function<Tensor(const Tensor&)> function;
  } bottom, top;
  bottom.parts = {{"words", &words}, {"layer", &first}};
  bottom.function = [&](const Tensor& ids) { return layer(first)(words(ids)); };
  top.parts = {{"layer", &second}, {"scores", &scores}};
  top.function = [&](const Tensor& x) { return scores(layer(second)(x)); };
  nn::Pipeline pipeline({&bottom, &top}, devices, {.micro_batches = 4});
  AdamW optimizer(pipeline.tensors(), 1e-2);
  Jit step([&](const Tensor& ids) {
    Tensor loss;
    {
      const Autocast products(how.in_half ? kBF16 : kF32);
      loss = pipeline.backward(ids, ids, [](const Tensor& y, const Tensor& target) {
        return cross_entropy(y.flatten(0, 1), target.flatten());
      });
    }
    if (how.clip > 0) clip_grad_norm_(pipeline.parameters(), how.clip);
    optimizer.step({&loss});
    return loss;
  });
  const Tensor ids = Tensor::randint(0, 64, {8, 12}).realize();
  Floats out;
  for (int i = 0; i < 4; ++i) out.push_back(step(ids).to(kF32).item<float>());
  return out;
}

}  // namespace

TEST_CASE("language models in stages: checkpoints, bf16, clipped gradients") {
  const EnvOverride device("DEVICE", "CPU");
  for (const Language& how :
       {Language{}, {.has_checkpoint = true}, {.in_half = true}, {.clip = 0.5}}) {
    const Floats one = train_language({"CPU:1", "CPU:1"}, how);
    CHECK(one.back() < one.front());
    const Floats two = train_language({"CPU:1", "CPU:2"}, how);
    if (how.clip == 0) CHECK(two == one);
    // The norm's sums on two devices are other sums.
    for (size_t i = 0; i < one.size(); ++i) CHECK(two[i] == doctest::Approx(one[i]).epsilon(1e-6));
  }
}

TEST_CASE("a weight of two stages has one gradient") {
  const EnvOverride device("DEVICE", "CPU");
  const Floats one = losses_of_tied({"CPU:1", "CPU:1"});
  CHECK(one.back() < one.front());
  CHECK(losses_of_tied({"CPU:1", "CPU:2"}) == one);
}

TEST_CASE("a pipeline's gradients are those of its micro-batches one after the other") {
  const EnvOverride device("DEVICE", "CPU");
  const Model model({"CPU:1", "CPU:2"}, {.micro_batches = 4});
  const Tensor x = Tensor::randn({16, kIn}).realize();
  const Tensor target = Tensor::randint(0, kOut, {16}).realize();
  const float loss = model.pipeline->backward(x, target, mean_loss).item<float>();
  std::vector<Floats> gradients;
  for (Tensor* t : model.pipeline->tensors()) {
    gradients.push_back(t->grad().to_vector<float>());
    t->zero_grad();
  }
  Tensor sum;
  for (int64_t m = 0; m < 4; ++m) {
    const Tensor y = (*model.pipeline)(x.split(4)[static_cast<size_t>(m)]);
    const Tensor part = mean_loss(y, target.split(4)[static_cast<size_t>(m)].to("CPU:2")) / 4;
    part.backward();
    sum = sum.defined() ? sum + part.detach() : part.detach();
  }
  CHECK(loss == doctest::Approx(sum.item<float>()));
  size_t i = 0;
  for (Tensor* t : model.pipeline->tensors()) {
    const Floats wanted = t->grad().to_vector<float>();
    REQUIRE(gradients[i].size() == wanted.size());
    for (size_t k = 0; k < wanted.size(); ++k)
      CHECK(gradients[i][k] == doctest::Approx(wanted[k]).epsilon(1e-4));
    ++i;
  }
}

TEST_CASE("a stage without parameters, and one whose parameters stay as they are") {
  const EnvOverride device("DEVICE", "CPU");
  nn::Linear first(4, 4), last(4, 2);
  nn::Sequential middle(&Tensor::relu);
  for (Tensor* t : first.tensors()) t->requires_grad_(false);
  nn::Pipeline pipeline({&first, &middle, &last}, {"CPU:1", "CPU:2", "CPU:3"},
                        {.micro_batches = 2});
  CHECK(pipeline.parameters().size() == 2);
  const Tensor x = Tensor::randn({4, 4}).realize();
  pipeline.backward(x, x, [](const Tensor& y, const Tensor&) { return y.square().mean(); });
  CHECK(last.weight.grad().defined());
  CHECK(!first.weight.grad().defined());
}

TEST_CASE("pipelines on emulated GPUs") {
  const EnvOverride device("DEVICE", "CPU");
  const std::string gpu = "EMU:CUDA:sm_90a";
  CHECK(train({gpu, gpu + ":1"}, {.micro_batches = 2}, true).losses ==
        train({gpu}, {.micro_batches = 2}).losses);
}

TEST_CASE("a run goes on from its checkpoint with another number of stages") {
  const EnvOverride device("DEVICE", "CPU");
  const test::TemporaryFolder folder("pipeline");
  const std::string path = folder.file("run.safetensors");
  const auto losses = [&](const Names& devices, int from, int until) {
    manual_seed(7);
    nn::Sequential network;
    std::vector<std::shared_ptr<nn::Sequential>> stages(devices.size());
    std::vector<nn::Module*> modules;
    for (auto& s : stages) {
      s = std::make_shared<nn::Sequential>();
      modules.push_back(s.get());
    }
    for (size_t i = 0; i < 4; ++i) {
      const auto layer = std::make_shared<nn::Linear>(8, 8);
      network.append(layer);
      stages[i * devices.size() / 4]->append(layer);
      stages[i * devices.size() / 4]->append(&Tensor::tanh);
    }
    nn::Pipeline pipeline(modules, devices, {.micro_batches = 2});
    AdamW optimizer(network.tensors(), 1e-2);
    StateDict all = network.state_dict("network.");
    for (const NamedTensor& t : optimizer.state_dict("optimizer.")) all.push_back(t);
    if (from) load(path, all);
    Floats out;
    for (int i = from; i < until; ++i) {
      manual_seed(static_cast<uint64_t>(20 + i));
      const Tensor x = Tensor::randn({4, 8}).realize();
      Tensor loss = pipeline.backward(
          x, x, [](const Tensor& y, const Tensor& t) { return (y - t).square().mean(); });
      optimizer.step({&loss});
      out.push_back(loss.item<float>());
      if (i == 1 && !from) save(path, all);
    }
    return out;
  };
  const Floats whole = losses({"CPU:1", "CPU:2"}, 0, 4), rest(whole.begin() + 2, whole.end());
  CHECK(losses({"CPU:1"}, 2, 4) == rest);
  CHECK(losses({"CPU:4", "CPU:3", "CPU:2", "CPU:1"}, 2, 4) == rest);
}

TEST_CASE("a pipeline is a module with the names of its stages") {
  const EnvOverride device("DEVICE", "CPU");
  const Model model({"CPU:1", "CPU:2"}, {});
  const StateDict state = model.pipeline->state_dict("model.");
  CHECK(state.front().name == "model.0.0.weight");
  CHECK(state.front().tensor->device() == "CPU:1");
  CHECK(state.back().name == "model.1.6.bias");
  CHECK(state.back().tensor->device() == "CPU:2");
  CHECK((*model.pipeline)(Tensor::randn({3, kIn})).device() == "CPU:2");
}

TEST_CASE("errors of pipelines") {
  const EnvOverride device("DEVICE", "CPU");
  nn::Linear a(4, 4), b(4, 4);
  CHECK(error_of([&] {
          nn::Pipeline({&a, &b}, {"CPU:1"});
        }) ==
        "Pipeline: 2 stages on 1 devices: expected one for each stage; several as "
        "\"CUDA:0,CUDA:1\"");
  CHECK(error_of([&] { nn::Pipeline({}, {}); }) == "Pipeline: no stages");
  CHECK(error_of([&] {
          nn::Pipeline({&a, nullptr}, {"CPU:1", "CPU:2"});
        }) == "Pipeline: stage 1 is a null pointer");
  CHECK(error_of([&] { nn::Pipeline({&a}, {"CPU:1"}, {.micro_batches = 0}); }) ==
        "Pipeline: 0 micro-batches: expected at least one");
  CHECK(error_of([&] { nn::Pipeline({&a}, {"CPUS"}); }).starts_with("unknown device 'CPUS'"));
  nn::Pipeline pipeline({&a, &b}, {"CPU:1", "CPU:2"}, {.micro_batches = 4});
  const auto sum = [](const Tensor& y, const Tensor&) { return y.sum(); };
  const Tensor x = Tensor::ones({6, 4}), fitting = Tensor::ones({8, 4});
  CHECK(error_of([&] { pipeline.backward(x, x, sum); }) ==
        "Pipeline: a batch of 6 samples: expected a multiple of the 4 micro-batches");
  CHECK(error_of([&] { pipeline.backward(fitting, x, sum); }) ==
        "Pipeline: an input of shape (8,4) and a target of shape (6,4): expected as many samples "
        "along axis 0 of both");
  CHECK(error_of([&] {
          pipeline.backward(fitting, fitting, [](const Tensor& y, const Tensor&) { return y; });
        }) == "Pipeline: a loss of shape (2,4): expected one element, the mean over a micro-batch");
  for (Tensor* t : pipeline.tensors()) t->requires_grad_(false);
  CHECK(error_of([&] { pipeline.backward(fitting, fitting, sum); }) ==
        "Pipeline: no parameter wants a gradient");
}
