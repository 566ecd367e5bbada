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
    const int64_t s = stride_in_block(a.node, r, lanes_);
    const double n = static_cast<double>(extent(r));
    const double used = n / (std::ceil(n / lanes_) * lanes_);
    const bool halved = s == 2 && a.node->op == Op::Load && a.node->num_src == 2;
    const double per_vector = s == 0 ? 0.5 : std::abs(s) == 1 ? 1 : halved ? 3 : lanes_ * 1.5;
    return a.count * per_vector / lanes_ / used;
  }

  // The ranges of an item's loops: also those that it closes and its value does not depend on.
  static uint64_t around(Node item) {
    if (item->op != Op::Reduce) return item->ranges;
    uint64_t ranges = item->src(0)->ranges;
    for (Node r : item->srcs().subspan(1)) ranges |= r->ranges;
    return ranges;
  }
  static bool contains(Node item, int id) { return id >= 0 && (around(item) >> id & 1); }

  // No item runs in this range and in another one that becomes a vector.
  bool is_alone(int id, int column, const std::vector<int>& own) const {
    for (Node item : items()) {
      if (!contains(item, id)) continue;
      if (contains(item, column)) return false;
      for (int other : own)
        if (contains(item, other)) return false;  // `id` itself may have been chosen before
    }
    return true;
  }

  bool is_reduced_under(int id) const {
    const auto all = items();
    return std::any_of(all.begin(), all.end(),
                       [&](Node item) { return item->op == Op::Reduce && contains(item, id); });
  }

  // The loop range that is best as the vector range of all that runs in it, when the rest takes the
  // best range of its own; -1 where it is best to have none.
  int best_column() const {
    int best = -1;
    double best_cost = column_cost(nullptr);
    for (Node r : ranges_) {
      if (kind(r) != RangeKind::Loop || extent(r) < 2) continue;
      const double c = column_cost(r);
      if (c <= best_cost) {
        best = range_id(r);
        best_cost = c;
      }
    }
    return best;
  }

  double column_cost(Node r) const {
    double sum = 0;
    for (Node item : items()) {
      double c = 0;
      if (r && contains(item, range_id(r))) {
        for (const Access& a : accesses_)
          if (a.item == item) c += cost(a, r);
      } else {
        own_vector(item, &c);
      }
      sum += c;
    }
    return sum;
  }

  // Combining the lanes at the end takes about as long as four loads, once for each result.
  double fold_cost(Node reduce, Node r) const {
    double results = 4;
    for (Node outer : ranges_)
      if (outer != r && (around(reduce) >> range_id(outer) & 1))
        results *= static_cast<double>(extent(outer));
    for (Node own : reduce->srcs().subspan(1))
      if (own != r) results /= static_cast<double>(extent(own));
    return results;
  }

  // The range that an item (a reduction or a store) has to itself and is best vectorised along.
  Node own_vector(Node item, double* item_cost) const {
    const uint64_t own = item->op == Op::Reduce ? item->src(0)->ranges & ~item->ranges
                                                : item->ranges & ~shared_ranges(sink_);
    Node best = nullptr;
    *item_cost = 0;
    for (const Access& a : accesses_)
      if (a.item == item) *item_cost += a.count;
    for (Node r : ranges_) {
      if (!(own >> range_id(r) & 1) || extent(r) < 2 || !may_vectorize(r)) continue;
      double sum = item->op == Op::Reduce ? fold_cost(item, r) : 0;
      for (const Access& a : accesses_)
        if (a.item == item) sum += cost(a, r);
      if (sum < *item_cost) {
        *item_cost = sum;
        best = r;
      }
    }
    return best;
  }

  // Ranges of kind Reduce without a Reduce that closes them belong to a store that must go on in
  // order.
  bool may_vectorize(Node r) const {
    if (kind(r) == RangeKind::Loop) return true;
    for (Node s : sink_->srcs())
      if (s->ranges >> range_id(r) & 1) return false;
    return true;
  }

  std::vector<Node> items() const {
    std::vector<Node> out;
    for (Node n : topological(sink_))
      if (n->op == Op::Reduce || n->op == Op::Store) out.push_back(n);
    return out;
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
    const int id = range_id(r), across = crossing_range(id);
    if (across < 0) return vector_split(id, lanes_for(r), 4);
    vector_split(id, lanes_, 1);
    unroll_split(across, lanes_);
  }

  // A range along which a load is contiguous that is not along the vector: together they make a
  // square tile, which is loaded by rows and transposed in registers. -1 where there is none.
  int crossing_range(int vector_id) const {
    if (extent(range(vector_id)) % lanes_) return -1;
    for (const Access& a : accesses_) {
      const int64_t s = stride(a.node, vector_id);
      if (a.node->op != Op::Load || s == 0 || std::abs(s) == 1 || s == kIrregular) continue;
      if (a.node->num_src > 2) continue;
      for (Node u : ranges_)
        if (kind(u) == RangeKind::Loop && range_id(u) != vector_id &&
            stride(a.node, range_id(u)) == 1 && extent(u) % lanes_ == 0)
          return range_id(u);
    }
    return -1;
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
        const bool inside =
            a.node->op == Op::Load && (a.around >> range_id(r) & 1) && (a.around >> vid & 1);
        if (inside && stride(a.node, vid) != 0 && stride(a.node, range_id(r)) == 0)
          score += a.count;
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
    uint64_t shared = shared_ranges(sink_);
    for (Node reduce : all_of(sink_, Op::Reduce)) shared &= reduce->ranges;  // it runs in them too
    for (Node r : ranges_)
      if (kind(r) == RangeKind::Loop && (shared >> range_id(r) & 1)) loops.push_back(range_id(r));
    if (loops.empty()) return order(-1);
    while (loops.size() > 1 && extent(range(loops[0])) < kEnough && go_together(loops)) {
      apply({OptKind::Merge, loops[0], loops[1], {}});
      loops.erase(loops.begin() + 1);
    }
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
    for (RangeKind k : {RangeKind::Loop, RangeKind::Reduce, RangeKind::Unroll, RangeKind::Vector})
      for (Node r : ranges_)
        if (kind(r) == k && range_id(r) != innermost_) ids.push_back(range_id(r));
    if (innermost_ >= 0) ids.push_back(innermost_);
    if (!ids.empty()) apply({OptKind::Order, 0, 0, ids});
  }

  Node sink_;
  const Target& target_;
  Choice choice_;
  int lanes_ = 1;
  int innermost_ = -1;  // the unrolled vectors of a tile: a scalar is used for all of them at once
  std::vector<Node> ranges_;
  std::vector<Access> accesses_;
};

}  // namespace

Choice choose_options(Node sink, const Target& target) { return Tuner(sink, target).run(); }

}  // namespace tiny
