// extra/launch, and runs under it of which a process is killed. This program is also what it
// starts: a test case that does nothing otherwise.
#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <thread>

#include "test/temporary_folder.h"
#include "test/unit/child.h"
#include "tiny/base/env.h"
#include "tiny/base/file.h"
#include "tiny/nn/layers.h"
#include "tiny/run/ranks.h"
#include "tiny/tensor/random.h"
#include "tiny/train/optim.h"
#include "tiny/train/state_dict.h"

using namespace tiny;
using namespace tiny::test;

namespace {

struct Launched {
  int status = 0;
  std::string output;
};

Launched launch(const std::string& arguments, const std::string& settings = "") {
  const std::string command = cat(settings, " " TINY_ROOT "/extra/launch ", arguments, " 2>&1");
  Launched out;
  FILE* pipe = ::popen(command.c_str(), "r");
  if (!pipe) return {-1, "popen"};
  char part[4096];
  for (size_t n; (n = std::fread(part, 1, sizeof part, pipe)) > 0;) out.output.append(part, n);
  const int status = ::pclose(pipe);
  out.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return out;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string text_of(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

int64_t now_us() {
  using namespace std::chrono;
  return duration_cast<microseconds>(system_clock::now().time_since_epoch()).count();
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

// Ends this process by a signal once so much time has passed, in the first attempt alone.
void die_after(const std::string& folder, int64_t us) {
  const std::string mark = folder + "/killed";
  if (std::filesystem::exists(mark)) return;
  std::thread([=] {
    std::this_thread::sleep_for(std::chrono::microseconds(us));
    std::ofstream(mark) << now_us() << std::flush;
    ::kill(::getpid(), SIGKILL);
  }).detach();
}

}  // namespace

TEST_CASE("worker of launch: trains from its checkpoint") {
  if (!is_child()) return;
  const std::string folder = variable("RUN_FOLDER"), file = folder + "/run.safetensors";
  const nn::Training training;
  manual_seed(7);
  nn::Sequential network(nn::Linear(16, 64), &Tensor::relu, nn::Linear(64, 4));
  fully_shard(network, rank_devices(), {.least = 128});
  AdamW optimizer(network.tensors(), 1e-2);
  StateDict state = network.state_dict("network.");
  for (const NamedTensor& t : optimizer.state_dict("optimizer.")) state.push_back(t);
  const int64_t begin =
      std::filesystem::exists(file) ? std::stoll(load(file, state).at("step")) : 0;
  try {
    for (int64_t i = begin; i < 40; ++i) {
      manual_seed(static_cast<uint64_t>(100 + i));
      const Tensor x = Tensor::randn({8, 16}).realize().shard(rank_devices(), 0);
      const Tensor label = Tensor::randint(0, 4, {8}).realize().shard(rank_devices(), 0);
      Tensor loss = cross_entropy(network(x), label);
      loss.backward();
      optimizer.step({&loss});
      char text[64];
      std::snprintf(text, sizeof text, "%lld %.9g", static_cast<long long>(i), loss.item<float>());
      if (rank() == 0) tell(text);
      if (i == 0 && std::to_string(rank()) == variable("KILL_RANK"))
        die_after(folder, std::stoll(variable("KILL_AFTER_US")));
      save(file, state, {{"step", std::to_string(i + 1)}});
    }
  } catch (const Error& e) {
    const std::string mark = text_of(folder + "/killed");
    const int64_t after = mark.empty() ? -1 : now_us() - std::stoll(mark);
    std::printf("saw %lld us after: %s\n", static_cast<long long>(after), e.what());
    std::fflush(stdout);
    ::_exit(1);
  }
}

TEST_CASE("launch gives each process its number, a secret and a file of its output") {
  const TemporaryFolder folder("launch");
  const Launched run =
      launch("-n 3 --logs '" + folder.path() +
             "' sh -c 'echo $RANK of $WORLD_SIZE, $LOCAL_RANK at $MASTER_ADDR, ${#TINY_SECRET}'");
  CHECK(run.status == 0);
  CHECK(has(run.output, "0 of 3, 0 at 127.0.0.1, 64\n"));
  CHECK(has(run.output, "[2] 2 of 3, 2 at 127.0.0.1, 64\n"));
  CHECK(text_of(folder.file("rank-1.log")) == "1 of 3, 1 at 127.0.0.1, 64\n");
}

TEST_CASE("launch tells the error that came first, and ends all processes") {
  const Launched run = launch(
      "-n 3 --grace 0.2 sh -c 'if [ $RANK = 2 ]; then echo the cause; exit 7; fi; sleep 1000'");
  CHECK(run.status == 7);
  const size_t first = run.output.find("launch: rank 2 failed first, with status 7\n  | the cause");
  CHECK(first != std::string::npos);
  CHECK(run.output.find("launch: rank 0: had to be ended") > first);
  CHECK(launch("-n 2 --grace 0 sh -c 'kill -9 $$'").status == 137);
  CHECK(has(launch("-n 2 /no/such/program").output, "launch: /no/such/program: No such file"));
  CHECK(has(launch("-n 0 true").output, "-n 0: expected 1 or more"));
}

TEST_CASE("launch deals ranks to hosts, whose processes end with it") {
  const TemporaryFolder folder("launch_hosts");
  const std::string shell = folder.file("shell");
  std::ofstream(shell) << "#!/bin/sh\nshift\nexec \"$@\"\n";
  std::filesystem::permissions(shell, std::filesystem::perms::owner_all);
  const std::string hosts = cat("-n 3 --hosts a,b --grace 0.2 --ssh '", shell, "' sh -c '");
  const Launched run = launch(hosts + "echo $RANK $LOCAL_RANK $MASTER_ADDR ${#TINY_SECRET}'");
  CHECK(run.status == 0);
  CHECK(has(run.output, "[1] 1 1 a 64\n"));
  CHECK(has(run.output, "[2] 2 0 a 64\n"));
  const std::string mark = folder.file("ended");
  const Launched failed =
      launch(hosts + "if [ $RANK = 1 ]; then sleep 0.5; exit 5; fi; trap \"echo yes > " + mark +
             "; exit 0\" TERM; while true; do sleep 0.1; done'");
  CHECK(failed.status == 5);
  for (int i = 0; i < 100 && !std::filesystem::exists(mark); ++i) ::usleep(50000);
  CHECK(std::filesystem::exists(mark));
}

TEST_CASE("launch begins again where it is asked to") {
  const TemporaryFolder folder("launch_again");
  const std::string count = folder.file("count");
  const std::string program = cat("sh -c 'if [ $RANK = 1 ]; then echo x >> ", count,
                                  "; [ $(wc -l < ", count, ") -ge 3 ] || exit 4; fi'");
  const Launched run = launch("-n 2 --grace 0.2 --restarts 3 " + program);
  CHECK(run.status == 0);
  CHECK(has(run.output, "launch: begins again, 2 of 3"));
  CHECK(!has(run.output, "launch: begins again, 3 of 3"));
  std::filesystem::remove(count);
  CHECK(launch("-n 2 --grace 0.2 --restarts 1 " + program).status == 4);
}

// RANK_KILLS: how many moments, 3 where it is not set.
TEST_CASE("a run of which a process is killed at any moment ends as one that was not") {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const std::string program =
      cat("--restarts 1 '", self, "' -tc='worker of launch: trains from its checkpoint'");
  const std::string settings =
      "IS_WORKER=1 DEVICE=CPU THREADS=1 COLLECTIVE_TIMEOUT=300 RUN_FOLDER=";
  std::map<std::string, std::string> losses;  // by step
  const auto learn = [&](const std::string& output, bool is_reference) {
    std::istringstream lines(output);
    int known = 0;
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("told: ")) continue;
      const size_t space = line.find(' ', 6);
      const std::string step = line.substr(6, space - 6), loss = line.substr(space + 1);
      if (is_reference) losses[step] = loss;
      CHECK(losses[step] == loss);
      known += step == "39";
    }
    CHECK(known >= 1);  // twice where it was killed before that step was saved
  };
  constexpr int kRanks = 8;
  int64_t length = 0;
  for (int i = 0; i < 2; ++i) {  // the first one compiles
    const TemporaryFolder folder("launch_kill");
    const int64_t begin = now_us();
    const Launched whole = launch(cat("-n ", kRanks, " ", program), settings + folder.path());
    length = now_us() - begin;
    CHECK(whole.status == 0);
    learn(whole.output, true);
    CHECK(losses.size() == 40);
  }
  const std::string wanted = variable("RANK_KILLS");
  const int kills = wanted.empty() ? 3 : std::stoi(wanted);
  std::mt19937 random(17);
  int64_t latest = 0;
  int seen = 0;
  for (int i = 0; i < kills; ++i) {
    const TemporaryFolder folder("launch_kill");
    const int victim = static_cast<int>(random() % kRanks);
    const auto moment = static_cast<int64_t>(random() % static_cast<uint64_t>(length / 2));
    const Launched run =
        launch(cat("-n ", kRanks, " ", program),
               cat("KILL_RANK=", victim, " KILL_AFTER_US=", moment, " ", settings, folder.path()));
    CHECK(run.status == 0);
    learn(run.output, false);
    if (!has(run.output, "begins again")) continue;  // it was over before
    CHECK(has(run.output, cat("rank ", victim, " failed first, with signal 9")));
    std::istringstream lines(run.output);
    int told = 0;
    for (std::string line; std::getline(lines, line);) {
      const size_t at = line.find("saw ");
      if (at == std::string::npos || line.find("  | ") == 0 || line.starts_with("launch:"))
        continue;
      ++told;
      latest = std::max<int64_t>(latest, std::stoll(line.substr(at + 4)));
      CHECK_MESSAGE(has(line, cat("rank ", victim, " has ended")), line);
    }
    CHECK(told == kRanks - 1);
    ++seen;
  }
  MESSAGE(seen, " of ", kills, " kills during the run; the last error ", latest, " us after");
  CHECK(latest < 5000000);
}
