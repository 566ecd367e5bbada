#include "runtime/copy_order.h"

#include <algorithm>

namespace tiny {

std::vector<Turn> gather_copies(const std::vector<Job>& jobs, const std::vector<Turn>& order) {
  const bool again =
      std::any_of(order.begin(), order.end(), [](const Turn& t) { return t.again >= 0; });
  const bool copies =
      std::any_of(order.begin(), order.end(), [&](const Turn& t) { return jobs[t.job].is_copy; });
  if (again || !copies) return order;
  std::vector<int> writer;  // of each value
  for (size_t j = 0; j < jobs.size(); ++j)
    for (int v : jobs[j].writes) {
      writer.resize(std::max(writer.size(), static_cast<size_t>(v) + 1), -1);
      writer[v] = static_cast<int>(j);
    }
  std::vector<char> done(jobs.size());
  const auto is_ready = [&](const Job& job) {
    return std::all_of(job.before.begin(), job.before.end(), [&](int j) { return done[j]; }) &&
           std::all_of(job.reads.begin(), job.reads.end(), [&](int v) {
             return static_cast<size_t>(v) >= writer.size() || writer[v] < 0 || done[writer[v]];
           });
  };
  // Each round takes what is ready, in order, and at its end the copies that are.
  std::vector<Turn> out, left = order;
  while (!left.empty()) {
    std::vector<Turn> later, held;
    for (const Turn& t : left) {
      if (!is_ready(jobs[t.job])) {
        later.push_back(t);
      } else if (jobs[t.job].is_copy) {
        held.push_back(t);
      } else {
        done[t.job] = 1;
        out.push_back(t);
      }
    }
    if (later.size() + held.size() == left.size() && held.empty()) return order;  // a circle
    for (const Turn& t : held) done[t.job] = 1;
    out.insert(out.end(), held.begin(), held.end());
    left = std::move(later);
  }
  return out;
}

}  // namespace tiny
