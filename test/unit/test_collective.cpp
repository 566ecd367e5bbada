// Which way of making a collective is taken: what is measured, kept, and estimated.
#include <doctest/doctest.h>

#include <unistd.h>

#include <filesystem>

#include "runtime/collective_search.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/ir/build.h"
#include "tiny/run/devices.h"
#include "tiny/run/jit.h"
#include "tiny/tensor/tensor.h"

using namespace tiny;

namespace {

// A folder that is gone afterwards.
struct Folder {
  const std::string path = std::filesystem::temp_directory_path() / cat("tiny_ways_", ::getpid());
  Folder() { std::filesystem::remove_all(path); }
  ~Folder() { std::filesystem::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
};

// Ways to bring one device's piece to another: at once, by way of many copies to and fro, and one
// that no device has.
Pieces bring_by(const std::string& way, const Pieces& pieces, const Collective& c) {
  check(way != "impossible", "no device can");
  Node x = pieces[1];
  for (int i = 0; i < (way == "roundabout" ? 40 : 0); ++i)
    x = build::contiguous(bring(bring(x, c.devices[0]), c.devices[1]));
  return {bring(x, c.devices[0])};
}

Collective fetch_of(int64_t size) {
  return {"fetch", Op::Copy, kF32, size, {device_id("CPU"), device_id("CPU:1")}};
}

}  // namespace

TEST_CASE("the fastest way of a collective is measured once and kept on disk") {
  const Folder folder;
  const EnvOverride cache("CACHE_DIR", folder.path);
  for (const int64_t size : {100, 300'000}) {
    const Collective c = fetch_of(size);
    int asked = 0;
    const auto build = [&](const std::string& way, const Pieces& pieces) {
      ++asked;
      return bring_by(way, pieces, c);
    };
    const std::vector<std::string> ways{"impossible", "roundabout", "direct"};
    CHECK(fastest_way(c, ways, "roundabout", build) == "direct");
    CHECK(asked == 3);
    CHECK(fastest_way(c, ways, "roundabout", build) == "direct");
    CHECK(asked == 3);
  }
  CHECK(!std::filesystem::is_empty(folder.path));
}

TEST_CASE("the default way stands where nothing is better, or everything fails or takes too long") {
  const Folder folder;
  const EnvOverride cache("CACHE_DIR", folder.path);
  const Collective c = fetch_of(5000), d = fetch_of(6000), e = fetch_of(7000);
  const auto build_of = [](const Collective& of) {
    return
        [&of](const std::string& way, const Pieces& pieces) { return bring_by(way, pieces, of); };
  };
  CHECK(fastest_way(c, {"direct", "roundabout"}, "direct", build_of(c)) == "direct");
  CHECK(fastest_way(d, {"impossible"}, "impossible", build_of(d)) == "impossible");
  const EnvOverride limit("COLLECTIVE_BEAM_LIMIT", "0");
  CHECK(fastest_way(e, {"direct", "roundabout"}, "roundabout", build_of(e)) == "roundabout");
}

TEST_CASE("sums over devices are the same by the way that was found, also in a capture") {
  const Folder folder;
  const EnvOverride cache("CACHE_DIR", folder.path), beam("COLLECTIVE_BEAM", "1");
  const auto names = devices_from("CPU", 3);
  for (const int64_t size : {7, 100'000}) {
    const Tensor whole = mod(Tensor::arange(3 * size), 5).reshape({3, size}).to(kF32);
    const Tensor x = whole.shard(names, 0).realize();
    Jit step([](const Tensor& in) { return in.sum(0) * 2; });
    for (int i = 0; i < 3; ++i)
      CHECK(step(x).to("CPU").to_vector<float>() == (whole.sum(0) * 2).to_vector<float>());
  }
}

TEST_CASE("estimates of collectives: latency counts for few bytes, what is fetched for many") {
  const double latency = 1e-5, rate = 1e11;
  const auto of = [&](const char* way, double bytes) {
    return estimated_seconds(way, 8, bytes, latency, rate);
  };
  CHECK(of("one_shot", 1e3) < of("two_shot", 1e3));
  CHECK(of("two_shot", 1e3) < of("ring", 1e3));
  CHECK(of("two_shot", 1e9) < of("naive", 1e9));
  CHECK(of("nccl", 1e9) == doctest::Approx(1e-5 + 2 * 7.0 / 8 * 1e9 / 1e11));
}
