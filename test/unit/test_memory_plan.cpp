#include "runtime/schedule/memory_plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "extra/bench/gpt2.h"
#include "extra/bench/networks.h"
#include "runtime/device/device.h"
#include "runtime/realize/realize.h"
#include "runtime/schedule/schedule.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/tensor/tensor.h"

using namespace tiny;

namespace {

// A schedule of copies: each writes its first value and reads the others.
Schedule copies(const std::vector<int64_t>& sizes, int inputs,
                const std::vector<std::vector<int>>& steps, int result) {
  Schedule s;
  for (int64_t size : sizes) s.values.push_back({kU8, size, 1});
  s.inputs = inputs;
  for (const auto& values : steps) s.steps.push_back({NodeRef(), values, "copy", 1});
  s.results.push_back({result, {}});
  return s;
}

Schedule random_schedule(std::mt19937& random) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  std::vector<int64_t> sizes{100, 5000};
  std::vector<std::vector<int>> steps;
  const int count = 1 + below(40);
  for (int i = 0; i < count; ++i) {
    const int v = static_cast<int>(sizes.size());
    std::vector<int> step{v};
    for (int k = below(3); k >= 0; --k) step.push_back(std::max(0, v - 1 - below(8)));
    sizes.push_back(1 + below(4) * 700 + below(3));
    steps.push_back(step);
  }
  return copies(sizes, 2, steps, static_cast<int>(sizes.size()) - 1);
}

}  // namespace

TEST_CASE("values that are never alive together share memory") {
  // A chain: two of its links are alive at a time.
  const Schedule s = copies({512, 512, 512, 512, 512}, 1, {{1, 0}, {2, 1}, {3, 2}, {4, 3}}, 4);
  const MemoryPlan plan = plan_memory(s);
  check_memory(s, plan);
  CHECK(plan.arenas.at(1) == 1024);
  CHECK(plan.offset[1] == plan.offset[3]);
  CHECK(plan.offset[1] != plan.offset[2]);
  CHECK(plan.offset[0] == -1);
  CHECK(plan.offset[4] == -1);
  CHECK(plan.sum == 5 * 512);
  CHECK(plan.peak == 4 * 512);
}

TEST_CASE("small values beside large ones keep their memory for many steps") {
  // Chains of small values, and of large ones that are alive meanwhile.
  std::vector<int64_t> sizes{1 << 20};
  std::vector<std::vector<int>> steps;
  for (int i = 0; i < 200; ++i) {
    const int v = static_cast<int>(sizes.size());
    sizes.insert(sizes.end(), {1 << 20, 300});
    steps.push_back({v, std::max(0, v - 2)});
    steps.push_back({v + 1, std::max(0, v - 1)});
  }
  const Schedule s = copies(sizes, 1, steps, static_cast<int>(sizes.size()) - 1);
  const MemoryPlan plan = plan_memory(s);
  check_memory(s, plan);
  const auto apart = [&](int a, int b) { return std::abs(plan.offset[a] - plan.offset[b]) >= 512; };
  CHECK(plan.offset[1] == plan.offset[5]);  // large
  for (int later : {4, 20, 60}) CHECK(apart(2, later));
  CHECK(plan.offset[2] >= 2 << 20);  // behind all large ones
  CHECK(plan.arenas.at(1) > 2 << 20);
  CHECK(plan.arenas.at(1) <= (2 << 20) * 17 / 16 + 512 * 4);
}

TEST_CASE("a value that takes over another's memory lies where that did") {
  Schedule s = copies({256, 256, 256, 256}, 1, {{1, 0}, {2}, {3, 2}}, 3);
  s.values[2].in_place = 1;  // one slot for both
  const MemoryPlan plan = plan_memory(s);
  check_memory(s, plan);
  CHECK(plan.offset[1] == plan.offset[2]);
  CHECK(plan.arenas.at(1) == 256);
  s.steps.push_back({NodeRef(), {3, 1}, "copy", 1});  // reads the old value after that
  CHECK_THROWS_AS(check_memory(s, plan_memory(s)), Bug);
}

TEST_CASE("plans of random schedules hold, and take little more than what is alive") {
  std::mt19937 random(1);
  int64_t planned = 0, alive = 0;
  for (int i = 0; i < 300; ++i) {
    const Schedule s = random_schedule(random);
    const MemoryPlan plan = plan_memory(s);
    check_memory(s, plan);
    CHECK(plan.peak >= plan.live);
    CHECK(plan.peak <= plan.sum);
    planned += plan.peak;
    alive += plan.live;
  }
  CHECK(static_cast<double>(planned) < 1.02 * static_cast<double>(alive));
}

TEST_CASE("the checker finds every value that is moved onto one that is alive") {
  std::mt19937 random(2);
  int moved = 0;
  for (int i = 0; i < 200; ++i) {
    const Schedule s = random_schedule(random);
    const MemoryPlan plan = plan_memory(s);
    // Values a and b where b is written while a is still to be read.
    for (size_t a = 0; a < plan.offset.size(); ++a)
      for (size_t b = a + 1; b < plan.offset.size(); ++b) {
        if (plan.offset[a] < 0 || plan.offset[b] < 0) continue;
        const auto uses = [&](const Step& step, size_t v) {
          return std::count(step.values.begin(), step.values.end(), static_cast<int>(v)) > 0;
        };
        const size_t written = b - 2;  // the step that makes b
        bool needed = false;
        for (size_t k = written; k < s.steps.size(); ++k) needed |= uses(s.steps[k], a);
        if (!needed) continue;
        MemoryPlan wrong = plan;
        wrong.offset[b] = plan.offset[a];
        wrong.arenas[1] += 1 << 20;
        CHECK_THROWS_AS(check_memory(s, wrong), Bug);
        ++moved;
      }
  }
  CHECK(moved > 100);
}

TEST_CASE("the checker wants values inside the arena and results outside") {
  const Schedule s = copies({512, 512, 512}, 1, {{1, 0}, {2, 1}}, 2);
  MemoryPlan plan = plan_memory(s);
  plan.offset[1] = 256;
  CHECK_THROWS_AS(check_memory(s, plan), Bug);
  plan = plan_memory(s);
  plan.offset[2] = 0;
  CHECK_THROWS_AS(check_memory(s, plan), Bug);
}

TEST_CASE("jobs that give memory back run early") {
  // Two branches that each blow up and shrink: one after the other, not side by side.
  std::vector<Job> jobs{{{}, {}, {0}}, {{}, {}, {1}}, {{0}, {0}, {2}}, {{1}, {1}, {3}}};
  std::vector<JobValue> values{{100, false}, {100, false}, {1, true}, {1, true}};
  CHECK(peak_of_order(jobs, values, {0, 1, 2, 3}) == 200);
  const std::vector<int> order = order_for_memory(jobs, values);
  CHECK(peak_of_order(jobs, values, order) == 100);
}

TEST_CASE("orders keep what must come before, and are no worse than the given one") {
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) {
    std::vector<Job> jobs;
    std::vector<JobValue> values;
    for (int j = 0; j < 30; ++j) {
      Job job;
      job.writes = {j};
      for (int k = 0; k < 3; ++k)
        if (const int b = static_cast<int>(random() % 30); b < j && random() % 2) {
          if (std::count(job.before.begin(), job.before.end(), b)) continue;
          job.before.push_back(b);
          job.reads.push_back(b);
        }
      jobs.push_back(job);
      values.push_back({static_cast<int64_t>(random() % 1000), random() % 8 == 0});
    }
    const std::vector<int> order = order_for_memory(jobs, values);
    REQUIRE(order.size() == jobs.size());
    std::vector<int> at(jobs.size());
    for (size_t k = 0; k < order.size(); ++k) at[order[k]] = static_cast<int>(k);
    for (size_t j = 0; j < jobs.size(); ++j)
      for (int b : jobs[j].before) CHECK(at[b] < at[j]);
    std::vector<int> given(jobs.size());
    for (size_t k = 0; k < given.size(); ++k) given[k] = static_cast<int>(k);
    CHECK(peak_of_order(jobs, values, order) <= peak_of_order(jobs, values, given));
  }
}

namespace {

// Values 0 .. n-1, each made from the one before; then read again from the last to the first. Value
// 2 i + 1 is cheap.
struct Chain {
  std::vector<Job> jobs;
  std::vector<JobValue> values;
  std::vector<int> order;
  explicit Chain(int n) {
    for (int i = 0; i < n; ++i) {
      jobs.push_back({i ? std::vector<int>{i - 1} : std::vector<int>{},
                      i ? std::vector<int>{i - 1} : std::vector<int>{},
                      {i}});
      values.push_back({100, false, i % 2 == 1, {}, {}});
      if (i % 2 == 1) values.back().recipe = {i - 1};
    }
    for (int i = n - 1; i >= 0; --i) {
      jobs.push_back({{static_cast<int>(jobs.size()) - 1}, {i}, {}});
      if (i > 0) jobs.back().reads.push_back(i - 1);
    }
    for (int j = 0; j < static_cast<int>(jobs.size()); ++j) order.push_back(j);
  }
};

}  // namespace

TEST_CASE("cheap values that lie idle at the peak are computed again, for a limited share") {
  const Chain c(20);
  const int64_t kept = peak_of_order(c.jobs, c.values, c.order);
  CHECK(kept == 2000);
  const auto half = recompute_for_memory(c.jobs, c.values, c.order, {0, 1.0});
  CHECK(peak_of_order(c.jobs, c.values, half) <= 1300);
  const auto some = recompute_for_memory(c.jobs, c.values, c.order, {0, 0.1});
  CHECK(some.size() > c.order.size());
  CHECK(some.size() < half.size());
  CHECK(recompute_for_memory(c.jobs, c.values, c.order, {2000, 1.0}).size() == c.order.size());
  CHECK(recompute_for_memory(c.jobs, c.values, c.order, {0, 0.0}).size() == c.order.size());
  // Each value is computed again after its job, and what it is made from is computed before it.
  for (size_t t = 0; t < half.size(); ++t) {
    if (half[t].again < 0) continue;
    CHECK(c.values[half[t].again].cheap);
    CHECK(std::find(half.begin(), half.begin() + static_cast<std::ptrdiff_t>(t),
                    Turn{half[t].job, -1}) != half.begin() + static_cast<std::ptrdiff_t>(t));
  }
}

TEST_CASE("a value is not computed again once something that it needs is overwritten") {
  Chain c(4);
  for (JobValue& v : c.values) v.until = {4};  // the first job that reads again
  CHECK(recompute_for_memory(c.jobs, c.values, c.order, {0, 1.0}).size() == c.order.size());
}

TEST_CASE("a value whose last reader goes element by element leaves its memory to the result") {
  const Tensor a = Tensor::rand({64, 64}).realize(), b = Tensor::rand({64, 64}).realize();
  // Products are not fused into one another, so the first sum's memory is free for the second.
  Tensor y = (a.matmul(b) * 2.0f).contiguous().sin().contiguous().cos().sum();
  Node root = y.node();
  const Normalized graph = normalize(std::span(&root, 1));
  std::vector<int> devices;
  for (Node n : graph.buffers) devices.push_back(n->device);
  const EnvOverride apart("FUSE", "0");
  const auto s = schedule(graph, devices, device_id("CPU"));
  int places = 0;
  for (const Value& v : s->values) places += v.in_place >= s->inputs;
  CHECK(places >= 1);
  const float one_by_one = y.item<float>();
  const EnvOverride fused("FUSE", "1");
  CHECK(one_by_one == doctest::Approx((a.matmul(b) * 2.0f).sin().cos().sum().item<float>()));
}

TEST_CASE("intermediate values of a run lie in one block that is given back") {
  const Tensor x = Tensor::rand({256, 256}).realize();
  const Live before = live();
  Tensor y = x.matmul(x).softmax(1).matmul(x).sum();
  y.realize();
  const Live after = live();
  CHECK(after.buffers == before.buffers + 1);
  CHECK(after.bytes == before.bytes + 4);
}

namespace {

// The plan of the gradients of a loss, with the loss itself; every plan is checked where it is
// made.
MemoryPlan plan_of_gradients(const Tensor& loss, const std::vector<Tensor>& parameters) {
  std::vector<Node> roots{loss.node()};
  const std::vector<Tensor> gradients = Tensor::gradient(loss, parameters);
  for (const Tensor& g : gradients) roots.push_back(g.node());
  const Normalized graph = normalize(roots);
  std::vector<int> devices;
  for (Node b : graph.buffers) devices.push_back(b->device);
  return schedule(graph, devices, device_id("NULL"))->memory;
}

}  // namespace

TEST_CASE("training steps of ResNet-50 and GPT-2 share the memory of what is not alive") {
  const EnvOverride device("DEVICE", "NULL");
  {
    bench::ResNet50 network(true);
    const Tensor x = Tensor::from(std::vector<float>(64 * 3 * 224 * 224), {64, 3, 224, 224});
    const Tensor labels = Tensor::from(std::vector<int32_t>(64));
    const Tensor loss = cross_entropy(network(x), labels);
    const MemoryPlan plan = plan_of_gradients(loss, network.parameters());
    CAPTURE(to_text(plan));
    CHECK(plan.peak <= plan.sum * 0.55);
    CHECK(plan.peak < 5'500'000'000);
  }
  bench::Gpt2 network;
  std::vector<Tensor> parameters;
  for (Tensor* t : network.parameters()) parameters.push_back(*t);
  const Tensor tokens = Tensor::from(std::vector<int32_t>(4 * 1024), {4, 1024});
  const Tensor next = Tensor::from(std::vector<int32_t>(4 * 1024));
  const Tensor loss = cross_entropy(network(tokens).flatten(0, 1), next);
  const MemoryPlan plan = plan_of_gradients(loss, parameters);
  CAPTURE(to_text(plan));
  CHECK(plan.peak <= plan.sum * 0.55);
}

TEST_CASE("logits of a loss in chunks are there one chunk at a time") {
  const EnvOverride device("DEVICE", "NULL");
  const auto arena = [](int64_t chunk) {
    Tensor x = Tensor::from(std::vector<float>(4 * 256 * 32), {4, 256, 32});
    Tensor w = Tensor::from(std::vector<float>(8000 * 32), {8000, 32}).requires_grad_();
    x.requires_grad_();
    const Tensor target = Tensor::from(std::vector<int64_t>(4 * 256), {4, 256});
    const Tensor loss = linear_cross_entropy(x, w, target, {.batch_chunk_size = chunk});
    const MemoryPlan plan = plan_of_gradients(loss, {x, w});
    int64_t bytes = 0;
    for (const auto& [device, own] : plan.arenas) bytes += own;
    return static_cast<double>(bytes);
  };
  const double all = arena(256);
  CHECK(arena(64) < 0.35 * all);
  CHECK(arena(32) < 0.2 * all);
}
