// Schedules element-wise work and moved data on a GPU: threads have vectors along the range that
// most accesses are contiguous in, or transpose squares where loads and stores differ in it.
#include "codegen/heuristics/tuner.h"
#include "codegen/kernel/facts.h"
#include "tiny/ir/sizes.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

namespace {

// Whether a place depends on what is loaded.
bool is_looked_up(const Access& a) {
  const Node index = a.node->src(1);
  return !all_of(index, Op::Load).empty();
}

// Which range a stream's vectors lie along, and what its threads share.
class StreamRanges : protected GpuTuner {
 public:
  using GpuTuner::GpuTuner;

 protected:
  // The range along which a thread gets kServed elements that share loads: at least a third of the
  // bytes do not depend on it. -1: none, or too few threads (measurements.md: serving).
  static constexpr int64_t kServed = 2;
  int serving(const Ids& rest, int v) const {
    int best = -1;
    int64_t most = 0;
    if (size(rest) / lanes_ / kServed < 8 * kBlock * target_.cores) return -1;
    for (int id : rest) {
      if (id == v || size(id) % kServed) continue;
      int64_t same = 0, own = 0;
      for (const Access& a : accesses_) {
        const int64_t bytes = element_size(a) * (stride(a.node, v) == 0 ? 1 : lanes_);
        (a.is_load() && stride(a.node, id) == 0 ? same : own) += bytes;
      }
      const bool longer = best < 0 || size(id) >= size(best);
      if (same == 0 || 2 * same < own || same < most || (same == most && !longer)) continue;
      best = id;
      most = same;
    }
    return best;
  }

  // A range no longer than a vector, as the padded channels of a pixel: one vector store, loads
  // element by element. A thread that stores two bytes waits as long for its loads
  // (measurements.md: short_range). -1: none; sets lanes_.
  int short_range() {
    for (int id : loops()) {
      const int64_t all = size(id);
      if (all != 4 && all != 8) continue;
      int stores = 0;
      const bool fits = std::ranges::all_of(accesses_, [&](const Access& a) {
        if (element_size(a) > 2 || stride(a.node, id) == kIrregular) return false;
        if (a.is_load()) return true;
        ++stores;
        return stride(a.node, id) == 1 && is_aligned(a, range(id), static_cast<int>(all));
      });
      if (!fits || stores == 0) continue;
      lanes_ = static_cast<int>(all);
      return id;
    }
    return -1;
  }

  // A range along which all is stored in vectors and some is loaded that lies along another range:
  // worth vectors both ways, since each thread transposes what it loads. -1: none; sets lanes_.
  int only_moved_along() {
    for (const Access& a : accesses_) {
      if (a.is_load() || element_size(a) > 4) continue;
      for (int id : loops())
        for (lanes_ = 16 / std::max(element_size(a), 2); lanes_ >= 4; lanes_ /= 2)
          if (stride(a.node, id) == 1 && is_aligned(a, range(id), lanes_) &&
              crossing_range(id) >= 0)
            return id;
    }
    return -1;
  }

  // A range with vector stores and strided loads, as convolution windows have. A warp's load takes
  // L1 as many cycles as it touches lines: with four lanes half as many as with eight, and more
  // threads count indices. -1: none; sets lanes_.
  int sparse_along() {
    constexpr int64_t kApart = 8;
    for (int id : loops()) {
      int lanes = 4;
      bool sparse = false, fits = true;
      for (const Access& a : accesses_) {
        const int64_t s = stride(a.node, id);
        if (a.is_load()) {
          fits = fits && s != kIrregular && std::abs(s) <= kApart;
          sparse |= std::abs(s) > 1;
          continue;
        }
        for (lanes = std::min(lanes, 16 / element_size(a)); lanes > 1; lanes /= 2)
          if (size(id) % lanes == 0 && is_aligned(a, range(id), lanes)) break;
        fits = fits && s == 1 && lanes >= 4;
      }
      if (!fits || !sparse) continue;
      lanes_ = lanes;
      return id;
    }
    return -1;
  }

  // Elements of rows that no vector fits, as those of padded images: a thread has some that lie
  // apart under the same conditions, so that more loads are in flight.
  void several_apart(Ids& rest, int v) {
    for (const Access& a : accesses_)
      if (std::abs(stride(a.node, v)) > 1) return;
    for (int64_t n : {4, 2})
      for (int id : rest) {
        if (id == v || size(id) % n || is_condition_of(id) || !is_far_apart(id) ||
            size(rest) < 8 * n * kBlock * target_.cores)
          continue;
        take(id, n, RangeKind::Unroll, rest);
        return;
      }
  }

  // A range on whose remainder conditions depend, as in sums over the taps of a transposed
  // convolution with strides: a thread has all remainders, for which most conditions are constants
  // (measurements.md: all_remainders). False where there is none.
  bool all_remainders(Ids& rest) {
    constexpr int64_t kMax = 8;
    for (Op op : {Op::FloorMod, Op::TruncMod})
      for (Node n : all_of(sink_, op)) {
        if (n->dtype != kIndex || !n->src(1)->is_const()) continue;
        const int64_t divisor = n->src(1)->int_value();
        if (divisor < 2 || divisor > kMax) continue;
        for (const Sum::Term& t : to_sum(n->src(0)).terms)
          for (int id : rest)
            if (t.atom == range(id) && t.factor == 1 && is_far_apart(id) &&
                size(rest) >= 8 * divisor * kBlock * target_.cores) {
              take(id, divisor, RangeKind::Unroll, rest);
              return true;
            }
      }
    return false;
  }

  // Whether a warp's stores between one iteration and the next are whole lines of memory.
  bool is_far_apart(int id) const {
    return std::ranges::all_of(accesses_, [&](const Access& a) {
      return a.is_load() || std::abs(stride(a.node, id)) >= 4 * target_.warp;
    });
  }

  // Whether it depends on the range what is loaded or stored at all.
  bool is_condition_of(int id) const {
    return std::ranges::any_of(accesses_, [&](const Access& a) {
      const Node gate = gate_of(a.node);
      return gate && (gate->ranges >> id & 1);
    });
  }

  // Short ranges along which iterations of others read the same elements again, as the taps of
  // im2col. A thread that walks them hits L1 (measurements.md: taps).
  Ids taps() const {
    constexpr int64_t kMax = 8;
    const Ids all = loops();
    Ids out;
    for (int id : all)
      for (const Access& a : accesses_) {
        if (!a.is_load() || size(id) > kMax) continue;
        const bool again = std::ranges::any_of(
            all, [&](int other) { return other != id && overlaps(a.node, other, range(id)); });
        if (again && (out.empty() || out.back() != id)) out.push_back(id);
      }
    return out;
  }

  // Short ranges that say which of several values an element is, where no load depends on them:
  // values that are stacked. A thread has all of them, and what they share once (measurements.md:
  // stacked).
  Ids stacked() const {
    constexpr int64_t kMax = 8, kMaxAll = 64;
    const auto is_apart = [&](int id) {
      return std::ranges::all_of(accesses_, [&](const Access& a) {
        const Node gate = gate_of(a.node);
        return a.is_store() || (stride(a.node, id) == 0 && !(gate && (gate->ranges >> id & 1)));
      });
    };
    const std::vector<Node> comparisons = all_of(sink_, Op::Lt);
    Ids out;
    for (int id : loops()) {
      const bool selects = std::ranges::any_of(
          comparisons, [&](Node n) { return (n->ranges >> id & 1) && n->src(1)->is_const(); });
      if (selects && size(id) <= kMax && size(out) * size(id) <= kMaxAll && is_apart(id))
        out.push_back(id);
    }
    return out;
  }

  // The range that a store lies along while all is read along the vector range: lines that are
  // written whole are worth more than those that are read whole. -1 where there is none.
  int crossing_store(int v) const {
    for (const Access& a : accesses_) {
      if (a.is_load() || std::abs(stride(a.node, v)) == 1) continue;
      for (int id : loops())
        if (stride(a.node, id) == 1 && size(id) % 4 == 0 && size(v) % 4 == 0) return id;
    }
    return -1;
  }
};

class StreamTuner : StreamRanges {
 public:
  using StreamRanges::StreamRanges;

  std::optional<Choice> run() {
    if (has_reductions() || shared_loops().size() != loops().size()) return {};
    lanes_ = 4;
    stream();
    return finished();
  }

 private:
  void stream() {
    Ids rest = loops();
    if (rest.empty()) return;
    if (const Ids values = stacked(); !values.empty()) return stack(values);
    int v = best_column();
    if (v >= 0)
      if (const int stored = crossing_store(v); stored >= 0) v = stored;
    lanes_ = v < 0 ? 1 : aligned_lanes(v);
    if (lanes_ < 2)
      if (const int short_one = short_range(); short_one >= 0) v = short_one;
    const int sparse = lanes_ < 2 ? sparse_along() : -1;
    if (sparse >= 0) {
      v = sparse;
    } else if (lanes_ < 2) {
      const int moved = only_moved_along();
      if (moved >= 0) return transpose(moved, crossing_range(moved));
      lanes_ = 1;
    }
    if (v < 0) {
      all_remainders(rest);
      return spread(merged(rest), kBlock);
    }
    if (lanes_ >= 4 && sparse < 0) {
      const int across = crossing_range(v);
      if (across >= 0) return transpose(v, across);
    }
    make_last(rest, v);
    while (stores_wide(v)) lanes_ /= 2;
    if (gathers() && !scatters() && gathered_rows(rest, v)) return;
    if (scatters() && sparse_rows(rest, v)) return;
    for (int id : sparse >= 0 ? taps() : Ids())
      if (size(without(rest, id)) >= 8 * kBlock * lanes_ * target_.cores) rest = without(rest, id);
    if (lanes_ == 8 && reads_wide(v)) lanes_ = 4;
    // Below one full warp, vector lanes only serialise the work.
    if (size(rest) < lanes_ * target_.warp) lanes_ = 1;
    if (const int id = serving(rest, v); id >= 0)
      take(id, kServed, RangeKind::Unroll, rest);
    else if (lanes_ == 1 && !gathers() && !scatters() && !all_remainders(rest))
      several_apart(rest, v);
    vector(v, rest);
    constexpr int64_t kThreads = 128;  // (measurements.md: streams)
    const int flat = merged(rest);
    if (flat < 0) return;  // a vector is all of it
    const int thread = part_of(flat, kThreads);
    bind(thread, RangeKind::Thread);
    if (thread == flat) return;
    // Several loads whose addresses are loaded too are in flight at once: latency hiding.
    constexpr int64_t together = 4;
    if (gathers() && size(flat) % together == 0 && size(flat) >= 8 * together * target_.cores)
      bind(part_of(flat, together), RangeKind::Unroll);
    bind(flat, RangeKind::Block);
  }

  // A thread has all of the values, in vectors where they lie next to each other.
  void stack(const Ids& values) {
    constexpr int64_t kLanes = 4;
    Ids rest = loops();
    for (int id : values) {
      const bool is_row = std::ranges::all_of(
          accesses_, [&](const Access& a) { return a.is_load() || stride(a.node, id) == 1; });
      if (is_row) take(id, std::gcd(size(id), kLanes), RangeKind::Vector, rest);
      if (tiny::contains(rest, id)) take(id, size(id), RangeKind::Unroll, rest);
    }
    const bool gated = std::ranges::any_of(rest, [&](int id) { return is_condition_of(id); });
    if (!gated || !threads_of_own(rest)) spread(merged(rest), kBlock);
  }

  // The innermost ranges, or parts of them, as ranges of threads, and the others of blocks: in
  // conditions there are no remainders then. False where that would be a small block.
  bool threads_of_own(Ids rest) {
    constexpr size_t kDimensions = 3;  // of a block
    std::vector<int64_t> parts;
    int64_t threads = 1;
    for (size_t i = rest.size(); i-- > 0 && parts.size() < kDimensions;) {
      parts.push_back(largest_divisor(size(rest[i]), kBlock / threads));
      threads *= parts.back();
      if (parts.back() < size(rest[i])) break;
    }
    if (threads < kBlock / 4) return false;
    for (int64_t n : parts) {
      if (n == 1) break;
      last_.insert(last_.begin(), take(rest.back(), n, RangeKind::Thread, rest));
    }
    bind(merged(rest), RangeKind::Block);
    return true;
  }

  // Elements of all loops, as streams are, not as what there is for each channel.
  bool is_stream(const Access& a) const { return size(loops()) <= elements_of(a.node->src(0)); }

  // Whether most loads along the range are f32 of each column: eight of those are two loads of
  // every second 16 bytes, which touch twice as many L1 lines as four.
  bool reads_wide(int v) const {
    int wide = 0, streams = 0;
    for (const Access& a : accesses_)
      if (element_size(a) == 4 && stride(a.node, v) == 1) ++(is_stream(a) ? streams : wide);
    return wide > streams;
  }

  // Gathered rows: a thread has up to four vectors of one row, so that it loads the row's index
  // once and then has several loads in flight. False where rows cannot be cut so.
  bool gathered_rows(Ids rest, int v) {
    constexpr int64_t kMax = 4;
    const int64_t vectors = size(v) / lanes_, rows = size(rest) / size(v);
    int64_t threads = 1;
    while (vectors % (2 * threads) == 0 && vectors / threads > kMax) threads *= 2;
    if (vectors % threads || vectors / threads > kMax || vectors / threads < 2 ||
        threads > kBlock || rows * threads < 8 * kBlock * target_.cores || looked_up_along(v))
      return false;
    vector(v, rest);
    if (const int inner = part_of(v, threads); inner != v) {
      bind(inner, RangeKind::Thread);
      last_ = {inner};
    }
    bind(v, RangeKind::Unroll);
    spread(merged(without(rest, v)), kBlock / threads);
    return true;
  }

  // Scatter-add of rows under a mask on their index, which reads index -1 for the first row. Each
  // row has a warp, which waits for its indices and then for up to eight loads together: a warp
  // with several rows would wait for one after the other.
  bool sparse_rows(Ids rest, int v) {
    constexpr int64_t kMax = 8;  // vectors of a thread
    const auto leaves_out = [](Node n) { return n->src(2)->vmax < 0; };
    const bool reads_rows = std::ranges::any_of(accesses_, [&](const Access& a) {
      const auto choices = all_of(a.node->src(1), Op::Where);
      return a.is_load() && is_looked_up(a) && stride(a.node, v) == 1 &&
             std::ranges::any_of(choices, leaves_out);
    });
    const Ids rows = without(rest, v);
    if (!reads_rows || rows.empty() || looked_up_along(v) || size(v) < target_.warp * lanes_ ||
        size(rows) < 8 * target_.cores)
      return false;
    vector(v, rest);
    const int lane = take(v, target_.warp, RangeKind::Thread, rest);
    last_ = {lane};
    for (int64_t n = kMax; n > 1 && lane != v; --n)
      if (size(v) % n == 0) {
        bind(part_of(v, n), RangeKind::Unroll);
        break;
      }
    spread(merged(rows), kBlock / target_.warp);
    return true;
  }

  // Whether another place is looked up for each element of the range.
  bool looked_up_along(int id) const {
    return std::ranges::any_of(accesses_, [&](const Access& a) {
      const Node index = a.node->src(1);
      const auto loads = all_of(index, Op::Load);
      return std::ranges::any_of(loads, [&](Node load) { return load->ranges >> id & 1; });
    });
  }

  bool gathers() const { return std::ranges::any_of(accesses_, is_looked_up); }
  bool scatters() const {
    return std::ranges::any_of(accesses_,
                               [](const Access& a) { return a.is_store() && is_looked_up(a); });
  }

  // Each thread transposes a square in registers, of 4 x 4 floats or more of less; a block has a
  // line of memory along the vectors and many squares across, so that it is coalesced both ways
  // (measurements.md: transpose).
  void transpose(int v, int across) {
    Ids rest = loops();
    if (lanes_ == 16)  // bytes: smaller squares where those of 16 x 16 leave cores without work
      while (lanes_ > 4 && size(rest) < lanes_ * lanes_ * kBlock * target_.cores) lanes_ /= 2;
    vector(v, rest);
    take(across, lanes_, RangeKind::Unroll, rest);
    const auto thread = [&](int id, int64_t most) {
      return tiny::contains(rest, id) ? take(id, most, RangeKind::Thread, rest) : -1;
    };
    const bool large = size(rest) >= int64_t{16 * 1024} * target_.cores;
    const int y = thread(across, large ? 128 : 16), x = thread(v, large ? 8 : 16);
    last_ = {x >= 0 ? x : y};
    const int block = merged(rest);
    if (block < 0) return;
    const int64_t threads = size(ids_of(RangeKind::Thread));
    const int64_t most = kBlock / threads;
    int64_t times = most;  // whole warps, where that leaves half of the threads
    while (2 * times >= most && times * threads % target_.warp) --times;
    if (2 * times < most) times = most;
    const int more = times > 1 ? part_of(block, times) : block;
    bind(more, more == block ? RangeKind::Block : RangeKind::Thread);
    if (more != block) bind(block, RangeKind::Block);
  }
};

}  // namespace

std::optional<Choice> choose_stream_options(Node sink, const Target& target) {
  return StreamTuner(sink, target).run();
}

}  // namespace tiny
