// Sums over devices: what an all-reduce of so many bytes takes as a replayed Jit, by each
// algorithm.
//
//   collective [FIRST [COUNT [MOST [SEARCHES]]]]   e.g. collective CUDA 2 1073741824,
//                                                  collective CPU 4
//
// Processes that were started as ranks sum over their devices instead; FIRST and COUNT are "-".
// With SEARCHES no table: so many sizes up to MOST, each searched for (COLLECTIVE_BEAM=2) and then
// summed, the sum checked. Ranks that chose different ways would end with an error.
//
// One line per size: the bytes that each device has, and for each algorithm microseconds for one
// all-reduce and GB/s of the bus, 2 (k - 1) / k times the bytes over the time. The time is that of
// a run of replays, whose last one is waited for; "alone" that of one that is waited for. "found":
// the algorithm that COLLECTIVE_BEAM=1 takes, which it measures first.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "extra/bench/replays.h"

using namespace tiny;

namespace {

// Searches for the way to sum each of `searches` sizes, and sums. Returns how many sums were wrong.
int search(const std::vector<std::string>& devices, int64_t most, int searches) {
  const EnvOverride beam("COLLECTIVE_BEAM", "2");
  const auto count = static_cast<int64_t>(devices.size());
  int wrong = 0;
  for (int i = 1; i <= searches; ++i) {
    const int64_t n = std::max<int64_t>(most / 4 * i / searches, 1);
    const Tensor row = Tensor::arange(count).to(kF32).reshape({count, 1}).expand({count, n});
    const Tensor x = (row.shard(devices, 0) + i).realize();
    const auto sums = x.sum(0).to_vector<float>();
    const auto expected = static_cast<float>(count * (count - 1) / 2 + count * i);
    wrong += !std::all_of(sums.begin(), sums.end(), [&](float s) { return s == expected; });
  }
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  mute_other_ranks();
  const bool ranks = rank_count() > 1;
  const auto devices =
      ranks ? rank_devices()
            : devices_from(argc > 1 ? argv[1] : "", argc > 2 ? std::atoi(argv[2]) : 2);
  const int64_t most = argc > 3 ? std::atoll(argv[3]) : 64 << 20;
  const EnvOverride device("DEVICE", ranks ? env_text("DEVICE") : devices[0]);
  if (argc > 4) {
    const int wrong = search(devices, most, std::atoi(argv[4]));
    std::printf("%s searches on %zu devices: %d sums wrong\n", argv[4], devices.size(), wrong);
    return wrong != 0;
  }
  std::printf("%zu devices from %s: us, GB/s of the bus, us alone\n%12s", devices.size(),
              devices[0].c_str(), "bytes");
  const char* const algorithms[] = {"naive",           "two_shot", "ring", "one_shot",
                                    "two_shot_direct", "flags",    "nccl", "found"};
  for (const char* a : algorithms) std::printf("%27s", a);
  std::printf("\n");
  for (const int power : {10, 13, 16, 19, 20, 22, 25, 26, 28, 30}) {
    const int64_t bytes = int64_t{1} << power;
    if (bytes > most) break;
    std::printf("%12lld", static_cast<long long>(bytes));
    for (const char* a : algorithms) {
      const bool found = std::string(a) == "found";
      const EnvOverride how("COLLECTIVE", found ? "" : a),
          beam("COLLECTIVE_BEAM", found ? "2" : "0");
      try {
        const bench::SumTimes t = bench::time_all_reduce(devices, bytes);
        const auto k = static_cast<double>(devices.size());
        const double bus = 2 * (k - 1) / k * static_cast<double>(bytes) / t.each * 1e-9;
        std::printf("%10.1f %7.2f %8.1f", t.each * 1e6, bus, t.alone * 1e6);
      } catch (const Error&) {  // these devices have no such way
        std::printf("%27s", "-");
      }
    }
    std::printf("\n");
    std::fflush(stdout);
  }
  return 0;
}
