#include <algorithm>
#include <cmath>

#include "codegen/loop_end.h"
#include "codegen/tuner.h"

namespace tiny {

namespace {

class CpuTuner : Tuner {
 public:
  CpuTuner(Node sink, const Target& target) : Tuner(sink, target) {}

  Choice run() {
    lanes_ = vector_lanes();
    const int column = best_column();
    std::vector<int> own;
    for (Node item : items()) {
      double c;
      Node r = contains(item, column) ? nullptr : own_vector(item, &c);
      if (r && is_alone(range_id(r), column, own)) own.push_back(range_id(r));
    }
    if (column >= 0) {
      if (is_reduced_under(column))
        tile(range(column));
      else
        stream(range(column));
    }
    // Rows: a reduction is vectorised along what it reduces; four accumulators hide the latency
    // of an addition.
    for (int id : own) vector_split(id, lanes_for(range(id)), 4);
    cores();
    return std::move(choice_);
  }

 private:
  // Element-wise work: four vectors an iteration hide the latency of loads and of long chains.
  void stream(Node r) {
    if (extent(r) < 2) return;
    const int id = range_id(r), across = crossing_range(id);
    if (across < 0) {
      vector_split(id, lanes_for(r), 4);
      return make_strip(id);
    }
    vector_split(id, lanes_, 1);
    unroll_split(across, lanes_);
  }

  // Stores that go on in order are divided among the cores by strips of a few cache lines: narrower
  // ones would read all of memory in pieces, wider ones write to more than the caches hold.
  void make_strip(int id) {
    constexpr int64_t kStrip = 8;  // turns of the vectors
    const bool ordered = std::any_of(ranges_.begin(), ranges_.end(),
                                     [&](Node r) { return kind(r) == RangeKind::Reduce; });
    Node turn = range(id);
    if (!ordered || !all_of(sink_, Op::Reduce).empty()) return;
    if (!turn || kind(turn) != RangeKind::Loop) return;  // one vector has it all
    const int64_t turns = extent(turn), most = turns / (2 * target_.cores);
    const int64_t width = best_unroll(turns, std::min(kStrip, most));
    if (width < 2) return;
    strip_ = next_range_id(sink_);
    apply({OptKind::Split, id, width, {}});
  }

  // Accumulators stay in registers: `v` gives vectors, another loop range (one that some load does
  // not depend on, so that the load serves all of its iterations) is unrolled.
  void tile(Node v) {
    const int vid = range_id(v);
    const int lanes = lanes_for(v);
    Node u = reuse_range(vid);
    choice_.heavy = u != nullptr;
    const int budget = target_.vector_registers - target_.vector_registers / 8;
    const int vectors = static_cast<int>((extent(v) + lanes - 1) / lanes);
    int nv = u ? (vectors % 2 == 0 ? 2 : vectors % 3 == 0 ? 3 : 1) : std::min(vectors, 4);
    while (nv > 1 && vectors % nv) --nv;
    const int uid = u ? range_id(u) : -1;
    vector_split(vid, lanes, nv);
    for (Node r : ranges_)
      if (kind(r) == RangeKind::Unroll) innermost_ = range_id(r);
    if (u) unroll_split(uid, best_unroll(extent(range(uid)), budget / nv));
  }

  // The outermost shared loop is divided among the cores; short ones are merged first, so that
  // there is enough to divide evenly.
  void cores() {
    constexpr int64_t kEnough = 64;
    std::vector<int> loops;
    uint64_t shared = shared_ranges(sink_);
    for (Node reduce : all_of(sink_, Op::Reduce)) shared &= reduce->ranges;  // it runs in them too
    for (Node r : ranges_)
      if (kind(r) == RangeKind::Loop && (shared >> range_id(r) & 1) && range_id(r) != strip_)
        loops.push_back(range_id(r));
    if (loops.empty()) return order(-1);
    const auto ends_early = [&](int id) { return has_length(sink_, range(id)); };
    while (loops.size() > 1 && extent(range(loops[0])) < kEnough && go_together(loops) &&
           !ends_early(loops[0]) && !ends_early(loops[1])) {
      apply({OptKind::Merge, loops[0], loops[1], {}});
      loops.erase(loops.begin() + 1);
    }
    // Loops that end early stay as they are; the longer of two serves more cores.
    if (loops.size() > 1 && extent(range(loops[0])) < target_.cores && ends_early(loops[1]) &&
        extent(range(loops[1])) > extent(range(loops[0])))
      std::swap(loops[0], loops[1]);
    apply({OptKind::Bind, loops[0], static_cast<int64_t>(RangeKind::Core), {}});
    order(loops[0]);
  }

  bool go_together(const std::vector<int>& loops) const {
    const auto all = items();
    return std::all_of(all.begin(), all.end(), [&](Node item) {
      return contains(item, loops[0]) == contains(item, loops[1]);
    });
  }

  void order(int core) {
    std::vector<int> ids;
    if (core >= 0) ids.push_back(core);
    for (RangeKind k : {RangeKind::Loop, RangeKind::Reduce, RangeKind::Unroll, RangeKind::Vector}) {
      const auto first = static_cast<ptrdiff_t>(ids.size());
      for (Node r : ranges_)
        if (kind(r) == k && range_id(r) != innermost_ && range_id(r) != strip_)
          ids.push_back(range_id(r));
      if (k == RangeKind::Reduce && strip_ >= 0) ids.push_back(strip_);
      // Of a product's sums the one that steps farthest is outermost: what the others read again
      // is still in the nearest cache.
      if (k == RangeKind::Reduce && choice_.heavy)
        std::stable_sort(ids.begin() + first, ids.end(),
                         [&](int a, int b) { return reach(a) > reach(b); });
    }
    if (innermost_ >= 0) ids.push_back(innermost_);
    if (!ids.empty()) apply({OptKind::Order, 0, 0, ids});
  }

  // How far all loads step from one iteration to the next.
  double reach(int id) const {
    double sum = 0;
    for (const Access& a : accesses_)
      if (a.node->op == Op::Load) sum += std::abs(static_cast<double>(stride(a.node, id)));
    return sum;
  }

  int strip_ = -1;  // a loop inside those that go on in order
};

}  // namespace

Choice choose_cpu_options(Node sink, const Target& target) { return CpuTuner(sink, target).run(); }

}  // namespace tiny
