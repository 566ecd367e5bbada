// MEMORY_LIMIT: steps that take less memory, and compute values again for it; errors of those that
// cannot.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <set>

#include "runtime/device/buffer.h"
#include "runtime/device/device.h"
#include "runtime/schedule/memory_plan.h"
#include "runtime/schedule/schedule.h"
#include "test/devices.h"
#include "test/little_memory.h"
#include "tiny/base/env.h"
#include "tiny/base/text.h"
#include "tiny/nn/transformer.h"
#include "tiny/tiny.h"

using namespace tiny;

namespace {

// A graph of jobs: each writes up to two values and reads some of those before it, the later ones
// mirror the earlier ones as gradients do.
struct Graph {
  std::vector<Job> jobs;
  std::vector<JobValue> values;
  std::vector<int> order;

  Graph(std::mt19937& random, int layers) {
    const auto draw = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    for (int i = 0; i < layers; ++i) {
      Job j;
      j.repeats = draw(6) > 0;
      j.work = draw(5000);
      for (int r = 0; r < 2 && !values.empty(); ++r) {
        const int v = std::max(0, static_cast<int>(values.size()) - 1 - draw(4));
        if (std::ranges::find(j.reads, v) == j.reads.end()) j.reads.push_back(v);
      }
      for (int w = draw(3) == 0 ? 2 : 1; w > 0; --w) {
        j.writes.push_back(static_cast<int>(values.size()));
        const bool cheap = draw(4) == 0;
        values.push_back({1 + draw(1000), draw(12) == 0, cheap, {}, {}});
        if (cheap) values.back().recipe = j.reads;
      }
      for (int v : j.writes)
        if (values[v].stays) j.repeats = false;
      jobs.push_back(j);
    }
    const int forward = static_cast<int>(values.size());
    for (int v = forward; v-- > 0;) {
      Job j;
      j.reads = {v};
      if (static_cast<int>(values.size()) > forward)
        j.reads.push_back(static_cast<int>(values.size()) - 1);
      j.writes = {static_cast<int>(values.size())};
      values.push_back({1 + draw(300), draw(3) == 0, false, {}, {}});
      jobs.push_back(j);
    }
    // What some jobs read is overwritten at the end, or in the middle.
    for (Job& j : jobs)
      if (draw(10) == 0) j.until = {static_cast<int>(jobs.size()) - 1 - draw(forward)};
    for (int j = 0; j < static_cast<int>(jobs.size()); ++j) order.push_back(j);
  }
};

// Each job first runs once, all reads come after writes, and nothing comes again too late.
void check_turns(const Graph& g, const std::vector<Turn>& turns) {
  std::set<int> written, done;
  for (const Turn& t : turns) {
    const bool alone = t.again >= 0;
    for (int v : alone ? g.values[t.again].recipe : g.jobs[t.job].reads)
      REQUIRE(written.contains(v));
    if (t.is_first()) {
      REQUIRE(done.insert(t.job).second);
    } else {
      REQUIRE(done.contains(t.job));
      REQUIRE((alone ? g.values[t.again].cheap : g.jobs[t.job].repeats));
      for (int until : alone ? g.values[t.again].until : g.jobs[t.job].until)
        REQUIRE(!done.contains(until));
    }
    for (int v : g.jobs[t.job].writes)
      if (!alone || v == t.again) written.insert(v);
  }
  REQUIRE(done.size() == g.jobs.size());
}

std::shared_ptr<const Schedule> scheduled(const std::vector<Tensor>& tensors,
                                          const std::string& device) {
  std::vector<Node> roots;
  for (const Tensor& t : tensors) roots.push_back(t.node());
  const Normalized graph = normalize(roots);
  std::vector<int> devices;
  for (Node b : graph.buffers) devices.push_back(b->device);
  return schedule(graph, devices, device_id(device));
}

constexpr int64_t kRows = 256;

Tensor drawn(int seed, const Shape& shape, const std::string& device) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::normal_distribution<float> normal(0, 0.2f);
  std::vector<float> values(static_cast<size_t>(numel(shape)));
  for (float& v : values) v = normal(random);
  return Tensor::from(values, shape, device);
}

// The loss of a small network, and its gradients.
struct Network {
  std::vector<Tensor> weights;
  Tensor x;
  std::string device;

  explicit Network(const std::string& on, int layers = 6) : device(on) {
    x = drawn(0, {kRows, 32}, on);
    for (int i = 1; i <= layers; ++i) weights.push_back(drawn(i, {32, 32}, on).requires_grad_());
  }
  std::vector<Tensor> step() const { return step(x); }
  std::vector<Tensor> step(Tensor y) const {
    Arena::global().collect();  // nodes of earlier steps, which have values
    for (const Tensor& w : weights) y = y + layer_norm(y.matmul(w).gelu(), {32});
    const Tensor loss = (y * y).mean();
    std::vector<Tensor> out = Tensor::gradient(loss, weights);
    out.push_back(loss);
    return out;
  }
};

std::vector<float> numbers(std::vector<Tensor> tensors) {
  std::vector<Tensor*> all;
  for (Tensor& t : tensors) all.push_back(&t);
  Tensor::realize(all);
  std::vector<float> out;
  for (const Tensor& t : tensors) {
    const std::vector<float> own = t.to_vector<float>();
    out.insert(out.end(), own.begin(), own.end());
  }
  return out;
}

std::string limit_for(std::vector<Tensor> step, const std::string& device, double share) {
  std::vector<Tensor*> all;
  for (Tensor& t : step) all.push_back(&t);
  return test::little_memory(all, device, share);
}

}  // namespace

TEST_CASE("jobs of random graphs run again under a limit, in an order that computes the same") {
  std::mt19937 random(7);
  int lower = 0;
  for (int i = 0; i < 300; ++i) {
    const Graph g(random, 4 + i % 40);
    const int64_t before = peak_of_order(g.jobs, g.values, g.order);
    for (const double share : {0.9, 0.6, 0.3, 0.0}) {
      const auto limit = static_cast<int64_t>(static_cast<double>(before) * share);
      const auto turns =
          recompute_for_memory(g.jobs, g.values, g.order, {int64_t{1} << 40, 0.02, limit});
      CAPTURE(i);
      check_turns(g, turns);
      CHECK(peak_of_order(g.jobs, g.values, turns) <= before);
      lower += peak_of_order(g.jobs, g.values, turns) <= limit;
    }
  }
  CHECK(lower > 300);
}

TEST_CASE("a chain of jobs needs little more than the limit allows") {
  // Values 0 .. n-1, each made from the one before, then read from the last to the first.
  constexpr int kLength = 64;
  std::vector<Job> jobs;
  std::vector<JobValue> values(kLength, JobValue{100});
  std::vector<int> order;
  for (int i = 0; i < kLength; ++i) {
    Job j;
    if (i) j.reads = {i - 1};
    j.writes = {i};
    j.repeats = true;
    jobs.push_back(j);
  }
  for (int i = kLength; i-- > 0;) {
    Job j;
    j.reads = {i};
    jobs.push_back(j);
  }
  for (int j = 0; j < 2 * kLength; ++j) order.push_back(j);
  CHECK(peak_of_order(jobs, values, order) == 6400);
  for (const int64_t limit : {3200, 2000, 1600}) {
    const auto turns = recompute_for_memory(jobs, values, order, {int64_t{1} << 40, 0, limit});
    CAPTURE(limit);
    CHECK(peak_of_order(jobs, values, turns) <= limit);
    CHECK(turns.size() <= 4 * kLength);  // each value at most about twice more
  }
  CHECK(recompute_for_memory(jobs, values, order, {0, 1, -1}).size() == order.size());
}

TEST_CASE("a step under a limit gives the same bits, and takes no more memory") {
  for (const std::string& device : test_devices()) {
    CAPTURE(device);
    const Network network(device);
    const std::vector<float> wanted = numbers(network.step());
    const size_t kernels = scheduled(network.step(), device)->steps.size();
    for (const double share : {0.8, 0.6}) {
      CAPTURE(share);
      const EnvOverride limit("MEMORY_LIMIT", limit_for(network.step(), device, share));
      const auto s = scheduled(network.step(), device);
      CHECK(s->steps.size() > kernels);
      CHECK(bytes_held(find_device(device)) + s->memory.added.at(device_id(device)) <=
            memory_limit());
      CHECK(numbers(network.step()) == wanted);
    }
  }
}

TEST_CASE("a captured step under a limit replays the same bits") {
  const std::string device = test_devices().front();
  const auto train = [&] {
    Network network(device);
    std::vector<Tensor*> parameters;
    for (Tensor& w : network.weights) parameters.push_back(&w);
    SGD optimizer(parameters, 0.1);
    Jit step([&](const Tensor& x) {
      std::vector<Tensor> made = network.step(x);
      for (size_t i = 0; i < network.weights.size(); ++i) network.weights[i].set_grad(made[i]);
      optimizer.step({&made.back()});
      return made.back();
    });
    std::vector<float> losses;
    for (int i = 0; i < 5; ++i)
      losses.push_back(step(drawn(90 + i, {kRows, 32}, device)).item<float>());
    return losses;
  };
  const std::vector<float> wanted = train();
  std::string text;
  {
    const Network network(device);
    text = limit_for(network.step(), device, 0.75);
  }
  const EnvOverride limit("MEMORY_LIMIT", text);
  CHECK(train() == wanted);
}

TEST_CASE("a step that cannot keep to the limit names the largest values, and may be tried again") {
  const Network network("CPU");
  const std::vector<Tensor> step = network.step();
  std::string text;
  try {
    const EnvOverride limit("MEMORY_LIMIT", limit_for(step, "CPU", 0.1));
    numbers(step);
  } catch (const DeviceError& e) {
    text = e.what();
  }
  CAPTURE(text);
  CHECK(text.find("CPU: out of memory: ") == 0);
  CHECK(text.find("of MEMORY_LIMIT=") != text.npos);
  CHECK(text.find("the largest of ") != text.npos);
  CHECK(text.find("layer_norm") != text.npos);
  CHECK(text.find("buffers in use there") != text.npos);
  CHECK(numbers(step) == numbers(network.step()));
}

TEST_CASE("tensors beyond the limit are refused where they get memory") {
  const Tensor kept = drawn(1, {1024}, "CPU");
  const EnvOverride limit("MEMORY_LIMIT", std::to_string(bytes_held(find_device("CPU")) + 8192));
  const EnvOverride device("DEVICE", "CPU");
  CHECK_NOTHROW(Tensor::from(std::vector<float>(1024)));
  CHECK_THROWS_WITH_AS(Tensor::from(std::vector<float>(4096)),
                       doctest::Contains("do not fit into MEMORY_LIMIT="), DeviceError);
}

TEST_CASE("limits are read with their units") {
  const std::pair<const char*, int64_t> cases[] = {{"", 0},
                                                   {"1", 1},
                                                   {"4096", 4096},
                                                   {"1.5KB", 1500},
                                                   {"2MiB", 2 << 20},
                                                   {"10.5GB", 10'500'000'000},
                                                   {"3 GiB", int64_t{3} << 30},
                                                   {"1TB", 1'000'000'000'000}};
  for (const auto& [text, bytes] : cases) {
    const EnvOverride limit("MEMORY_LIMIT", text);
    CHECK(memory_limit() == bytes);
  }
  for (const char* text : {"much", "-1", "0", "1.5", "5XB", "5 GB more", "GB", "1e30GB", "nan"}) {
    CAPTURE(text);
    const EnvOverride limit("MEMORY_LIMIT", text);
    if (std::string(text) == "1.5") {
      CHECK(memory_limit() == 1);
      continue;
    }
    CHECK_THROWS_WITH_AS(memory_limit(), doctest::Contains(text), Error);
  }
}
