// The model of many devices: its formulas, and what it says of two GPUs from one of them, beside
// what was measured.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "extra/bench/cluster.h"
#include "extra/bench/scaling_rows.h"
#include "test/error_of.h"

using namespace tiny;
using namespace tiny::bench;

namespace {

constexpr Links kLinks{1e9, 1e-6}, kNetwork{1e8, 1e-5};
constexpr double kMega = 1e6;

doctest::Approx near(double value) { return doctest::Approx(value).epsilon(1e-9); }

Cluster one_host(int devices) { return {.devices = devices, .inside = kLinks}; }

// How far the model's step, with these links, is from what was measured, as a share of that.
double deviation(const RowPair& p, const Links& links) {
  return modelled_seconds(p, links) / p.many.seconds - 1;
}

std::vector<std::string> gpu_lines() {
  return result_lines(std::string(TINY_ROOT) + "/extra/bench/results/gpu.jsonl");
}

}  // namespace

TEST_CASE("an all-reduce of two devices is two messages of half the bytes") {
  CHECK(all_reduce_seconds(kMega, one_host(2)) == near(2 * (1e-6 + 0.5e-3)));
  CHECK(all_reduce_seconds(kMega, one_host(1)) == 0);
}

TEST_CASE("all-reduces move twice the bytes in the limit of many devices") {
  CHECK(all_reduce_seconds(kMega, one_host(8)) == near(2 * (3 * 1e-6 + 7.0 / 8 * 1e-3)));
  const Cluster many{.devices = 1 << 20, .inside = {1e9, 0}};
  CHECK(all_reduce_seconds(kMega, many) == doctest::Approx(2e-3).epsilon(1e-5));
}

TEST_CASE("six devices sum many bytes around a ring, few in fours") {
  CHECK(all_reduce_seconds(kMega, one_host(6)) == near(2 * (5 * 1e-6 + 5.0 / 6 * 1e-3)));
  CHECK(all_reduce_seconds(0, one_host(6)) == near(2 * (1 + 2) * 1e-6));
}

TEST_CASE("a pipeline's stages wait for the first micro-batch and the last one") {
  const auto messages = [](size_t count, double bytes) {
    return Exchange{Exchange::Pipeline, std::vector<double>(count, bytes)};
  };
  const Cluster four{.devices = 4, .inside = {1e9, 0}};
  CHECK(step_seconds(2, messages(1, 0), four) == near(8));  // one stage after the other
  CHECK(step_seconds(2, messages(4, 0), four) == near(2 * 7.0 / 4));
  CHECK(step_seconds(2, messages(1 << 20, 0), four) == doctest::Approx(2).epsilon(1e-5));
  CHECK(step_seconds(2, messages(4, 0), four) * (1 - bubble(4, 4)) == near(2));
  CHECK(step_seconds(2, messages(4, 1e9), four) == near(7 * (0.5 + 2)));
  CHECK(step_seconds(8, messages(4, 1e9), one_host(1)) == near(8));
  CHECK(step_seconds(2, messages(4, 1e8), {2, 2, {1e9, 0}, {1e8, 0}}) == near(7 * (0.5 + 2)));
  // Four stages on two cores: while one waits the others have its core.
  const Cluster crowded{.devices = 4, .inside = {1e9, 0}, .processors = 2};
  CHECK(step_seconds(2, messages(16, 0), crowded) == near(4));
  CHECK(step_seconds(2, messages(1, 0), crowded) == near(8));
}

TEST_CASE("hosts exchange slices between the halves of a sum on each") {
  const Cluster both{2, 8, kLinks, kNetwork};
  const double inside = all_reduce_seconds(kMega, one_host(8));
  const double between = all_reduce_seconds(kMega / 8, {.devices = 2, .inside = kNetwork});
  CHECK(all_reduce_seconds(kMega, both) == near(inside + between));
  CHECK(half_seconds(kMega, both) == near((inside + between) / 2));
  // Hosts of one device have the network alone.
  CHECK(all_reduce_seconds(kMega, {4, 1, kLinks, kNetwork}) ==
        near(all_reduce_seconds(kMega, {.devices = 4, .inside = kNetwork})));
}

TEST_CASE("gradients are summed in pieces, sharded weights gathered twice in half the bytes") {
  const Exchange whole = gradients(Exchange::AllReduce, 10 * kPiece, 3);
  CHECK(whole.sums.size() == 13);
  const Cluster host = one_host(4);
  CHECK(exchange_seconds(whole, host) ==
        near(10 * all_reduce_seconds(kPiece, host) + 3 * all_reduce_seconds(0, host)));
  const Exchange cut = gradients(Exchange::Sharded, 10 * kPiece);
  CHECK(exchange_seconds(cut, host) ==
        near(10 * (half_seconds(kPiece, host) + 2 * half_seconds(kPiece / 2, host))));
  CHECK(step_seconds(1, cut, host) == near(1 + exchange_seconds(cut, host)));
}

TEST_CASE("processes that share cores compute and pass on messages in turns") {
  Cluster c = one_host(8);
  c.processors = 2;
  CHECK(crowding(c) == 4);
  CHECK(crowding(one_host(8)) == 1);
  // All to all others where that is little, else a part to each and the sum of a part.
  CHECK(all_reduce_seconds(1e3, c) == near(4 * 7 * (1e-6 + 1e-6)));
  CHECK(all_reduce_seconds(kMega, c) == near(4 * (14 * 1e-6 + 2 * 7.0 / 8 * 1e-3)));
  CHECK(step_seconds(1, {Exchange::AllReduce, {kMega}}, c) ==
        near(4 + all_reduce_seconds(kMega, c)));
  c.devices = 2;
  CHECK(all_reduce_seconds(kMega, c) == near(1e-6 + 1e-3));
}

TEST_CASE("links are found again from the times that they give") {
  for (const int devices : {2, 4}) {
    std::vector<MeasuredSum> sums;
    for (const double bytes : {1e3, 1e5, 1e7})
      sums.push_back({bytes, all_reduce_seconds(bytes, one_host(devices))});
    const Links found = fit_links(sums, {.devices = devices});
    CHECK(found.seconds == near(kLinks.seconds));
    CHECK(found.bytes_per_second == near(kLinks.bytes_per_second));
  }
  const std::vector<MeasuredSum> one{{1e3, 1e-5}};
  CHECK(error_of([&] { fit_links(one, {.devices = 2}); }) ==
        "all-reduces of 1 sizes on 2 devices: two sizes or more tell latency from bandwidth");
}

TEST_CASE("steps of two GPUs are within 15 % of what the model makes of one") {
  const std::vector<std::string> lines = gpu_lines();
  const Links links = gpu_links(lines);
  std::string text =
      cat("links: ", links.seconds * 1e6, " us, ", links.bytes_per_second * 1e-9, " GB/s");
  const auto pairs = newest_pairs(scaling_rows(lines), 2);
  CHECK(pairs.size() >= 11);
  for (const auto& [name, pair] : pairs) {
    const double off = deviation(pair, links);
    text += cat("; ", name, ": ", 100 * off, " %");
    CHECK_MESSAGE(std::abs(off) < 0.15, name);
  }
  MESSAGE(text);
}

// So that the test above tells a model from none.
TEST_CASE("without its exchange a model of two GPUs is off by more than 15 %") {
  const Links free{1e18, 0};
  const auto pairs = newest_pairs(scaling_rows(gpu_lines()), 2);
  for (const char* name :
       {"scaling_gpt2_data_strong", "scaling_gpt2_sharded_strong", "scaling_llama_decode"})
    CHECK_MESSAGE(deviation(pairs.at(name), free) < -0.15, name);
}

TEST_CASE("the newest pair of rows of a name is one of one commit") {
  const auto pairs = newest_pairs(
      scaling_rows({R"({"commit": "a", "name": "scaling_x", "devices": 1, "step_ms": 10})",
                    R"({"commit": "a", "name": "scaling_x", "devices": 2, "step_ms": 11})",
                    R"({"commit": "b", "name": "scaling_x", "devices": 2, "step_ms": 12})",
                    R"({"commit": "b", "name": "x", "devices": 2, "step_ms": 13})"}),
      2);
  REQUIRE(pairs.size() == 1);
  CHECK(pairs.at("scaling_x").many.seconds == near(11e-3));
}
