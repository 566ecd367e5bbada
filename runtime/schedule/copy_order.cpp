#include "runtime/schedule/copy_order.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace tiny {

namespace {

// From so many bytes on, of all that are held, sums are a launch beside the next ones
// (measurements.md: kWorthALaunch).
constexpr int64_t kWorthALaunch = int64_t{4} << 20;

class Gatherer {
 public:
  Gatherer(const std::vector<Job>& jobs, const std::vector<Turn>& order)
      : jobs_(jobs),
        left_(order),
        done_(jobs.size()),
        needs_(jobs.size()),
        wanted_by_(jobs.size()) {
    std::vector<int> writer;  // of each value
    for (size_t j = 0; j < jobs.size(); ++j)
      for (int v : jobs[j].writes) {
        writer.resize(std::max(writer.size(), static_cast<size_t>(v) + 1), -1);
        writer[v] = static_cast<int>(j);
      }
    for (size_t j = 0; j < jobs.size(); ++j) {
      std::set<int> before(jobs[j].before.begin(), jobs[j].before.end());
      for (int v : jobs[j].reads)
        if (static_cast<size_t>(v) < writer.size() && writer[v] >= 0) before.insert(writer[v]);
      needs_[j] = static_cast<int>(before.size());
      for (int b : before) wanted_by_[b].push_back(static_cast<int>(j));
    }
    for (const Turn& t : order)
      if (jobs[t.job].is_copy && needs_[t.job] == 0) held_.push_back(t.job);
  }

  // Each round takes what is ready, in order, up to the first that is not or (`ahead`) beyond it,
  // and at its end the copies that are.
  std::vector<Turn> run(bool ahead) {
    std::erase_if(left_, [&](const Turn& t) { return jobs_[t.job].is_copy; });
    side_by_side();
    while (!left_.empty() || !held_.empty()) {
      const size_t before = out_.size();
      std::vector<Turn> later;
      bool waits = false;  // a value for its second computation, before what it needs is replaced
      for (const Turn& t : left_) {
        const bool again = t.again >= 0;
        const bool ready = !waits && (again ? done_[t.job] != 0 : needs_[t.job] == 0);
        if (!ready) {
          waits |= again || !ahead;
          later.push_back(t);
          continue;
        }
        out_.push_back(t);
        if (!again) finish(t.job);
        if (held_bytes() >= kWorthALaunch) give_out();
      }
      give_out();
      if (out_.size() == before) return {};  // a circle
      left_ = std::move(later);
    }
    return std::move(out_);
  }

 private:
  // Each device's turns stay in their order, and none is ahead of the others.
  void side_by_side() {
    std::map<int, int> count;
    std::vector<std::pair<int, Turn>> turns;
    for (const Turn& t : left_) turns.emplace_back(count[jobs_[t.job].device]++, t);
    std::stable_sort(turns.begin(), turns.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (size_t i = 0; i < turns.size(); ++i) left_[i] = turns[i].second;
  }

  void finish(int job) {
    done_[job] = 1;
    for (int next : wanted_by_[job])
      if (--needs_[next] == 0 && jobs_[next].is_copy) held_.push_back(next);
  }

  // Of a device, that would come while others of its launches run.
  int64_t held_bytes() const {
    std::map<int, int64_t> bytes;
    for (int j : held_) bytes[jobs_[j].device] += jobs_[j].beside_others;
    int64_t most = 0;
    for (const auto& [device, of] : bytes) most = std::max(most, of);
    return most;
  }

  void give_out() {
    for (int j : std::exchange(held_, {})) {
      out_.push_back({j});
      finish(j);
    }
  }

  const std::vector<Job>& jobs_;
  std::vector<Turn> left_, out_;
  std::vector<char> done_;
  std::vector<int> needs_;  // how many jobs it still waits for
  std::vector<std::vector<int>> wanted_by_;
  std::vector<int> held_;  // copies that are ready
};

}  // namespace

std::vector<Turn> gather_copies(const std::vector<Job>& jobs, const std::vector<Turn>& order,
                                bool ahead) {
  const bool copies =
      std::any_of(order.begin(), order.end(), [&](const Turn& t) { return jobs[t.job].is_copy; });
  if (!copies) return order;
  std::vector<Turn> out = Gatherer(jobs, order).run(ahead);
  return out.empty() ? order : out;
}

namespace {

// See order_of_least_memory.
std::vector<int> shortest_paths_first(const std::vector<Job>& jobs, const std::vector<int>& order) {
  std::vector<int> level(jobs.size()), last, out;
  std::vector<char> is_last(jobs.size(), 1), done(jobs.size());
  for (int j : order)
    for (int b : jobs[j].before) {
      level[j] = std::max(level[j], level[b] + 1);
      is_last[b] = 0;
    }
  for (int j : order)
    if (is_last[j]) last.push_back(j);
  std::stable_sort(last.begin(), last.end(), [&](int a, int b) { return level[a] < level[b]; });
  for (int end : last) {
    std::vector<int> stack{end};
    while (!stack.empty()) {
      const int j = stack.back();
      const size_t waiting = stack.size();
      for (auto b = jobs[j].before.rbegin(); !done[j] && b != jobs[j].before.rend(); ++b)
        if (!done[*b]) stack.push_back(*b);
      if (stack.size() != waiting) continue;
      stack.pop_back();
      if (!done[j]) out.push_back(j);
      done[j] = 1;
    }
  }
  return out;
}

// The highest peak of one device.
int64_t most_on_a_device(const std::vector<Job>& jobs, const std::vector<JobValue>& values,
                         const std::vector<Turn>& turns) {
  std::vector<int> device(values.size());
  for (const Job& j : jobs)
    for (int v : j.writes) device[v] = j.device;
  int64_t most = 0;
  for (int d : std::set<int>(device.begin(), device.end())) {
    std::vector<JobValue> own = values;
    for (size_t v = 0; v < own.size(); ++v)
      if (device[v] != d) own[v].bytes = 0;
    most = std::max(most, peak_of_order(jobs, own, turns));
  }
  return most;
}

}  // namespace

std::vector<Turn> order_of_least_memory(const std::vector<Job>& jobs,
                                        const std::vector<JobValue>& values,
                                        const std::vector<int>& order, int64_t enough,
                                        double share) {
  std::vector<Turn> best;
  int64_t least = 0;
  for (const auto& given : {order, shortest_paths_first(jobs, order)})
    for (const bool ahead : {true, false}) {
      auto turns =
          gather_copies(jobs, recompute_for_memory(jobs, values, given, enough, share), ahead);
      const int64_t most = most_on_a_device(jobs, values, turns);
      if (!best.empty() && most >= least) continue;
      least = most;
      best = std::move(turns);
    }
  return best;
}

}  // namespace tiny
