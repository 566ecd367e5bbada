// Shared by the heuristics for kernels with stages in shared memory: copies into stages, fragments.
#pragma once
#include <vector>

#include "codegen/heuristics/tuner.h"

namespace tiny {

class StagingTuner : protected Tuner {
 protected:
  using Ids = std::vector<int>;
  static constexpr int64_t kLanes = 4;  // elements of a vector

  StagingTuner(Node sink, const Target& target) : Tuner(sink, target) {}

  // Of a range, 1 where there is none; of all of these together.
  int64_t size(int id) const { return id >= 0 && range(id) ? extent(range(id)) : 1; }
  int64_t size(const Ids& ids) const;

  // The last `amount` iterations of a range as one of their own; -1 for a single one, and `id`
  // where nothing is left.
  int cut(int& id, int64_t amount);

  // One range of all that there are, the last of which is innermost.
  int merged(Ids ids);

  void bind_if(int id, RangeKind k) {
    if (id >= 0) bind(id, k);
  }

  // Vectors of so many lanes for a stage's copies, along the range of those that lie next to each
  // other; false where its elements cannot be copied so.
  bool copy_vectors(int column, int64_t lanes);

  // A part of a stage's copies for each of these threads, where that leaves none with more. A
  // thread's are unrolled where they are no more than that.
  void share_out(int copies, const Ids& threads, int64_t unrolled = INT64_MAX);

 private:
  bool copies_vectors(const Opt& split, int lane) const;
};

}  // namespace tiny
