// Schedules GPU reductions whose loads are coalesced along the results: a sum over rows, a matrix
// times a vector, GEMMs that no tensor core computes.
#include <bit>
#include <optional>
#include <set>

#include "codegen/heuristics/tuner.h"
#include "codegen/kernel/facts.h"
#include "tiny/ir/sizes.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

namespace {

// Elements of a sum for each thread, at the least: few where latency counts, more for bandwidth.
int64_t of_thread(int64_t wanted, const Target& target) {
  return std::max<int64_t>(wanted, target.least_of_thread);
}

// Column reductions: what they have in common and what they read, their loops over rows.
class ColumnSums : protected GpuTuner {
 protected:
  static constexpr int64_t kKept = 64;  // elements of a column that a thread keeps in registers

  using GpuTuner::GpuTuner;

  // The ranges that the reductions close, and nothing else runs in; none where they differ, but for
  // those of is_short().
  Ids reduced_everywhere() const {
    uint64_t mask = 0;
    for (Node reduce : all_of(sink_, Op::Reduce)) {
      if (is_short(reduce)) continue;
      if (mask && reduced_ranges(reduce) != mask) return {};
      mask = reduced_ranges(reduce);
    }
    const Ids out = loops(mask);
    return size(out) > 1 && !(mask & sink_->ranges) ? out : Ids{};
  }

  // A short sum beside long ones, as what a variance's elements are shifted by: each thread
  // may have it for itself.
  bool is_short(Node reduce) const {
    constexpr int64_t kMax = 32, kLonger = 16;
    const Node longest = largest_reduction();
    const uint64_t own = reduced_ranges(reduce), all = reduced_ranges(longest);
    return !(enclosing(reduce) & all) && !(enclosing(reduce) & ~(shared_mask() | own)) &&
           size(loops(own)) <= kMax && size(loops(own)) * kLonger <= size(loops(all));
  }
  Ids short_rows() const {
    uint64_t mask = 0;
    for (Node reduce : all_of(sink_, Op::Reduce))
      if (is_short(reduce)) mask |= reduced_ranges(reduce);
    return loops(mask);
  }

  // Copies that unrolled sums make of what runs in the range.
  int64_t copies(int id) const {
    int64_t most = 1;
    for (Node item : items()) {
      const Ids unrolled = ids_where([&](Node r) {
        return kind(r) == RangeKind::Unroll && contains(item, range_id(r)) && is_reduced_by_any(r);
      });
      if (contains(item, id)) most = std::max(most, size(unrolled));
    }
    return most;
  }
  bool is_reduced_by_any(Node r) const { return !reductions_along(sink_, range_id(r)).empty(); }

  // Operands that hold something else for each iteration.
  size_t streams() const {
    std::set<Node> out;
    for (const Access& a : accesses_)
      if (a.is_load() && size(loops()) <= elements_of(a.node->src(0))) out.insert(a.node->src(0));
    return out.size();
  }

  Access largest_access(Node column) const {
    const Access* best = nullptr;
    for (const Access& a : accesses_)
      if ((a.enclosing & column->ranges) && stride_in_block(a.node, column, 4) == 1 &&
          (!best || a.count > best->count))
        best = &a;
    return best ? *best : accesses_.front();
  }

  // A product in which one factor's elements are each used once.
  bool is_matrix_vector() const {
    uint64_t all = 0;
    for (int id : loops()) all |= range(id)->ranges;
    return std::ranges::any_of(accesses_, [&](const Access& a) {
      return a.is_load() && (a.node->ranges & all) == all &&
             size(loops()) <= elements_of(a.node->src(0));
    });
  }

  // Whether a reduction reads it, in its loops.
  static bool is_operand(const Access& a) { return a.item->op == Op::Reduce && a.is_load(); }
  bool depends(const Access& a, int id) const { return a.node->ranges >> id & 1; }

  // Reductions of factors that are each used by several results.
  bool is_product() const {
    for (int id : shared_loops())
      for (const Access& a : accesses_)
        if (is_operand(a) && a.runs_in(id) && !depends(a, id) && size(id) > 1) return true;
    return false;
  }

  // Many long columns that no vector loads, but so few blocks of threads with one each that some
  // multiprocessors wait for the last of them.
  bool are_uneven(int64_t results, int64_t rows, int64_t lanes) const {
    constexpr int64_t kLong = 1024, kTurns = 4, kResident = 2048;  // threads of a multiprocessor
    return lanes == 1 && rows >= kLong && results < kTurns * kResident * target_.cores &&
           all_of(sink_, Op::Reduce).size() == 1;
  }

  // How many rows a column has that are gone through again for what needs a sum of them, as by a
  // norm of channels (measurements.md: rows_read_again); 0 where that is not so, or their loops
  // differ.
  int64_t rows_read_again() const {
    std::set<Ids> visits;
    bool again = false;
    for (Node item : items()) {
      const Ids own = loops(enclosing(item) & ~shared_mask());
      if (own.empty()) continue;
      visits.insert(own);
      again |= item->op == Op::Reduce && !all_of(item->src(0), Op::Reduce).empty();
    }
    if (visits.size() < (again ? 1 : 2)) return 0;
    const int64_t rows = size(*visits.begin());
    const auto is_alike = [&](const Ids& ids) { return size(ids) == rows; };
    return std::ranges::all_of(visits, is_alike) ? rows : 0;
  }

  // Some iterations of each sum together. A range of several sums comes by again: what a thread can
  // keep for the next one is unrolled whole, and else there are copies enough.
  void unroll_reductions(int64_t most) {
    for (Node reduce : all_of(sink_, Op::Reduce)) {
      const int id = range_id(reduce->srcs().back());
      if (!range(id) || kind(range(id)) != RangeKind::Reduce) continue;
      const int64_t before = copies(id), all = size(id);
      const bool is_kept = before > 1 && before * all * lanes_ <= kKept;
      unroll_split(id, is_kept ? all : most / std::min(most, before));
    }
  }

  // An extremum and where it is in one loop: the rows are read once.
  void roll_extrema() {
    const auto reductions = all_of(sink_, Op::Reduce);
    const auto is_extremum = [](Node n) {
      const Op op = n->arg<OpArg>().op;
      return op == Op::Max || op == Op::Min;
    };
    if (reductions.size() < 2 || !std::ranges::all_of(reductions, is_extremum)) return;
    applied({OptKind::Roll, range_id(reductions[0]->src(1)), 0, {}});
  }
};

class ColumnTuner : ColumnSums {
 public:
  using ColumnSums::ColumnSums;

  std::optional<Choice> run(int column, bool narrow) {
    if (!narrow)
      columns(range(column));
    else if (!few_columns(range(column)))
      return {};
    return finished();
  }

 private:
  static constexpr int64_t kUnrolled = 8;  // rows that a thread loads together

  // Each thread a vector of columns, neighbouring threads neighbouring vectors.
  void columns(Node column) {
    if (is_product() && !is_matrix_vector()) return product();
    if (few_columns(column)) return;
    const int v = range_id(column);
    Ids rest = shared_loops();
    make_last(rest, v);
    if (few_results(rest)) return;
    const int64_t results = size(rest), wanted = target_.cores * int64_t{512};
    lanes_ = std::min(4, lanes_along(column));
    while (lanes_ > 1 && results / lanes_ < wanted) lanes_ /= 2;
    const int64_t held = rows_read_again();
    while (lanes_ > 1 && held <= kKept && held * lanes_ > (lanes_ > 2 ? kKept / 2 : kKept))
      lanes_ /= 2;
    vector(v, rest);
    const bool full = results / lanes_ >= wanted;
    if (held > 0 && held <= kKept)
      for (int id : unshared_loops()) bind(id, RangeKind::Unroll);
    unroll_reductions(full ? 8 : 32);  // few threads: more loads in flight in each
    roll_extrema();
    spread(merged(rest), full ? kBlock : 64);
  }

  // Fewer columns than threads: a block takes the columns of one line of memory, and its threads
  // share the rows. False where that is no help.
  bool few_columns(Node column) {
    constexpr int64_t kMin = 256, kLine = 128;
    const Ids reduced = reduced_everywhere();
    Ids rest = shared_loops();
    const int v = range_id(column);
    make_last(rest, v);
    const int64_t results = size(rest), rows = size(reduced);
    // Several operands in eight lanes take so many registers that occupancy drops (measurements.md:
    // few_columns).
    const int64_t all = lanes_along(column),
                  lanes = streams() > 1 ? std::min<int64_t>(all, 4) : all;
    const int64_t vectors = extent(column) / lanes;
    const bool uneven = are_uneven(results, rows, all);
    if (reduced.empty() || (results / lanes >= target_.cores * int64_t{512} && !uneven))
      return false;
    // Of rows that begin anywhere two lines: each of them shares its ends with its neighbours.
    const int64_t bytes = uneven ? 2 * kLine : kLine;
    int64_t across = std::max(1L, bytes / (lanes * element_size(largest_access(column))));
    while (across > 1 && results / lanes / across * 8 < target_.cores * int64_t{7}) across /= 2;
    // Threads that lie apart combine in powers of two: those beyond the last column do nothing.
    across = std::min(across, pow2(vectors));
    const int64_t groups = ceil_div(vectors, across);
    if (vectors * 4 < groups * across * 3) return false;
    const int64_t blocks = results / extent(column) * groups;
    // Some blocks on each multiprocessor, so that one loads while another one combines.
    const int64_t wanted = blocks > 2 * target_.cores ? kMin : std::min(1024, target_.most_threads);
    const Ids beside = short_rows();
    const int64_t fewest_rows =
        std::max(of_thread(results * rows <= 1 << 17 ? 2 : 4, target_), size(beside));
    const auto most = static_cast<uint64_t>(std::min(wanted / across, rows / fewest_rows));
    const auto down = static_cast<int64_t>(std::bit_floor(most));
    if (down * across < 2 * target_.warp) return false;
    lanes_ = static_cast<int>(lanes);
    vector(v, rest);
    // A thread of scalars has as many bytes in flight as one of vectors (measurements.md:
    // few_columns).
    const int below = rows_below(merged(reduced), down, uneven ? 4 * kUnrolled : kUnrolled);
    for (int id : beside) unroll_split(id, kUnrolled);
    int x = below;
    if (across > 1) {
      x = across > vectors ? split(v, across) : part_of(v, across);
      bind(x, RangeKind::Thread);
      if (x == v || !range(v)) rest = without(rest, v);
    }
    last_ = {x};
    bind(merged(rest), RangeKind::Block);
    return true;
  }

  // Fewer results than a warp of each multiprocessor has threads: several threads share a sum
  // (measurements.md: few_results).
  bool few_results(const Ids& rest) {
    constexpr int64_t kShortest = 32, kEach = 4, kMax = 32;
    const Ids reduced = reduced_everywhere();
    const int64_t rows = size(reduced), each = of_thread(kEach, target_);
    if (reduced.empty() || rows < std::max(kShortest, 2 * each) ||
        size(rest) >= target_.cores * target_.warp)
      return false;
    const auto most = static_cast<uint64_t>(std::min(rows / each, kMax));
    rows_below(merged(reduced), static_cast<int64_t>(std::bit_floor(most)), kUnrolled);
    for (int id : short_rows()) unroll_split(id, kUnrolled);
    spread(merged(rest), target_.warp);
    return true;
  }

  // The rows over `down` threads, at most `unrolled` of each thread's unrolled: the id of the
  // threads' range. Where no good number divides what a thread has, it gets a few more that are
  // gated off.
  int rows_below(int flat, int64_t down, int64_t unrolled) {
    constexpr int64_t kGood = 4;
    const int64_t rows = size(flat), each = ceil_div(rows, down);
    int64_t some = largest_divisor(each, unrolled);
    for (int64_t n = kGood; some < kGood && each > unrolled && n > 1; n /= 2)
      if (round_up(each, n) * 8 <= each * 9) some = n;
    const int part = part_of(flat, down * some), below = part_of(part, down);
    bind(below, RangeKind::Thread);
    if (below != part) bind(part, RangeKind::Unroll);
    return below;
  }

  // Each thread a tile of results: `v`, along which an operand is loaded in vectors, times `u`,
  // which that operand does not depend on. Threads lie along `x`, the direction in which the other
  // operand is contiguous: then it is read in whole lines, and the first one is the same for all.
  void product() {
    choice_.is_gemm = true;
    Ids rest = shared_loops();
    const int v = range_of_most(rest, [&](int id, const Access& a) {
      return is_operand(a) && size(id) % 4 == 0 && is_contiguous(a, id) &&
             is_aligned(a, range(id), 4);
    });
    const Ids others = without(rest, v);
    const int x = range_of_most(
        others, [&](int id, const Access& a) { return is_operand(a) && is_contiguous(a, id); });
    const auto serves_many = [&](int id, const Access& a) {
      return is_operand(a) && !depends(a, id) && (v < 0 || depends(a, v)) &&
             largest_divisor(size(id), 8) > 1;
    };
    int u = range_of_most(without(others, x), serves_many);
    if (u < 0) u = range_of_most(others, serves_many);
    const auto [across, down] = tile_of(v, u, size(rest));
    make_last(rest, x >= 0 ? x : v);
    if (down > 1) take(u, down, RangeKind::Unroll, rest);
    if (across > 1) {
      lanes_ = 4;
      vector(v, rest);
      if (across > 4) take(v, across / 4, RangeKind::Unroll, rest);
    }
    unroll_reductions(across * down >= 64 ? 4 : 8);
    spread(merged(rest), kBlock);
  }

  // The largest tile that leaves enough threads.
  std::pair<int64_t, int64_t> tile_of(int v, int u, int64_t results) const {
    constexpr std::pair<int64_t, int64_t> kTiles[] = {{8, 8}, {8, 4}, {4, 8}, {4, 4}, {4, 2},
                                                      {4, 1}, {1, 8}, {1, 4}, {1, 2}};
    const int64_t wanted = target_.cores * kBlock;
    for (auto [across, down] : kTiles) {
      if (across > 1 && (v < 0 || size(v) % across)) continue;
      down = u < 0 ? 1 : largest_divisor(size(u), down);
      if (results / (across * down) >= wanted) return {across, down};
    }
    return {1, 1};
  }
};

}  // namespace

std::optional<Choice> choose_column_options(Node sink, const Target& target, int column,
                                            bool narrow) {
  return ColumnTuner(sink, target).run(column, narrow);
}

}  // namespace tiny
