// A long run: shapes that change, exceptions in the middle, captures that come and go, a profile
// now and then. What the program holds after many steps is what it held after few.
#include <doctest/doctest.h>

#include <cmath>
#include <memory>

#include "test/devices.h"
#include "tiny/tiny.h"

using namespace tiny;

namespace {

constexpr int kPeriod = 70;  // steps after which everything has happened once

class Soak {
 public:
  explicit Soak(const std::string& device)
      : on_("DEVICE", device), optimizer_(network_.tensors(), 1e-3) {}

  void step(int i) {
    if (i % kPeriod == 0) profile_ = std::make_unique<Profile>();
    if (i % kPeriod == kPeriod / 2) profile_ = nullptr;
    const Tensor x = Tensor::rand({2 + i % 7, 4}), y = Tensor::randint(0, 3, {2 + i % 7});
    loss_ = train(x, y);
    if (i % 10 == 3) capture();
    if (i % 5 == 1) fail(x, i);
    CHECK(std::isfinite(loss_.item<float>()));
  }

  // Without what lives from one step to the next.
  MemoryReport report() {
    loss_ = Tensor();
    return memory_report(0);
  }

 private:
  Tensor train(const Tensor& x, const Tensor& y) {
    const nn::Training training;
    Tensor loss = cross_entropy(dropout(network_(x), 0.1), y);
    loss.backward();
    optimizer_.step({&loss});
    return loss;
  }

  // A Jit that is captured, replayed and dropped; in some of them the step throws.
  void capture() {
    bool throws = false;
    Jit jit([&](const Tensor& x) {
      const Tensor y = network_(x).softmax(1).contiguous();
      if (throws) throw Error("in the middle of a capture");
      return y * 2;
    });
    Tensor x = Tensor::rand({3, 4}).realize();
    for (int i = 0; i < 4; ++i) CHECK(jit(x).sum().item<float>() == doctest::Approx(6));
    jit.reset();
    jit(x);
    throws = true;
    CHECK_THROWS_AS(jit(x), Error);
  }

  // In the making of a graph, in running it, with gradients on their way.
  void fail(const Tensor& x, int i) {
    const Tensor hidden = (network_(x) * 2).exp();
    hidden.sum().backward();
    CHECK_THROWS_AS(hidden.reshape({-1, 1000}), Error);
    CHECK_THROWS_AS(Tensor(hidden + 1).to("NOWHERE").realize(), Error);
    CHECK_THROWS_AS((hidden + i % 2).sum().item<int64_t>(), Error);
    optimizer_.zero_grad();
  }

  EnvOverride on_;
  nn::Sequential network_{nn::Linear(4, 8), &Tensor::relu, nn::Linear(8, 3)};
  Adam optimizer_;
  std::unique_ptr<Profile> profile_;
  Tensor loss_;
};

bool are_flat(const MemoryReport& a, const MemoryReport& b) {
  CAPTURE(to_text(a));
  CAPTURE(to_text(b));
  bool flat = a.nodes == b.nodes && a.schedules == b.schedules && a.kernels == b.kernels &&
              a.captures == b.captures && a.recordings == b.recordings && a.events == b.events &&
              a.file_handles == b.file_handles && a.devices.size() == b.devices.size();
  for (size_t i = 0; flat && i < a.devices.size(); ++i)
    flat = a.devices[i].buffers == b.devices[i].buffers &&
           a.devices[i].live_bytes == b.devices[i].live_bytes &&
           a.devices[i].cached_bytes == b.devices[i].cached_bytes &&
           a.devices[i].peak_bytes == b.devices[i].peak_bytes;
  if (!flat) MESSAGE(to_text(a) << to_text(b));
  return flat;
}

}  // namespace

TEST_CASE("a long run holds no more than a short one") {
  for (const std::string& device : test_devices()) {
    CAPTURE(device);
    // On emulators one shape and few steps: each kernel takes a compiler long.
    const bool all = device == "CPU" || device == "CUDA";
    const int stride = all ? 1 : 7, periods = all ? 28 : 2;
    Soak soak(device);
    for (int i = 0; i < kPeriod; i += stride) soak.step(i);
    const MemoryReport early = soak.report();
    for (int i = kPeriod; i < periods * kPeriod + kPeriod; i += stride) soak.step(i);
    const MemoryReport late = soak.report();
    CHECK(are_flat(early, late));
  }
}

TEST_CASE("a profile keeps no tensor of the steps that it has seen") {
  const EnvOverride cpu("DEVICE", "CPU");
  const auto step = [] { (Tensor::rand({5, 3}).exp() * 2).sum().item<float>(); };
  step();
  const MemoryReport before = memory_report(0);
  const Profile profile;
  for (int i = 0; i < 10; ++i) step();
  const MemoryReport after = memory_report(0);
  CHECK(after.devices[0].buffers == before.devices[0].buffers);
  CHECK(after.nodes == before.nodes);
}

TEST_CASE("a run that keeps something is found out") {
  Soak soak("CPU");
  for (int i = 0; i < kPeriod; ++i) soak.step(i);
  const MemoryReport before = soak.report();
  CHECK(are_flat(before, soak.report()));
  const Tensor lazy = Tensor::rand({5}) + 1;
  CHECK(soak.report().nodes > before.nodes);
  Tensor kept = Tensor::rand({5}).realize();
  CHECK(soak.report().devices[0].buffers > before.devices[0].buffers);
  Jit jit([](const Tensor& x) { return x * 3; });
  for (int i = 0; i < 3; ++i) jit(kept);
  CHECK(soak.report().captures == before.captures + 1);
}
