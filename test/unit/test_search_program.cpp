// BEAM=n in a running program: results stay what they are, the budget and a second run's silence.
#include "runtime/search/program.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <thread>

#include "runtime/kernels/choice_cache.h"
#include "runtime/realize/realize.h"
#include "runtime/search/bench.h"
#include "test/fuzz/random_graph.h"
#include "tiny/base/worker_process.h"
#include "tiny/run/jit.h"
#include "tiny/tiny.h"

namespace tiny {
namespace {

// Searches with an empty cache, forgotten afterwards. `step`: seconds of the budget that each look
// at its clock takes.
struct Beam {
  Beam(const char* width, const char* budget, const char* async = "0", double step = 1e-3)
      : path(std::filesystem::temp_directory_path() / cat("tiny-beam-", getpid())),
        cache("CACHE_DIR", path.string()),
        beam("BEAM", width),
        seconds("BEAM_BUDGET", budget),
        beside("BEAM_ASYNC", async),
        counted(step) {
    forget();
  }
  ~Beam() {
    forget();
    std::filesystem::remove_all(path);
  }
  static void forget() {  // as a new program does
    reset_searches();
    clear_kernel_cache();
    clear_schedule_cache();
  }
  std::filesystem::path path;
  EnvOverride cache, beam, seconds, beside;
  CountedBudgets counted;
};

std::vector<float> product_of(const Tensor& a, const Tensor& b) {
  return (a.matmul(b) + 1.0).relu().to_vector<float>();
}

TEST_CASE("a program that searches computes what it does without, and again spends nothing") {
  const Tensor a = Tensor::rand({48, 80}).realize(), b = Tensor::rand({80, 64}).realize();
  const std::vector<float> expected = product_of(a, b);
  const Beam beam("2", "12");
  for (int i = 0; i < 3; ++i) {
    const std::vector<float> got = product_of(a, b);
    for (size_t k = 0; k < got.size(); ++k)
      REQUIRE(std::abs(got[k] - expected[k]) < 1e-4 * expected[k]);
  }
  const SearchCounts first = search_counts();
  CHECK(first.kernels > 0);
  CHECK(first.timed > 1);
  CHECK(first.troubled == 0);
  // What was compiled is timed, which may come on top of the budget.
  CHECK(first.seconds < 12 + 1);

  Beam::forget();
  for (int i = 0; i < 3; ++i) product_of(a, b);
  const SearchCounts second = search_counts();
  CHECK(second.kernels == 0);
  CHECK(second.timed == 0);
  CHECK(second.recalled > 0);
  CHECK(worker_processes("search").empty());
}

TEST_CASE("an interrupt ends a search and keeps the program") {
  const Tensor a = Tensor::rand({256, 256}).realize();
  const std::vector<float> expected = product_of(a, a);
  const Beam beam("8", "60", "0", 1e-9);  // as good as no end
  std::thread finger([] {
    while (worker_processes("search").empty())
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    kill(getpid(), SIGINT);
  });
  const std::vector<float> got = product_of(a, a);
  finger.join();
  for (size_t k = 0; k < got.size(); ++k)
    REQUIRE(std::abs(got[k] - expected[k]) < 1e-4 * expected[k]);
  const auto kept = SearchCache::current().all();
  CHECK(std::any_of(kept.begin(), kept.end(),
                    [](const KernelRecord& k) { return k.done && !k.done->exhausted; }));
  const int kernels = search_counts().kernels;
  product_of(a, a);
  CHECK(search_counts().kernels == kernels);  // no more of it in this program

  Beam::forget();
  const CountedBudgets shorter(1e-3);
  product_of(a, a);
  CHECK(search_counts().kernels > 0);  // another one goes on
}

TEST_CASE("a search that its budget has ended is not gone on with, unless there is more of it") {
  const Tensor a = Tensor::rand({256, 256}).realize();
  const Beam beam("8", "2");
  product_of(a, a);
  CHECK(search_counts().kernels > 0);
  Beam::forget();
  product_of(a, a);
  CHECK(search_counts().kernels == 0);
  CHECK(search_counts().recalled > 0);
  const EnvOverride more("BEAM_BUDGET", "8");
  Beam::forget();
  product_of(a, a);
  CHECK(search_counts().kernels > 0);
}

TEST_CASE("schedules that run once leave most of the budget to those that run again") {
  const Beam beam("2", "12");
  for (int64_t n = 64; n < 256; n += 8) Tensor::rand({n, n}).sin().sum({1}).realize();
  CHECK(search_counts().kernels > 0);
  CHECK(search_counts().seconds < 12 / 2.0);
}

TEST_CASE("a program that searches beside goes on, and its replays take the better kernels") {
  const Tensor a = Tensor::rand({128, 128}).realize();
  const std::vector<float> expected = product_of(a, a);
  const Beam beam("2", "6", "1");
  Jit step([&](const Tensor& x) { return (x.matmul(a) + 1.0).relu(); });
  for (int i = 0; i < 20; ++i) {
    const std::vector<float> got = step(a).to_vector<float>();
    for (size_t k = 0; k < got.size(); ++k)
      REQUIRE(std::abs(got[k] - expected[k]) < 1e-4 * expected[k]);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  finish_searches();
  CHECK(search_counts().kernels > 0);
  const std::vector<float> got = step(a).to_vector<float>();
  for (size_t k = 0; k < got.size(); ++k)
    REQUIRE(std::abs(got[k] - expected[k]) < 1e-4 * expected[k]);
}

TEST_CASE("kernels of a variable length are searched at its bound and right for all lengths") {
  constexpr int64_t kMax = 96;
  const Tensor x = Tensor::randn({kMax, 40}).realize();
  const auto value = [&](int64_t i) {
    const Variable n = Variable("n", 1, kMax).bind(i);
    return (x.narrow(0, 0, n).softmax(0) * 2).to_vector<float>();
  };
  std::vector<std::vector<float>> expected;
  for (int64_t i = 1; i <= kMax; i += 19) expected.push_back(value(i));
  const Beam beam("2", "8");
  value(kMax);
  CHECK(search_counts().kernels > 0);
  CHECK(search_counts().troubled == 0);
  for (int64_t i = 1; i <= kMax; i += 19) {
    const std::vector<float> got = value(i), &wanted = expected[static_cast<size_t>(i / 19)];
    REQUIRE(got.size() == wanted.size());
    for (size_t k = 0; k < got.size(); ++k) CHECK(std::abs(got[k] - wanted[k]) < 1e-5);
  }
}

// Of floats: by the sums' roundings; NaN and infinity agree.
bool agree(const std::vector<double>& a, const std::vector<double>& b, double unit) {
  double scale = 1;
  for (double v : a)
    if (std::isfinite(v)) scale = std::max(scale, std::abs(v));
  for (size_t i = 0; i < a.size(); ++i) {
    const bool same = a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]));
    if (!same && !(std::abs(a[i] - b[i]) <= 4096 * unit * scale)) return false;
  }
  return true;
}

TEST_CASE("kernels of random programs searched in a row stay right") {
  const int64_t kernels = env_int("BEAM_KERNELS");
  const Beam beam("2", "1000000");
  const std::string given = env_text("DEVICE"), device = given.empty() ? "CPU" : given;
  const bool alone = kernels > 20 || device != "CPU";
  const EnvOverride isolated("BEAM_ISOLATE", alone ? "1" : "0");
  const auto first = static_cast<uint64_t>(std::max<int64_t>(1, env_int("FUZZ_SEED")));
  for (uint64_t seed = first; search_counts().kernels < kernels; ++seed) {
    const fuzz::Program program = fuzz::random_program(seed);
    CAPTURE(seed);
    const auto values = [&] {
      const fuzz::Built built = fuzz::build(program, device);
      std::vector<std::vector<double>> out;
      for (const Tensor& t : built.outputs) out.push_back(t.to(kF64).to_vector<double>());
      return out;
    };
    const auto before = values();
    // The second run has the kernels that the first one's searches have found.
    const auto after = values();
    const fuzz::Built built = fuzz::build(program, device);
    for (size_t i = 0; i < before.size(); ++i) {
      const DType t = built.outputs[i].dtype();
      const double unit = t == kF16 ? 0x1p-18 : t == kBF16 ? 0x1p-15 : 0x1p-23;
      CHECK(agree(before[i], after[i], unit));
    }
  }
  CHECK(search_counts().troubled == 0);
  MESSAGE(to_text(search_counts()));
}

}  // namespace
}  // namespace tiny
