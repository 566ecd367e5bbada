// Schedules kernels of a CPU: streams, reductions in tiles of registers, GEMMs on matrix units.
#include <algorithm>
#include <cmath>

#include "codegen/heuristics/tuner.h"
#include "codegen/kernel/lengths.h"
#include "codegen/passes/passes.h"
#include "tiny/ir/sizes.h"

namespace tiny {

namespace {

// --- Loops, vectors, tiles in registers ----------------------------------------------------------

// Rows of a tile that is transposed before it is stored (transpose_stores), which takes registers
// beside the sums.
int transposed_rows(const Target& target, int64_t rows, const RegisterTile& tile, bool extends) {
  constexpr int64_t kMax = 8;
  const int64_t most =
      std::min({kMax, rows, target.vector_registers * 3 / 4 / int64_t{tile.vectors}});
  std::vector<RegisterTile> tiles{{1, tile.vectors}};
  for (int r = 2; r <= most; ++r)
    if (extends || rows % r == 0) tiles.push_back({r, tile.vectors});
  return fastest(tiles, [&](const RegisterTile& t) { return step_cost(rows, t); })->rows;
}

// The end of every choice: which loop is divided among the cores, and the order of all.
class CpuLoops : protected Tuner {
 protected:
  CpuLoops(Node sink, const Target& target) : Tuner(sink, target) {}

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
    if (const auto at = std::ranges::find(loops, first_); at != loops.end())
      std::rotate(loops.begin(), at, at + 1);
    const auto ends_early = [&](int id) { return has_length(sink_, range(id)); };
    while (loops.size() > 1 && size(loops[0]) < kEnough && go_together(loops) &&
           !ends_early(loops[0]) && !ends_early(loops[1])) {
      apply({OptKind::Merge, loops[0], loops[1], {}});
      loops.erase(loops.begin() + 1);
    }
    // Loops that end early stay as they are; the longer of two serves more cores.
    if (loops.size() > 1 && size(loops[0]) < target_.cores && ends_early(loops[1]) &&
        size(loops[1]) > size(loops[0]))
      std::swap(loops[0], loops[1]);
    apply({OptKind::Bind, loops[0], static_cast<int64_t>(RangeKind::Core), {}});
    order(loops[0]);
  }

  bool go_together(const std::vector<int>& loops) const {
    const auto all = items();
    return std::ranges::all_of(
        all, [&](Node item) { return contains(item, loops[0]) == contains(item, loops[1]); });
  }

  void order(int core) {
    std::vector<int> ids;
    if (core >= 0) ids.push_back(core);
    for (RangeKind k : {RangeKind::Loop, RangeKind::Reduce, RangeKind::Unroll, RangeKind::Vector}) {
      const auto first = static_cast<ptrdiff_t>(ids.size());
      for (int id : without(without(ids_of(k), innermost_), strip_)) ids.push_back(id);
      if (k == strip_after() && strip_ >= 0) ids.push_back(strip_);
      // The sum with the largest stride is outermost: elements that the others read again are still
      // in L1.
      if (k == RangeKind::Reduce && choice_.is_gemm)
        std::ranges::stable_sort(ids.begin() + first, ids.end(), std::ranges::greater(),
                                 [&](int id) { return reach(id); });
    }
    if (innermost_ >= 0) ids.push_back(innermost_);
    if (!ids.empty()) apply({OptKind::Order, 0, 0, ids});
  }

  // Strips of what goes on in order lie inside that; strips of tiles around the sums.
  RangeKind strip_after() const { return choice_.is_gemm ? RangeKind::Loop : RangeKind::Reduce; }

  // How far all loads step from one iteration to the next.
  double reach(int id) const {
    double sum = 0;
    for (const Access& a : accesses_)
      if (a.is_load()) sum += std::abs(static_cast<double>(stride(a.node, id)));
    return sum;
  }

  int first_ = -1;  // the loop to be outermost, where that is not the first of all
  int strip_ = -1;  // a loop inside those that go on in order, or inside that over panels
};

// Element-wise work and copies: vectors, and the order in which memory is read and written.
class CpuStreams : protected CpuLoops {
 protected:
  CpuStreams(Node sink, const Target& target) : CpuLoops(sink, target) {}

  // Element-wise work: four vectors an iteration hide the latency of loads and of long chains.
  void stream(Node r) {
    if (extent(r) < 2) return;
    const int id = range_id(r), between = range_between(id);
    if (between >= 0) {
      vector_split(id, lanes_, 1);
      bind(between, RangeKind::Unroll);
      return read_lines(id);
    }
    const int across = crossing_range(id);
    if (across >= 0 && is_transposed(across, id)) {
      transpose(across, id);
    } else if (across >= 0) {
      vector_split(id, lanes_, 1);
      unroll_split(across, lanes_);
    } else if (const int rows = dense_range(id); rows >= 0) {
      transpose(id, rows);
    } else {
      vector_split(id, lanes_for(r), 4);
      make_strip(id);
    }
    copy_in_blocks();
  }

  // Whether vectors along a range are columns of rows that are stored: of narrow elements, which no
  // instruction gathers, they are transposed in registers (transpose_stores).
  bool is_transposed(int id, int rows) const {
    if (!joins_stores(target_) || sink_->num_src != 1 || sink_->src(0)->num_src > 3) return false;
    const DType t = sink_->src(0)->src(2)->dtype;
    const int64_t apart = stride(sink_->src(0), id);
    return t.size() < 4 && !t.is_bool() && apart != 1 && apart != kIrregular &&
           stride(sink_->src(0), rows) == 1 && size(id) % lanes_ == 0;
  }

  // A vector of each of as many rows as fill a cache line of the result.
  void transpose(int id, int rows) {
    constexpr int64_t kLine = 64, kMax = 32;  // bytes; rows in registers
    const int64_t size = sink_->src(0)->src(2)->dtype.size();
    vector_split(id, lanes_, 1);
    unroll_split(rows, std::min(kLine / size, kMax));
  }

  // The loop along which results are neighbours, where they are not along the vector.
  int dense_range(int id) const {
    return first_loop([&](Node r) {
      return range_id(r) != id && extent(r) % lanes_ == 0 && is_transposed(id, range_id(r));
    });
  }

 private:
  // A row's elements of one fragment of columns are a part of a cache line: where the next
  // fragment's come behind them, a few fragments are stored at a time (on Emerald Rapids, 1024 x
  // 1024 bf16 to pairs of 16 columns on one core: 0.17 instead of 0.36 ms).
  void read_lines(int id) {
    constexpr int64_t kFragments = 4;
    for (Node r : ranges_) {
      const auto goes_on = [&](const Access& a) {
        return a.is_load() && stride(a.node, range_id(r)) == size(id);
      };
      if (kind(r) != RangeKind::Loop || kind(range(id)) != RangeKind::Vector ||
          std::ranges::none_of(accesses_, goes_on))
        continue;
      return unroll_split(range_id(r), largest_divisor(extent(r), kFragments));
    }
  }

  // Stores that go on in order are divided among the cores by strips of a few cache lines: narrower
  // ones would read all of memory in pieces, wider ones write to more than the caches hold.
  void make_strip(int id) {
    constexpr int64_t kStrip = 8;  // turns of the vectors
    const bool ordered =
        std::ranges::any_of(ranges_, [&](Node r) { return kind(r) == RangeKind::Reduce; });
    Node turn = range(id);
    if (!ordered || !all_of(sink_, Op::Reduce).empty()) return;
    if (!turn || kind(turn) != RangeKind::Loop) return;  // one vector has it all
    const int64_t turns = extent(turn), most = turns / (2 * target_.cores);
    const int64_t width = largest_divisor(turns, std::min(kStrip, most));
    if (width < 2) return;
    strip_ = split(id, width);
  }

  // A copy that reads short pieces of rows far apart, to write them one behind the other, takes
  // pieces of a small number of rows in turn: so few streams are read at a time, each in order
  // (measurements.md: copy_in_blocks).
  void copy_in_blocks() {
    constexpr int64_t kRows = 16, kPage = 4096;
    if (accesses_.size() != 2 || sink_->num_src != 1) return;
    const auto step = [&](Op op, Node r) {
      const Access& a = accesses_[accesses_[0].node->op == op ? 0 : 1];
      if (a.node->op != op) return kIrregular;
      const int64_t s = stride(a.node, range_id(r));
      return s == kIrregular ? s : std::abs(s) * int64_t{a.dtype().size()};
    };
    Node blocks = nullptr;
    for (Node a : ranges_)
      for (Node b : ranges_) {
        if (kind(a) != RangeKind::Loop || kind(b) != RangeKind::Loop || a == b) continue;
        const bool jumps = step(Op::Load, a) < kPage && step(Op::Load, b) >= kPage &&
                           step(Op::Load, b) != kIrregular;
        if (!jumps || step(Op::Store, a) <= step(Op::Store, b)) continue;
        if (!blocks || extent(b) > extent(blocks)) blocks = b;
      }
    const int64_t rows = blocks ? largest_divisor(extent(blocks), kRows) : 0;
    if (rows < 2 || rows == extent(blocks)) return;
    first_ = range_id(blocks);
    strip_ = split(first_, rows);
  }
};

class CpuTuner : CpuStreams {
 public:
  CpuTuner(Node sink, const Target& target) : CpuStreams(sink, target) {}

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
  // Accumulators stay in registers: `v` gives vectors, another loop range (one that some load does
  // not depend on, so that the load serves all of its iterations) is unrolled.
  void tile(Node v) {
    const int vid = range_id(v), lanes = lanes_for(v);
    const Node u = reuse_range(vid);
    const int64_t vectors = ceil_div(extent(v), lanes);
    choice_.is_gemm = u != nullptr;
    if (!u && slide(vid, lanes)) return;
    if (!u) {
      const int64_t together = largest_divisor(vectors, 4);
      vector_split(vid, lanes, static_cast<int>(together));
      return read_streams(vid, together);
    }
    const int uid = range_id(u);
    const bool extends = is_legal(sink_, {OptKind::Extend, uid, 2, {}}, target_);
    RegisterTile t = register_tile(target_, extent(u), vectors, extends);
    if (stores_across(vid, uid)) t.rows = transposed_rows(target_, extent(u), t, extends);
    const bool in_blocks = walks_alone(uid, vid);
    vector_split(vid, lanes, t.vectors);
    for (Node r : ranges_)
      if (kind(r) == RangeKind::Unroll) innermost_ = range_id(r);
    rows(uid, t.rows, in_blocks ? vectors / t.vectors : 0);
  }

  // Where nothing along the vector serves several results, memory decides: several iterations of a
  // loop that only this depends on run at a time, each of which reads a stream of its own
  // (measurements.md: read_streams).
  void read_streams(int vid, int64_t vectors) {
    constexpr int64_t kStreams = 4, kPieces = 4;  // at a time; of a core's work
    for (Node r : ranges_) {
      const int id = range_id(r);
      if (kind(r) != RangeKind::Loop || id == vid || has_length(sink_, r)) continue;
      bool shares = false, streams = true;
      for (const Access& a : accesses_) {
        if (!a.is_load() || !contains(a.item, vid)) continue;
        const int64_t step = stride(a.node, id);
        if (stride(a.node, vid) == 0)
          shares |= step == 0;
        else
          streams &= step != 0 && step != kIrregular;
      }
      if (!shares || !streams) continue;
      const int64_t pieces = extent(r) / (kPieces * target_.cores);
      return unroll_split(id, std::clamp<int64_t>(pieces, 1, kStreams / vectors));
    }
  }

  // Windows that overlap from one row to the next: what they have in common is loaded once for
  // several rows, with all of a window's elements in registers. More results than caches hold are
  // stored one row after the other: several rows at a time took twice as long.
  bool slide(int vid, int lanes) {
    constexpr int64_t kMaxTaps = 25, kRows = 8, kFar = 2 << 20;
    const std::vector<Node> sums = all_of(sink_, Op::Reduce);
    if (sums.size() != 1) return false;
    const Ids taps = ids_of(RangeKind::Reduce);
    for (int id : taps)
      if (!closes(sums[0], range(id)) || has_length(sink_, range(id))) return false;
    const int u = size(taps) <= kMaxTaps ? overlapping_range(vid, taps) : -1;
    if (u < 0 || has_length(sink_, range(u))) return false;
    for (int id : taps) bind(id, RangeKind::Unroll);
    vector_split(vid, lanes, 1);
    if (iterations(sink_->src(0)) > kFar) return true;
    const int64_t n = size(u), each = largest_divisor(n, kRows);
    int rows = u;
    cut(rows, 2 * each >= kRows ? each : ceil_div(n, ceil_div(n, kRows)), RangeKind::Unroll);
    return true;
  }

  // A loop from one iteration to the next of which windows that are loaded along the vector move by
  // less than they are long. -1 where there is none.
  int overlapping_range(int vid, const Ids& taps) const {
    const auto is_dense = [&](const Access& a) {
      const int64_t along = stride(a.node, vid);
      return along == 1 || along == 2;
    };
    return first_loop(
        [&](Node r) { return range_id(r) != vid && overlaps(range_id(r), taps, is_dense); });
  }

  // Whether results are neighbours along the rows of a tile.
  bool stores_across(int vid, int uid) const {
    const auto is_across = [&](Node store) {
      const int64_t apart = stride(store, vid);
      return store->src(2)->dtype == kF32 && apart != 0 && apart != 1 && apart != kIrregular &&
             stride(store, uid) == 1;
    };
    const auto stores = sink_->srcs();
    return joins_stores(target_) && std::ranges::any_of(stores, is_across);
  }

  // Whether the other loops are those of a batch, which both factors walk along.
  bool walks_alone(int uid, int vid) const {
    for (Node r : ranges_) {
      if (kind(r) != RangeKind::Loop || range_id(r) == uid || range_id(r) == vid) continue;
      for (const Access& a : accesses_)
        if (a.is_load() && a.runs_in(vid) && stride(a.node, range_id(r)) == 0) return false;
    }
    return true;
  }

  // Rows of tiles. Where there are `panels` of columns, a core goes with one panel through a block
  // of rows: the panel stays in L2, the rows are read from wherever they are. Blocks of 512 rows
  // read the panels seldom enough (measurements.md: rows of tiles).
  void rows(int uid, int64_t each, int64_t panels) {
    constexpr int64_t kRows = 512, kPieces = 8, kMin = 4;
    const int64_t n = size(uid), strips = ceil_div(n, each);
    int64_t block = strips;
    if (panels > 0) {
      const int64_t pieces = ceil_div(kPieces * target_.cores, panels);
      const int64_t blocks = std::max(ceil_div(n, kRows), std::min(pieces, strips / kMin));
      block = ceil_div(strips, even_blocks(panels, strips, std::max<int64_t>(blocks, 1)));
    }
    if (n % (each * block)) apply({OptKind::Extend, uid, each * block, {}});
    if (panels > 0) strip_ = block < strips ? split(uid, each * block) : uid;
    unroll_split(panels > 0 ? strip_ : uid, each);
    if (strip_ >= 0 && (!range(strip_) || kind(range(strip_)) != RangeKind::Loop)) strip_ = -1;
  }

  // More than `blocks` where these leave a core with nothing to do at the end: 3 % of the time or
  // more.
  int64_t even_blocks(int64_t panels, int64_t strips, int64_t blocks) const {
    const auto time = [&](int64_t b) {
      const auto all = static_cast<double>(panels * b);
      return static_cast<double>(round_up(panels * b, target_.cores)) / all;
    };
    const double least = time(blocks) / 1.03;
    for (int64_t b = blocks + 1; b <= strips; ++b)
      if (strips % b == 0 && time(b) < least) return b;
    return blocks;
  }
};

// --- GEMMs on matrix units (AMX, VNNI; codegen/options/mma.h) ------------------------------------

// Eight tiles hold the sums and one of each row and column of them. A step multiplies all pairs,
// and takes as long as that or as its loads.
RegisterTile tiles_at_once(int64_t rows, int64_t columns) {
  constexpr int64_t kTiles = 8;
  std::vector<RegisterTile> tiles;
  for (int y = 1; y <= std::min<int64_t>(3, rows); ++y)
    for (int x = 1; x <= std::min<int64_t>(3, columns); ++x)
      if (y * x + y + x <= kTiles) tiles.push_back({y, x});
  return *fastest(tiles, [&](const RegisterTile& t) {
    const auto whole = static_cast<double>(ceil_div(rows, t.rows) * ceil_div(columns, t.vectors));
    return whole * static_cast<double>(t.rows * t.vectors + t.rows + t.vectors);
  });
}

class TileTuner : UnitTuner {
 public:
  TileTuner(Node sink, const Target& target, bool turned)
      : UnitTuner(sink, target), turned_(turned) {}

  std::optional<Choice> run() {
    if (!find_ranges()) return {};
    const int64_t bytes = size(k_) * unit().dtype.size();
    const int m = unit().rows > 1 ? cut(m_, unit().rows) : m_;
    const int n = cut(n_, unit().columns), k = cut(k_, unit().depth);
    const int elements = next_range_id(sink_);
    if (!multiply(m, n, k)) return {};
    choice_.is_gemm = true;
    const RegisterTile at_once = fragments();
    const int64_t strips = ceil_div(size(m_), at_once.rows);
    const int64_t block = strips_of_block(strips, at_once.rows * unit().rows * bytes);
    along_columns_ = 2 * size(n_) * unit().columns * bytes <= target_.l2_bytes;
    extend(m_, at_once.rows * block);
    extend(n_, at_once.vectors);
    if (m_ >= 0) strip_ = block < strips ? cut(m_, at_once.rows * block) : std::exchange(m_, -1);
    const int rows = cut(strip_, at_once.rows, RangeKind::Unroll);
    const int columns = cut(n_, at_once.vectors, RangeKind::Unroll);
    order(elements, rows, columns);
    return std::move(choice_);
  }

 private:
  // One sum of products, with one range of rows, of columns and of the sum.
  bool find_ranges() {
    if (target_.arch.empty() || all_of(sink_, Op::Reduce).size() != 1 || !find_product() ||
        sums_.size() != 1 || !unit().group)
      return false;
    if (turned_) std::swap(p_.a, p_.b);
    k_ = sums_[0];
    const uint64_t shared = shared_ranges(sink_);
    for (Node r : ranges_)
      if (range_id(r) != k_ &&
          (kind(r) != RangeKind::Loop || !(shared & r->ranges) || has_length(sink_, r)))
        return false;
    others_ = ids_of(~(p_.m() | p_.n() | p_.k));
    const Ids rows = ids_of(p_.m()), columns = ids_of(p_.n());
    m_ = merged(rows);
    n_ = merged(columns);
    return m_ >= 0 && n_ >= 0;
  }

  void extend(int id, int64_t amount) {
    if (id >= 0 && size(id) % amount) apply({OptKind::Extend, id, amount, {}});
  }

  // `vectors`: fragments of columns.
  RegisterTile fragments() const {
    if (unit().rows > 1) return tiles_at_once(size(m_), size(n_));
    return register_tile(target_, size(m_), size(n_), true);
  }

  // A core goes through a block of rows with the same columns: both stay in L2.
  int64_t strips_of_block(int64_t strips, int64_t strip_bytes) const {
    const int64_t most = std::clamp<int64_t>(target_.l2_bytes / 2 / strip_bytes, 1, strips);
    const int64_t blocks = ceil_div(strips, most);
    return ceil_div(strips, blocks);
  }

  // Strips are divided among the cores one by one, in the order of a block. Where all columns stay
  // in L2 too, a strip goes along them: what is stored, and read beside the sums, lies in order.
  void order(int elements, int rows, int columns) {
    std::vector<int> loops = others_, ids;
    for (int id : {m_, along_columns_ ? strip_ : n_, along_columns_ ? n_ : strip_})
      if (id >= 0) loops.push_back(id);
    if (!loops.empty()) {
      ids.push_back(merged(loops));
      bind(ids[0], RangeKind::Core);
    }
    // Fragments of rows first: an element of one is used for all columns at once. Elements are rows
    // and the vector: of a row those of all columns are stored one behind the other, which fills
    // cache lines.
    for (int id : {k_, rows})
      if (id >= 0) ids.push_back(id);
    for (Node r : ranges_)
      if (range_id(r) >= elements && range_id(r) != rows && range_id(r) != columns) {
        if (kind(r) == RangeKind::Vector && columns >= 0) ids.push_back(columns);
        ids.push_back(range_id(r));
      }
    apply({OptKind::Order, 0, 0, ids});
  }

  const bool turned_;             // the product's second factor has the rows
  int m_ = -1, n_ = -1, k_ = -1;  // ranges, of fragments once there are some
  int strip_ = -1;                // rows of fragments in a block
  bool along_columns_ = false;    // within a strip
  Ids others_;
};

}  // namespace

std::optional<Choice> choose_tile_options(Node sink, const Target& target) {
  for (bool turned : {false, true})
    if (auto choice = TileTuner(sink, target, turned).run()) return choice;
  return {};
}

Choice choose_cpu_options(Node sink, const Target& target) {
  if (auto chain = choose_chain_options(sink, target)) return *chain;
  if (auto tiles = choose_tile_options(sink, target)) return *tiles;
  return CpuTuner(sink, target).run();
}

}  // namespace tiny
