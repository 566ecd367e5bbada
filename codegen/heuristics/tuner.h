// A kernel under construction by a heuristic: options are applied as they are chosen, so that each
// choice sees the loops that the last one made. Also the questions that heuristics ask of it: all
// of them, those for GPUs, and those for kernels with stages in shared memory.
#pragma once
#include <algorithm>
#include <bit>
#include <vector>

#include "codegen/heuristics/heuristics.h"
#include "codegen/kernel/access.h"
#include "codegen/options/mma.h"
#include "tiny/ir/sizes.h"

namespace tiny {

class Tuner {
 protected:
  using Ids = std::vector<int>;  // of ranges

  Tuner(Node sink, const Target& target) : sink_(sink), target_(target) { refresh(); }

  void refresh();
  void apply(Opt opt);
  bool applied(const Opt& opt);       // where it is legal
  void bind(int id, RangeKind kind);  // nothing where there is no such range
  // The inner range of `amount` iterations, those beyond the end gated off.
  int split(int id, int64_t amount);
  // The same, but `id` itself where it has just as many.
  int piece_of(int id, int64_t amount);
  // The same; what is left is the new `id`: -1 where nothing is. -1, too, for an inner range of one
  // iteration, which is none.
  int cut(int& id, int64_t amount);
  int cut(int& id, int64_t amount, RangeKind kind);  // and binds them
  // One range of all that there are, the last of which is innermost; -1 for none.
  int merged(Ids ids);
  // Loops in the order that GPUs want: blocks, threads, loops, sums, unrolled ones, vectors.
  // `last`: the last of the threads, of which the very last one, x, runs along the warp; those that
  // are no ranges (-1) are left out. `sums`: loops of sums in another order than that of their ids.
  void order_kinds(Ids last = {}, const Ids& sums = {});
  // One range in place of two that something is the same along: reductions along the columns of a
  // chain of products, and the rows of several results.
  void join_alike();
  Node range(int id) const {
    for (Node r : ranges_)
      if (range_id(r) == id) return r;
    return nullptr;
  }
  // Its extent; 1 where there is no such range.
  int64_t size(int id) const { return id >= 0 && range(id) ? extent(range(id)) : 1; }
  int64_t size(const Ids& ids) const;  // of all together
  template <class Is> Ids ids_where(Is is) const {
    Ids out;
    for (Node r : ranges_)
      if (is(r)) out.push_back(range_id(r));
    return out;
  }
  Ids ids_of(uint64_t mask) const {
    return ids_where([&](Node r) { return (mask & r->ranges) != 0; });
  }
  Ids ids_of(RangeKind of) const {
    return ids_where([&](Node r) { return kind(r) == of; });
  }
  static Ids ids_of(std::span<const Node> ranges);
  // The first loop of results for which that holds; -1 where there is none.
  template <class Is> int first_loop(Is is) const {
    const Ids all = ids_where([&](Node r) { return kind(r) == RangeKind::Loop && is(r); });
    return all.empty() ? -1 : all[0];
  }
  static void make_unique(Ids& ids);  // and sorts them
  static Ids without(Ids ids, const Ids& others) {
    for (int id : others) std::erase(ids, id);
    return ids;
  }
  static Ids without(Ids ids, int id) {
    std::erase(ids, id);
    return ids;
  }
  // The loops of results but one; nothing where another one is not of all results.
  std::optional<Ids> loops_of_all(int but = -1) const;
  bool stores_alike() const;  // in the same ranges

  // The smallest distance, in elements, at which the loads follow one another along the range: 2^40
  // where that is not even, and more where none of them depends on it.
  static int64_t min_stride(const std::vector<Node>& loads, int id);

  // Whether the range's next iteration reads again what this one reads along `tap`, as windows do
  // that overlap.
  static bool overlaps(Node load, int id, Node tap);
  // The same of any load that qualifies, and any of the taps.
  template <class Qualifies>
  bool overlaps(int id, const Ids& taps, const Qualifies& qualifies) const {
    return std::ranges::any_of(accesses_, [&](const Access& a) {
      return a.is_load() && qualifies(a) &&
             std::ranges::any_of(taps, [&](int tap) { return overlaps(a.node, id, range(tap)); });
    });
  }

  // As many lanes as a register has of the largest dtype of the arithmetic; 16-bit floats are
  // computed in f32, and bytes are worth no vectors of 64 lanes.
  int vector_lanes() const;

  // A short range along which the only store puts elements between those of vectors along `id`, so
  // that together they lie next to each other: pairs and quads of rows. -1 where there is none.
  int range_between(int id) const;

  // Vector instructions per element when `r` is the vector range: a whole vector is loaded at once
  // when the step is one, is one scalar load when there is no step, and is as many loads as lanes
  // otherwise, but for vectors that are stored together. Lanes that the extent cannot fill are
  // lost.
  double cost(const Access& a, Node r) const;

  // The ranges of an item's loops: also those that it closes and its value does not depend on.
  static uint64_t enclosing(Node item) {
    return item->op == Op::Reduce ? item->src(0)->ranges | reduced_ranges(item) : item->ranges;
  }
  static bool contains(Node item, int id) { return id >= 0 && (enclosing(item) >> id & 1); }

  // No item runs in this range and in another one that becomes a vector.
  bool is_alone(int id, int column, const std::vector<int>& own) const;

  bool is_reduced_under(int id) const;

  // How often an item is done, and the reduction that is done most often; nullptr without one.
  int64_t iterations(Node item) const { return iterations_of(ranges_, enclosing(item)); }
  Node largest_reduction() const;

  // The loop range that is best as the vector range of all that runs in it, when the rest takes the
  // best range of its own; -1 where it is best to have none.
  int best_column() const;

  double column_cost(Node r) const;

  // Of all accesses of an item, `r` being its vector range, or nullptr; more by `beside`.
  double item_cost(Node item, Node r, double beside = 0) const;

  // How much longer a CPU's sums take whose tiles have their vectors along the range (load_bound).
  double tile_cost(Node r) const;

  // Combining the lanes at the end takes about as long as four loads, once for each result.
  double fold_cost(Node reduce, Node r) const;

  // The range that an item (a reduction or a store) has to itself and is best vectorised along.
  Node own_vector(Node item, double* least) const;

  // Ranges of kind Reduce without a Reduce that closes them belong to a store that must go on in
  // order.
  bool may_vectorize(Node r) const;

  std::vector<Node> items() const;  // reductions and stores

  // r into outer x (unrolled) x vector; parts of one iteration are not made.
  void vector_split(int id, int lanes, int unroll);

  void unroll_split(int id, int64_t unroll);

  int lanes_for(Node r) const;

  // A range along which a load is contiguous that is not along the vector: together they make a
  // square tile, which is loaded by rows and transposed in registers. -1 where there is none.
  int crossing_range(int vector_id) const;

  // The loop range that most loads along the vector range do not depend on: unrolled, each of those
  // loads serves several results. nullptr where there is none.
  Node reuse_range(int vid) const;

  Node sink_;
  const Target& target_;
  Choice choice_;
  int lanes_ = 1;
  int innermost_ = -1;  // the unrolled vectors of a tile: a scalar is used for all of them at once
  std::vector<Node> ranges_;
  std::vector<Access> accesses_;
};

// Of heuristics for GPUs: the loops of a kernel, vectors along them, threads and blocks.
class GpuTuner : protected Tuner {
 public:
  GpuTuner(Node sink, const Target& target) : Tuner(sink, target) {}

 protected:
  static constexpr int64_t kBlock = 256;  // threads of a block where nothing asks for more or less

  bool has_reductions() const { return !all_of(sink_, Op::Reduce).empty(); }
  // Ranges that enclose all items and that none reduces. An item without any is done once.
  uint64_t shared_mask() const;
  bool is_detached(Node item) const;
  bool is_shared(int id) const { return shared_mask() >> id & 1; }
  // A range of kind Reduce that no reduction closes belongs to a store that goes on in order; one
  // that combines with what is there may as well run in parallel: it is atomic.
  bool is_sequential(Node r) const;
  Ids loops(uint64_t mask = ~uint64_t{0}) const;  // of these ranges
  Ids shared_loops() const { return loops(shared_mask()); }
  Ids unshared_loops() const { return loops(~shared_mask()); }
  // The least power of two that is no less.
  static int64_t pow2(int64_t n);
  // Cuts `amount` iterations off: the id of the inner range, which is `id` itself where the range
  // has no more than that.
  int part_of(int id, int64_t amount);
  // Binds such a part and returns it; where it is all of the range that is gone from `rest`.
  int take(int id, int64_t amount, RangeKind kind, Ids& rest);
  // The range over threads and blocks: `threads` neighbouring iterations to a block.
  void spread(int id, int64_t threads);
  static int element_size(const Access& a) { return a.dtype().size(); }
  bool is_aligned(const Access& a, Node v, int lanes) const;
  // Lanes of a vector along the range: 16 bytes of the narrowest elements that are contiguous in
  // it, less where they are not aligned or the extent does not divide. 1: no vector.
  int lanes_along(Node v) const;
  // The same for rows that begin anywhere, by way of the aligned element before them.
  int aligned_lanes(int id);
  static void make_last(Ids& ids, int id);
  // Whether a thread's vector of the stored dtype takes more than 16 bytes: each store instruction
  // then writes every second 16 bytes of the warp's span (measurements.md: stores_wide).
  bool stores_wide(int v) const;
  // The range of the set that encloses most accesses of those that qualify, the last one of equals;
  // -1 where it encloses none.
  template <class Qualifies> int range_of_most(const Ids& set, Qualifies qualifies) const {
    int best = -1;
    double most = 0;
    for (int id : set) {
      double count = 0;
      for (const Access& a : accesses_)
        if (a.runs_in(id) && qualifies(id, a)) count += a.count;
      if (count == 0 || count < most) continue;
      best = id;
      most = count;
    }
    return best;
  }
  bool is_contiguous(const Access& a, int id) const {
    return stride_in_block(a.node, range(id), 4) == 1;
  }
  // The range of the set along which most accesses are contiguous.
  int vector_range(const Ids& set) const;
  // The outer ranges over blocks of so many threads, of which `threads` are taken already.
  void blocks_of(const Ids& outer, int64_t threads, int64_t block = kBlock);
  void vector(int v, Ids& rest) {
    if (lanes_ > 1) take(v, lanes_, RangeKind::Vector, rest);
  }

  Choice finished() {
    order_kinds(last_);
    return std::move(choice_);
  }

  Ids last_;  // of the thread ranges, x behind the others
};

// Of heuristics for kernels with stages in shared memory: copies into stages, fragments.
class StagingTuner : protected Tuner {
 protected:
  static constexpr int64_t kLanes = 4;  // elements of a vector

  StagingTuner(Node sink, const Target& target) : Tuner(sink, target) {}

  // Vectors of so many lanes for a stage's copies, along the range of those that lie next to each
  // other; false where its elements cannot be copied so.
  bool copy_vectors(int column, int64_t lanes);

  // A part of a stage's copies for each of these threads, where that leaves none with more. A
  // thread's are unrolled where they are no more than can be, else a loop.
  void share_out(int copies, const Ids& threads);

 private:
  bool copies_vectors(const Opt& split, int lane) const;
};

// Of heuristics for GEMMs on matrix units: the kernel's largest sum, as a unit multiplies it.
class UnitTuner : protected StagingTuner {
 protected:
  using StagingTuner::StagingTuner;

  bool find_product();  // false where no unit multiplies it, or stores differ in their ranges
  const MmaUnit& unit() const { return *p_.unit; }
  // Puts the product on the unit, so that a GPU's warps have their threads along lane_; false where
  // the option is not legal.
  bool multiply(int rows, int columns, int terms) {
    lane_ = next_range_id(sink_) + 2;
    return applied({OptKind::Mma, rows, 0, {columns, terms}});
  }
  // In the order in which the loads of a factor follow one another, the smallest stride first.
  static Ids nearest_first(const std::vector<Node>& loads, Ids ids);

  MmaProduct p_;  // of the kernel as it was
  Ids sums_;
  int lane_ = -1;
};

}  // namespace tiny
