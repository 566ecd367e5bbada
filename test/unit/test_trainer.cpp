#include "tiny/train/trainer.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "test/error_of.h"
#include "tiny/data/loader.h"
#include "tiny/nn/layers.h"
#include "tiny/tensor/random.h"

using namespace tiny;
namespace fs = std::filesystem;

namespace {

using Floats = std::vector<float>;
using Batch = Trainer::Batch;

nn::Sequential make_network() {
  manual_seed(3);
  nn::Linear first(6, 16), second(16, 3);
  return nn::Sequential(std::move(first), &Tensor::relu, nn::Dropout(0.2), std::move(second));
}

// A network with dropout and all that trains it, made alike by the same seed.
struct Task {
  explicit Task(const TrainerOptions& options)
      : network(make_network()),
        optimizer(decay_matrices(network.tensors(), 0.1), options.lr),
        trainer(
            network.state_dict("model."), optimizer,
            [this](const Batch& batch) { return cross_entropy(network(batch[0]), batch[1]); },
            options),
        loader(data(), {.batch_size = 8, .shuffle = true, .drop_last = true, .seed = 4}) {}

  static std::vector<Tensor> data() {
    const Tensor x = (Tensor::arange(0, 40 * 6, 1, kF32) * 0.71).sin().reshape({40, 6});
    return {x, x.narrow(1, 0, 3).argmax(1)};
  }

  // Trains up to a step and gives all losses so far.
  Floats train_to(int64_t step) {
    const nn::Training training;
    while (trainer.done() < step) trainer.step(loader.next());
    Floats losses;
    for (const auto& point : trainer.losses("").points)
      losses.push_back(static_cast<float>(point.second));
    return losses;
  }

  nn::Sequential network;
  AdamW optimizer;
  Trainer trainer;
  DataLoader loader;
};

Floats weights_of(Task& task) {
  Floats out;
  for (Tensor* t : task.network.parameters())
    for (const float value : t->to_vector<float>()) out.push_back(value);
  return out;
}

}  // namespace

TEST_CASE("a rate rises evenly and falls along half a cosine") {
  CHECK(warmup_cosine(0, 4, 12) == 0);
  CHECK(warmup_cosine(1, 4, 12) == 0.25);
  CHECK(warmup_cosine(4, 4, 12) == 1);
  CHECK(warmup_cosine(8, 4, 12) == doctest::Approx(0.5));
  CHECK(warmup_cosine(6, 4, 12) == doctest::Approx(0.5 * (1 + std::cos(M_PI / 4))));
  CHECK(warmup_cosine(12, 4, 12) == doctest::Approx(0).epsilon(1e-12));
  CHECK(warmup_cosine(20, 4, 12, 0.1) == doctest::Approx(0.1));
  CHECK(warmup_cosine(8, 4, 12, 0.2) == doctest::Approx(0.6));
  CHECK(warmup_cosine(0, 0, 0, 0.5) == 1);
}

TEST_CASE("a trainer lowers the loss, and looks at other data without a trace") {
  Task task({.steps = 60, .lr = 0.02, .warmup = 5});
  const Batch all = Task::data();
  const double before = task.trainer.evaluate({all});
  const Floats losses = task.train_to(60);
  REQUIRE(losses.size() == 60);
  CHECK(task.trainer.mean_loss(50, 60) < 0.6 * task.trainer.mean_loss(0, 10));
  const Floats weights = weights_of(task);
  const double after = task.trainer.evaluate({all, all});
  CHECK(after < 0.6 * before);
  CHECK(task.trainer.evaluate({all}) == doctest::Approx(after).epsilon(1e-6));
  CHECK(weights_of(task) == weights);
  CHECK(task.trainer.mean_norm(0, 60) > 0);
  CHECK(error_of([&] { task.train_to(61); }) == "Trainer: all 60 steps are done");
}

TEST_CASE("parts of a batch, added up, give the gradient of the whole") {
  const auto trained = [](int64_t parts, double clip) {
    Task task({.steps = 8, .accumulate = parts, .lr = 0.01, .clip = clip});
    for (int i = 0; i < 8; ++i) task.trainer.step(task.loader.next());  // without dropout
    return std::pair(weights_of(task), task.trainer.mean_norm(0, 8));
  };
  const auto [whole, norm] = trained(1, 0);
  for (const int64_t parts : {2, 4}) {
    const auto [some, other] = trained(parts, 0);
    CHECK(other == doctest::Approx(norm).epsilon(1e-4));
    for (size_t i = 0; i < whole.size(); ++i) CHECK(std::abs(some[i] - whole[i]) < 1e-4);
  }
  // A bound that holds changes nothing, one that does not changes the steps.
  CHECK(trained(1, 1e6).first == whole);
  CHECK(trained(1, 1e-3).first != whole);
  CHECK(trained(1, 1e-3).second == doctest::Approx(norm).epsilon(0.2));  // the norm before
}

TEST_CASE("a training that was stopped goes on bit for bit") {
  const TrainerOptions options{.steps = 24, .accumulate = 2, .lr = 0.02, .warmup = 4};
  const auto path = fs::temp_directory_path() / cat("tiny_test_trainer_", getpid());
  const Settings settings{{"--steps", "24"}};
  Task whole(options);
  const Floats losses = whole.train_to(24);
  {
    Task first(options);
    first.train_to(9);
    save_checkpoint(path.string(), first.trainer.state(), settings);
  }
  Task second(options);
  second.train_to(2);  // whatever it did before
  CHECK(load_checkpoint(path.string(), second.trainer.state(), settings));
  CHECK(second.trainer.done() == 9);
  second.loader.go_to(9 / second.loader.batches(), 9 % second.loader.batches());
  CHECK(second.train_to(24) == losses);
  CHECK(weights_of(second) == weights_of(whole));
  fs::remove(path);
}

TEST_CASE("a trainer's products may be bf16, its parameters stay f32") {
  Task task({.steps = 40, .lr = 0.02, .dtype = kBF16});
  task.train_to(40);
  CHECK(task.trainer.mean_loss(30, 40) < 0.7 * task.trainer.mean_loss(0, 10));
  for (Tensor* t : task.network.parameters()) CHECK(t->dtype() == kF32);
}

TEST_CASE("trainers and batches that cannot work say why") {
  CHECK(has(error_of([] { Task({.accumulate = 0}); }), "steps of 0 parts"));
  Task task({.steps = 2, .accumulate = 3});
  CHECK(error_of([&] { task.trainer.step(task.loader.next()); }) ==
        "Trainer: a tensor of shape (8,6) in 3 parts");
  CHECK(has(error_of([&] { task.trainer.step({}); }), "a batch of no tensors"));
  CHECK(has(error_of([&] { task.trainer.evaluate({}); }), "no batches"));
}

TEST_CASE("the rate of a product is a positive number") { CHECK(product_rate(kF32, 64) > 0); }
