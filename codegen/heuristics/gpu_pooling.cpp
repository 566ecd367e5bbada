// Schedules pools on a GPU: each thread has the windows of some results, of which neighbouring
// threads have those that lie side by side in memory.
#include "codegen/heuristics/gpu.h"
#include "codegen/kernel/facts.h"
#include "tiny/ir/sizes.h"

namespace tiny {

namespace {

// Pooling: a thread has the windows of several contiguous channels.
class PoolingTuner : GpuTuner {
 public:
  using GpuTuner::GpuTuner;

  std::optional<Choice> run() {
    if (!is_windows()) return {};
    lanes_ = 4;
    windows();
    order_kinds(last_);
    return std::move(choice_);
  }

 private:
  static constexpr int64_t kWhole = 64;  // elements of a window that is unrolled whole

  // Many results of a small number of elements each, which are not contiguous.
  bool is_windows() const {
    constexpr int64_t kSide = 8;
    const Ids shared = shared_loops(), reduced = window();
    for (int id : reduced)
      if (extent(range(id)) >= (are_apart(reduced) ? 2 * kSide : kSide) || !is_reduced(id))
        return false;
    const int64_t elements = iterations(reduced), most = are_apart(reduced) ? 4 * kWhole : kWhole;
    return elements > 1 && elements <= most && iterations(shared) >= kBlock * target_.cores;
  }
  // The ranges of a window's elements.
  Ids window() const {
    Ids out;
    for (int id : loops())
      if (!is_shared(id)) out.push_back(id);
    return out;
  }
  // Whether all is loaded from rows of a window that lie apart: threads that shared it would have
  // short pieces of memory, and most of a warp's last one nothing.
  bool are_apart(const Ids& reduced) const {
    if (reduced.size() < 2) return false;
    const int row = reduced[reduced.size() - 2], column = reduced.back();
    return std::all_of(accesses_.begin(), accesses_.end(), [&](const Access& a) {
      const int64_t s = std::abs(stride(a.node, column));
      return !(a.enclosing >> column & 1) || !(a.node->ranges >> column & 1) ||
             std::abs(stride(a.node, row)) > s * extent(range(column));
    });
  }
  bool is_reduced(int id) const {
    for (Node item : items()) {
      const auto reduced =
          item->op == Op::Reduce ? item->srcs().subspan(1) : std::span<const Node>();
      if ((enclosing(item) >> id & 1) &&
          std::none_of(reduced.begin(), reduced.end(), [&](Node r) { return range_id(r) == id; }))
        return false;
    }
    return true;
  }

  // A thread has the pooling windows of several contiguous channels.
  void windows() {
    constexpr int64_t kElements = 72, kBlocks = 2;  // of a thread; that a multiprocessor is to have
    Ids rest = shared_loops();
    const int v = thread_range(rest), down = overlapping(without(rest, v));
    Ids unrolled = window();
    const int64_t reduced = iterations(unrolled);
    while (iterations(unrolled) > kWhole) unrolled.erase(unrolled.begin());
    for (int id : unrolled) bind(id, RangeKind::Unroll);
    make_last(rest, v);
    const int64_t blocks = iterations(rest) / (kBlock * target_.cores);
    for (lanes_ = lanes_along(range(v)); lanes_ > 1; lanes_ /= 2)
      if (reduced * lanes_ <= kElements && blocks >= kBlocks * lanes_) break;
    vector(v, rest);
    if (down >= 0 && lanes_ == 1) several_windows(down, rest);
    spread(merged(rest), kBlock);
  }

  // The range along which most accesses are contiguous, of those that go to memory: not of a few
  // values that stay in L1, as what a convolution adds to each channel.
  int thread_range(const Ids& set) const {
    constexpr double kOften = 256;  // that each value is read
    int best = set.back();
    double most = 0;
    for (int id : set) {
      double score = 0;
      for (const Access& a : accesses_)
        if ((a.enclosing >> id & 1) && stride_in_block(a.node, range(id), 4) == 1 &&
            a.count < kOften * static_cast<double>(elements_of(a.node->src(0))))
          score += a.count;
      if (score < most) continue;
      best = id;
      most = score;
    }
    return best;
  }

  // The range along which windows that follow one another share elements; -1 for none.
  int overlapping(const Ids& shared) const {
    for (int id : shared)
      for (const Access& a : accesses_) {
        if (a.node->op != Op::Load) continue;
        const int64_t step = std::abs(stride(a.node, id));
        for (int window : loops())
          if (step > 0 && !is_shared(window) && std::abs(stride(a.node, window)) > 0 &&
              step < extent(range(window)) * std::abs(stride(a.node, window)) &&
              step % std::abs(stride(a.node, window)) == 0)
            return id;
      }
    return -1;
  }

  // Each thread has some windows, one below the other: shared elements are loaded once
  // (measurements.md: several_windows).
  void several_windows(int id, Ids& rest) {
    for (int64_t n : {4, 2, 3}) {
      if (extent(range(id)) % n || iterations(rest) < n * kBlock * target_.cores) continue;
      const int part = split(id, n);
      bind(part, RangeKind::Unroll);
      if (part == id) rest = without(rest, id);
      return;
    }
  }
};

}  // namespace

std::optional<Choice> choose_pooling_options(Node sink, const Target& target) {
  return PoolingTuner(sink, target).run();
}

}  // namespace tiny
