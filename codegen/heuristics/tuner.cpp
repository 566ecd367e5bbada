#include "codegen/heuristics/tuner.h"

#include <cmath>
#include <utility>

#include "codegen/heuristics/rates.h"
#include "codegen/kernel/facts.h"
#include "codegen/passes/passes.h"
#include "tiny/rewrite/algebra.h"
#include "tiny/rewrite/rewrite.h"

namespace tiny {

void Tuner::refresh() {
  ranges_ = ranges_of(sink_);
  accesses_ = accesses(sink_);
}

void Tuner::apply(Opt opt) {
  sink_ = simplify(tiny::apply(sink_, opt, target_));
  choice_.options.push_back(std::move(opt));
  refresh();
}

bool Tuner::applied(const Opt& opt) {
  if (!is_legal(sink_, opt, target_)) return false;
  apply(opt);
  return true;
}

int Tuner::split(int id, int64_t amount) {
  const int inner = next_range_id(sink_);
  apply({OptKind::Split, id, amount, {}});
  return inner;
}

int Tuner::piece_of(int id, int64_t amount) { return size(id) == amount ? id : split(id, amount); }

int Tuner::cut(int& id, int64_t amount) {
  if (id < 0 || amount < 2) return -1;
  const int piece = piece_of(id, amount);
  if (piece == id || !range(id)) id = -1;
  return piece;
}

int Tuner::cut(int& id, int64_t amount, RangeKind kind) {
  const int piece = cut(id, amount);
  bind(piece, kind);
  return piece;
}

int64_t Tuner::size(const Ids& ids) const {
  int64_t n = 1;
  for (int id : ids) n *= size(id);
  return n;
}

Tuner::Ids Tuner::ids_of(std::span<const Node> ranges) {
  Ids out;
  for (Node r : ranges) out.push_back(range_id(r));
  return out;
}

void Tuner::make_unique(Ids& ids) {
  std::ranges::sort(ids);
  ids.erase(std::ranges::unique(ids).begin(), ids.end());
}

std::optional<Tuner::Ids> Tuner::loops_of_all(int but) const {
  Ids out = without(ids_of(RangeKind::Loop), but);
  std::erase_if(out, [&](int id) { return !(sink_->ranges >> id & 1); });
  const uint64_t shared = shared_ranges(sink_);
  const bool alike = std::ranges::all_of(out, [&](int id) { return shared >> id & 1; });
  return alike ? std::optional(out) : std::nullopt;
}

bool Tuner::stores_alike() const {
  return std::ranges::all_of(sink_->srcs(),
                             [&](Node s) { return s->ranges == sink_->src(0)->ranges; });
}

int64_t Tuner::min_stride(const std::vector<Node>& loads, int id) {
  int64_t least = INT64_MAX;
  for (Node n : loads)
    if (const int64_t s = stride(n, id); s != 0)
      least = std::min(least, s == kIrregular ? int64_t{1} << 40 : std::abs(s));
  return least;
}

bool Tuner::overlaps(Node load, int id, Node tap) {
  const int64_t step = std::abs(stride(load, id)), own = std::abs(stride(load, range_id(tap)));
  return step > 0 && own > 0 && own != kIrregular && step % own == 0 && step / own < extent(tap);
}

int Tuner::vector_lanes() const {
  int max_bytes = 4;
  for (const Access& a : accesses_) {
    if (a.is_load() && !a.node->ranges) continue;  // one element for all lanes
    max_bytes = std::max(max_bytes, a.dtype().size());
  }
  return target_.vector_bytes / max_bytes;
}

int Tuner::range_between(int id) const {
  if (!joins_stores(target_) || sink_->num_src != 1 || size(id) % lanes_) return -1;
  const int64_t apart = stride(sink_->src(0), id);
  if (apart != 2 && apart != 4) return -1;
  return first_loop(
      [&](Node u) { return extent(u) == apart && stride(sink_->src(0), range_id(u)) == 1; });
}

double Tuner::cost(const Access& a, Node r) const {
  const int64_t s = stride_in_block(a.node, r, lanes_);
  const double n = static_cast<double>(extent(r));
  const double used = n / (std::ceil(n / lanes_) * lanes_);
  const bool split_n = s == 2 && a.is_load() && (a.node->num_src == 2 || loads_with_masks(target_));
  const bool joined = a.is_store() && range_between(range_id(r)) >= 0;
  const double per_vector = s == 0             ? 0.5
                            : std::abs(s) == 1 ? 1
                            : joined           ? 2
                            : split_n          ? 3
                                               : lanes_ * 1.5;
  return a.count * per_vector / lanes_ / used;
}

bool Tuner::is_alone(int id, int column, const std::vector<int>& own) const {
  for (Node item : items()) {
    if (!contains(item, id)) continue;
    if (contains(item, column)) return false;
    for (int other : own)
      if (contains(item, other)) return false;  // `id` itself may have been chosen before
  }
  return true;
}

bool Tuner::is_reduced_under(int id) const {
  const auto all = items();
  return std::ranges::any_of(
      all, [&](Node item) { return item->op == Op::Reduce && contains(item, id); });
}

int Tuner::best_column() const {
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

double Tuner::column_cost(Node r) const {
  double sum = 0;
  for (Node item : items()) {
    double c = 0;
    if (r && contains(item, range_id(r)))
      c = item_cost(item, r) * (item->op == Op::Reduce ? tile_cost(r) : 1);
    else
      own_vector(item, &c);
    sum += c;
  }
  return sum;
}

double Tuner::tile_cost(Node r) const {
  Node u = target_.kind == Target::Kind::Cpu ? reuse_range(range_id(r)) : nullptr;
  if (!u) return 1;
  return load_bound(
      register_tile(target_, extent(u), ceil_div(extent(r), lanes_for(r)), /*extends=*/true));
}

double Tuner::fold_cost(Node reduce, Node r) const {
  double results = 4;
  for (Node outer : ranges_)
    if (outer != r && (enclosing(reduce) >> range_id(outer) & 1))
      results *= static_cast<double>(extent(outer));
  for (Node own : reduce->srcs().subspan(1))
    if (own != r) results /= static_cast<double>(extent(own));
  return results;
}

double Tuner::item_cost(Node item, Node r, double beside) const {
  for (const Access& a : accesses_)
    if (a.item == item) beside += r ? cost(a, r) : a.count;
  return beside;
}

Node Tuner::own_vector(Node item, double* least) const {
  const uint64_t own = item->op == Op::Reduce ? item->src(0)->ranges & ~item->ranges
                                              : item->ranges & ~shared_ranges(sink_);
  Node best = nullptr;
  *least = item_cost(item, nullptr);
  for (Node r : ranges_) {
    if (!(own >> range_id(r) & 1) || extent(r) < 2 || !may_vectorize(r)) continue;
    const double sum = item_cost(item, r, item->op == Op::Reduce ? fold_cost(item, r) : 0);
    if (sum < *least) {
      *least = sum;
      best = r;
    }
  }
  return best;
}

bool Tuner::may_vectorize(Node r) const {
  if (kind(r) == RangeKind::Loop) return true;
  for (Node s : sink_->srcs())
    if (s->ranges >> range_id(r) & 1) return false;
  return true;
}

std::vector<Node> Tuner::items() const {
  std::vector<Node> out;
  for (Node n : topological(sink_))
    if (n->op == Op::Reduce || n->op == Op::Store) out.push_back(n);
  return out;
}

void Tuner::vector_split(int id, int lanes, int unroll) {
  const int vector = piece_of(id, lanes);
  if (range(id) && vector != id) unroll_split(id, unroll);
  bind(vector, RangeKind::Vector);
}

void Tuner::bind(int id, RangeKind kind) {
  if (id >= 0 && range(id)) apply({OptKind::Bind, id, static_cast<int64_t>(kind), {}});
}

int Tuner::merged(Ids ids) {
  std::erase_if(ids, [&](int id) { return id < 0 || !range(id); });
  for (size_t i = 1; i < ids.size(); ++i) apply({OptKind::Merge, ids[0], ids[i], {}});
  return ids.empty() ? -1 : ids[0];
}

void Tuner::join_alike() {
  for (bool changed = true; changed;) {
    changed = false;
    const std::vector<Node> sums = all_of(sink_, Op::Reduce);
    for (Node a : ranges_)
      for (Node b : ranges_) {
        if (changed || range_id(a) >= range_id(b) || kind(a) != kind(b) || extent(a) != extent(b))
          continue;
        const Opt join{OptKind::Join, range_id(a), range_id(b), {}};
        const auto is_same = [&](Node sum) {
          return (sum->ranges & b->ranges) &&
                 std::ranges::find(sums, simplify(substitute(sum, b, a))) != sums.end();
        };
        if (!std::ranges::any_of(sums, is_same) || !is_legal(sink_, join, target_)) continue;
        apply(join);
        changed = true;
      }
  }
}

void Tuner::order_kinds(Ids last, const Ids& sums) {
  std::erase_if(last, [&](int id) { return id < 0 || !range(id); });
  std::vector<int> ids;
  for (RangeKind k : {RangeKind::Core, RangeKind::Block, RangeKind::Thread, RangeKind::Loop,
                      RangeKind::Reduce, RangeKind::Unroll, RangeKind::Vector}) {
    const bool given = k == RangeKind::Reduce && !sums.empty();
    for (int id : given ? sums : without(ids_of(k), last)) ids.push_back(id);
    if (k == RangeKind::Thread) ids.insert(ids.end(), last.begin(), last.end());
  }
  if (!ids.empty()) apply({OptKind::Order, 0, 0, ids});
}

Node Tuner::largest_reduction() const {
  Node largest = nullptr;
  for (Node n : all_of(sink_, Op::Reduce))
    if (!largest || iterations(n) > iterations(largest)) largest = n;
  return largest;
}

void Tuner::unroll_split(int id, int64_t unroll) {
  cut(id, largest_divisor(size(id), unroll), RangeKind::Unroll);
}

int Tuner::lanes_for(Node r) const {
  return static_cast<int>(
      std::min<int64_t>(lanes_, std::bit_ceil(static_cast<uint64_t>(extent(r)))));
}

int Tuner::crossing_range(int vector_id) const {
  if (size(vector_id) % lanes_) return -1;
  for (const Access& a : accesses_) {
    const int64_t s = stride(a.node, vector_id);
    if (!a.is_load() || s == 0 || std::abs(s) == 1 || s == kIrregular) continue;
    if (a.node->num_src > 2) continue;
    const int across = first_loop([&](Node u) {
      return range_id(u) != vector_id && stride(a.node, range_id(u)) == 1 &&
             extent(u) % lanes_ == 0;
    });
    if (across >= 0) return across;
  }
  return -1;
}

Node Tuner::reuse_range(int vid) const {
  Node best = nullptr;
  double best_score = 0, best_reach = 0;
  for (Node r : ranges_) {
    if (kind(r) != RangeKind::Loop || range_id(r) == vid) continue;
    double score = 0, reach = 0;
    for (const Access& a : accesses_) {
      const bool inside = a.is_load() && a.runs_in(range_id(r)) && a.runs_in(vid);
      if (!inside) continue;
      const int64_t step = stride(a.node, range_id(r));
      if (stride(a.node, vid) != 0 && step == 0) score += a.count;
      reach += std::abs(static_cast<double>(step));
    }
    const int64_t part = std::min<int64_t>(extent(r), 6);  // the last may go beyond the end
    const auto unrolled = static_cast<double>(std::max(part, largest_divisor(extent(r), 14)));
    score *= 1 - 1 / unrolled;
    // Of equals the one with the smallest stride.
    const bool nearer = score > best_score * 0.99 && reach < best_reach;
    if (score > best_score * 1.01 || nearer) {
      best = r;
      best_score = score;
      best_reach = reach;
    }
  }
  return best;
}

// --- GPUs ----------------------------------------------------------------------------------------

// A short sum beside many results whose loops do not enclose it, as the number of elements of a
// mean: each block computes it rather than one block all results (measurements.md: is_detached).
bool GpuTuner::is_detached(Node item) const {
  constexpr int64_t kLongest = 2048, kMin = 4096;
  if (item->op != Op::Reduce) return false;
  uint64_t stored = ~uint64_t{0};
  for (Node other : items())
    if (other->op == Op::Store && enclosing(other) != 0) stored &= enclosing(other);
  const int64_t results = size(ids_of(stored)), reduced = iterations(item);
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

bool GpuTuner::is_sequential(Node r) const {
  if (kind(r) != RangeKind::Reduce) return false;
  for (Node s : sink_->srcs())
    if ((s->ranges & r->ranges) && !std::holds_alternative<OpArg>(s->payload)) return true;
  return false;
}

GpuTuner::Ids GpuTuner::loops(uint64_t mask) const {
  return ids_where([&](Node r) {
    return (mask & r->ranges) && !is_sequential(r) &&
           (kind(r) == RangeKind::Loop || kind(r) == RangeKind::Reduce);
  });
}

int64_t GpuTuner::pow2(int64_t n) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n)));
}

int GpuTuner::part_of(int id, int64_t amount) {
  return amount < 2 || size(id) <= amount ? id : split(id, amount);
}

int GpuTuner::take(int id, int64_t amount, RangeKind kind, Ids& rest) {
  const int part = part_of(id, amount);
  bind(part, kind);
  if (part == id) rest = without(rest, id);
  return part;
}

void GpuTuner::spread(int id, int64_t threads) {
  if (id < 0) return;
  if (threads <= 1) return bind(id, RangeKind::Block);
  const int inner = part_of(id, threads);
  bind(inner, RangeKind::Thread);
  if (inner != id) bind(id, RangeKind::Block);
}

bool GpuTuner::is_aligned(const Access& a, Node v, int lanes) const {
  const Sum sum = to_sum(a.node->src(1));
  if (sum.constant % lanes) return false;
  return std::ranges::all_of(sum.terms,
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
  if (lanes > 1 || size(id) < kLong) return lanes;
  // Whole vectors are stored, of elements that are loaded one by one.
  for (const Access& a : accesses_) {
    const int most = 16 / element_size(a);
    if (a.is_store() && stride(a.node, id) == 1 && size(id) % most == 0 &&
        is_aligned(a, range(id), most))
      return most;
  }
  for (const Access& a : accesses_) {
    if (!a.runs_in(id) || stride(a.node, id) != 1) continue;
    if (applied({OptKind::Align, id, 16 / element_size(a), {}})) return lanes_along(range(id));
  }
  return lanes;
}

void GpuTuner::make_last(Ids& ids, int id) {
  if (std::erase(ids, id)) ids.push_back(id);
}

bool GpuTuner::stores_wide(int v) const {
  return lanes_ > 1 && std::ranges::any_of(accesses_, [&](const Access& a) {
           return a.is_store() && stride(a.node, v) == 1 && element_size(a) * lanes_ > 16;
         });
}

int GpuTuner::vector_range(const Ids& set) const {
  const int best =
      range_of_most(set, [&](int id, const Access& a) { return is_contiguous(a, id); });
  return best < 0 ? set.back() : best;
}

void GpuTuner::blocks_of(const Ids& outer, int64_t threads, int64_t block) {
  if (outer.empty()) return;
  const int m = merged(outer);
  if (threads >= kBlock / 2) return bind(m, RangeKind::Block);
  spread(m, std::max<int64_t>(1, block / std::max<int64_t>(threads, 1)));
}

// --- Stages --------------------------------------------------------------------------------------

namespace {

// Loads that a computed element depends on are vectors as well.
bool loads_vectors(Node load, Node lane, int64_t lanes) {
  if (stride(load, range_id(lane)) != 1) return false;
  if (load->num_src > 2 && (load->src(2)->ranges & lane->ranges)) return false;
  const Sum at = to_sum(load->src(1));
  const auto is_whole = [&](const Sum::Term& t) {
    return t.atom == lane || known_factor(t.atom) * t.factor % lanes == 0;
  };
  return at.constant % lanes == 0 && std::ranges::all_of(at.terms, is_whole);
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
  if (size(copies) <= kMaxUnrolled) bind(copies, RangeKind::Unroll);
}

// --- Matrix units --------------------------------------------------------------------------------

bool UnitTuner::find_product() {
  Node sum = largest_reduction();
  if (!sum || !mma_product(sum, target_, p_).empty() || !stores_alike()) return false;
  sums_ = ids_of(sum->srcs().subspan(1));
  return true;
}

Tuner::Ids UnitTuner::nearest_first(const std::vector<Node>& loads, Ids ids) {
  std::ranges::stable_sort(ids, {}, [&](int id) { return min_stride(loads, id); });
  return ids;
}

}  // namespace tiny
