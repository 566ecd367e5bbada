// Wall-clock timing for benchmarks: the best and the median of several repetitions.
#pragma once
#include <algorithm>
#include <chrono>
#include <vector>

namespace tiny::bench {

inline double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Timing {
  double best = 0, median = 0;
};

inline Timing summary(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return {times.front(), times[times.size() / 2]};
}

// Runs `work` once to warm up and then `count` times.
template <class Work> Timing measure(int count, Work work) {
  work();
  std::vector<double> times;
  for (int i = 0; i < count; ++i) {
    const double start = seconds();
    work();
    times.push_back(seconds() - start);
  }
  return summary(std::move(times));
}

}  // namespace tiny::bench
