#include "tiny/nn/layers.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "test/error_of.h"
#include "test/reference.h"
#include "tiny/tensor/random.h"
#include "tiny/train/safetensors.h"

using namespace tiny;
using namespace tiny::nn;
namespace fs = std::filesystem;

namespace {

using Numbers = std::vector<double>;

Numbers numbers(const Tensor& t) { return evaluate(t.node()).numbers(); }

std::vector<std::string> names_of(Module& m) {
  std::vector<std::string> names;
  for (const NamedTensor& named : m.state_dict()) names.push_back(named.name);
  return names;
}

// A file that is removed at the end of the test.
class TemporaryFile {
 public:
  TemporaryFile() : path_(fs::temp_directory_path() / cat("tiny_test_nn_", ::getpid())) {}
  ~TemporaryFile() { fs::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

// A model as a user writes one.
class TwoLayers : public Module {
 public:
  Tensor forward(const Tensor& x) override { return second(first(x).relu()); }
  void state(StateDict& out, const std::string& prefix) override {
    first.state(out, prefix + "first.");
    second.state(out, prefix + "second.");
  }
  nn::Linear first{3, 4}, second{4, 2, false};
};

}  // namespace

TEST_CASE("layers name their tensors as PyTorch does") {
  Sequential model(
      Conv2d(1, 4, 3), &Tensor::relu, BatchNorm2d(4), [](const Tensor& x) { return x.flatten(1); },
      nn::Linear(16, 2, false));
  CHECK(names_of(model) == std::vector<std::string>{"0.weight", "0.bias", "2.weight", "2.bias",
                                                    "2.running_mean", "2.running_var", "4.weight"});
  TwoLayers own;
  CHECK(names_of(own) == std::vector<std::string>{"first.weight", "first.bias", "second.weight"});
}

TEST_CASE("parameters are the tensors that want a gradient") {
  BatchNorm2d norm(3);
  CHECK(norm.tensors().size() == 4);
  CHECK(norm.parameters() == std::vector<Tensor*>{&norm.weight, &norm.bias});
}

TEST_CASE("a sequence calls layers and functions in order") {
  Sequential model(nn::Linear(2, 2), &Tensor::relu, [](const Tensor& x) { return x * 2; });
  auto& linear = static_cast<nn::Linear&>(model[0]);
  linear.weight.assign(Tensor::eye(2));
  linear.bias.assign(Tensor::from({1.0f, -1.0f}));
  CHECK(numbers(model(Tensor::from({3.0f, -4.0f}, {1, 2}))) == Numbers{8, 0});
}

TEST_CASE("initial weights are uniform below one over the root of the fan in") {
  manual_seed(1);
  nn::Linear linear(64, 32);
  Conv2d conv(4, 8, 3, {.groups = 2});
  const auto extent = [](const Tensor& t) {
    double most = 0, sum = 0;
    for (double v : numbers(t)) {
      most = std::max(most, std::abs(v));
      sum += v * v;
    }
    return std::pair(most, std::sqrt(sum / static_cast<double>(t.numel())));
  };
  CHECK(to_shape(conv.weight.shape()) == Shape{8, 2, 3, 3});
  for (const auto& [t, fan_in] : {std::pair(linear.weight, 64.0), std::pair(conv.weight, 18.0)}) {
    const auto [most, deviation] = extent(t);
    CHECK(most <= 1 / std::sqrt(fan_in) + 1e-6);
    CHECK(deviation == doctest::Approx(1 / std::sqrt(3 * fan_in)).epsilon(0.1));
  }
  CHECK(numbers(linear.weight) != numbers(nn::Linear(64, 32).weight));
}

TEST_CASE("dirac filters pass their channels on, the others stay as they are") {
  nn::Conv2d conv(2, 3, 3, {.padding = 1}, false);
  const std::vector<float> before = conv.weight.to_vector<float>();
  nn::dirac_(conv.weight, 2);
  CHECK(conv.weight.requires_grad());
  const Tensor x = Tensor::randn({1, 2, 4, 5}).contiguous();
  CHECK(conv(x).narrow(1, 0, 2).to_vector<float>() == x.to_vector<float>());
  const std::vector<float> after = conv.weight.to_vector<float>();
  CHECK(std::equal(before.begin() + 36, before.end(), after.begin() + 36));
  CHECK_THROWS_WITH_AS(nn::dirac_(conv.weight, 3), "dirac_: 3 channels of a weight (3,2,3,3)",
                       Error);
  Tensor even = Tensor::zeros({1, 1, 2, 2});
  CHECK_THROWS_WITH_AS(nn::dirac_(even, 1), "dirac_: a kernel of even size: (1,1,2,2)", Error);
}

TEST_CASE("training is a scope, and evaluation what holds without one") {
  CHECK_FALSE(is_training());
  {
    Training training;
    CHECK(is_training());
    Training evaluation(false);
    CHECK_FALSE(is_training());
  }
  CHECK_FALSE(is_training());
}

TEST_CASE("dropout changes its input in training alone") {
  Dropout layer(0.5);
  const Tensor x = Tensor::ones({100});
  CHECK(layer(x).node() == x.node());
  Training training;
  CHECK(numbers(layer(x)) != numbers(x));
}

TEST_CASE("batch norm moves its running statistics in training alone") {
  BatchNorm2d norm(1, 0, 0.5);
  const Tensor x = Tensor::from({1.0f, 3.0f}, {2, 1, 1, 1});
  CHECK(numbers(norm(x)) == Numbers{1, 3});
  {
    Training training;
    CHECK(numbers(norm(x)) == Numbers{-1, 1});
  }
  CHECK(numbers(norm.running_mean) == Numbers{1});
  CHECK(numbers(norm.running_var) == Numbers{1.5});
}

TEST_CASE("two batch norms do not share their running statistics") {
  BatchNorm2d a(1), b(1);
  {
    Training training;
    a(Tensor::from({1.0f, 3.0f}, {2, 1}));
  }
  Tensor* const all[] = {&a.running_mean, &b.running_mean};
  Tensor::realize(all);
  CHECK(a.running_mean.item<float>() == doctest::Approx(0.2));
  CHECK(b.running_mean.item<float>() == 0);
}

TEST_CASE("an embedding gives rows, zeros for the padding, and gradients to what was used") {
  Embedding layer(4, 2, 1);
  const Tensor index = Tensor::from({int64_t{3}, int64_t{1}, int64_t{3}});
  const Numbers table = numbers(layer.weight), rows = numbers(layer(index));
  CHECK(rows == Numbers{table[6], table[7], 0, 0, table[6], table[7]});
  const Tensor g = Tensor::gradient(layer(index).sum(), {layer.weight})[0];
  CHECK(numbers(g) == Numbers{0, 0, 0, 0, 0, 0, 2, 2});
}

TEST_CASE("layer norm layers start as the plain normalisation") {
  LayerNorm layer(2, 0);
  CHECK(numbers(layer(Tensor::from({1.0f, 3.0f}, {1, 2}))) == Numbers{-1, 1});
}

TEST_CASE("a saved model gives its values back to another one") {
  TemporaryFile file;
  TwoLayers a, b;
  save(file.path(), a.state_dict(), {{"step", "7"}});
  CHECK(a.first.weight.to_vector<float>() != b.first.weight.to_vector<float>());
  const auto metadata = load(file.path(), b.state_dict());
  CHECK(metadata.at("step") == "7");
  CHECK(a.first.weight.to_vector<float>() == b.first.weight.to_vector<float>());
  CHECK(a.second.weight.to_vector<float>() == b.second.weight.to_vector<float>());
  CHECK(b.first.weight.requires_grad());
}

TEST_CASE("a checkpoint holds tensors and where the random numbers are") {
  const TemporaryFile file;
  manual_seed(3);
  Tensor x = Tensor::rand({4}).realize();
  const std::vector<float> kept = x.to_vector<float>();
  CHECK_FALSE(load_checkpoint(file.path(), {{"x", &x}}));
  CHECK_FALSE(load_checkpoint("", {{"x", &x}}));
  save_checkpoint(file.path(), {{"x", &x}});
  const std::vector<float> next = Tensor::rand({4}).to_vector<float>();
  x.assign(Tensor::zeros({4})).realize();
  manual_seed(9);
  CHECK(load_checkpoint(file.path(), {{"x", &x}}));
  CHECK(x.to_vector<float>() == kept);
  CHECK(Tensor::rand({4}).to_vector<float>() == next);
  save(file.path(), {{"x", &x}});
  CHECK(error_of([&] {
          load_checkpoint(file.path(), {{"x", &x}});
        }) == file.path() + ": no checkpoint, it does not say where random numbers go on");
}

TEST_CASE("a checkpoint says which settings it was written with, and goes on with no others") {
  const TemporaryFile file;
  Tensor x = Tensor::ones({4}).contiguous().realize(), longer = Tensor::zeros({8}).contiguous();
  const StateDict state{{"x", &x}}, other{{"x", &longer}};
  const Settings settings{{"--batch", "8"}, {"--epochs", "2"}, {"--width", "4"}};
  save_checkpoint(file.path(), state, settings);
  x.assign(Tensor::zeros({4})).realize();
  const Settings changed{{"--batch", "16"}, {"--epochs", "3"}, {"--width", "4"}};
  CHECK(error_of([&] { load_checkpoint(file.path(), other, changed); }) ==
        file.path() +
            ": a training with --batch 8 --epochs 2 does not go on with --batch 16 --epochs 3: "
            "give what it began with, or another file");
  CHECK(x.to_vector<float>() == std::vector<float>(4, 0));
  CHECK(load_checkpoint(file.path(), state, settings));
  CHECK(x.to_vector<float>() == std::vector<float>(4, 1));
  CHECK(load_checkpoint(file.path(), state, {{"--new", "1"}}));  // which the file does not know
}

TEST_CASE("states are copied by their names") {
  nn::Linear a(3, 4), b(3, 4);
  const auto values = b.weight.to_vector<float>();
  copy_state(a.state_dict(), b.state_dict());
  CHECK(a.weight.to_vector<float>() == values);
  CHECK(a.weight.requires_grad());
  nn::Linear small(3, 4, false);
  CHECK(error_of([&] { copy_state(a.state_dict(), small.state_dict()); }) ==
        "copy_state: 1 tensors for 2");
  CHECK(error_of([&] { copy_state(a.state_dict("x."), b.state_dict()); }) ==
        "copy_state: weight in the place of x.weight");
}

TEST_CASE("loading names everything that does not fit, and changes nothing then") {
  TemporaryFile file;
  nn::Linear saved(3, 4);
  StateDict state = saved.state_dict("first.");
  Tensor other = Tensor::ones({2});
  state.push_back({"other", &other});
  save(file.path(), state);

  nn::Linear wider(3, 5);
  const std::vector<float> before = wider.weight.to_vector<float>();
  StateDict target = wider.state_dict("first.");
  target.push_back({"third", &other});
  CHECK(error_of([&] { load(file.path(), target); }) ==
        "load: " + file.path() +
            " does not fit:\n"
            "  shape: first.weight is (4,3) in the file and (5,3) here\n"
            "  shape: first.bias is (4) in the file and (5) here\n"
            "  missing: third (2)\n"
            "  unexpected: other (2)");
  CHECK(wider.weight.to_vector<float>() == before);
}

TEST_CASE("loading converts to the dtype of the tensor and passes over counts of batches") {
  TemporaryFile file;
  Tensor value = Tensor::from({1.5f, 2.5f}), counted = Tensor::full({}, 3);
  save(file.path(), {{"x", &value}, {"norm.num_batches_tracked", &counted}});
  Tensor half = Tensor::zeros({2}, kF16);
  load(file.path(), {{"x", &half}});
  CHECK(half.dtype() == kF16);
  CHECK(numbers(half) == Numbers{1.5, 2.5});
}

TEST_CASE("an RMS norm divides rows by their root mean square") {
  RMSNorm layer(2, 0.5);
  CHECK(names_of(layer) == std::vector<std::string>{"weight"});
  layer.weight = Tensor::from({1.0f, 10.0f});
  const Numbers y = numbers(layer(Tensor::from({1.0f, 2.0f, 0.0f, 3.0f}, {2, 2})));
  const double a = std::sqrt(2.5 + 0.5), b = std::sqrt(4.5 + 0.5);
  const Numbers wanted{1 / a, 20 / a, 0, 30 / b};
  for (size_t i = 0; i < 4; ++i) CHECK(std::abs(y[i] - wanted[i]) < 1e-5);
}

TEST_CASE("a group norm normalizes each group of channels of each sample") {
  GroupNorm layer(2, 4, 0);
  const Numbers y = numbers(layer(Tensor::from({1.0f, 3.0f, 10.0f, 30.0f}, {1, 4})));
  const Numbers wanted{-1, 1, -1, 1};
  for (size_t i = 0; i < 4; ++i) CHECK(std::abs(y[i] - wanted[i]) < 1e-5);
  CHECK(error_of([] { GroupNorm(3, 4); }).find("4 channels in 3 groups") != std::string::npos);
}

TEST_CASE("a module's floats are cast and want gradients as before") {
  Sequential model(nn::Linear(3, 2), BatchNorm2d(2));
  model.to(kBF16);
  for (Tensor* t : model.tensors()) CHECK(t->dtype() == kBF16);
  CHECK(model.parameters().size() == 4);
  CHECK(error_of([&] { model.to(kI32); }).find("i32 is no float") != std::string::npos);
}

TEST_CASE("multi-head attention is attention between two products") {
  for (const bool batch_first : {false, true}) {
    manual_seed(5);
    MultiheadAttention layer(6, 2, {.batch_first = batch_first});
    CHECK(names_of(layer) == std::vector<std::string>{"in_proj_weight", "in_proj_bias",
                                                      "out_proj.weight", "out_proj.bias"});
    layer.in_proj_bias = Tensor::randn({18});
    const Tensor q = Tensor::randn({4, 3, 6}), k = Tensor::randn({5, 3, 6});
    const auto given = [&](const Tensor& t) { return batch_first ? t.transpose(0, 1) : t; };
    const Tensor out = layer.forward(given(q), given(k), given(k));
    const Tensor plain = batch_first ? out.transpose(0, 1) : out;
    // Sample 1, head 0, by hand: columns 0 to 2 of each third of the product.
    const Tensor in = layer.in_proj_weight.detach();
    const auto part = [&](const Tensor& x, int64_t head, int64_t third) {
      const int64_t at = third * 6 + head * 3;
      return x.select(1, 1).matmul(in.narrow(0, at, 3).t()) + layer.in_proj_bias.narrow(0, at, 3);
    };
    std::vector<Tensor> heads;
    for (int64_t h = 0; h < 2; ++h) {
      const Tensor scores = part(q, h, 0).matmul(part(k, h, 1).t()) / std::sqrt(3.0);
      heads.push_back(scores.softmax(-1).matmul(part(k, h, 2)));
    }
    const Tensor wanted = layer.out_proj(Tensor::cat(heads, 1));
    const Numbers a = numbers(plain.select(1, 1)), b = numbers(wanted);
    REQUIRE(a.size() == 24);
    for (size_t i = 0; i < a.size(); ++i) CHECK(std::abs(a[i] - b[i]) < 1e-5);
  }
  CHECK(error_of([] { MultiheadAttention(5, 2); }).find("5 elements in 2 heads") !=
        std::string::npos);
}

namespace {

// A model as a user writes one, whose layers are named once.
struct TwoTowers : Module {
  using Module::forward;
  Tensor forward(const Tensor& x, const Tensor& y) { return left(x) * right(y); }
  Children children() override { return {{"left", &left}, {"right", &right}}; }
  nn::Linear left{3, 4}, right{2, 4, false};
};

}  // namespace

TEST_CASE("a module of several inputs names its children, and their tensors follow") {
  TwoTowers model;
  CHECK(names_of(model) == std::vector<std::string>{"left.weight", "left.bias", "right.weight"});
  CHECK(model.forward(Tensor::ones({5, 3}), Tensor::ones({5, 2})).numel() == 20);
  CHECK(error_of([&] {
          model(Tensor::ones({5, 3}));
        }).find("its own forward") != std::string::npos);
  Sequential outer(nn::Linear(2, 2), &Tensor::relu, std::make_shared<TwoTowers>());
  const Children children = outer.children();
  REQUIRE(children.size() == 3);
  CHECK(children[2].name == "2");
  CHECK(children[2].module->children()[1].name == "right");
  CHECK(names_of(outer)[2] == "2.left.weight");
}

TEST_CASE("a summary lists tensors with their sums, shared ones once") {
  struct Tied : Module {
    void state(StateDict& out, const std::string& prefix) override {
      Module::state(out, prefix);
      out.push_back({prefix + "head.weight", &embedding.weight});
    }
    Children children() override { return {{"embedding", &embedding}, {"norm", &norm}}; }
    Embedding embedding{7, 4};
    BatchNorm2d norm{4};
  } model;
  model.norm.to(kBF16);
  CHECK(model_summary(model) ==
        "name               shape  dtype  elements  bytes  gradient\n"
        "embedding.weight   (7,4)    f32        28    112       yes\n"
        "norm.weight          (4)   bf16         4      8       yes\n"
        "norm.bias            (4)   bf16         4      8       yes\n"
        "norm.running_mean    (4)   bf16         4      8        no\n"
        "norm.running_var     (4)   bf16         4      8        no\n"
        "head.weight        (7,4)    f32        28    112    shared\n"
        "total                                  44    144        36\n");
}
