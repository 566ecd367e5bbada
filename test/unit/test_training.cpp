#include "tiny/train/schedules.h"

#include <doctest/doctest.h>

#include <cmath>

#include "tiny/base/error.h"
#include "tiny/nn/functional.h"
#include "tiny/nn/layers.h"
#include "tiny/tensor/random.h"

using namespace tiny;

TEST_CASE("text is formatted as printf does it, of any length") {
  CHECK(formatted("%d of %.2f %%", 3, 1.5) == "3 of 1.50 %");
  CHECK(formatted("%s", std::string(3000, 'x').c_str()) == std::string(3000, 'x'));
}

TEST_CASE("a table has columns as wide as their longest entry") {
  CHECK(to_table({"epoch", "loss"}, {{"1", "2.25"}, {"10", "12.5 %"}}) ==
        "epoch    loss\n    1    2.25\n   10  12.5 %\n");
  CHECK(to_table({"a"}, {}) == "a\n");
  CHECK_THROWS_WITH_AS(to_table({"a", "b"}, {{"1"}}), "to_table: a row of 1 entries under 2",
                       Error);
}

TEST_CASE("means and deviations of samples") {
  CHECK(mean_and_deviation({1, 2, 3, 6}).mean == 3);
  CHECK(mean_and_deviation({1, 2, 3, 6}).deviation == doctest::Approx(std::sqrt(14.0 / 3)));
  CHECK(mean_and_deviation({5}).mean == 5);
  CHECK(mean_and_deviation({5}).deviation == 0);
  CHECK(mean_and_deviation({}).mean == 0);
}

TEST_CASE("schedules go in straight lines between their points and are level outside") {
  const Tensor x = Tensor::from({-1.0f, 0.0f, 0.25f, 0.5f, 1.0f, 3.0f, 9.0f});
  CHECK(interpolated(x, {{0, 2}, {0.5, 4}, {3, -1}}).to_vector<float>() ==
        std::vector<float>{2, 2, 3, 4, 3, -1, -1});
  CHECK(interpolated(x, {{7, 2}}).to_vector<float>() == std::vector<float>(7, 2));
  CHECK_THROWS_WITH_AS(interpolated(x, {{1, 2}, {1, 3}}),
                       "interpolated: a point at 1 after one at 1", Error);
  CHECK_THROWS_WITH_AS(interpolated(x, {}), "interpolated: there are no points", Error);
}

TEST_CASE("optimizers with schedules step together, in a capture as well") {
  Tensor w = Tensor::from({1.0f}).requires_grad_(), b = Tensor::from({2.0f}).requires_grad_();
  ScheduledOptimizers optimizers;
  optimizers.add(std::make_unique<SGD>(std::vector<Tensor*>{&w}, 1, SgdOptions{.momentum = 0.5}),
                 0.5, {{0, 1}, {4, 0}});
  optimizers.add(std::make_unique<SGD>(std::vector<Tensor*>{&b}, 1), 2, {{0, 1}, {2, 0}});
  Tensor done = Tensor::zeros({1}).contiguous().realize();
  Jit step([&] {
    (w * 3 + b).sum().backward();
    optimizers.step(done, {&done});
    done.assign(done + 1).realize();
  });
  double w_now = 1, m = 0, b_now = 2;
  for (int i = 0; i < 5; ++i) {
    step();
    m = i == 0 ? 3 : 0.5 * m + 3;
    w_now -= 0.5 * (1 - i / 4.0) * m;
    b_now -= 2 * std::max(0.0, 1 - i / 2.0);
    CHECK(w.item<float>() == doctest::Approx(w_now));
    CHECK(b.item<float>() == doctest::Approx(b_now));
  }
  const StateDict state = optimizers.state_dict("o");
  REQUIRE(!state.empty());
  CHECK(state[0].name.starts_with("o0."));
  optimizers.reset();
  for (const NamedTensor& t : state)
    if (t.name.ends_with(".m")) CHECK(t.tensor->item<float>() == 0);
}

TEST_CASE("curves note the numbers of each step, and begin anew") {
  StepCurves curves(2, 4);
  Tensor at = Tensor::zeros({1}).contiguous().realize();
  Jit step([&] {
    curves.add({at * at, at + 10});
    at.assign(at + 1);
    Tensor* const all[] = {&at, &curves.values, &curves.done};
    Tensor::realize(all);
  });
  for (int i = 0; i < 3; ++i) step();
  CHECK(curves.steps() == 4);
  CHECK(curves.done.item<float>() == 3);
  CHECK(curves.means(0, 3) == std::vector<double>{5.0 / 3, 11});
  CHECK(curves.means(2, 3) == std::vector<double>{4, 12});
  const ChartLine line = curves.line(1, "more");
  CHECK(line.name == "more");
  CHECK(line.points == std::vector<std::pair<double, double>>{{1, 10}, {2, 11}, {3, 12}});
  curves.restart();
  CHECK(curves.line(0, "").points.empty());
  step();
  CHECK(curves.means(0, 1) == std::vector<double>{9, 13});
  CHECK_THROWS_WITH_AS(curves.means(2, 2), "StepCurves: the steps from 2 to 2 of 4", Error);
  CHECK_THROWS_WITH_AS(curves.add({at}), "StepCurves: 1 numbers for 2 curves", Error);
}

TEST_CASE("a mean of numbers that are not finite is an error") {
  StepCurves curves(1, 2);
  curves.add({Tensor::from({INFINITY})});
  Tensor* const all[] = {&curves.values, &curves.done};
  Tensor::realize(all);
  CHECK_THROWS_WITH_AS(curves.means(0, 1),
                       "a number of the training is not finite any more after 1 steps: try a lower "
                       "learning rate",
                       Error);
}

TEST_CASE("a classifier is tested on each sample once, in batches that do not divide them") {
  // The classifier says sample % 3 with one view and (sample + 1) % 3 with another.
  std::vector<int32_t> labels;
  for (int i = 0; i < 11; ++i) labels.push_back(i < 7 ? i % 3 : (i + 1) % 3);
  const auto says = [](const Tensor& at, const Tensor& numbers) {
    const Tensor answer = mod(at + numbers.to(kI32), 3);
    return (answer.unsqueeze(1) == Tensor::arange(0, 3, 1, kI32)).to(kF32);
  };
  for (int64_t batch : {1, 4, 11, 50}) {
    CAPTURE(batch);
    for (const std::vector<std::string>& devices :
         {std::vector<std::string>{}, std::vector<std::string>{"CPU", "CPU:1"}}) {
      if (devices.size() > 1 && batch == 1) continue;
      const Tensor known = Tensor::from(labels);
      ClassifierTest test(devices.empty() ? known : known.shard(devices), batch, 3, devices, says);
      CHECK(test.count({{1, {0}}}) == 7);
      CHECK(test.count({{1, {1}}}) == 4);
      CHECK(test.count({{1, {1}}, {2, {0}}}) == 7);  // the heavier view wins
      CHECK(test.accuracy({{3, {1}}, {2, {0}}}) == doctest::Approx(4.0 / 11));
    }
  }
}
