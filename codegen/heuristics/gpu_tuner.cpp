#include "codegen/heuristics/gpu.h"

#include <utility>

#include "codegen/kernel/facts.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

bool GpuTuner::has_reductions() const { return !all_of(sink_, Op::Reduce).empty(); }

// A short sum beside many results whose loops do not enclose it, as the number of elements of a
// mean: each block computes it rather than one block all results (measurements.md: is_detached).
bool GpuTuner::is_detached(Node item) const {
  constexpr int64_t kLongest = 2048, kMin = 4096;
  if (item->op != Op::Reduce) return false;
  uint64_t stored = ~uint64_t{0};
  for (Node other : items())
    if (other->op == Op::Store && enclosing(other) != 0) stored &= enclosing(other);
  int64_t results = 1, reduced = 1;
  for (Node r : ranges_) {
    if (stored >> range_id(r) & 1) results *= extent(r);
    if (contains(item, range_id(r))) reduced *= extent(r);
  }
  return !(stored & enclosing(item)) && stored != ~uint64_t{0} && reduced <= kLongest &&
         results >= std::max(kMin, 4 * reduced);
}

uint64_t GpuTuner::shared_mask() const {
  uint64_t mask = ~uint64_t{0};
  for (Node item : items()) {
    if (enclosing(item) == 0 || is_detached(item)) continue;
    mask &= enclosing(item);
    if (item->op == Op::Reduce)
      for (Node r : item->srcs().subspan(1)) mask &= ~r->ranges;
  }
  return mask;
}

bool GpuTuner::is_shared(int id) const { return shared_mask() >> id & 1; }

bool GpuTuner::is_sequential(Node r) const {
  if (kind(r) != RangeKind::Reduce) return false;
  for (Node s : sink_->srcs())
    if ((s->ranges & r->ranges) && !std::holds_alternative<OpArg>(s->payload)) return true;
  return false;
}

GpuTuner::Ids GpuTuner::loops() const {
  Ids out;
  for (Node r : ranges_)
    if (!is_sequential(r) && (kind(r) == RangeKind::Loop || kind(r) == RangeKind::Reduce))
      out.push_back(range_id(r));
  return out;
}

GpuTuner::Ids GpuTuner::shared_loops() const {
  Ids out;
  const uint64_t mask = shared_mask();
  for (int id : loops())
    if (mask >> id & 1) out.push_back(id);
  return out;
}

int64_t GpuTuner::pow2(int64_t n) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n)));
}

int GpuTuner::part_of(int id, int64_t amount) {
  return amount < 2 || size(id) <= amount ? id : split(id, amount);
}

void GpuTuner::spread(int id, int64_t threads) {
  if (id < 0) return;
  if (threads <= 1) return bind(id, RangeKind::Block);
  const int inner = part_of(id, threads);
  bind(inner, RangeKind::Thread);
  if (inner != id) bind(id, RangeKind::Block);
}

int GpuTuner::element_size(const Access& a) {
  return (a.node->op == Op::Load ? a.node->dtype : a.node->src(2)->dtype).size();
}

bool GpuTuner::is_aligned(const Access& a, Node v, int lanes) const {
  const Sum sum = to_sum(a.node->src(1));
  if (sum.constant % lanes) return false;
  return std::all_of(sum.terms.begin(), sum.terms.end(),
                     [&](const auto& t) { return t.atom == v || t.factor % lanes == 0; });
}

int GpuTuner::lanes_along(Node v) const {
  int lanes = 1;
  for (const Access& a : accesses_)
    if ((a.enclosing & v->ranges) && stride_in_block(a.node, v, 4) == 1)
      lanes = std::max(lanes, std::min(8, 16 / element_size(a)));
  for (; lanes > 1; lanes /= 2) {
    if (extent(v) % lanes) continue;
    double good = 0, all = 0;
    for (const Access& a : accesses_) {
      if (!(a.enclosing & v->ranges)) continue;
      const int64_t s = stride_in_block(a.node, v, lanes);
      if (s == 0) continue;
      all += a.count;
      if (s == 1 && is_aligned(a, v, lanes)) good += a.count;
    }
    if (good * 2 > all) break;
  }
  return lanes;
}

int GpuTuner::aligned_lanes(int id) {
  constexpr int64_t kLong = 512;  // the ends are dear
  const int lanes = lanes_along(range(id));
  if (lanes > 1 || extent(range(id)) < kLong) return lanes;
  // Whole vectors are stored, of elements that are loaded one by one.
  for (const Access& a : accesses_) {
    const int most = 16 / element_size(a);
    if (a.node->op == Op::Store && stride(a.node, id) == 1 && extent(range(id)) % most == 0 &&
        is_aligned(a, range(id), most))
      return most;
  }
  for (const Access& a : accesses_) {
    if (!(a.enclosing >> id & 1) || stride(a.node, id) != 1) continue;
    const Opt opt{OptKind::Align, id, 16 / element_size(a), {}};
    if (!is_legal(sink_, opt, target_)) continue;
    apply(opt);
    return lanes_along(range(id));
  }
  return lanes;
}

GpuTuner::Ids GpuTuner::without(Ids ids, int id) {
  ids.erase(std::remove(ids.begin(), ids.end(), id), ids.end());
  return ids;
}

void GpuTuner::make_last(Ids& ids, int id) {
  if (std::find(ids.begin(), ids.end(), id) == ids.end()) return;
  ids = without(ids, id);
  ids.push_back(id);
}

void GpuTuner::vector(int v, Ids& rest) {
  if (lanes_ < 2) return;
  const int inner = part_of(v, lanes_);
  bind(inner, RangeKind::Vector);
  if (inner == v) rest = without(rest, v);
}
bool GpuTuner::stores_wide(int v) const {
  return lanes_ > 1 && std::any_of(accesses_.begin(), accesses_.end(), [&](const Access& a) {
           return a.node->op == Op::Store && stride(a.node, v) == 1 &&
                  element_size(a) * lanes_ > 16;
         });
}

int GpuTuner::vector_range(const Ids& set) const {
  int best = set.back();
  double best_score = -1;
  for (int id : set) {
    double score = 0;
    for (const Access& a : accesses_)
      if ((a.enclosing >> id & 1) && stride_in_block(a.node, range(id), 4) == 1) score += a.count;
    if (score >= best_score) {
      best = id;
      best_score = score;
    }
  }
  return best;
}

void GpuTuner::blocks_of(const Ids& outer, int64_t threads, int64_t block) {
  if (outer.empty()) return;
  const int m = merged(outer);
  if (threads >= kBlock / 2) return bind(m, RangeKind::Block);
  spread(m, std::max<int64_t>(1, block / std::max<int64_t>(threads, 1)));
}

// --- stages
// ---------------------------------------------------------------------------------------

int StagingTuner::cut(int& id, int64_t amount) {
  if (amount < 2) return -1;
  if (size(id) == amount) return std::exchange(id, -1);
  const int outer = size(id) < amount ? -1 : id, inner = split(id, amount);
  id = outer;
  return inner;
}

namespace {

// Loads that a computed element depends on are vectors as well.
bool loads_vectors(Node load, Node lane, int64_t lanes) {
  if (stride(load, range_id(lane)) != 1) return false;
  if (load->num_src > 2 && (load->src(2)->ranges & lane->ranges)) return false;
  const Sum at = to_sum(load->src(1));
  const auto is_whole = [&](const Sum::Term& t) {
    return t.atom == lane || known_factor(t.atom) * t.factor % lanes == 0;
  };
  return at.constant % lanes == 0 && std::all_of(at.terms.begin(), at.terms.end(), is_whole);
}

}  // namespace

// Whether the elements of the stage that this option splits can be copied in such vectors.
bool StagingTuner::copies_vectors(const Opt& split, int lane) const {
  Node with = simplify(tiny::apply(sink_, split, target_));
  Node r = range_with_id(with, lane);
  for (Node stage : all_of(with, Op::Stage)) {
    if (!(stage->src(0)->ranges & r->ranges)) continue;
    int vectors = 0;
    for (Node load : topological(stage->src(0))) {
      if (load->op != Op::Load || !(load->ranges & r->ranges)) continue;
      if (!loads_vectors(load, r, split.amount)) return false;
      ++vectors;
    }
    return vectors > 0;
  }
  return false;
}

bool StagingTuner::copy_vectors(int column, int64_t lanes) {
  const int lane = next_range_id(sink_);
  const Opt split{OptKind::Split, column, lanes, {}};
  if (size(column) % lanes || !copies_vectors(split, lane)) return false;
  apply(split);
  bind(lane, RangeKind::Vector);
  return true;
}

void StagingTuner::share_out(int copies, const Ids& threads) {
  constexpr int64_t kMaxUnrolled = 64;  // options/apply.cpp
  for (int of : threads) {
    if (of < 0 || size(copies) % size(of)) continue;
    const int each = cut(copies, size(of));
    apply({OptKind::Join, of, each, {}});
  }
  if (size(copies) <= kMaxUnrolled) bind_if(copies, RangeKind::Unroll);
}

}  // namespace tiny
