#include "runtime/schedule/memory_plan.h"

#include <algorithm>
#include <functional>
#include <numeric>
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
      if (root_[v] == v && stays_[v]) {
        out_.peak += blocks_[v].bytes;
        if (static_cast<int>(v) >= s_.inputs) out_.added[s_.values[v].device] += blocks_[v].bytes;
      }
      if (!in_arena(v)) continue;
      alive[blocks_[v].first] += blocks_[v].bytes;
      alive[blocks_[v].last + 1] -= blocks_[v].bytes;
    }
    int64_t now = 0, most = 0;
    for (int64_t change : alive) most = std::max(most, now += change);
    out_.live = out_.peak + most;
    for (const auto& [device, bytes] : out_.arenas) {
      out_.peak += bytes;
      out_.added[device] += bytes;
    }
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

namespace {

// Memory of a device's value, and of those that take it over: from the step that writes it to the
// last that needs it.
struct Lifetime {
  int value = -1, first = -1, last = -1;
};

std::vector<Lifetime> lifetimes(const Schedule& s, int device) {
  std::vector<Lifetime> out(s.values.size());
  const auto note = [&](int v, int step) {
    while (s.values[v].in_place >= 0) v = s.values[v].in_place;
    if (out[v].value < 0) out[v] = {v, step, step};
    out[v].last = step;
  };
  for (int i = 0; i < static_cast<int>(s.steps.size()); ++i)
    for (int v : s.steps[i].values) note(v, i);
  for (const Result& r : s.results)
    if (r.value >= 0) note(r.value, static_cast<int>(s.steps.size()));
  std::erase_if(out, [&](const Lifetime& l) {
    return l.value < s.inputs || s.values[l.value].device != device;
  });
  return out;
}

}  // namespace

std::string largest_at_peak(const Schedule& s, int device) {
  constexpr size_t kLines = 10;
  std::vector<Lifetime> all = lifetimes(s, device);
  std::vector<int64_t> alive(s.steps.size() + 2);
  for (const Lifetime& l : all) {
    alive[l.first] += bytes_of(s.values[l.value]);
    alive[l.last + 1] -= bytes_of(s.values[l.value]);
  }
  std::partial_sum(alive.begin(), alive.end(), alive.begin());
  const auto peak = static_cast<int>(std::ranges::max_element(alive) - alive.begin());
  std::erase_if(all, [&](const Lifetime& l) { return l.first > peak || l.last < peak; });
  if (all.empty()) return "";
  const auto bytes = [&](const Lifetime& l) { return bytes_of(s.values[l.value]); };
  std::ranges::stable_sort(all, std::greater(), bytes);
  std::string text = cat("; the largest of ", all.size(), " values that ", s.steps[peak].name,
                         " needs, or later kernels:");
  for (size_t i = 0; i < all.size() && i < kLines; ++i) {
    const Value& v = s.values[all[i].value];
    text += memory_line(bytes(all[i]), v.dtype, v.size, s.steps[all[i].first].operations);
  }
  return text;
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

}  // namespace tiny
