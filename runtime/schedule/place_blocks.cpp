#include "runtime/schedule/place_blocks.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <queue>
#include <set>
#include <span>
#include <utility>

namespace tiny {

namespace {

struct Run {
  int64_t begin = 0, end = 0;
};

// A union of stretches of memory: runs in order, none of which touch.
class Runs {
 public:
  void add(Run r) {
    const auto first = std::lower_bound(runs_.begin(), runs_.end(), r.begin,
                                        [](const Run& a, int64_t begin) { return a.end < begin; });
    auto last = first;
    for (; last != runs_.end() && last->begin <= r.end; ++last) {
      r.begin = std::min(r.begin, last->begin);
      r.end = std::max(r.end, last->end);
    }
    if (first == last) {
      runs_.insert(first, r);
      return;
    }
    *first = r;
    runs_.erase(first + 1, last);
  }
  std::span<const Run> runs() const { return runs_; }

 private:
  std::vector<Run> runs_;
};

// What is occupied during which steps: a tree whose leaves are the steps. Blocks beside each other
// make one run, however many they are, so that few runs are looked at for many blocks.
class Occupied {
 public:
  explicit Occupied(int steps) : steps_(steps), spans_(4 * static_cast<size_t>(steps)) {}

  void add(const Block& b) { add(b, 0, 0, steps_); }

  // What is occupied during some of the block's steps, by where it begins.
  std::span<const Run> during(const Block& b) {
    found_.clear();
    ends_.clear();
    find(b, 0, 0, steps_);
    while (ends_.size() > 1) join_pairs();
    return found_;
  }

 private:
  struct Span {
    Runs always;     // by blocks that are alive during all of its steps, and not of those above it
    Runs sometimes;  // by any block
  };

  static bool holds(const Block& b, int begin, int end) {
    return b.first <= begin && end <= b.last + 1;
  }

  void add(const Block& b, size_t at, int begin, int end) {
    const Run own{b.offset, b.offset + b.bytes};
    spans_[at].sometimes.add(own);
    if (holds(b, begin, end)) return spans_[at].always.add(own);
    const int middle = begin + (end - begin) / 2;
    if (b.first < middle) add(b, 2 * at + 1, begin, middle);
    if (b.last >= middle) add(b, 2 * at + 2, middle, end);
  }

  void find(const Block& b, size_t at, int begin, int end) {
    if (holds(b, begin, end)) return add_found(spans_[at].sometimes);
    add_found(spans_[at].always);
    const int middle = begin + (end - begin) / 2;
    if (b.first < middle) find(b, 2 * at + 1, begin, middle);
    if (b.last >= middle) find(b, 2 * at + 2, middle, end);
  }

  void add_found(const Runs& more) {
    if (more.runs().empty()) return;
    found_.insert(found_.end(), more.runs().begin(), more.runs().end());
    ends_.push_back(found_.size());
  }

  // Of the lists in what was found, each with the next one as one list.
  void join_pairs() {
    joined_.clear();
    size_t lists = 0;
    for (size_t i = 0, begin = 0; i < ends_.size(); i += 2) {
      const size_t middle = ends_[i], end = i + 1 < ends_.size() ? ends_[i + 1] : middle;
      const size_t first = joined_.size();
      for (size_t a = begin, b = middle; a < middle || b < end;) {
        const bool is_a = b == end || (a < middle && found_[a].begin <= found_[b].begin);
        const Run& next = found_[is_a ? a++ : b++];
        if (joined_.size() > first && next.begin <= joined_.back().end)
          joined_.back().end = std::max(joined_.back().end, next.end);
        else
          joined_.push_back(next);
      }
      begin = end;
      ends_[lists++] = joined_.size();
    }
    ends_.resize(lists);
    found_.swap(joined_);
  }

  const int steps_;
  std::vector<Span> spans_;  // of all steps, and behind each at 2i + 1 and 2i + 2 its halves
  std::vector<Run> found_, joined_;  // lists of runs in order
  std::vector<size_t> ends_;         // of the lists
};

// Memory that is taken in pieces and given back.
class Heap {
 public:
  // From the smallest gap that has room, the first of them, else behind all that is taken.
  int64_t take(int64_t bytes) {
    const auto best = by_room_.lower_bound({bytes, 0});
    if (best == by_room_.end()) return std::exchange(top_, top_ + bytes);
    const auto [room, begin] = *best;
    remove(gaps_.find(begin));
    add(begin + bytes, begin + room);
    return begin;
  }

  void give_back(int64_t begin, int64_t bytes) {
    int64_t end = begin + bytes;
    auto next = gaps_.lower_bound(begin);
    if (next != gaps_.end() && next->first == end) {
      end = next->second;
      next = remove(next);
    }
    if (next != gaps_.begin() && std::prev(next)->second == begin) {
      begin = std::prev(next)->first;
      remove(std::prev(next));
    }
    if (end == top_)
      top_ = begin;
    else
      add(begin, end);
  }

 private:
  using Gaps = std::map<int64_t, int64_t>;  // from where to where

  Gaps::iterator remove(Gaps::iterator gap) {
    by_room_.erase({gap->second - gap->first, gap->first});
    return gaps_.erase(gap);
  }
  void add(int64_t begin, int64_t end) {
    if (begin == end) return;
    gaps_.emplace(begin, end);
    by_room_.emplace(end - begin, begin);
  }

  Gaps gaps_;                                      // between what is taken
  std::set<std::pair<int64_t, int64_t>> by_room_;  // the same: bytes, and where they begin
  int64_t top_ = 0;                                // where all that is taken ends
};

}  // namespace

int64_t place_by_time(const std::vector<Block*>& order) {
  const auto later = [](const Block* a, const Block* b) { return a->last > b->last; };
  std::priority_queue<const Block*, std::vector<const Block*>, decltype(later)> alive(later);
  Heap heap;
  int64_t total = 0;
  for (Block* b : order) {
    for (; !alive.empty() && alive.top()->last < b->first; alive.pop())
      heap.give_back(alive.top()->offset, alive.top()->bytes);
    b->offset = heap.take(b->bytes);
    total = std::max(total, b->offset + b->bytes);
    alive.push(b);
  }
  return total;
}

int64_t place_blocks(const std::vector<Block*>& order) {
  int steps = 1;
  for (const Block* b : order) steps = std::max(steps, b->last + 1);
  Occupied occupied(steps);
  int64_t total = 0;
  for (Block* b : order) {
    int64_t end = 0, best = -1, best_room = std::numeric_limits<int64_t>::max();
    for (const Run& r : occupied.during(*b)) {
      const int64_t room = r.begin - end;
      if (room >= b->bytes && room < best_room) {
        best = end;
        best_room = room;
      }
      end = r.end;
    }
    b->offset = best >= 0 ? best : end;
    total = std::max(total, b->offset + b->bytes);
    occupied.add(*b);
  }
  return total;
}

}  // namespace tiny
