// GPT-2 of the size of shared/models/gpt2 trained data parallel by eight processes, beside one.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "test/unit/rank_runs.h"
#include "test/unit/small_models.h"
#include "tiny/run/devices.h"
#include "tiny/run/jit.h"
#include "tiny/run/memory.h"
#include "tiny/run/ranks.h"
#include "tiny/train/optim.h"

using namespace tiny;
using namespace tiny::test;

namespace {

// Losses of so many steps on texts that are the same in all runs.
std::vector<float> losses_of(models::Transformer& model, const std::vector<std::string>& devices,
                             int steps) {
  AdamW optimizer(model.parameters(), 1e-3);
  Jit step([&](const Tensor& ids) {
    Tensor loss = model.loss({ids}, ids);
    loss.backward();
    optimizer.step({&loss});
    return loss;
  });
  std::vector<float> out;
  for (int i = 0; i < steps; ++i) {
    manual_seed(static_cast<uint64_t>(100 + i));
    const Tensor text = Tensor::randint(0, 512, {8, 32}).realize();
    out.push_back(step(text.shard(devices, 0)).item<float>());
  }
  return out;
}

}  // namespace

// Over the ranks, or as many devices of one process as SHARDS says.
TEST_CASE("worker of ranks: trains GPT-2") {
  if (!is_child()) return;
  const nn::Training training;
  const char* const shards = std::getenv("SHARDS");
  const auto devices = shards ? devices_from("CPU", std::atoi(shards)) : rank_devices();
  models::Transformer model = random_model(
      R"({"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 128,
          "vocab_size": 512})");
  for (Tensor* t : model.tensors()) t->shard_(devices);
  int i = 0;
  for (const float loss : losses_of(model, devices, 5)) {
    char line[64];
    std::snprintf(line, sizeof line, "%d %.9g", i++, loss);
    tell(line);
  }
}

TEST_CASE("eight processes train GPT-2 to the bits of one process") {
  const char* const worker = "worker of ranks: trains GPT-2";
  const std::string settings = "DETERMINISTIC=1";
  const Ended one = run_ranks(1, worker, settings + " SHARDS=8")[0];
  CHECK_MESSAGE(one.said.find("\n4 ") != one.said.npos, one.output);
  for (const Ended& e : run_ranks(8, worker, settings)) {
    CHECK_MESSAGE(e.status == 0, e.output);
    CHECK(e.said == one.said);
  }
}

// Over the ranks; tells the losses, and at last the most bytes that its device ever held.
TEST_CASE("worker of ranks: trains GPT-2 fully sharded") {
  if (!is_child()) return;
  const nn::Training training;
  const auto devices = rank_count() > 1 ? rank_devices() : std::vector<std::string>{"CPU:1"};
  models::Transformer model = random_model(
      R"({"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 4, "n_positions": 128,
          "vocab_size": 512})");
  fully_shard(model, devices, {.least = 1024});
  for (const float loss : losses_of(model, devices, 4)) tell(cat(loss));
  const std::string& own = devices[devices.size() > 1 ? static_cast<size_t>(rank()) : 0];
  for (const DeviceMemory& m : memory_report(0).devices)
    if (m.device == own) tell(cat(m.peak_bytes));
}

namespace {

// The numbers that it told.
std::vector<double> numbers_of(const Ended& e) {
  CHECK_MESSAGE(e.status == 0, e.output);
  std::istringstream in(e.said);
  std::vector<double> out;
  for (double v; in >> v;) out.push_back(v);
  REQUIRE_MESSAGE(out.size() == 5, e.output);
  return out;
}

}  // namespace

TEST_CASE("two and four processes need 0.6 and 0.35 of the memory of one for fully sharded GPT-2") {
  const char* const worker = "worker of ranks: trains GPT-2 fully sharded";
  const auto one = numbers_of(run_ranks(1, worker, "")[0]);
  for (const auto& [count, share] : {std::pair(2, 0.6), std::pair(4, 0.35)})
    for (const Ended& e : run_ranks(count, worker, "")) {
      const auto several = numbers_of(e);
      MESSAGE(count, " processes: ", several[4] / one[4], " of ", one[4], " bytes");
      CHECK(several[4] <= share * one[4]);
      for (size_t i = 0; i < 4; ++i) CHECK(several[i] == doctest::Approx(one[i]).epsilon(1e-5));
    }
}
