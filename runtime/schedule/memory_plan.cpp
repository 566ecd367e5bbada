#include "runtime/schedule/memory_plan.h"

#include <algorithm>
#include <span>

#include "runtime/device/buffer.h"
#include "runtime/schedule/place_blocks.h"
#include "runtime/schedule/schedule.h"
#include "tiny/base/error.h"
#include "tiny/base/text.h"

namespace tiny {

namespace {

int64_t bytes_of(const Value& v) { return bytes_of(v.dtype, v.size); }

int64_t aligned(int64_t bytes) {
  return (bytes + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
}

// Large blocks first (Y. Pisarchyk, J. Lee, "Efficient memory management for deep neural net
// inference", arXiv 2001.03288) and blocks in order of time both come close to the limit, now the
// one and now the other.
int64_t place_well(std::vector<Block*> blocks) {
  const auto by_time = [](const Block* a, const Block* b) { return a->first < b->first; };
  const auto by_size = [](const Block* a, const Block* b) { return a->bytes > b->bytes; };
  std::stable_sort(blocks.begin(), blocks.end(), by_time);
  std::vector<Block*> large_first = blocks;
  std::stable_sort(large_first.begin(), large_first.end(), by_size);
  const int64_t time = place_by_time(blocks);
  std::vector<int64_t> offsets;
  for (const Block* b : blocks) offsets.push_back(b->offset);
  const int64_t size = place_blocks(large_first);
  if (size <= time) return size;
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i]->offset = offsets[i];
  return time;
}

// The most bytes of blocks that are alive during one step.
int64_t most_alive(const std::vector<Block*>& blocks) {
  std::map<int, int64_t> changes;
  for (const Block* b : blocks) {
    changes[b->first] += b->bytes;
    changes[b->last + 1] -= b->bytes;
  }
  int64_t now = 0, most = 0;
  for (const auto& [step, change] : changes) most = std::max(most, now += change);
  return most;
}

// Small blocks lie apart from the others, and what was in them stays for many steps more: kernels
// with little to do wait neither for one another nor for large ones because of memory, and can run
// beside them. That takes about kHeld / kSmall of the memory more, 6 %, for each that a step makes.
int64_t place_apart(const std::vector<Block*>& blocks) {
  constexpr int64_t kSmall = 1024;
  constexpr int kHeld = 64;
  const int64_t most = most_alive(blocks);
  std::vector<Block*> small, large;
  for (Block* b : blocks) (b->bytes * kSmall <= most ? small : large).push_back(b);
  const int64_t room = place_well(large);
  for (Block* b : small) b->last += kHeld;
  const int64_t more = place_well(small);
  for (Block* b : small) {
    b->last -= kHeld;
    b->offset += room;
  }
  return room + more;
}

class Plan {
 public:
  explicit Plan(const Schedule& s) : s_(s), root_(s.values.size()), blocks_(s.values.size()) {}

  MemoryPlan make() {
    find_blocks();
    out_.offset.assign(s_.values.size(), -1);
    std::map<int, std::vector<Block*>> devices;
    for (size_t v = 0; v < blocks_.size(); ++v)
      if (in_arena(v)) devices[s_.values[v].device].push_back(&blocks_[v]);
    for (auto& [device, blocks] : devices) out_.arenas[device] = place_apart(blocks);
    for (size_t v = 0; v < blocks_.size(); ++v)
      if (in_arena(root_[v])) out_.offset[v] = blocks_[root_[v]].offset;
    count();
    return std::move(out_);
  }

 private:
  bool in_arena(size_t v) const { return root_[v] == v && !stays_[v] && blocks_[v].last >= 0; }

  void find_blocks() {
    stays_.assign(s_.values.size(), false);
    for (size_t v = 0; v < s_.values.size(); ++v) {
      const Value& value = s_.values[v];
      root_[v] = value.in_place < 0 ? v : root_[value.in_place];
      Block& b = blocks_[root_[v]];
      b.bytes = std::max(b.bytes, aligned(bytes_of(value)));
      if (static_cast<int>(v) < s_.inputs || value.size == 0) stays_[v] = true;
    }
    for (const Result& r : s_.results)
      if (r.value >= 0) stays_[root_[r.value]] = true;
    for (size_t i = 0; i < s_.steps.size(); ++i)
      for (int v : s_.steps[i].values) {
        Block& b = blocks_[root_[v]];
        b.first = std::min(b.first, static_cast<int>(i));
        b.last = static_cast<int>(i);
      }
  }

  void count() {
    std::vector<int64_t> alive(s_.steps.size() + 1);
    for (size_t v = 0; v < blocks_.size(); ++v) {
      const int place = s_.values[v].in_place;
      if ((place < 0 || place >= s_.inputs) && !s_.values[v].again)
        out_.sum += aligned(bytes_of(s_.values[v]));
      if (root_[v] == v && stays_[v]) out_.peak += blocks_[v].bytes;
      if (!in_arena(v)) continue;
      alive[blocks_[v].first] += blocks_[v].bytes;
      alive[blocks_[v].last + 1] -= blocks_[v].bytes;
    }
    int64_t now = 0, most = 0;
    for (int64_t change : alive) most = std::max(most, now += change);
    out_.live = out_.peak + most;
    for (const auto& [device, bytes] : out_.arenas) out_.peak += bytes;
  }

  const Schedule& s_;
  std::vector<size_t> root_;  // whose memory a value has
  std::vector<bool> stays_;
  std::vector<Block> blocks_;
  MemoryPlan out_;
};

}  // namespace

MemoryPlan plan_memory(const Schedule& s) { return Plan(s).make(); }

std::string to_text(const MemoryPlan& plan) {
  int64_t arenas = 0;
  for (const auto& [device, bytes] : plan.arenas) arenas += bytes;
  return formatted("peak %.3f GB: %.3f inputs and results, %.3f arena; without sharing %.3f GB",
                   static_cast<double>(plan.peak) * 1e-9,
                   static_cast<double>(plan.peak - arenas) * 1e-9,
                   static_cast<double>(arenas) * 1e-9, static_cast<double>(plan.sum) * 1e-9);
}

// --- The checker ---------------------------------------------------------------------------------

namespace {

// Which value each piece of memory holds, step by step.
class Checker {
 public:
  Checker(const Schedule& s, const MemoryPlan& plan) : s_(s), plan_(plan) {}

  void run() {
    for (int v = 0; v < s_.inputs; ++v) own_[v] = v;
    for (size_t i = 0; i < s_.steps.size(); ++i) {
      step_ = i;
      check_step(s_.steps[i]);
    }
    step_ = s_.steps.size();
    for (const Result& r : s_.results)
      if (r.value >= 0 && s_.values[r.value].size) {
        expect(plan_.offset[r.value] < 0, "memory: result ", r.value, " lies in the arena");
        read(r.value);
      }
  }

 private:
  struct Extent {
    int64_t end = 0;
    int value = -1;
  };

  void check_step(const Step& step) {
    std::vector<bool> written(step.values.size());
    if (!step.kernel)
      written[0] = true;
    else
      for (Node store : step.kernel->srcs()) written[store->src(0)->ints()[0]] = true;
    for (size_t i = 0; i < step.values.size(); ++i) {
      const int v = step.values[i], old = s_.values[v].in_place;
      if (!written[i])
        read(v);
      else if (old >= 0 && !was_written_[v])
        read(old);
    }
    for (size_t i = 0; i < step.values.size(); ++i)
      if (written[i]) write(step.values[i]);
    // What is written did not hit another argument.
    for (int v : step.values) read(v);
  }

  // Memory of its own goes by the value that it was made for.
  int owner(int v) const {
    while (s_.values[v].in_place >= 0) v = s_.values[v].in_place;
    return v;
  }

  int64_t begin(int v) const { return plan_.offset[v]; }
  int64_t end(int v) const { return begin(v) + bytes_of(s_.values[v]); }

  void read(int v) {
    if (s_.values[v].size == 0) return;  // no step writes it
    int holds = -1;
    if (begin(v) < 0) {
      const auto at = own_.find(owner(v));
      if (at != own_.end()) holds = at->second;
    } else {
      const auto& extents = arena_[s_.values[v].device];
      const auto at = extents.find(begin(v));
      if (at != extents.end() && at->second.end == end(v)) holds = at->second.value;
    }
    expect(holds == v, "memory: step ", step_, " needs value ", v, ", but its memory holds ",
           holds);
  }

  void write(int v) {
    was_written_[v] = true;
    if (begin(v) < 0) {
      own_[owner(v)] = v;
      return;
    }
    const int device = s_.values[v].device;
    const auto arena = plan_.arenas.find(device);
    expect(
        arena != plan_.arenas.end() && end(v) <= arena->second && begin(v) % kBlockAlignment == 0,
        "memory: value ", v, " lies outside the arena or is not aligned");
    auto& extents = arena_[device];
    auto at = extents.lower_bound(begin(v));
    if (at != extents.begin() && std::prev(at)->second.end > begin(v)) --at;
    while (at != extents.end() && at->first < end(v)) at = extents.erase(at);
    extents[begin(v)] = {end(v), v};
  }

  const Schedule& s_;
  const MemoryPlan& plan_;
  size_t step_ = 0;
  std::map<int, int> own_;
  std::map<int, bool> was_written_;
  std::map<int, std::map<int64_t, Extent>> arena_;  // by device and offset, none of which overlap
};

}  // namespace

void check_memory(const Schedule& s, const MemoryPlan& plan) { Checker(s, plan).run(); }

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
  Orderer(const std::vector<Job>& jobs, const std::vector<JobValue>& values, bool greedy)
      : jobs_(jobs),
        values_(values),
        greedy_(greedy),
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
    int64_t least = 0;
    for (size_t i = 0; greedy_ && i < ready.size(); ++i) {
      const int64_t g = growth_ahead(ready[i], kAhead);
      if (g >= least) continue;
      best = i;
      least = g;
    }
    return best;
  }

  // By how much memory has grown after the job and the best of those that it alone holds back.
  int64_t growth_ahead(int job, int ahead) {
    const int64_t here = growth(jobs_[job]);
    if (ahead == 0) return here;
    int64_t best = 0;
    for (int v : jobs_[job].reads) --readers_[v];
    for (int next : after_[job])
      if (waits_for_[next] == 1) best = std::min(best, growth_ahead(next, ahead - 1));
    for (int v : jobs_[job].reads) ++readers_[v];
    return here + best;
  }

  int64_t growth(const Job& j) const {
    int64_t out = 0;
    for (int v : j.writes)
      if (!values_[v].stays) out += values_[v].bytes;
    for (int v : j.reads)
      if (!values_[v].stays && readers_[v] == 1) out -= values_[v].bytes;
    return out;
  }

  const std::vector<Job>& jobs_;
  const std::vector<JobValue>& values_;
  const bool greedy_;
  std::vector<int> readers_, waits_for_;
  std::vector<std::vector<int>> after_;
};

}  // namespace

std::vector<int> order_for_memory(const std::vector<Job>& jobs,
                                  const std::vector<JobValue>& values) {
  std::vector<int> given = Orderer(jobs, values, false).run();
  std::vector<int> greedy = Orderer(jobs, values, true).run();
  expect(given.size() == jobs.size(), "kernels wait for each other");
  const bool better = peak_of_order(jobs, values, greedy) < peak_of_order(jobs, values, given);
  return better ? greedy : given;
}

// --- Computing again -----------------------------------------------------------------------------

namespace {

// When each value is alive, turn by turn.
class Lifetimes {
 public:
  Lifetimes(const std::vector<Job>& jobs, const std::vector<JobValue>& values,
            const std::vector<Turn>& turns)
      : jobs_(jobs),
        values_(values),
        turns_(turns),
        uses_(values.size()),
        alive_(turns.size() + 1) {
    for (size_t t = 0; t < turns.size(); ++t) {
      for (int v : reads(turns[t])) uses_[v].push_back({static_cast<int>(t), false});
      for (int v : writes(turns[t])) uses_[v].push_back({static_cast<int>(t), true});
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
    bool before = false;
    for (const Use& u : uses_[v]) {
      if (u.turn == turn) return -1;
      if (u.turn > turn) return before && !u.writes ? u.turn : -1;
      before = true;
    }
    return -1;
  }

  bool is_alive(int v, int turn) const {
    if (values_[v].stays) return true;
    bool before = false;
    for (const Use& u : uses_[v]) {
      if (u.turn >= turn) return before && !u.writes;
      before = true;
    }
    return false;
  }

 private:
  struct Use {
    int turn;
    bool writes;
  };

  std::span<const int> reads(const Turn& t) const {
    return t.again >= 0 ? values_[t.again].recipe : jobs_[t.job].reads;
  }
  std::span<const int> writes(const Turn& t) const {
    return t.again >= 0 ? std::span(&t.again, 1) : std::span(jobs_[t.job].writes);
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

  const std::vector<Job>& jobs_;
  const std::vector<JobValue>& values_;
  const std::vector<Turn>& turns_;
  std::vector<std::vector<Use>> uses_;
  std::vector<int64_t> alive_;
};

std::vector<Turn> turns_of(const std::vector<int>& order) {
  std::vector<Turn> out;
  for (int j : order) out.push_back({j, -1});
  return out;
}

int64_t cost_of(const std::vector<JobValue>& values, const std::vector<int>& used) {
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

class Recomputer {
 public:
  Recomputer(const std::vector<Job>& jobs, const std::vector<JobValue>& values,
             const std::vector<int>& order)
      : jobs_(jobs), values_(values), maker_(values.size(), -1), turns_(turns_of(order)) {
    for (size_t j = 0; j < jobs.size(); ++j) {
      traffic_ += cost_of(values, jobs[j].reads) + cost_of(values, jobs[j].writes);
      for (int v : jobs[j].writes) maker_[v] = static_cast<int>(j);
    }
  }

  std::vector<Turn> run(int64_t enough, double share) {
    auto budget = static_cast<int64_t>(static_cast<double>(traffic_) * share);
    for (;;) {
      const Lifetimes lives(jobs_, values_, turns_);
      if (lives.at(lives.peak()) <= enough) break;
      std::vector<Choice> choices = find_choices(lives);
      const size_t count = std::min(choices.size(), kAtOnce);
      std::partial_sort(choices.begin(), choices.begin() + static_cast<std::ptrdiff_t>(count),
                        choices.end(),
                        [](const Choice& a, const Choice& b) { return a.gain > b.gain; });
      choices.resize(count);
      std::erase_if(choices, [&](const Choice& c) {
        const bool fits = cost_again(c.value) <= budget;
        if (fits) budget -= cost_again(c.value);
        return !fits;
      });
      if (choices.empty()) break;
      // From the end to the beginning, so that places stay what they were.
      std::sort(choices.begin(), choices.end(),
                [](const Choice& a, const Choice& b) { return a.before > b.before; });
      for (const Choice& c : choices)
        turns_.insert(turns_.begin() + c.before, {maker_[c.value], c.value});
    }
    return std::move(turns_);
  }

 private:
  static constexpr size_t kAtOnce = 8;

  struct Choice {
    int value, before;
    double gain;
  };

  int64_t cost_again(int v) const { return values_[v].bytes + cost_of(values_, values_[v].recipe); }

  std::vector<Choice> find_choices(const Lifetimes& lives) const {
    std::vector<int> place(jobs_.size());
    for (size_t t = 0; t < turns_.size(); ++t)
      if (turns_[t].again < 0) place[turns_[t].job] = static_cast<int>(t);
    std::vector<Choice> out;
    for (int v = 0; v < static_cast<int>(values_.size()); ++v) {
      const JobValue& value = values_[v];
      if (!value.cheap || value.stays || maker_[v] < 0 || value.bytes == 0) continue;
      const int next = lives.next_use(v, lives.peak());
      if (next < 0 || !is_free(values_, lives, v, next)) continue;
      if (std::any_of(value.until.begin(), value.until.end(),
                      [&](int j) { return place[j] <= next; }))
        continue;
      out.push_back(
          {v, next, static_cast<double>(value.bytes) / static_cast<double>(cost_again(v))});
    }
    return out;
  }

  const std::vector<Job>& jobs_;
  const std::vector<JobValue>& values_;
  std::vector<int> maker_;
  std::vector<Turn> turns_;
  int64_t traffic_ = 0;
};

}  // namespace

std::vector<Turn> recompute_for_memory(const std::vector<Job>& jobs,
                                       const std::vector<JobValue>& values,
                                       const std::vector<int>& order, int64_t enough,
                                       double share) {
  return Recomputer(jobs, values, order).run(enough, share);
}

}  // namespace tiny
