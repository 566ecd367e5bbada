#include "codegen/wgmma/pipeline.h"

#include <algorithm>
#include <deque>
#include <string>
#include <unordered_set>

#include "tiny/base/error.h"

namespace tiny {

Ring ring_of(const MatrixTile& tile) {
  Ring ring;
  ring.stages = tile.stages();
  ring.stage_bytes = tile.stage_bytes();
  const int groups = tile.groups();
  ring.reads.resize(groups);
  for (const MatrixOperand* o : {&tile.a, &tile.b}) {
    const bool shared = (o == &tile.a) == tile.split_n;
    const int begin = o == &tile.b ? tile.a.bytes() : 0, part = o->bytes() / (shared ? 1 : groups);
    for (int box = 0; box < o->boxes; ++box)
      ring.boxes.push_back({begin + box * o->box_bytes(), o->box_bytes()});
    for (int group = 0; group < groups; ++group)
      ring.reads[group].push_back({begin + (shared ? 0 : group * part), part});
  }
  const int blocks = tile.multicasts() ? tile.cluster() : 1;  // that copy into a stage
  for (int block = 1; block < blocks; ++block)
    for (int group = 0; group < groups; ++group) ring.reads.push_back(ring.reads[group]);
  ring.empty_count = static_cast<int>(ring.reads.size());
  ring.fill = {{RingOp::WaitEmpty}, {RingOp::Expect, ring.stage_bytes}};
  for (int box = 0; box < tile.a.boxes + tile.b.boxes; ++box) {
    const bool first = box < tile.a.boxes;
    const int own = first ? box : box - tile.a.boxes;
    const int each = (first ? tile.a : tile.b).boxes / tile.copied_by(first);
    ring.fill.push_back({own < each ? RingOp::Copy : RingOp::Theirs, box});
  }
  ring.fill.push_back({RingOp::Advance});
  // A stage is released one step later: its products are done while the next ones run.
  ring.read = {{RingOp::WaitFull}, {RingOp::Multiply}, {RingOp::WaitProducts, 1},
               {RingOp::Release},  {RingOp::Note},     {RingOp::Advance}};
  if (tile.type().promotes_each_step)
    ring.read = {{RingOp::WaitFull}, {RingOp::Multiply}, {RingOp::WaitProducts, 0}, {RingOp::Note},
                 {RingOp::Release},  {RingOp::Sum},      {RingOp::Advance}};
  ring.end = {{RingOp::WaitProducts, 0}, {RingOp::Release}, {RingOp::Use}};
  return ring;
}

namespace {

// --- the model -----------------------------------------------------------------------------------

// The thread that fills, or a warpgroup. A warpgroup is one: its products begin when all of its
// threads have asked for them and end together, so the thread that releases a stage speaks for all.
struct RingThread {
  int at = 0, parity = 0, noted = -1;  // the values of the kernel's variables
  bool ends = false;                   // in `end`, not in `fill` or `read`
  bool in_tile = false;                // has done a step since the last end
  size_t next = 0;                     // step of the table
  int64_t k = 0;                       // steps along k that are behind it
  int multiplied = 0;                  // in this one
  std::vector<int> groups;             // stages of its products that may be running
};

struct Barrier {
  int phase = 0, pending = 0;
  int64_t bytes = 0;  // that are still to come
};

struct PipelineStage {
  Barrier full, empty;
  int64_t holds = -1;                    // the step along k whose boxes it has or gets
  uint32_t asked = 0, on_their_way = 0;  // boxes
};

constexpr int64_t kOpen = -1;

struct RingState {
  std::vector<RingThread> workers;  // the one that fills first
  std::vector<PipelineStage> stages;
  int64_t last = kOpen;  // how many steps along k there are; open: nobody has come so far yet
};

class Explorer {
 public:
  explicit Explorer(const Ring& ring) : ring_(ring) {}

  Finding run() {
    if (layout(); !problem_.empty()) return wrong();
    int64_t bytes = 0;
    for (const auto& box : ring_.boxes) bytes += box.size;
    for (const RingStep& step : ring_.fill)
      if (step.op == RingOp::Expect) bytes -= step.amount;
    together_ = bytes == 0;
    add(first());
    while (!todo_.empty() && problem_.empty()) {
      if (seen_.size() > kMax)
        return {Verdict::Unproved, Method::None, "the ring of stages has too many states"};
      const RingState s = std::move(todo_.front());
      todo_.pop_front();
      expand(s);
    }
    return problem_.empty() ? Finding{Verdict::Proved, Method::Walk, ""} : wrong();
  }

 private:
  static constexpr size_t kMax = 1000000;

  RingState first() const {
    RingState s;
    s.workers.resize(1 + ring_.reads.size());
    s.stages.resize(static_cast<size_t>(ring_.stages));
    for (RingThread& w : s.workers) w.parity = ring_.read_parity;
    s.workers[0].parity = ring_.fill_parity;
    for (PipelineStage& stage : s.stages) {
      stage.full.pending = ring_.full_count;
      stage.empty.pending = ring_.empty_count;
    }
    return s;
  }

  Finding wrong() const { return {Verdict::Wrong, Method::Walk, "ring of stages: " + problem_}; }
  template <class... T> void fail(const T&... what) {
    if (problem_.empty()) problem_ = cat(what...);
  }
  std::string name(size_t worker) const {
    return worker == 0 ? "the thread that fills" : cat("warpgroup ", worker);
  }

  // Boxes lie in the stage and apart, and are all that is read.
  void layout() {
    std::vector<Ring::Bytes> boxes = ring_.boxes;
    std::ranges::sort(boxes, [](auto& a, auto& b) { return a.offset < b.offset; });
    int64_t end = 0;
    for (const auto& box : boxes) {
      if (box.offset % 1024) fail("a box lies at byte ", box.offset, ", not a multiple of 1024");
      if (box.offset < end) fail("boxes overlap at byte ", box.offset, " of a stage");
      end = box.offset + box.size;
    }
    if (end > ring_.stage_bytes)
      fail("boxes take ", end, " bytes of a stage of ", ring_.stage_bytes);
    for (const auto& reads : ring_.reads)
      for (const auto& read : reads) {
        int64_t at = read.offset;
        for (const auto& box : boxes)
          if (box.offset <= at && at < box.offset + box.size) at = box.offset + box.size;
        if (at < read.offset + read.size) fail("byte ", at, " of a stage is read and never filled");
      }
  }

  const std::vector<RingStep>& table(const RingState& s, size_t worker) const {
    if (worker == 0) return ring_.fill;
    return s.workers[worker].ends ? ring_.end : ring_.read;
  }

  // --- all that can happen next ------------------------------------------------------------------

  void expand(const RingState& s) {
    bool stays = true, finished = true;  // nobody goes on, unless a tile should end here
    const auto go = [&](auto what) {
      RingState next = s;
      what(next);
      if (problem_.empty()) add(std::move(next));
    };
    for (size_t i = 0; i < s.workers.size(); ++i) {
      const RingThread& w = s.workers[i];
      const bool between = w.next == 0 && !w.ends, at_last = between && w.k == s.last;
      const bool may_end = i > 0 && between && w.in_tile, goes_on = !at_last && can_go_on(s, i);
      if (may_end) go([&](RingState& n) { n.workers[i].ends = true; });
      if (goes_on) go([&](RingState& n) { step(n, i); });
      stays &= !goes_on && !(may_end && at_last);
      finished &= at_last && !may_end;
    }
    // The last tile may end where somebody has come, for all of them.
    if (s.last == kOpen)
      go([&](RingState& n) {
        n.last = 0;
        for (const RingThread& w : n.workers) n.last = std::max(n.last, w.k + (w.next > 0));
      });
    for (size_t at = 0; at < s.stages.size(); ++at)
      for (size_t box = 0; box < ring_.boxes.size(); ++box)
        if (s.stages[at].on_their_way >> box & 1 && matters(s, at)) {
          stays = false;
          go([&](RingState& n) { land(n, at, box); });
          if (together_) break;
        }
    if (stays && !finished) stuck(s);
  }

  bool can_go_on(const RingState& s, size_t worker) const {
    const RingThread& w = s.workers[worker];
    const RingOp op = table(s, worker)[w.next].op;
    const PipelineStage& stage = s.stages[w.at];
    // A wait is over when the phase before the one in progress has its parity.
    if (op == RingOp::WaitEmpty) return stage.empty.phase != w.parity;
    if (op == RingOp::WaitFull) return stage.full.phase != w.parity;
    return true;
  }

  // A box may land at any time. When it does so makes no difference to others than those who look
  // at the stage, so that it need not be tried before one of them is about to.
  bool matters(const RingState& s, size_t at) const {
    for (size_t i = 0; i < s.workers.size(); ++i) {
      const RingThread& w = s.workers[i];
      const RingOp op = table(s, i)[w.next].op;
      const bool looks = op == RingOp::WaitFull || op == RingOp::Multiply || op == RingOp::Expect ||
                         op == RingOp::Copy || op == RingOp::Theirs;
      if (looks && static_cast<size_t>(w.at) == at) return true;
    }
    return false;
  }

  // All up to the next wait at once: what a worker does after a wait can only enable others, or be
  // an error whenever it happens, so nothing is missed where nobody else comes in between.
  void step(RingState& s, size_t worker) {
    const auto& steps = table(s, worker);
    RingThread& w = s.workers[worker];
    do {
      act(s, worker);
      ++w.next;
    } while (w.next < steps.size() && !is_wait(steps[w.next].op));
    if (w.next == steps.size()) finish(w, worker);
  }

  static bool is_wait(RingOp op) {
    return op == RingOp::WaitEmpty || op == RingOp::WaitFull || op == RingOp::WaitProducts;
  }

  void finish(RingThread& w, size_t worker) {
    w.next = 0;
    if (w.ends) {
      w.ends = w.in_tile = false;
      return;
    }
    if (worker > 0 && w.multiplied != 1)
      fail("step ", w.k, ": ", name(worker), " multiplies it ", w.multiplied, " times");
    w.multiplied = 0;
    w.in_tile = true;
    ++w.k;
  }

  void act(RingState& s, size_t worker) {
    RingThread& w = s.workers[worker];
    const RingStep& now = table(s, worker)[w.next];
    PipelineStage& stage = s.stages[w.at];
    switch (now.op) {
      case RingOp::WaitEmpty:
      case RingOp::WaitFull: break;
      case RingOp::Expect:
        stage.full.bytes += now.amount;
        arrive(s, worker, w.at, true);
        break;
      case RingOp::Copy:
      case RingOp::Theirs: copy(s, w, static_cast<size_t>(now.amount)); break;
      case RingOp::Multiply: multiply(s, worker); break;
      case RingOp::WaitProducts:
        while (w.groups.size() > static_cast<size_t>(now.amount)) w.groups.erase(w.groups.begin());
        break;
      case RingOp::Release:
        if (w.noted >= 0) arrive(s, worker, w.noted, false);
        w.noted = -1;
        break;
      case RingOp::Note: w.noted = w.at; break;
      case RingOp::Sum:
        if (!w.groups.empty())
          fail("stage ", w.groups.back(), ", step ", w.k, ": ", name(worker),
               " adds up what its products may be writing");
        break;
      case RingOp::Use:
        if (!w.groups.empty())
          fail("stage ", w.groups.back(), ", step ", w.k - 1, ": ", name(worker),
               " uses the result when its products may be running");
        break;
      case RingOp::Advance:
        if (++w.at == ring_.stages) {
          w.at = 0;
          w.parity ^= 1;
        }
        break;
    }
  }

  // A phase is over when all have arrived and all bytes have come.
  void settle(Barrier& b, int count) {
    if (b.pending || b.bytes) return;
    b.phase ^= 1;
    b.pending = count;
  }

  void arrive(RingState& s, size_t worker, int at, bool full) {
    PipelineStage& stage = s.stages[at];
    Barrier& b = full ? stage.full : stage.empty;
    if (!b.pending)
      return fail("stage ", at, ", step ", s.workers[worker].k, ": ", name(worker),
                  " arrives at its barrier ", full ? "full" : "empty", " once more than its count");
    --b.pending;
    settle(b, full ? ring_.full_count : ring_.empty_count);
  }

  void copy(RingState& s, const RingThread& w, size_t box) {
    PipelineStage& stage = s.stages[w.at];
    for (size_t i = 1; i < s.workers.size(); ++i) {
      const RingThread& reader = s.workers[i];
      if (std::ranges::count(reader.groups, w.at))
        return fail("stage ", w.at, ", step ", w.k, ": is filled when products of ", name(i),
                    " may be reading step ", stage.holds, " there");
      if (stage.holds >= 0 && stage.holds < w.k && reader.k + reader.multiplied <= stage.holds)
        return fail("stage ", w.at, ", step ", w.k, ": is filled before ", name(i),
                    " has read step ", stage.holds, " there");
    }
    if (stage.holds != w.k) {
      if (stage.on_their_way)
        return fail("stage ", w.at, ", step ", w.k, ": is filled when boxes of step ", stage.holds,
                    " are still to land there");
      stage.holds = w.k;
      stage.asked = 0;
    }
    const uint32_t bit = uint32_t{1} << box;
    if (stage.asked & bit) return fail("stage ", w.at, ", step ", w.k, ": copies a box twice");
    stage.asked |= bit;
    stage.on_their_way |= bit;
  }

  void land(RingState& s, size_t at, size_t box) {
    PipelineStage& stage = s.stages[at];
    for (size_t i = box; i < (together_ ? ring_.boxes.size() : box + 1); ++i) {
      if (!(stage.on_their_way >> i & 1)) continue;
      stage.on_their_way &= ~(uint32_t{1} << i);
      stage.full.bytes -= ring_.boxes[i].size;
    }
    settle(stage.full, ring_.full_count);
  }

  void multiply(RingState& s, size_t worker) {
    RingThread& w = s.workers[worker];
    const PipelineStage& stage = s.stages[w.at];
    const uint32_t all = (uint32_t{1} << ring_.boxes.size()) - 1;
    const auto early = [&](const std::string& when) {
      fail("stage ", w.at, ", step ", w.k, ": ", name(worker), " reads it ", when);
    };
    if (stage.holds < 0) return early("when it is empty");
    if (stage.holds != w.k) return early(cat("when it holds step ", stage.holds));
    if (stage.asked != all || stage.on_their_way)
      return early("before all of its bytes have landed");
    ++w.multiplied;
    w.groups.push_back(w.at);
  }

  void stuck(const RingState& s) {
    std::string waits;
    for (size_t i = 0; i < s.workers.size(); ++i) {
      const RingThread& w = s.workers[i];
      if (w.next == 0 && !w.ends && w.k == s.last) continue;
      const PipelineStage& stage = s.stages[w.at];
      const bool full = table(s, i)[w.next].op == RingOp::WaitFull;
      const Barrier& b = full ? stage.full : stage.empty;
      const std::string lacks = b.pending ? cat(b.pending, " arrivals") : cat(b.bytes, " bytes");
      waits += cat(waits.empty() ? "" : "; ", name(i), " waits at stage ", w.at, ", step ", w.k,
                   ", to be ", full ? "full" : "empty", ", which lacks ", lacks);
    }
    fail("nobody goes on: ", waits);
  }

  // --- states ------------------------------------------------------------------------------------

  void add(RingState s) {
    if (seen_.insert(key(s)).second) todo_.push_back(std::move(s));
  }

  // States that differ in where the ring begins, and how many steps lie behind, have the same
  // future: turning the ring by one stage, the parity of what comes round changed, maps each step
  // of the tables to itself. So all is said relative to the thread that fills. Finitely many states
  // are left, and that all have been seen is the proof for any number of steps.
  std::string key(const RingState& s) const {
    const RingThread& origin = s.workers[0];
    const int flip = origin.parity != ring_.fill_parity, n = ring_.stages;
    std::string out;
    const auto put = [&](int64_t v) {
      out += static_cast<char>(std::clamp<int64_t>(v, INT8_MIN, INT8_MAX));
    };
    const auto parity = [&](int value, int at) { put(value ^ (at < origin.at) ^ flip); };
    const auto place = [&](int at) { put(at < 0 ? -1 : (at - origin.at + n) % n); };
    int64_t slowest = origin.k;
    std::vector<std::string> of(s.workers.size());
    for (size_t i = 0; i < s.workers.size(); ++i) {
      const RingThread& w = s.workers[i];
      place(w.at);
      parity(w.parity, w.at);
      place(w.noted);
      put(static_cast<int64_t>(w.next) * 16 + w.multiplied * 4 + w.ends * 2 + w.in_tile);
      put(w.k - origin.k);
      for (int g : w.groups) place(g);
      slowest = std::min(slowest, w.k + w.multiplied);
      of[i].swap(out);
    }
    std::sort(of.begin() + 1, of.end());  // warpgroups do the same
    for (const std::string& worker : of) {
      put(static_cast<int64_t>(worker.size()));
      out += worker;
    }
    put(s.last == kOpen ? INT8_MAX : s.last - origin.k);
    for (int i = 0; i < n; ++i) {
      const int at = (origin.at + i) % n;
      const PipelineStage& stage = s.stages[at];
      for (const Barrier* b : {&stage.full, &stage.empty}) {
        parity(b->phase, at);
        put(b->pending);
      }
      const bool is_past = stage.holds < slowest && !stage.on_their_way;
      put(is_past ? INT8_MAX : stage.holds - origin.k);
      for (int bit = 0; bit < 24; bit += 8) {
        out += static_cast<char>(stage.full.bytes >> bit);
        out += static_cast<char>(is_past ? 0 : stage.asked >> bit);
        out += static_cast<char>(stage.on_their_way >> bit);
      }
    }
    return out;
  }

  const Ring& ring_;
  // Where all bytes of a stage are waited for, nothing is over before the last box has landed: they
  // may as well land at once. Where not, one by one shows what happens.
  bool together_ = false;
  std::string problem_;
  std::deque<RingState> todo_;
  std::unordered_set<std::string> seen_;
};

}  // namespace

Finding prove_ring(const Ring& ring) { return Explorer(ring).run(); }

}  // namespace tiny
