#include "runtime/launch/launch_order.h"

#include <algorithm>

namespace tiny {

namespace {

bool conflict(const Touched& a, const Touched& b) {
  return (a.written || b.written) && a.memory == b.memory && a.begin < b.end && b.begin < a.end;
}

bool conflict(const LaunchUses& a, const LaunchUses& b) {
  if (a.fills && b.fills) return true;
  return std::any_of(a.uses.begin(), a.uses.end(), [&](const Touched& x) {
    return std::any_of(b.uses.begin(), b.uses.end(),
                       [&](const Touched& y) { return conflict(x, y); });
  });
}

}  // namespace

bool fills(const LaunchSize& size, const Target& target) {
  return size.grid[0] * size.grid[1] * size.grid[2] >= target.cores;
}

std::vector<std::vector<int>> order_launches(const std::vector<LaunchUses>& launches) {
  const size_t n = launches.size();
  std::vector<std::vector<int>> out(n);
  std::vector<std::vector<bool>> follows(n);  // directly or not
  for (size_t i = 0; i < n; ++i) {
    follows[i].resize(i);
    // Backwards, so that what one waits for through another one is known before it is met.
    for (size_t j = i; j-- > 0;) {
      if (follows[i][j] || !conflict(launches[i], launches[j])) continue;
      out[i].push_back(static_cast<int>(j));
      follows[i][j] = true;
      for (size_t k = 0; k < j; ++k)
        if (follows[j][k]) follows[i][k] = true;
    }
    std::reverse(out[i].begin(), out[i].end());
  }
  return out;
}

}  // namespace tiny
