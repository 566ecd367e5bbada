#include "codegen/heuristic.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "codegen/access.h"
#include "tiny/algebra.h"

namespace tiny {

namespace {

// A kernel under construction: options are applied as they are chosen, so that each choice sees
// what the last one made.
class Tuner {
 public:
  Tuner(Node sink, const Target& target) : sink_(sink), target_(target) {}

  Choice run() {
    refresh();
    lanes_ = vector_lanes();
    double column_cost = 0;
    Node column = best_column(&column_cost);
    const bool reduces = !all_of(sink_, Op::Reduce).empty();
    if (column && (!reduces || column_cost <= row_cost())) {
      if (reduces) tile(column);
      else stream(column);
    } else {
      rows();
    }
    cores();
    return std::move(choice_);
  }

 private:
  void refresh() {
    ranges_ = ranges_of(sink_);
    accesses_ = accesses(sink_);
  }

  void apply(Opt opt) {
    sink_ = simplify(tiny::apply(sink_, opt, target_));
    choice_.options.push_back(std::move(opt));
    refresh();
  }

  Node range(int id) const {
    for (Node r : ranges_)
      if (range_id(r) == id) return r;
    return nullptr;
  }

  // As many lanes as a register has of the widest type that is computed with; halves are computed
  // in f32, and bytes are worth no vectors of 64 lanes.
  int vector_lanes() const {
    int widest = 4;
    for (const Access& a : accesses_) {
      const DType t = a.node->op == Op::Load ? a.node->dtype : a.node->src(2)->dtype;
      widest = std::max(widest, t.size());
    }
    return target_.vector_bytes / widest;
  }

  // Vector instructions per element when `r` is the vector range: a whole vector is loaded at once
  // when the step is one, is one scalar load when there is no step, and is as many loads as lanes
  // otherwise. Lanes that the extent cannot fill are lost.
  double cost(const Access& a, Node r) const {
    const int64_t s = stride(a.node, range_id(r));
    const double n = static_cast<double>(extent(r));
    const double used = n / (std::ceil(n / lanes_) * lanes_);
    const double per_vector = s == 0 ? 0.5 : std::abs(s) == 1 ? 1 : lanes_ * 1.5;
    return a.count * per_vector / lanes_ / used;
  }

  // The loop range that is best as the vector range of the whole kernel.
  Node best_column(double* best_cost) const {
    Node best = nullptr;
    const uint64_t shared = shared_ranges(sink_);
    for (Node r : ranges_) {
      if (kind(r) != RangeKind::Loop || !(shared >> range_id(r) & 1)) continue;
      double sum = 0;
      for (const Access& a : accesses_) {
        if (a.around >> range_id(r) & 1) sum += cost(a, r);
        else sum += a.count;
      }
      if (!best || sum <= *best_cost) {
        best = r;
        *best_cost = sum;
      }
    }
    return best;
  }

  // The innermost range that an item (a reduction or a store) has to itself, by steps of one.
  Node own_vector(Node item, double* item_cost) const {
    const uint64_t shared = shared_ranges(sink_);
    const bool reduce = item->op == Op::Reduce;
    uint64_t own = reduce ? item->src(0)->ranges & ~item->ranges : item->ranges & ~shared;
    Node best = nullptr;
    NodeMap<char> mine;
    for (Node n : topological(reduce ? item->src(0) : item)) mine[n] = 1;
    double scalar = 0;
    const uint64_t around = reduce ? item->src(0)->ranges : item->ranges;
    for (const Access& a : accesses_)
      if (mine.contains(a.node) && a.around == around) scalar += a.count;
    *item_cost = scalar;
    for (Node r : ranges_) {
      if (!(own >> range_id(r) & 1)) continue;
      double sum = 0;
      for (const Access& a : accesses_)
        if (mine.contains(a.node) && a.around == around) sum += cost(a, r);
      if (sum < *item_cost) {
        *item_cost = sum;
        best = r;
      }
    }
    return best;
  }

  std::vector<Node> items() const {
    std::vector<Node> out;
    for (Node n : topological(sink_))
      if (n->op == Op::Reduce || n->op == Op::Store) out.push_back(n);
    return out;
  }

  double row_cost() const {
    double sum = 0, c = 0;
    for (Node item : items()) {
      own_vector(item, &c);
      sum += c;
    }
    return sum;
  }

  // r into outer x (unrolled) x vector; parts of one iteration are not made.
  void vector_split(int id, int lanes, int unroll) {
    int inner = id;
    if (extent(range(id)) > lanes || extent(range(id)) % lanes) {
      const int next = next_range_id(sink_);
      apply({OptKind::Split, id, lanes, {}});
      inner = next;
    }
    if (range(id) && inner != id) unroll_split(id, unroll);
    apply({OptKind::Bind, inner, static_cast<int64_t>(RangeKind::Vector), {}});
  }

  void unroll_split(int id, int64_t unroll) {
    while (unroll > 1 && extent(range(id)) % unroll) --unroll;
    if (unroll < 2) return;
    int inner = id;
    if (extent(range(id)) > unroll) {
      inner = next_range_id(sink_);
      apply({OptKind::Split, id, unroll, {}});
    }
    apply({OptKind::Bind, inner, static_cast<int64_t>(RangeKind::Unroll), {}});
  }

  int lanes_for(Node r) const {
    return static_cast<int>(
        std::min<int64_t>(lanes_, std::bit_ceil(static_cast<uint64_t>(extent(r)))));
  }

  // Element-wise work: four vectors an iteration hide the latency of loads and of long chains.
  void stream(Node r) {
    if (extent(r) < 2) return;
    vector_split(range_id(r), lanes_for(r), 4);
  }

  // Rows: every reduction and every store with a range of its own is vectorised along it; four
  // accumulators hide the latency of an addition.
  void rows() {
    std::vector<int> chosen;
    for (Node item : items()) {
      double c;
      Node r = own_vector(item, &c);
      if (r && extent(r) > 1 && std::find(chosen.begin(), chosen.end(), range_id(r)) == chosen.end())
        chosen.push_back(range_id(r));
    }
    for (int id : chosen)
      vector_split(id, lanes_for(range(id)), 4);
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
    if (u) unroll_split(uid, best_unroll(extent(range(uid)), budget / nv));
  }

  // The largest divisor of n up to `most`.
  static int64_t best_unroll(int64_t n, int64_t most) {
    for (int64_t f = std::min(n, most); f > 1; --f)
      if (n % f == 0) return f;
    return 1;
  }

  Node reuse_range(int vid) const {
    Node best = nullptr;
    double best_score = 0;
    for (Node r : ranges_) {
      if (kind(r) != RangeKind::Loop || range_id(r) == vid) continue;
      double score = 0;
      for (const Access& a : accesses_) {
        const bool inside = a.node->op == Op::Load && (a.around >> range_id(r) & 1) &&
                            (a.around >> vid & 1);
        if (inside && stride(a.node, vid) != 0 && stride(a.node, range_id(r)) == 0) score += a.count;
      }
      const double unrolled = static_cast<double>(best_unroll(extent(r), 14));
      score *= 1 - 1 / unrolled;
      if (score > best_score * 1.01) {
        best = r;
        best_score = score;
      }
    }
    return best;
  }

  // The outermost shared loop is divided among the cores; short ones are merged first, so that
  // there is enough to divide evenly.
  void cores() {
    constexpr int64_t kEnough = 64;
    std::vector<int> loops;
    const uint64_t shared = shared_ranges(sink_);
    for (Node r : ranges_)
      if (kind(r) == RangeKind::Loop && (shared >> range_id(r) & 1)) loops.push_back(range_id(r));
    if (loops.empty()) return order(-1);
    while (loops.size() > 1 && extent(range(loops[0])) < kEnough) {
      apply({OptKind::Merge, loops[0], loops[1], {}});
      loops.erase(loops.begin() + 1);
    }
    apply({OptKind::Bind, loops[0], static_cast<int64_t>(RangeKind::Core), {}});
    order(loops[0]);
  }

  void order(int core) {
    std::vector<int> ids;
    if (core >= 0) ids.push_back(core);
    for (RangeKind k : {RangeKind::Loop, RangeKind::Reduce, RangeKind::Unroll, RangeKind::Vector})
      for (Node r : ranges_)
        if (kind(r) == k) ids.push_back(range_id(r));
    if (!ids.empty()) apply({OptKind::Order, 0, 0, ids});
  }

  Node sink_;
  const Target& target_;
  Choice choice_;
  int lanes_ = 1;
  std::vector<Node> ranges_;
  std::vector<Access> accesses_;
};

}  // namespace

Choice choose_options(Node sink, const Target& target) { return Tuner(sink, target).run(); }

}  // namespace tiny
