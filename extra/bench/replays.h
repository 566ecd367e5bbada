// The time of what a Jit replays on several devices, for benchmarks of these.
#pragma once
#include <string>
#include <vector>

#include "extra/bench/timing.h"
#include "runtime/device/device.h"
#include "tiny/tiny.h"

namespace tiny::bench {

inline void wait(const std::vector<std::string>& devices) {
  for (const std::string& d : devices) find_device(d).synchronize();
}

// Seconds of one of `replays` that follow one another, the last of which is waited for: the median
// of `count` such runs.
template <class Work>
double time_replays(int count, int replays, const std::vector<std::string>& devices, Work work) {
  const auto run = [&] {
    for (int i = 0; i < replays; ++i) work();
    wait(devices);
  };
  return measure(count, run).median / replays;
}

struct SumTimes {
  double each = 0, alone = 0;  // seconds: of one of many, of one that is waited for
};

// An all-reduce of so many bytes of f32 on each of the devices.
inline SumTimes time_all_reduce(const std::vector<std::string>& devices, int64_t bytes) {
  const auto count = static_cast<int64_t>(devices.size());
  // A row on each device: its sum is the row itself, to be added to the others.
  const Tensor x = (Tensor::zeros({count, bytes / 4}).shard(devices, 0) + 1).realize();
  Jit step([](const Tensor& in) { return in.sum(0); });
  const auto once = [&] { step(x); };
  for (int i = 0; i < 4; ++i) once();
  wait(devices);
  const int replays = bytes <= (1 << 20) ? 200 : bytes <= (64 << 20) ? 20 : 10;
  return {time_replays(5, replays, devices, once), time_replays(20, 1, devices, once)};
}

}  // namespace tiny::bench
