#include "runtime/copy_order.h"

#include <algorithm>

namespace tiny {

namespace {

bool has(const std::vector<int>& list, int item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

// Whether `job` can only run when the turn is over.
bool needs(const std::vector<Job>& jobs, int job, const Turn& turn) {
  const std::vector<int>& reads = jobs[job].reads;
  if (turn.again >= 0) return has(reads, turn.again);
  return has(jobs[job].before, turn.job) ||
         std::any_of(jobs[turn.job].writes.begin(), jobs[turn.job].writes.end(),
                     [&](int v) { return has(reads, v); });
}

}  // namespace

std::vector<Turn> gather_copies(const std::vector<Job>& jobs, const std::vector<Turn>& order) {
  std::vector<Turn> out;
  size_t after = 0;  // the last copies
  for (const Turn& t : order) {
    if (t.again >= 0 || !jobs[t.job].is_copy) {
      out.push_back(t);
      continue;
    }
    const bool waits =
        after == 0 || std::any_of(out.begin() + static_cast<std::ptrdiff_t>(after), out.end(),
                                  [&](const Turn& between) { return needs(jobs, t.job, between); });
    if (waits) after = out.size();
    out.insert(out.begin() + static_cast<std::ptrdiff_t>(after), t);
    ++after;
  }
  return out;
}

}  // namespace tiny
