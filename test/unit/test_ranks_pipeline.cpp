// A pipeline (nn::Pipeline) whose stages are on different processes.
#include <doctest/doctest.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "test/unit/rank_runs.h"
#include "tiny/base/env.h"
#include "tiny/nn/layers.h"
#include "tiny/run/devices.h"
#include "tiny/run/jit.h"
#include "tiny/run/ranks.h"
#include "tiny/tensor/random.h"
#include "tiny/train/optim.h"

using namespace tiny;
using namespace tiny::test;

namespace {

constexpr int64_t kWidth = 32;

// A block for each stage; of two stages the first has half of the four.
std::vector<std::unique_ptr<nn::Sequential>> stages_of(size_t count) {
  std::vector<std::unique_ptr<nn::Sequential>> out;
  for (size_t b = 0; b < 4; ++b) {
    if (b % (4 / count) == 0) out.push_back(std::make_unique<nn::Sequential>());
    out.back()->append(nn::Linear(kWidth, kWidth));
    out.back()->append(&Tensor::silu);
    out.back()->append(nn::LayerNorm(kWidth));
  }
  return out;
}

// With `dies` the last rank is killed before its fourth step.
void train(const std::vector<std::string>& devices, bool dies) {
  manual_seed(5);
  const auto stages = stages_of(devices.size());
  std::vector<nn::Module*> modules;
  for (const auto& s : stages) modules.push_back(s.get());
  nn::Pipeline pipeline(modules, devices, {.micro_batches = 8});
  AdamW optimizer(pipeline.tensors(), 1e-2);
  Jit step([&](const Tensor& x, const Tensor& target) {
    const auto mean = [](const Tensor& y, const Tensor& t) { return cross_entropy(y, t); };
    Tensor loss = pipeline.backward(x, target, mean).to("CPU");  // to all ranks
    optimizer.step({&loss});
    return loss;
  });
  for (int i = 0; i < 5; ++i) {
    if (dies && i == 3 && rank() + 1 == rank_count()) ::raise(SIGKILL);
    const Tensor x = Tensor::randn({32, kWidth}).realize();
    const Tensor loss = step(x, Tensor::randint(0, kWidth, {32}).realize());
    char line[64];
    std::snprintf(line, sizeof line, "%d %.9g", i, loss.item<float>());
    tell(line);
  }
}

}  // namespace

// STAGES: devices, those of a stage joined by "+".
TEST_CASE("worker of ranks: trains a pipeline") {
  if (!is_child()) return;
  std::vector<std::string> devices(1);
  for (const char c : std::string(std::getenv("STAGES"))) {
    if (c == '/')
      devices.emplace_back();
    else
      devices.back() += c == '+' ? ',' : c;
  }
  try {
    train(devices, std::getenv("DIES") != nullptr);
  } catch (const Error& e) {
    tell(e.what());
  }
}

TEST_CASE("pipelines over two and four processes train to the bits of one process") {
  const char* const worker = "worker of ranks: trains a pipeline";
  const Ended one = run_ranks(1, worker, "STAGES=CPU")[0];
  REQUIRE_MESSAGE(one.said.find("\n4 ") != one.said.npos, one.output);
  for (const auto& [count, stages] :
       {std::pair(2, "RANK/RANK:1"), std::pair(4, "RANK/RANK:1/RANK:2/RANK:3")})
    for (const Ended& e : run_ranks(count, worker, cat("STAGES=", stages))) {
      CHECK_MESSAGE(e.status == 0, e.output);
      CHECK(e.said == one.said);
    }
}

TEST_CASE("a pipeline over four processes of which two share each stage's batches") {
  const char* const worker = "worker of ranks: trains a pipeline";
  const Ended one = run_ranks(1, worker, "STAGES=CPU:1+CPU:2/CPU:3+CPU:4")[0];
  REQUIRE_MESSAGE(one.said.find("\n4 ") != one.said.npos, one.output);
  for (const Ended& e : run_ranks(4, worker, "STAGES=RANK+RANK:1/RANK:2+RANK:3")) {
    CHECK_MESSAGE(e.status == 0, e.output);
    CHECK(e.said == one.said);
  }
}

TEST_CASE("the other stages name the process that was killed") {
  const auto ended =
      run_ranks(3, "worker of ranks: trains a pipeline", "DIES=1 STAGES=RANK/RANK:1+RANK:2");
  for (size_t i = 0; i < 2; ++i)
    CHECK_MESSAGE(ended[i].said.find("rank 2 has ended") != std::string::npos, ended[i].output);
}
