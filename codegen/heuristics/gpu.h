// Shared by the heuristics for GPUs: the loops of a kernel, options for several of them at once,
// vectors along them, and stages in shared memory.
#pragma once
#include <optional>

#include "codegen/heuristics/tuner.h"

namespace tiny {

class GpuTuner : protected Tuner {
 public:
  GpuTuner(Node sink, const Target& target) : Tuner(sink, target) {}

 protected:
  static constexpr int64_t kBlock = 256;  // threads of a block where nothing asks for more or less

  bool has_reductions() const;
  // Ranges that enclose all items and that none reduces. An item without any is done once.
  uint64_t shared_mask() const;
  bool is_detached(Node item) const;
  bool is_shared(int id) const;
  // A range of kind Reduce that no reduction closes belongs to a store that goes on in order; one
  // that combines with what is there may as well run in parallel: it is atomic.
  bool is_sequential(Node r) const;
  Ids loops() const;
  Ids shared_loops() const;
  // The least power of two that is no less.
  static int64_t pow2(int64_t n);
  // Cuts `amount` iterations off: the id of the inner range, which is `id` itself where the range
  // has no more than that.
  int part_of(int id, int64_t amount);
  // The range over threads and blocks: `threads` neighbouring iterations to a block.
  void spread(int id, int64_t threads);
  static int element_size(const Access& a);
  bool is_aligned(const Access& a, Node v, int lanes) const;
  // Lanes of a vector along the range: 16 bytes of the narrowest elements that are contiguous in
  // it, less where they are not aligned or the extent does not divide. 1: no vector.
  int lanes_along(Node v) const;
  // The same for rows that begin anywhere, by way of the aligned element before them.
  int aligned_lanes(int id);
  static Ids without(Ids ids, int id);
  static void make_last(Ids& ids, int id);
  // Whether a thread's vector of the stored dtype takes more than 16 bytes: each store instruction
  // then writes every second 16 bytes of the warp's span (measurements.md: stores_wide).
  bool stores_wide(int v) const;
  // The range of the set along which most accesses are contiguous.
  int vector_range(const Ids& set) const;
  // The outer ranges over blocks of so many threads, of which `threads` are taken already.
  void blocks_of(const Ids& outer, int64_t threads, int64_t block = kBlock);
  // Binds a vector off the range; where it was no more than that it is gone from `rest`.
  void vector(int v, Ids& rest);

  int last_ = -1;  // the thread range that is x
};

// Shared by the heuristics for kernels with stages in shared memory: copies into stages, fragments.
class StagingTuner : protected Tuner {
 protected:
  static constexpr int64_t kLanes = 4;  // elements of a vector

  StagingTuner(Node sink, const Target& target) : Tuner(sink, target) {}

  // The last `amount` iterations of a range as one of their own; -1 for a single one, and `id`
  // where nothing is left.
  int cut(int& id, int64_t amount);

  void bind_if(int id, RangeKind k) {
    if (id >= 0) bind(id, k);
  }

  // Vectors of so many lanes for a stage's copies, along the range of those that lie next to each
  // other; false where its elements cannot be copied so.
  bool copy_vectors(int column, int64_t lanes);

  // A part of a stage's copies for each of these threads, where that leaves none with more. A
  // thread's are unrolled where they are no more than can be, else a loop.
  void share_out(int copies, const Ids& threads);

 private:
  bool copies_vectors(const Opt& split, int lane) const;
};

// Schedules GEMMs and convolutions on the ordinary arithmetic units of a GPU, operands in memory.
// Each thread computes a tile of results; loads come through L1, which serves a line to all threads
// of a warp at once. A cost model chooses among the tiles. Nothing where the kernel is no single
// sum of products, whose operands several results share.
std::optional<Choice> choose_product_options(Node sink, const Target& target);

// Nothing for a kernel that reduces, or whose stores have not all the same loops.
std::optional<Choice> choose_stream_options(Node sink, const Target& target);

// Schedules reductions whose results are contiguous along `column`: each thread reduces on its own,
// GEMMs with a tile of results per thread, or threads of a block share a sum. `narrow`: only the
// last, for fewer results than threads; else nothing.
std::optional<Choice> choose_column_options(Node sink, const Target& target, int column,
                                            bool narrow);

}  // namespace tiny
