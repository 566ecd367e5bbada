#include "tiny/run/profile.h"

#include <doctest/doctest.h>

#include <unistd.h>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/kernels/kernel.h"
#include "runtime/launch/profile.h"
#include "runtime/schedule/schedule.h"
#include "test/devices.h"
#include "tiny/nn/functional.h"
#include "tiny/nn/layers.h"
#include "tiny/run/jit.h"
#include "tiny/train/optim.h"

using namespace tiny;
using nlohmann::json;

namespace {

std::string trace_path() {
  return (std::filesystem::temp_directory_path() / ("tiny_profile_" + std::to_string(getpid())))
      .string();
}

json read_trace(const std::string& path) {
  std::ifstream in(path);
  json all = json::parse(in);
  in.close();
  std::filesystem::remove(path);
  return all.at("traceEvents");
}

size_t count(const json& events, const std::string& key, const std::string& value) {
  return static_cast<size_t>(std::count_if(events.begin(), events.end(), [&](const json& e) {
    return e.contains(key) && e.at(key) == value;
  }));
}

int64_t calls(const std::vector<KernelTime>& times) {
  int64_t out = 0;
  for (const KernelTime& k : times) out += k.calls;
  return out;
}

}  // namespace

TEST_CASE("a profile has the host's work, every kernel, transfers and memory") {
  const EnvOverride cpu("DEVICE", "CPU");
  clear_schedule_cache();
  clear_kernel_cache();
  const std::string path = trace_path();
  {
    const Profile profile(path);
    const Tensor x = Tensor::from(std::vector<float>(4096, 2.0f), {64, 64});
    CHECK((x.matmul(x).relu() + 1).sum().item<float>() == 64 * 64 * 257);
    CHECK(x.to("CPU:3").sum().item<float>() == 8192);
  }
  const json events = read_trace(path);
  for (const char* span :
       {"realize", "schedule", "lower", "compile", "load", "launch", "upload", "download"})
    CHECK_MESSAGE(count(events, "name", span) >= 1, span);
  CHECK(count(events, "cat", "kernel") >= 3);
  CHECK(count(events, "cat", "copy") == 1);
  CHECK(count(events, "ph", "C") >= 3);
  CHECK(count(events, "name", "memory of CPU:3") >= 1);
  for (const json& e : events) {
    if (e.at("ph") != "X") continue;
    CHECK(e.at("ts").get<double>() >= 0);
    CHECK(e.at("dur").get<double>() >= 0);
    if (e.at("cat") == "kernel") CHECK(e.at("args").at("bytes").get<double>() > 0);
  }
}

TEST_CASE("a profile says of copies between devices what they are for") {
  const EnvOverride cpu("DEVICE", "CPU");
  const std::vector<std::string> two{"CPU", "CPU:1"};
  const Tensor x = Tensor::rand({4, 8}).shard(two, 0).realize();
  for (const char* how : {"naive", "flags"}) {
    const EnvOverride collective("COLLECTIVE", how);
    const std::string path = trace_path();
    {
      const Profile profile(path);
      Tensor(x.sum(0) + 1).realize();
    }
    size_t sums = 0;
    for (const json& e : read_trace(path))
      sums += e.value("cat", "") == "copy" && e.at("args").at("operations") == "all_reduce";
    CHECK(sums == 2);
  }
}

TEST_CASE("a profile counts the kernels of plain steps and of replays alike") {
  for (const std::string& device : test_devices()) {
    CAPTURE(device);
    const EnvOverride on("DEVICE", device);
    const Tensor x = Tensor::from(std::vector<float>(64, 1.0f), {8, 8});
    Jit step([](const Tensor& in) { return in.matmul(in).contiguous().softmax(1); });
    for (int i = 0; i < 3; ++i) step(x);
    const auto kernels = static_cast<int64_t>(step.statistics().kernels);
    std::vector<KernelTime> plain, replayed;
    {
      const Profile profile;
      const EnvOverride off("JIT", "0");
      step(x);
      plain = kernel_times();
    }
    const auto replays = step.statistics().replays;
    {
      const Profile profile;
      step(x);
      step(x);
      replayed = kernel_times();
    }
    CHECK(step.statistics().replays == replays + 2);
    CHECK(calls(plain) == kernels);
    CHECK(calls(replayed) == 2 * kernels);
    const auto has = [&](const std::string& operations) {
      return std::any_of(replayed.begin(), replayed.end(), [&](const KernelTime& k) {
        return k.operations == operations && k.device == device && k.seconds > 0 && k.bytes > 0;
      });
    };
    CHECK(has("matmul, contiguous"));
    CHECK(has("softmax"));
    CHECK(calls(kernel_times()) == 2 * kernels);  // of the one that ended last
  }
}

TEST_CASE("the kernel report has a row for each kernel and the limit") {
  const EnvOverride cpu("DEVICE", "CPU");
  const Profile profile;
  const Tensor x = Tensor::from(std::vector<float>(4096, 2.0f), {64, 64});
  for (int i = 0; i < 3; ++i) x.softmax(1).to_vector<float>();
  const std::string report = kernel_report();
  CHECK(report.find("       3 ") != std::string::npos);
  CHECK(report.find(" 100.0 % ") != std::string::npos);
  CHECK(report.find("_softmax_64x64 (softmax)\n") != std::string::npos);
  CHECK(report.find("CPU: a copy reaches ") != std::string::npos);
  CHECK(calls(kernel_times()) == 3);  // measuring the limit is not in the profile
}

TEST_CASE("nothing is recorded without a profile, and one lives at a time") {
  { const Profile none; }
  const Tensor x = Tensor::from(std::vector<float>(16, 2.0f));
  (x * 3.5f).to_vector<float>();
  CHECK(kernel_times().empty());
  CHECK_FALSE(profiling());
  const Profile one;
  CHECK_THROWS_WITH_AS(Profile(), doctest::Contains("another one lives"), Error);
}

TEST_CASE("a trace that cannot be written harms nothing") {
  const Tensor x = Tensor::from(std::vector<float>(16, 2.0f));
  {
    const Profile profile("/nowhere/at/all.json");
    (x * 3.5f).to_vector<float>();
  }
  CHECK((x * 3.5f).to_vector<float>()[0] == 7.0f);
}

// A training step's forward, gradient and update kernels know which calls they come from.
TEST_CASE("the user's operations survive fusion, gradients and capture") {
  const EnvOverride cpu("DEVICE", "CPU");
  const nn::Training training;
  nn::Sequential network(
      nn::Conv2d(1, 4, 3), &Tensor::relu, nn::BatchNorm2d(4),
      [](const Tensor& x) { return max_pool2d(x, 2).flatten(1); }, nn::Linear(4 * 5 * 5, 10));
  Adam optimizer(network.tensors());
  Jit step([&](const Tensor& x, const Tensor& y) {
    Tensor loss = cross_entropy(network(x), y);
    loss.backward();
    optimizer.step({&loss});
    return loss;
  });
  const Tensor x = Tensor::rand({8, 1, 12, 12}).realize();
  const Tensor y = Tensor::randint(0, 10, {8}).realize();
  const auto names_in = [&](const char* jit) {
    const EnvOverride mode("JIT", jit);
    for (int i = 0; i < 2; ++i) step(x, y);
    const Profile profile;
    step(x, y);
    std::set<std::string> names;
    for (const KernelTime& k : kernel_times()) {
      CHECK_MESSAGE(!k.operations.empty(), k.name);
      size_t at = 0;
      for (size_t end; at < k.operations.size(); at = end + 2) {
        end = std::min(k.operations.find(", ", at), k.operations.size());
        names.insert(k.operations.substr(at, end - at));
        if (end == k.operations.size()) break;
      }
    }
    return names;
  };
  const std::set<std::string> plain = names_in("0"), replayed = names_in("1");
  for (const char* name : {"conv2d", "relu", "batch_norm", "max_pool2d", "linear", "cross_entropy",
                           "conv2d_grad", "relu_grad", "batch_norm_grad", "max_pool2d_grad",
                           "linear_grad", "cross_entropy_grad", "step"}) {
    CHECK_MESSAGE(plain.count(name), name);
    CHECK_MESSAGE(replayed.count(name), name);
  }
  std::string others;  // names that no call has: nodes without a label
  for (const std::string& name : plain)
    if (name == "add" || name == "mul" || name == "reduceaxis" || name == "cast") others += name;
  CHECK(others == "");
}
