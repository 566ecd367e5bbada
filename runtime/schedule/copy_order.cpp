#include "runtime/schedule/copy_order.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <utility>

namespace tiny {

namespace {

// From so many bytes on, of all that are held, sums are a launch beside the next ones
// (measurements.md: kWorthALaunch).
constexpr int64_t kWorthALaunch = int64_t{4} << 20;

// Which jobs each one waits for.
std::vector<std::set<int>> jobs_before(const std::vector<Job>& jobs) {
  std::vector<int> writer;  // of each value
  for (size_t j = 0; j < jobs.size(); ++j)
    for (int v : jobs[j].writes) {
      writer.resize(std::max(writer.size(), static_cast<size_t>(v) + 1), -1);
      writer[v] = static_cast<int>(j);
    }
  std::vector<std::set<int>> out;
  for (const Job& j : jobs) {
    std::set<int>& before = out.emplace_back(j.before.begin(), j.before.end());
    for (int v : j.reads)
      if (static_cast<size_t>(v) < writer.size() && writer[v] >= 0) before.insert(writer[v]);
  }
  return out;
}

class Gatherer {
 public:
  Gatherer(const std::vector<Job>& jobs, const std::vector<Turn>& order)
      : jobs_(jobs),
        left_(order),
        done_(jobs.size()),
        needs_(jobs.size()),
        wanted_by_(jobs.size()) {
    const auto before = jobs_before(jobs);
    for (size_t j = 0; j < jobs.size(); ++j) {
      needs_[j] = static_cast<int>(before[j].size());
      for (int b : before[j]) wanted_by_[b].push_back(static_cast<int>(j));
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
        const bool again = !t.is_first();
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

// So much longer may devices take for copies that are made together. Where all work on the same at
// the same time nobody waits for them; where one needs what another one has made, as a stage of a
// pipeline does, it would have nothing to do meanwhile. Between the sums of data parallel training
// (at most 1.15, the two_shot ones of three devices) and two micro-batches in two stages (1.23).
constexpr double kIdleAtMost = 1.2;

// The devices' turns at the same time: each takes as long, and copies nothing.
class Clock {
 public:
  explicit Clock(const std::vector<Job>& jobs)
      : jobs_(jobs), before_(jobs_before(jobs)), end_(jobs.size()) {}

  const std::vector<std::set<int>>& before() const { return before_; }

  // When there is what a job needs, and when it would begin as the next of its device.
  int64_t ready(int job) const {
    int64_t at = 0;
    for (int b : before_[job]) at = std::max(at, end_[b]);
    return at;
  }
  int64_t start_of(int job) { return std::max(ready(job), now_[jobs_[job].device]); }
  void take(const Turn& t) {
    const Job& j = jobs_[t.job];
    int64_t end = start_of(t.job) + (j.is_copy ? 0 : 1);
    if (j.is_copy && j.reads.size() == 1)  // the other side sends it when it comes to that
      for (int b : before_[t.job]) end = std::max(end, now_[jobs_[b].device]);
    now_[j.device] = end;
    if (t.is_first()) end_[t.job] = end;
  }
  int64_t latest() const {
    int64_t out = 0;
    for (const auto& [device, at] : now_) out = std::max(out, at);
    return out;
  }

 private:
  const std::vector<Job>& jobs_;
  const std::vector<std::set<int>> before_;
  std::vector<int64_t> end_;    // of each job
  std::map<int, int64_t> now_;  // of each device
};

int64_t turns_until_end(const std::vector<Job>& jobs, const std::vector<Turn>& order) {
  Clock clock(jobs);
  for (const Turn& t : order) clock.take(t);
  return clock.latest();
}

// Copies as soon as there is what they bring; each device's turns stay in their order, and come in
// that in which they would begin: what a device receives does not come before what it would do
// meanwhile.
class PromptCopies {
 public:
  PromptCopies(const std::vector<Job>& jobs, const std::vector<Turn>& order)
      : jobs_(jobs), clock_(jobs), needs_(jobs.size()), wanted_by_(jobs.size()) {
    for (const Turn& t : order)
      if (!jobs[t.job].is_copy) left_[jobs[t.job].device].push_back(t);
    for (size_t j = 0; j < jobs.size(); ++j) {
      needs_[j] = static_cast<int>(clock_.before()[j].size());
      for (int b : clock_.before()[j]) wanted_by_[b].push_back(static_cast<int>(j));
    }
    for (const Turn& t : order)
      if (jobs[t.job].is_copy && needs_[t.job] == 0) copies_.push_back(t);
  }

  std::vector<Turn> run() {
    while (std::deque<Turn>* next = earliest()) {
      const Turn t = next->front();
      next->pop_front();
      clock_.take(t);
      out_.push_back(t);
      if (!t.is_first()) continue;
      for (int j : wanted_by_[t.job])
        if (--needs_[j] == 0 && jobs_[j].is_copy) copies_.push_back({j});
    }
    return std::move(out_);
  }

 private:
  // Whose first turn would begin first, copies before others; null at the end. The one of all that
  // is first in the given order can always be taken.
  std::deque<Turn>* earliest() {
    std::deque<Turn>* out = nullptr;
    int64_t at = 0;
    const auto look_at = [&](std::deque<Turn>& turns, int64_t start) {
      if (out && start >= at) return;
      out = &turns;
      at = start;
    };
    if (!copies_.empty()) look_at(copies_, clock_.ready(copies_[0].job));
    for (auto& [device, turns] : left_)
      if (!turns.empty() && (!turns[0].is_first() || needs_[turns[0].job] == 0))
        look_at(turns, clock_.start_of(turns[0].job));
    return out;
  }

  const std::vector<Job>& jobs_;
  Clock clock_;
  std::map<int, std::deque<Turn>> left_;  // of each device, without copies
  std::deque<Turn> copies_;               // that can be made, in the order of when they can
  std::vector<Turn> out_;
  std::vector<int> needs_;  // how many jobs it still waits for
  std::vector<std::vector<int>> wanted_by_;
};

}  // namespace

std::vector<Turn> gather_copies(const std::vector<Job>& jobs, const std::vector<Turn>& order,
                                bool ahead) {
  const bool copies =
      std::any_of(order.begin(), order.end(), [&](const Turn& t) { return jobs[t.job].is_copy; });
  if (!copies) return order;
  std::vector<Turn> out = Gatherer(jobs, order).run(ahead);
  if (out.empty()) out = order;
  if (!ahead) return out;
  std::vector<Turn> prompt = PromptCopies(jobs, order).run();
  const auto gathered_time = static_cast<double>(turns_until_end(jobs, out));
  const auto prompt_time = static_cast<double>(turns_until_end(jobs, prompt));
  return gathered_time > kIdleAtMost * prompt_time ? prompt : out;
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
                                        const std::vector<int>& order, const MemoryBudget& budget) {
  std::vector<Turn> best;
  std::pair<int64_t, size_t> least;
  for (const auto& given : {order, shortest_paths_first(jobs, order)})
    for (const bool ahead : {true, false}) {
      auto turns = gather_copies(jobs, recompute_for_memory(jobs, values, given, budget), ahead);
      std::pair<int64_t, size_t> cost(most_on_a_device(jobs, values, turns), 0);
      if (budget.limit >= 0)
        cost = {std::max(peak_of_order(jobs, values, turns), budget.limit), turns.size()};
      if (!best.empty() && cost >= least) continue;
      least = cost;
      best = std::move(turns);
    }
  return best;
}

}  // namespace tiny
