// Work of several processes: this program again, with the numbers of the ranks in its environment,
// runs one of the test cases that do nothing otherwise.
#include "tiny/run/ranks.h"

#include <dlfcn.h>
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

#include "runtime/device/device.h"
#include "runtime/distributed/messages.h"
#include "test/fake/hip.h"
#include "test/unit/child.h"
#include "test/unit/rank_runs.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/nn/functional.h"
#include "tiny/nn/layers.h"
#include "tiny/run/devices.h"
#include "tiny/run/jit.h"
#include "tiny/tensor/random.h"
#include "tiny/train/optim.h"
#include "tiny/train/state_dict.h"

using namespace tiny;
using namespace tiny::test;

namespace {

std::string file_of(const char* name) {
  return std::filesystem::temp_directory_path() / cat("tiny_ranks_", ::getpid(), name);
}

Tensor numbers(const Shape& shape, float scale) {
  std::vector<float> v(static_cast<size_t>(numel(shape)));
  for (size_t i = 0; i < v.size(); ++i) v[i] = scale * std::sin(1.7f * static_cast<float>(i));
  return Tensor::from(v, shape);
}

// Steps of a small network on batches cut over the ranks, from the checkpoint where there is one.
// `at_step`: called before each. With `halves` batch norm has statistics of each half of the batch.
template <class F>
void train(const std::string& checkpoint, int64_t steps, F at_step, bool halves = false) {
  const nn::Training training;
  manual_seed(5);
  nn::BatchNorm2d norm(16);
  norm.groups = 2;
  const auto between = [&](const Tensor& x) { return halves ? norm(x) : x; };
  nn::Sequential network(nn::Linear(12, 16), between, &Tensor::relu, nn::Linear(16, 4));
  std::vector<Tensor*> tensors = network.tensors();
  if (halves)
    for (Tensor* t : norm.tensors()) tensors.push_back(t);
  for (Tensor* t : tensors) t->shard_(rank_devices());
  Adam optimizer(tensors, 1e-2);
  StateDict state = network.state_dict("network.");
  for (const NamedTensor& t : optimizer.state_dict("optimizer.")) state.push_back(t);
  int64_t begin = 0;
  if (!checkpoint.empty() && std::filesystem::exists(checkpoint))
    begin = std::stoll(load(checkpoint, state).at("step"));
  Jit step([&](const Tensor& x, const Tensor& label) {
    Tensor loss = cross_entropy(network(x), label);
    loss.backward();
    optimizer.step({&loss});
    return loss;
  });
  for (int64_t i = begin; i < steps; ++i) {
    at_step(i);
    const Tensor x = numbers({10, 12}, 1 + 0.2f * static_cast<float>(i)).shard(rank_devices(), 0);
    const Tensor label = mod(Tensor::arange(10) * 3, 4).realize().shard(rank_devices(), 0);
    const Tensor loss = step(x, label);
    char text[64];
    std::snprintf(text, sizeof text, "%lld %.5f", static_cast<long long>(i), loss.item<float>());
    tell(text);
    if (!checkpoint.empty()) save(checkpoint, state, {{"step", std::to_string(i + 1)}});
  }
}

// A GPU for each rank: libraries that stand in for AMD's (test/fake/hip.h), of which RCCL adds up
// between processes, by files in a folder. test_hip.cpp sets them up in each process.
const char* const kStandIn = TINY_BUILD "/libfake_hip.so";

class FakeGpus {
 public:
  explicit FakeGpus(const char* name) : folder_(file_of(name)) {
    std::filesystem::create_directory(folder_);
  }
  ~FakeGpus() { std::filesystem::remove_all(folder_); }
  std::string settings(const std::string& more = "") const {
    return cat("DEVICE=HIP CACHE=0 HIP_LIBRARY=", kStandIn, " HIPRTC_LIBRARY=", kStandIn,
               " RCCL_LIBRARY=", kStandIn, " TMPDIR='", folder_, "' ", more);
  }

 private:
  const std::string folder_;
};

// Calls of the stand-in that begin so, in this process.
int64_t fake_calls(const std::string& begin) {
  void* library = dlopen(kStandIn, RTLD_NOW | RTLD_LOCAL);
  const auto& calls = reinterpret_cast<test::FakeHip* (*)()>(dlsym(library, "fake_hip"))()->calls;
  return std::count_if(calls.begin(), calls.end(),
                       [&](const std::string& c) { return c.starts_with(begin); });
}

std::string lines(const std::string& text, int from, int to) {
  std::string out;
  size_t at = 0;
  for (int i = 0; i < to && at < text.size(); ++i) {
    const size_t end = text.find('\n', at) + 1;
    if (i >= from) out += text.substr(at, end - at);
    at = end;
  }
  return out;
}

bool has(const std::string& text, const char* part) { return text.find(part) != text.npos; }

}  // namespace

TEST_CASE("worker of ranks: trains") {
  if (!is_child()) return;
  train(env_text("MNIST_DIR"), 6, [](int64_t) {});
}

TEST_CASE("worker of ranks: trains with statistics of each half") {
  if (!is_child()) return;
  train(
      "", 4, [](int64_t) {}, true);
}

// Over the ranks, or as many devices of one process as SHARDS says.
TEST_CASE("worker of ranks: trains fully sharded") {
  if (!is_child()) return;
  const nn::Training training;
  const char* const shards = std::getenv("SHARDS");
  const auto devices = shards ? devices_from("CPU", std::atoi(shards)) : rank_devices();
  manual_seed(5);
  nn::Sequential network(nn::Linear(32, 128), &Tensor::relu, nn::Linear(128, 128), &Tensor::relu,
                         nn::Linear(128, 128), &Tensor::relu, nn::Linear(128, 8));
  fully_shard(network, devices, {.least = 512});
  AdamW optimizer(network.tensors(), 1e-2);
  Jit step([&](const Tensor& x, const Tensor& label) {
    Tensor loss = cross_entropy(network(x), label);
    loss.backward();
    optimizer.step({&loss});
    return loss;
  });
  for (int i = 0; i < 6; ++i) {
    const Tensor x = numbers({8, 32}, 1 + 0.2f * static_cast<float>(i)).shard(devices, 0);
    const Tensor label = mod(Tensor::arange(8) * 3, 8).realize().shard(devices, 0);
    char text[64];
    std::snprintf(text, sizeof text, "%d %.9g", i, step(x, label).item<float>());
    tell(text);
  }
}

TEST_CASE("worker of ranks: the last one dies") {
  if (!is_child()) return;
  try {
    train(env_text("MNIST_DIR"), 6, [](int64_t step) {
      if (step == 3 && rank() == rank_count() - 1) ::_exit(9);
    });
  } catch (const Error& e) {
    tell(e.what());
  }
}

// It comes when the others have given it up, as a file says.
TEST_CASE("worker of ranks: the last one is late") {
  if (!is_child()) return;
  const std::string given_up = env_text("MNIST_DIR");
  std::optional<EnvOverride> limit;
  try {
    train("", 4, [&](int64_t step) {
      if (step != 2) return;
      if (rank() == rank_count() - 1) {
        while (!std::filesystem::exists(given_up)) ::usleep(10000);
        ::_exit(0);
      }
      find_device(env_text("DEVICE")).synchronize();  // of the steps before nothing is awaited
      limit.emplace("COLLECTIVE_TIMEOUT", "1");
    });
  } catch (const std::exception& e) {
    tell(e.what());
  }
  if (rank() == 0) std::ofstream(given_up) << "yes";
}

TEST_CASE("worker of ranks: tells its number") {
  if (!is_child()) return;
  try {
    const int own = rank(), count = rank_count();
    tell(cat("rank ", own, " of ", count));
    send_message(1 - own, &own, sizeof own, "a number");
    int other = -1;
    receive_message(1 - own, &other, sizeof other, "a number");
    tell(cat("heard ", other));
  } catch (const Error& e) {
    tell(e.what());
  }
}

TEST_CASE("worker of ranks: announces more than there is") {
  if (!is_child()) return;
  try {
    const uint64_t size = uint64_t{1} << 62;
    if (rank() == 0) send_message(1, &size, sizeof size, "the length of a plan");
    if (rank() == 1) agree_on("one step");
  } catch (const Error& e) {
    tell(e.what());
  }
}

TEST_CASE("worker of ranks: plans that differ") {
  if (!is_child()) return;
  try {
    const Tensor x = numbers({4, 6}, 1).shard(rank_devices(), 0).realize();
    (rank() == 0 ? x.exp().sum(1) : x.sin().sum(1)).realize();
  } catch (const Error& e) {
    tell(e.what());
  }
}

TEST_CASE("worker of ranks: one reads alone") {
  if (!is_child()) return;
  try {
    const Tensor x = numbers({4, 6}, 1).shard(rank_devices(), 0).realize();
    if (rank() == 0) x.sum().to_vector<float>();
    if (rank() == 1) x.sum(0).to_vector<float>();
  } catch (const Error& e) {
    tell(e.what());
  }
}

TEST_CASE("worker of ranks: adds up") {
  if (!is_child()) return;
  try {
    Tensor x = numbers({6, 5}, 1).shard(rank_devices(), 0).realize();
    const int64_t before = fake_calls("hipMemcpyPeer");
    for (int i = 0; i < 3; ++i) x = (x + x.sum(0) / 4).realize();
    tell(cat(fake_calls("ncclCommInitRank"), " groups, ", fake_calls("ncclAllReduce"), " sums, ",
             fake_calls("hipMemcpyPeer") - before, " copies"));
    tell(cat("sum ", std::lround(x.sum().item<float>() * 1000)));
    // On one alone: the others are not given it.
    const Tensor one = x.sum(0).to(rank_devices()[1]).max().to(env_text("DEVICE"));
    tell(cat("one ", std::lround(one.item<float>() * 1000), ", ", fake_calls("ncclReduce")));
  } catch (const Error& e) {
    tell(e.what());
  }
}

TEST_CASE("several processes train as one does") {
  const auto one = run_ranks(1, "worker of ranks: trains", "");
  CHECK(one[0].status == 0);
  CHECK(has(one[0].said, "\n5 "));
  for (const int count : {2, 3})
    for (const Ended& e : run_ranks(count, "worker of ranks: trains", "")) {
      CHECK(e.status == 0);
      CHECK(e.said == one[0].said);
    }
}

TEST_CASE("several processes train fully sharded, to the bits of as many devices of one process") {
  const char* const worker = "worker of ranks: trains fully sharded";
  for (const int count : {2, 4, 8}) {
    const Ended one = run_ranks(1, worker, cat("SHARDS=", count))[0];
    CHECK(has(one.said, "\n5 "));
    for (const Ended& e : run_ranks(count, worker, "")) {
      CHECK(e.status == 0);
      CHECK(e.said == one.said);
    }
  }
}

TEST_CASE("several processes with statistics of their own train as one with groups does") {
  const char* const worker = "worker of ranks: trains with statistics of each half";
  const auto one = run_ranks(1, worker, "");
  CHECK(has(one[0].said, "\n3 "));
  for (const Ended& e : run_ranks(2, worker, "")) {
    CHECK(e.status == 0);
    CHECK(e.said == one[0].said);
  }
}

// What is measured, and what is known, is the same on all: also where one alone has lost its cache.
TEST_CASE("several processes agree on the fastest ways of their collectives") {
  const std::string folder = file_of("ways");
  const std::string settings = "COLLECTIVE_BEAM=2 CACHE_DIR='" + folder + "@'";
  for (int run = 0; run < 2; ++run) {
    const auto out = run_ranks(2, "worker of ranks: trains", settings);
    for (const Ended& e : out) {
      CHECK(e.status == 0);
      CHECK(has(e.said, "\n5 "));
      CHECK(e.said == out[0].said);
    }
    // The second run knows what the first one measured, on rank 0.
    CHECK(has(out[0].output, "\nall_reduce of ") == (run == 0));
    std::filesystem::remove_all(folder + "1");
  }
  std::filesystem::remove_all(folder + "0");
}

TEST_CASE("a run goes on from its last checkpoint on another number of processes") {
  const auto whole = run_ranks(1, "worker of ranks: trains", "");
  const std::string file = file_of("dies"), setting = "MNIST_DIR='" + file + "'";
  const auto broken = run_ranks(2, "worker of ranks: the last one dies", setting);
  CHECK(lines(broken[0].said, 0, 3) == lines(whole[0].said, 0, 3));
  CHECK(has(broken[0].said, "rank 0: rank 1 has ended"));
  CHECK(broken[1].said == lines(whole[0].said, 0, 3));
  CHECK(broken[1].status != 0);
  const auto rest = run_ranks(3, "worker of ranks: trains", setting);
  for (const Ended& e : rest) CHECK(e.said == lines(whole[0].said, 3, 6));
  std::filesystem::remove(file);
}

TEST_CASE("a process that is late is named by those that wait for it") {
  const std::string file = file_of("given_up");
  const auto out =
      run_ranks(2, "worker of ranks: the last one is late", "MNIST_DIR='" + file + "'");
  CHECK(has(out[0].said, "rank 0: rank 1 sends nothing for 1 s (COLLECTIVE_TIMEOUT), at "));
  std::filesystem::remove(file);
}

TEST_CASE("processes meet by the secret that they are given, and not with another one") {
  const char* const worker = "worker of ranks: tells its number";
  for (const Ended& e : run_ranks(2, worker, "TINY_SECRET=given")) CHECK(has(e.said, "heard "));
  const auto others = run_ranks(2, worker, "TINY_SECRET=given@ COLLECTIVE_TIMEOUT=2");
  CHECK(has(others[0].said, "rank 0: 1 of 2 ranks are there after 2 s"));
  CHECK(has(others[1].said, "rank 1: no connection to rank 0"));
  CHECK(has(others[0].said, "TINY_SECRET"));
}

TEST_CASE("processes of one machine find their secret in a folder of their user alone") {
  const std::string runtime = file_of("runtime"), folder = runtime + "/tiny";
  const auto limited = std::filesystem::perms::owner_all;
  std::filesystem::create_directory(runtime);
  std::filesystem::permissions(runtime, limited);
  const char* const worker = "worker of ranks: tells its number";
  const std::string setting = "XDG_RUNTIME_DIR='" + runtime + "'";
  for (const Ended& e : run_ranks(2, worker, setting)) CHECK(has(e.said, "heard "));
  CHECK(std::filesystem::status(folder).permissions() == limited);
  CHECK(std::filesystem::is_empty(folder));  // it goes when all have met
  std::filesystem::permissions(folder, limited | std::filesystem::perms::group_all);
  for (const Ended& e : run_ranks(2, worker, setting))
    CHECK(has(e.said, "is no folder of this user alone (mode 700)"));
  std::filesystem::remove_all(runtime);
}

TEST_CASE("processes on several machines need a secret that they are given") {
  // An address of documentation (RFC 5737), which no machine has.
  const auto out =
      run_rank(1, 2, next_port(), "worker of ranks: tells its number", "MASTER_ADDR=192.0.2.1");
  CHECK(has(out.said, "MASTER_ADDR=192.0.2.1 is another machine: set TINY_SECRET"));
  const auto first = run_rank(0, 2, next_port(), "worker of ranks: tells its number",
                              "MASTER_ADDR=192.0.2.1 TINY_SECRET=given");
  CHECK(has(first.said, "MASTER_ADDR is an address of the machine with RANK 0"));
}

TEST_CASE("lengths that a rank announces are not trusted") {
  const auto out = run_ranks(2, "worker of ranks: announces more than there is", "");
  CHECK(has(out[1].said, "rank 1: rank 0 announces 4611686018427387904 bytes of a plan"));
}

TEST_CASE("numbers of processes and ports that cannot be are errors that say them") {
  const std::pair<const char*, const char*> wrong[] = {
      {"RANK=-5", "RANK=-5: expected a number from 0 to 1"},
      {"RANK=2", "RANK=2: expected a number from 0 to 1, of 2 processes (WORLD_SIZE)"},
      {"RANK=4294967296", "RANK=4294967296: "},
      {"RANK=", "WORLD_SIZE=2: each process needs its number from 0 to 1 in RANK"},
      {"RANK= PMI_RANK=-1", "PMI_RANK=-1: expected a number from 0 to 1"},
      {"RANK= PMI_RANK=x", "PMI_RANK=x: expected a number"},
      {"WORLD_SIZE=0", "WORLD_SIZE=0: expected a number from 1 to "},
      {"WORLD_SIZE=-2", "WORLD_SIZE=-2: expected a number from 1 to "},
      {"LOCAL_RANK=2", "LOCAL_RANK=2: expected a number from 0 to 1"},
      {"LOCAL_RANK=-3", "LOCAL_RANK=-3: expected a number from 0 to 1"},
      {"MASTER_PORT=70000", "MASTER_PORT=70000: it is a port between 1 and 65534"},
      {"MASTER_PORT=0", "MASTER_PORT=0: it is a port between 1 and 65534"},
      {"MASTER_PORT=-1", "MASTER_PORT=-1: it is a port between 1 and 65534"}};
  for (const auto& [setting, text] : wrong) {
    const Ended e = run_rank(1, 2, next_port(), "worker of ranks: tells its number", setting);
    CHECK_MESSAGE(has(e.said, text), setting, ": ", e.said);
  }
}

TEST_CASE("GPUs of several processes add up by their library") {
  const FakeGpus gpus("adds");
  const auto naive = run_ranks(2, "worker of ranks: adds up", gpus.settings("COLLECTIVE=naive"));
  CHECK(has(naive[0].said, "0 groups, 0 sums"));
  CHECK(has(naive[0].said, "\none "));
  for (const int count : {2, 3}) {
    const auto out = run_ranks(count, "worker of ranks: adds up", gpus.settings());
    for (const Ended& e : out) {
      CHECK(e.status == 0);
      CHECK(lines(e.said, 0, 1) == "1 groups, 3 sums, 0 copies\n");
      CHECK(lines(e.said, 1, 3) == lines(naive[0].said, 1, 3));
    }
  }
}

TEST_CASE("GPUs of several processes train as one does") {
  const FakeGpus gpus("trains");
  const auto one = run_ranks(1, "worker of ranks: trains", "");
  for (const Ended& e : run_ranks(2, "worker of ranks: trains", gpus.settings())) {
    CHECK(e.status == 0);
    CHECK(e.said == one[0].said);
  }
}

TEST_CASE("GPUs that wait for a process that has ended stop, and name it") {
  const FakeGpus gpus("ends");
  const auto out = run_ranks(2, "worker of ranks: the last one dies", gpus.settings());
  CHECK(has(out[0].said, "rank 0: rank 1 has ended before sum "));
  CHECK(has(out[0].said, ", all_reduce"));
  CHECK(has(out[0].said, "of f32["));
  CHECK(out[1].status != 0);
}

TEST_CASE("GPUs that wait for a process that is late stop, and name it") {
  const FakeGpus gpus("late");
  const std::string file = file_of("gpu_given_up");
  const auto out = run_ranks(2, "worker of ranks: the last one is late",
                             gpus.settings("MNIST_DIR='" + file + "'"));
  std::filesystem::remove(file);
  CHECK(has(out[0].said, "rank 0: rank 1 has not come to sum "));
  CHECK(has(out[0].said, "in 1 s (COLLECTIVE_TIMEOUT); it is behind sum "));
}

TEST_CASE("processes with other plans stop before the first launch") {
  const auto out = run_ranks(2, "worker of ranks: plans that differ", "");
  for (const Ended& e : out) {
    CHECK(has(e.said, "the ranks plan different work: step "));
    CHECK(has(e.said, "_exp_"));
    CHECK(has(e.said, "_sin_"));
  }
  // Where plans of one kind differ by chance only, the messages do.
  const auto alone = run_ranks(2, "worker of ranks: one reads alone", "");
  CHECK(has(alone[0].said + alone[1].said, "different work"));
}

TEST_CASE("one process is rank 0 of 1, with the default device") {
  const EnvOverride device("DEVICE", "CPU");
  CHECK(rank() == 0);
  CHECK(rank_count() == 1);
  CHECK(rank_devices() == std::vector<std::string>{"CPU"});
}

TEST_CASE("patience is at least a second, and a number however long") {
  const auto of = [](const char* text) {
    const EnvOverride limit("COLLECTIVE_TIMEOUT", text);
    return rank_patience();
  };
  CHECK(of("-5") == std::chrono::seconds(1));
  CHECK(of("60") == std::chrono::seconds(60));
  CHECK(of("9223372036854775807") > std::chrono::hours(24 * 365));
  CHECK(std::chrono::steady_clock::now() + of("9223372036854775807") >
        std::chrono::steady_clock::now());
}
