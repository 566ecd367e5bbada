#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "runtime/schedule/memory_plan.h"
#include "tiny/base/error.h"

namespace tiny {

// --- Order ---------------------------------------------------------------------------------------

namespace {

// How many jobs have still to read each value.
std::vector<int> readers_of(const std::vector<Job>& jobs, size_t values) {
  std::vector<int> out(values);
  for (const Job& j : jobs)
    for (int v : j.reads) ++out[v];
  return out;
}

// Goes on in the given order, but runs what gives back memory, where it is asked to, as soon as it
// can run.
class Orderer {
 public:
  // Given: no more than that. Best: looks ahead along the one of several jobs that gives back most.
  // All: along all that give back some, where each of a value's readers gives back its share of it,
  // and takes numbers of a whole step, as what a loss is divided by, for nothing.
  enum class Greed { Given, Best, All };

  Orderer(const std::vector<Job>& jobs, const std::vector<JobValue>& values, Greed greed)
      : jobs_(jobs),
        values_(values),
        greed_(greed),
        readers_(readers_of(jobs, values.size())),
        waits_for_(jobs.size()),
        after_(jobs.size()) {
    for (size_t j = 0; j < jobs.size(); ++j) {
      waits_for_[j] = static_cast<int>(jobs[j].before.size());
      for (int b : jobs[j].before) after_[b].push_back(static_cast<int>(j));
    }
  }

  // How far ahead it looks: operands are stored in another layout, used in parts, and combined.
  static constexpr int kAhead = 3;

  std::vector<int> run() {
    std::vector<int> order, ready;
    for (size_t j = 0; j < jobs_.size(); ++j)
      if (waits_for_[j] == 0) ready.push_back(static_cast<int>(j));
    while (!ready.empty()) {
      const auto at = ready.begin() + static_cast<std::ptrdiff_t>(choose(ready));
      const int j = *at;
      ready.erase(at);
      order.push_back(j);
      for (int v : jobs_[j].reads) --readers_[v];
      for (int next : after_[j])
        if (--waits_for_[next] == 0)
          ready.insert(std::lower_bound(ready.begin(), ready.end(), next), next);
    }
    return order;
  }

 private:
  size_t choose(const std::vector<int>& ready) {
    size_t best = 0;
    constexpr int64_t kSmall = 256;  // bytes
    int64_t least = greed_ == Greed::All ? kSmall : 0;
    for (size_t i = 0; greed_ != Greed::Given && i < ready.size(); ++i) {
      const int64_t g = growth_ahead(ready[i], kAhead);
      if (g >= least) continue;
      best = i;
      least = g;
    }
    return best;
  }

  // By how much memory has grown after the job and those that it alone holds back: the one that
  // gives back most, or all that give back some.
  int64_t growth_ahead(int job, int ahead) {
    const int64_t here = growth(jobs_[job]);
    if (ahead == 0) return here;
    int64_t best = 0, all = 0;
    for (int v : jobs_[job].reads) --readers_[v];
    for (int next : after_[job])
      if (waits_for_[next] == 1) {
        const int64_t less = std::min<int64_t>(0, growth_ahead(next, ahead - 1));
        best = std::min(best, less);
        all += less;
      }
    for (int v : jobs_[job].reads) ++readers_[v];
    return here + (greed_ == Greed::All ? all : best);
  }

  int64_t growth(const Job& j) const {
    int64_t out = 0;
    for (int v : j.writes)
      if (!values_[v].stays) out += values_[v].bytes;
    for (int v : j.reads)
      if (!values_[v].stays && (readers_[v] == 1 || greed_ == Greed::All))
        out -= values_[v].bytes / readers_[v];
    return out;
  }

  const std::vector<Job>& jobs_;
  const std::vector<JobValue>& values_;
  const Greed greed_;
  std::vector<int> readers_, waits_for_;
  std::vector<std::vector<int>> after_;
};

}  // namespace

std::vector<int> order_for_memory(const std::vector<Job>& jobs, const std::vector<JobValue>& values,
                                  bool by_shares) {
  using Greed = Orderer::Greed;
  std::vector<int> best;
  int64_t least = 0;
  for (const Greed greed : {Greed::Given, Greed::Best, Greed::All}) {
    if (greed == Greed::All && !by_shares) continue;
    std::vector<int> order = Orderer(jobs, values, greed).run();
    expect(order.size() == jobs.size(), "kernels wait for each other");
    const int64_t peak = peak_of_order(jobs, values, order);
    if (!best.empty() && peak >= least) continue;
    least = peak;
    best = std::move(order);
  }
  return best;
}

// --- Computing again -----------------------------------------------------------------------------

namespace {

// What a turn reads and writes.
std::span<const int> reads_of(const std::vector<Job>& jobs, const std::vector<JobValue>& values,
                              const Turn& t) {
  return t.again >= 0 ? values[t.again].recipe : jobs[t.job].reads;
}
std::span<const int> writes_of(const std::vector<Job>& jobs, const Turn& t) {
  return t.again >= 0 ? std::span(&t.again, 1) : std::span(jobs[t.job].writes);
}

// When each value is alive, turn by turn.
class Lifetimes {
 public:
  Lifetimes(const std::vector<Job>& jobs, const std::vector<JobValue>& values,
            const std::vector<Turn>& turns)
      : values_(values), uses_(values.size()), alive_(turns.size() + 1) {
    for (size_t t = 0; t < turns.size(); ++t) {
      for (int v : reads_of(jobs, values, turns[t]))
        uses_[v].push_back({static_cast<int>(t), false});
      for (int v : writes_of(jobs, turns[t])) uses_[v].push_back({static_cast<int>(t), true});
    }
    for (size_t v = 0; v < values.size(); ++v) add(v);
    int64_t now = 0;
    for (int64_t& a : alive_) a = now += a;
  }

  int peak() const {
    return static_cast<int>(std::max_element(alive_.begin(), alive_.end()) - alive_.begin());
  }
  int64_t at(int turn) const { return alive_[turn]; }

  // The turn that next reads the value, where it lies idle during this one; else -1.
  int next_use(int v, int turn) const {
    const auto next = first_use(v, turn);
    const bool idle = next != uses_[v].begin() && next != uses_[v].end() && next->turn != turn;
    return idle && !next->writes ? next->turn : -1;
  }

  bool is_alive(int v, int turn) const {
    if (values_[v].stays) return true;
    const auto next = first_use(v, turn);
    return next != uses_[v].begin() && next != uses_[v].end() && !next->writes;
  }

  // The turn that writes the value next, this one or a later one; else -1.
  int next_write(int v, int turn) const {
    for (auto u = first_use(v, turn); u != uses_[v].end(); ++u)
      if (u->writes) return u->turn;
    return -1;
  }

 private:
  struct Use {
    int turn;
    bool writes;
  };

  std::vector<Use>::const_iterator first_use(int v, int turn) const {
    return std::ranges::lower_bound(uses_[v], turn, {}, &Use::turn);
  }

  void add(size_t v) {
    if (values_[v].stays) return;
    const std::vector<Use>& uses = uses_[v];
    for (size_t i = 0; i < uses.size();) {
      size_t end = i + 1;  // of this version
      while (end < uses.size() && !uses[end].writes) ++end;
      alive_[uses[i].turn] += values_[v].bytes;
      alive_[uses[end - 1].turn + 1] -= values_[v].bytes;
      i = end;
    }
  }

  const std::vector<JobValue>& values_;
  std::vector<std::vector<Use>> uses_;
  std::vector<int64_t> alive_;
};

std::vector<Turn> turns_of(const std::vector<int>& order) {
  std::vector<Turn> out;
  for (int j : order) out.push_back({j, Turn::kFirst});
  return out;
}

int64_t bytes_of(const std::vector<JobValue>& values, std::span<const int> used) {
  int64_t bytes = 0;
  for (int v : used) bytes += values[v].bytes;
  return bytes;
}

// Whether everything that a value is computed from is there anyway, or hardly worth mentioning.
bool is_free(const std::vector<JobValue>& values, const Lifetimes& lives, int v, int turn) {
  int64_t kept = 0;
  for (int r : values[v].recipe)
    if (!lives.is_alive(r, turn)) kept += values[r].bytes;
  return kept * 16 <= values[v].bytes;
}

}  // namespace

int64_t peak_of_order(const std::vector<Job>& jobs, const std::vector<JobValue>& values,
                      const std::vector<Turn>& order) {
  const Lifetimes lives(jobs, values, order);
  return lives.at(lives.peak());
}

int64_t peak_of_order(const std::vector<Job>& jobs, const std::vector<JobValue>& values,
                      const std::vector<int>& order) {
  return peak_of_order(jobs, values, turns_of(order));
}

namespace {

// Jobs in their turns, some of them again.
struct Turns {
  Turns(const std::vector<Job>& all_jobs, const std::vector<JobValue>& all_values,
        const std::vector<int>& order)
      : jobs(all_jobs), values(all_values), maker(values.size(), -1), turns(turns_of(order)) {
    for (size_t j = 0; j < jobs.size(); ++j) {
      traffic += bytes_of(values, jobs[j].reads) + bytes_of(values, jobs[j].writes);
      for (int v : jobs[j].writes) maker[v] = static_cast<int>(j);
    }
  }

  int64_t bytes_again(const Turn& t) const {
    return bytes_of(values, reads_of(jobs, values, t)) + bytes_of(values, writes_of(jobs, t));
  }

  // Where each job runs first.
  std::vector<int> places() const {
    std::vector<int> out(jobs.size());
    for (size_t t = 0; t < turns.size(); ++t)
      if (turns[t].is_first()) out[turns[t].job] = static_cast<int>(t);
    return out;
  }

  const std::vector<Job>& jobs;
  const std::vector<JobValue>& values;
  std::vector<int> maker;  // of each value
  std::vector<Turn> turns;
  int64_t traffic = 0;  // bytes that all jobs read and write
};

bool is_before(const std::vector<int>& until, const std::vector<int>& place, int turn) {
  return std::ranges::all_of(until, [&](int j) { return place[j] > turn; });
}

// Cheap values that lie idle around the peak, alone, for a share of the traffic.
class CheapValues {
 public:
  explicit CheapValues(Turns& all) : all_(all) {}

  void run(const MemoryBudget& budget) {
    const int64_t enough =
        budget.limit >= 0 ? std::min(budget.limit, budget.enough) : budget.enough;
    auto left = static_cast<int64_t>(static_cast<double>(all_.traffic) * budget.share);
    for (;;) {
      const Lifetimes lives(all_.jobs, all_.values, all_.turns);
      if (lives.at(lives.peak()) <= enough) break;
      std::vector<Choice> choices = find_cheap(lives);
      const size_t count = std::min(choices.size(), kAtOnce);
      std::partial_sort(choices.begin(), choices.begin() + static_cast<std::ptrdiff_t>(count),
                        choices.end(),
                        [](const Choice& a, const Choice& b) { return a.gain > b.gain; });
      choices.resize(count);
      std::erase_if(choices, [&](const Choice& c) {
        const int64_t cost = all_.bytes_again({all_.maker[c.value], c.value});
        if (cost > left) return true;
        left -= cost;
        return false;
      });
      if (choices.empty()) break;
      // From the end to the beginning, so that places stay what they were.
      std::sort(choices.begin(), choices.end(),
                [](const Choice& a, const Choice& b) { return a.before > b.before; });
      for (const Choice& c : choices)
        all_.turns.insert(all_.turns.begin() + c.before, {all_.maker[c.value], c.value});
    }
  }

 private:
  static constexpr size_t kAtOnce = 8;

  struct Choice {
    int value, before;
    double gain;
  };

  std::vector<Choice> find_cheap(const Lifetimes& lives) const {
    const std::vector<int> place = all_.places();
    std::vector<Choice> out;
    for (int v = 0; v < static_cast<int>(all_.values.size()); ++v) {
      const JobValue& value = all_.values[v];
      if (!value.cheap || value.stays || all_.maker[v] < 0 || value.bytes == 0) continue;
      const int next = lives.next_use(v, lives.peak());
      if (next < 0 || !is_free(all_.values, lives, v, next)) continue;
      if (!is_before(value.until, place, next)) continue;
      out.push_back({v, next,
                     static_cast<double>(value.bytes) /
                         static_cast<double>(all_.bytes_again({all_.maker[v], v}))});
    }
    return out;
  }

  Turns& all_;
};

// Detours that free what they bring back at the peak, until that is within a limit.
class Detours {
 public:
  explicit Detours(Turns& all) : all_(all) {}

  // Takes those that free most for what they cost, as many at once as do not stand in each other's
  // way, until the peak is low enough or has not become lower for a while.
  void run(int64_t limit) {
    constexpr int kPatience = 40;  // steps
    constexpr double kTimes = 4;   // times the bytes that all jobs read and write
    const double most = kTimes * static_cast<double>(all_.traffic);
    std::vector<Turn> best = all_.turns;
    int64_t least = -1;
    double spent = 0;
    for (int idle = 0; idle < kPatience && spent < most; ++idle) {
      const Lifetimes lives(all_.jobs, all_.values, all_.turns);
      const int64_t peak = lives.at(lives.peak());
      if (least < 0 || peak < least) {
        least = peak;
        best = all_.turns;
        idle = 0;
      }
      if (peak <= limit) break;
      const std::vector<Detour> detours = choose_detours(lives, peak - limit);
      if (detours.empty()) break;
      for (const Detour& d : detours) spent += cost_of(d);
      take(detours);
    }
    all_.turns = std::move(best);
  }

 private:
  // Turns before another one that bring back what lies idle at the peak.
  struct Detour {
    int before = 0;
    std::vector<Turn> turns;   // sources first
    std::set<int> made, read;  // values; those read are alive there
    std::set<int> forgotten;   // values that no longer lie idle at the peak
    std::set<int> moved;       // later turns, which come here instead
    double gain = 0;           // bytes that are free at the peak for a byte of traffic
  };

  // In bytes of traffic: a GPU multiplies so often in the time of a byte, f32 numbers (8, of an
  // H200) or halves (96).
  double cost_of(const Turn& t) const {
    constexpr double kMultiplications = 32;
    const double bytes = static_cast<double>(all_.bytes_again(t));
    return t.again >= 0 ? bytes
                        : bytes + static_cast<double>(all_.jobs[t.job].work) / kMultiplications;
  }
  double cost_of(const Detour& d) const {
    double cost = 0;
    for (const Turn& t : d.turns) cost += cost_of(t);
    return cost;
  }

  std::vector<Detour> choose_detours(const Lifetimes& lives, int64_t wanted) const {
    const std::vector<int> place = all_.places();
    std::vector<Detour> all;
    std::set<std::pair<int, int>> seen;  // of each turn that is not the first
    for (int v = 0; v < static_cast<int>(all_.values.size()); ++v) {
      if (all_.values[v].stays || all_.maker[v] < 0 || all_.values[v].bytes == 0) continue;
      if (lives.next_use(v, lives.peak()) < 0) continue;
      const auto turn = turn_for(v);
      if (!turn || !seen.insert({turn->job, turn->again}).second) continue;
      Detour d = detour_of(*turn, lives);
      if (!add_turn(*turn, d, lives, place, 0)) continue;
      d.gain = static_cast<double>(bytes_of(all_.values, as_vector(d.forgotten))) / cost_of(d);
      all.push_back(std::move(d));
    }
    std::ranges::stable_sort(all, std::greater(), &Detour::gain);
    std::vector<Detour> out;
    const size_t most = std::max<size_t>(1, all.size() / 8);
    for (size_t i = 0; i < all.size() && out.size() < most && wanted > 0; ++i) {
      const auto is_in_the_way = [&](const Detour& other) {
        return meet(all[i].forgotten, other.read) || meet(all[i].read, other.forgotten) ||
               meet(all[i].made, other.made) || meet(all[i].moved, other.moved);
      };
      if (std::ranges::any_of(out, is_in_the_way)) continue;
      wanted -= bytes_of(all_.values, as_vector(all[i].forgotten));
      out.push_back(std::move(all[i]));
    }
    return out;
  }

  static std::vector<int> as_vector(const std::set<int>& s) { return {s.begin(), s.end()}; }
  static bool meet(const std::set<int>& a, const std::set<int>& b) {
    return std::ranges::any_of(a, [&](int v) { return b.contains(v); });
  }

  // How a value is made again.
  std::optional<Turn> turn_for(int v) const {
    if (all_.values[v].cheap) return Turn{all_.maker[v], v};
    if (all_.jobs[all_.maker[v]].repeats) return Turn{all_.maker[v], Turn::kAll};
    return std::nullopt;
  }

  // Before the first that needs one of the values that lie idle at the peak.
  Detour detour_of(const Turn& turn, const Lifetimes& lives) const {
    Detour d;
    for (int v : writes_of(all_.jobs, turn)) {
      const int next = lives.next_use(v, lives.peak());
      if (next < 0) continue;
      d.before = d.forgotten.empty() ? next : std::min(d.before, next);
      d.forgotten.insert(v);
    }
    return d;
  }

  // Adds the turn, behind others that bring back what it reads: those that come later anyway, moved
  // to this place, or new ones.
  bool add_turn(const Turn& turn, Detour& d, const Lifetimes& lives, const std::vector<int>& place,
                int depth) const {
    constexpr int kDeepest = 32;
    const std::vector<int>& until =
        turn.again >= 0 ? all_.values[turn.again].until : all_.jobs[turn.job].until;
    if (depth > kDeepest || !is_before(until, place, d.before)) return false;
    for (int v : reads_of(all_.jobs, all_.values, turn)) {
      if (d.made.contains(v)) continue;
      if (!d.forgotten.contains(v) && lives.is_alive(v, d.before)) {
        d.read.insert(v);
        continue;
      }
      if (all_.maker[v] < 0) return false;
      const int later = lives.next_write(v, d.before);
      const auto maker = later >= 0 ? std::optional(all_.turns[later]) : turn_for(v);
      if (!maker || maker->is_first() || !add_turn(*maker, d, lives, place, depth + 1))
        return false;
      if (later >= 0) d.moved.insert(later);
    }
    for (int v : writes_of(all_.jobs, turn)) d.made.insert(v);
    d.turns.push_back(turn);
    return true;
  }

  void take(const std::vector<Detour>& detours) {
    std::vector<Turn> out;
    for (int t = 0; t < static_cast<int>(all_.turns.size()); ++t) {
      for (const Detour& d : detours)
        if (d.before == t) out.insert(out.end(), d.turns.begin(), d.turns.end());
      if (std::ranges::none_of(detours, [&](const Detour& d) { return d.moved.contains(t); }))
        out.push_back(all_.turns[t]);
    }
    all_.turns = std::move(out);
  }

  Turns& all_;
};

}  // namespace

std::vector<Turn> recompute_for_memory(const std::vector<Job>& jobs,
                                       const std::vector<JobValue>& values,
                                       const std::vector<int>& order, const MemoryBudget& budget) {
  Turns all(jobs, values, order);
  CheapValues(all).run(budget);
  if (budget.limit >= 0) Detours(all).run(budget.limit);
  return std::move(all.turns);
}

}  // namespace tiny
