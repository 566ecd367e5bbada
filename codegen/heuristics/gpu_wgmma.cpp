// Schedules Hopper GEMMs and implicit GEMMs whose blocks TMA feeds (codegen/wgmma/tile.h): which
// ranges count rows and columns, the tile, and how its elements lie on threads.
#include <algorithm>

#include "codegen/heuristics/tuner.h"
#include "codegen/kernel/facts.h"
#include "codegen/wgmma/product.h"
#include "tiny/ir/sizes.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

namespace {

constexpr int64_t kMinColumns = 24;

class WgmmaTuner : Tuner {
 public:
  WgmmaTuner(Node sink, const Target& target) : Tuner(sink, target) {}

  std::vector<Opt> run() {
    const auto found = find_matrix_product(sink_);
    if (!found || !has_matrix_unit(target_, found->a->dtype)) return {};
    const MatrixProduct& p = *found;
    MatrixSide m = tile_ranges(p, p.a, p.b), n = tile_ranges(p, p.b, p.a);
    if (m.ranges.empty() || n.ranges.empty()) return {};
    // Stores are wide along the columns, and windows go along the rows.
    if (stride(sink_->src(0), range_id(m.ranges[0])) == 1 || n.ranges.size() > 1) std::swap(m, n);
    if (m.extent() < 64 && m.ranges.size() == 1) std::swap(m, n);
    if (!stores_alike()) return {};
    if (std::optional<Opt> opt = by_elements(p)) {
      widen(*opt);
      lay_out(*opt);
      return std::move(choice_.options);
    }
    const int64_t others = others_of(p, m, n);
    if (is_few(p, n, m, others)) std::swap(m, n);
    const bool few = is_few(p, m, n, others);
    if (n.ranges.size() > 1 || m.extent() < 64 || (!few && n.extent() < kMinColumns)) return {};
    Opt opt = option_of(m, n, {});
    opt.tile = best_tile(p, m, n, others);
    if (!is_legal(sink_, opt, target_)) opt.tile = {128, 64};
    if (few) opt.tile = tile_of_few(opt, m.extent() * others, n.extent());
    if (!is_legal(sink_, opt, target_)) return {};
    widen(opt);
    deepen(opt, m.extent(), n.extent(), others);
    lay_out(opt);
    return std::move(choice_.options);
  }

  // Options for a tile that is given.
  std::vector<Opt> run(const Opt& matrix, int64_t band) {
    lay_out(matrix, band);
    return std::move(choice_.options);
  }

 private:
  // A tile has all columns, and as little padding as can be: TMA takes longer for padding than for
  // elements. The operand without reuse is read by all multiprocessors, unless the other one, which
  // each reads again, is larger (measurements.md: tile_of_few).
  TileShape tile_of_few(Opt opt, int64_t m, int64_t n) const {
    for (int64_t multiple : {8, 32, 64}) {
      const int64_t columns = multiple * ceil_div(n, multiple);
      const bool large = columns >= 96 || ceil_div(m, 128) >= target_.cores;
      for (int rows : {large ? 128 : 64, 128}) {
        opt.tile = {rows, static_cast<int>(columns)};
        if (is_legal(sink_, opt, target_)) return opt.tile;
      }
    }
    return {128, 64};
  }

  // Whether the epilogue reads an element for each result, neighbours along the columns.
  bool reads_by_results(int m, int n) const {
    return std::ranges::any_of(accesses_, [&](const Access& a) {
      return a.is_load() && a.item->op == Op::Store && contains(a.node, m) &&
             stride(a.node, n) == 1;
    });
  }

  // Vectorized epilogue where stores are contiguous along the columns: eight 16-bit floats are 16
  // bytes rather than 4. Pairs of f32 fill a sector already; where they are read as well, a row's
  // 128 bytes by four threads are faster (measurements.md: widen).
  void widen(Opt& opt) const {
    const int n = opt.axes[0];
    const bool reads = reads_by_results(opt.axis, n);
    for (Node s : sink_->srcs()) {
      if (stride(s, n) != 1 || !(reads || s->src(0)->dtype.is_half())) return;
      for (Node r : ranges_of(s))
        if (range_id(r) != n && stride(s, range_id(r)) % 8) return;
    }
    const int64_t columns = size(n);
    Opt wide = opt;
    wide.tile.vectorized_epilogue = columns % 8 == 0 && columns >= 32;  // of four threads
    if (is_legal(sink_, wide, target_)) opt = wide;
  }

  // Tiles of all rows and columns that are computed one by one.
  int64_t others_of(const MatrixProduct& p, const MatrixSide& m, const MatrixSide& n) const {
    return size(ids_of(~(m.mask() | n.mask() | p.k)));
  }

  // Where no multiprocessor gets a second tile, one block has the stages of all that would share it
  // (measurements.md: deepen).
  void deepen(Opt& opt, int64_t m, int64_t n, int64_t others) const {
    Opt deep = opt;
    deep.tile.max_stages =
        ceil_div(m, opt.tile.rows) * ceil_div(n, opt.tile.columns) * others <= target_.cores;
    if (is_legal(sink_, deep, target_)) opt = deep;
  }

  // Rows that count the elements of windows, channels innermost.
  std::optional<Opt> by_elements(const MatrixProduct& p) const {
    for (Node load : {p.a, p.b}) {
      Node other = load == p.a ? p.b : p.a, first = contiguous_range(load);
      const MatrixSide n = tile_ranges(p, other, load);
      if (!first || n.ranges.size() != 1) continue;
      MatrixSide m{own_ranges(p, load, other)};
      std::ranges::sort(m.ranges, {}, [&](Node r) { return std::pair(r == first, range_id(r)); });
      if (m.ranges.size() < 2 || m.ranges.back() != first) continue;
      const WindowTile tile = window_tile({m.extent() / extent(first), extent(first), n.extent()},
                                          others_of(p, m, n), target_.cores);
      if (!tile.by_element) continue;
      const Opt opt = option_of(m, n, tile.shape);
      if (is_legal(sink_, opt, target_)) return opt;
    }
    return {};
  }

  // Whether `n` has less than a tile's usual columns and that is no loss, as memory is what limits:
  // each element along m is read once, for all columns.
  bool is_few(const MatrixProduct& p, const MatrixSide& m, const MatrixSide& n,
              int64_t others) const {
    constexpr int64_t kMin = 4, kMax = 127;
    if (m.ranges.size() > 1 || n.ranges.size() > 1 || n.extent() < kMin || n.extent() > kMax)
      return false;
    Node load = p.a->ranges & m.mask() ? p.a : p.b;
    int64_t reads = 1;
    for (const Sum::Term& t : range_terms(load)) reads *= extent(t.atom);
    return reads <= elements_of(load->src(0)) &&
           2 * ceil_div(m.extent(), 128) * others >= target_.cores;
  }

  // Ranges that the operand's index is a sum of, with their strides; of this operand alone.
  static std::vector<Sum::Term> range_terms(Node load) {
    const Sum at = to_sum(load->src(1));
    std::vector<Sum::Term> out;
    for (const Sum::Term& t : at.terms)
      if (t.atom->op == Op::Range) out.push_back(t);
    return out;
  }
  static std::vector<Node> own_ranges(const MatrixProduct& p, Node load, Node other) {
    std::vector<Node> out;
    for (const Sum::Term& t : range_terms(load))
      if (!(t.atom->ranges & (p.k | other->ranges))) out.push_back(t.atom);
    return out;
  }

  // The ranges of an operand alone that a tile goes along: the one where it is contiguous, or all
  // of windows, or the longest.
  static MatrixSide tile_ranges(const MatrixProduct& p, Node load, Node other) {
    MatrixSide own{own_ranges(p, load, other)};
    if (Node first = contiguous_range(load); own.has(first)) return {{first}};
    const auto longest = std::ranges::max_element(own.ranges, {}, extent);
    if (own.ranges.empty() || load->num_src > 2 || is_walked_twice(p, load)) {
      std::ranges::sort(own.ranges, {}, range_id);
      return own;
    }
    return {{*longest}};
  }

  // Whether different elements of windows are the same in memory.
  static bool is_walked_twice(const MatrixProduct& p, Node load) {
    int64_t reach = 1;
    for (const Sum::Term& t : range_terms(load)) reach += std::abs(t.factor) * (extent(t.atom) - 1);
    return iterations_of(ranges_of(load)) > reach && p.k;
  }

  // Square tiles of a single wave read less than those whose columns warpgroups split.
  TileShape best_tile(const MatrixProduct& p, const MatrixSide& m, const MatrixSide& n,
                      int64_t others) const {
    const Results results{m.extent(), n.extent(), others};
    if (p.mask) return split_k_tile(results, target_.cores).shape;
    const bool several = m.ranges.size() > 1;
    const bool reads = reads_by_results(range_id(m.ranges[0]), range_id(n.ranges[0]));
    const auto fits = [&](const WgmmaTile& t) {
      if (t.rows != WgmmaTile::Rows::Any && (t.rows == WgmmaTile::Rows::Several) != several)
        return false;
      // Half of the registers; with halved tiles not measured.
      if (matrix_type(p.a->dtype)->promotes_each_step)
        if (t.shape.split_n || t.size() > 128 * 128) return false;
      Node k = t.half_boxes ? k_range(p) : nullptr;
      if (t.half_boxes && !(k && has_half_boxes(extent(k), 2))) return false;
      if (!t.shape.split_n) return true;
      const int64_t tiles =
          ceil_div(results.m, t.shape.rows) * ceil_div(results.n, t.shape.columns) * others;
      return tiles > target_.cores && is_legal(sink_, option_of(m, n, t.shape), target_);
    };
    const auto time = [&](const WgmmaTile& t) {
      if (!fits(t)) return static_cast<double>(INFINITY);
      return time_in_waves(t, results, target_.cores) / (reads ? t.reading : 1);
    };
    return fastest(wgmma_tiles(), time)->shape;
  }

  static Opt option_of(const MatrixSide& m, const MatrixSide& n, const TileShape& shape) {
    Opt opt{OptKind::Matrix, range_id(m.ranges[0]), 0, {range_id(n.ranges[0])}, shape};
    for (size_t i = 1; i < m.ranges.size(); ++i) opt.axes.push_back(range_id(m.ranges[i]));
    return opt;
  }

  // Element, thread and register as matrix.h says.
  void lay_out(const Opt& opt, int64_t most_in_band = kMatrixBand) {
    int m = opt.axis, n = opt.axes[0];
    const TileShape& tile = opt.tile;
    apply(opt);
    const bool alone = tile.rows == 64 && !tile.split_n;  // one warpgroup
    int group = split(m, tile.rows), piece = group;
    if (!tile.split_n && !alone) piece = split(group, tile.rows / 2);
    const int in_group = tile.rows == (tile.split_n || alone ? 64 : 128) ? piece : split(piece, 64);
    const int half = split(in_group, 16), row = split(half, 8);
    int eight = split(n, tile.columns);
    if (tile.split_n) {
      group = eight;
      eight = split(group, tile.columns / 2);
    }
    const int quad = split(eight, tile.vectorized_epilogue ? 32 : 8),
              pair = split(quad, tile.vectorized_epilogue ? 8 : 2);
    const bool pieces = piece != in_group;
    for (int id : {in_group, row, quad})
      if (id != group) apply({OptKind::Merge, group, id, {}});
    bind(group, RangeKind::Thread);
    if (pieces) bind(piece, RangeKind::Unroll);
    bind(half, RangeKind::Unroll);
    bind(eight, RangeKind::Unroll);
    bind(pair, RangeKind::Vector);
    Ids blocks = without(without(ids_of(RangeKind::Loop), m), n);
    // The tiles of a cluster are neighbours.
    const int across = cut(n, tile.cluster_n), down = cut(m, tile.cluster_m);
    // The tiles of a wave form a band: its rows and columns stay in L2.
    int band = -1;
    if (range(m)) {
      blocks.push_back(m);
      const int64_t most = std::max<int64_t>(1, most_in_band / tile.cluster_m);
      const int64_t rows = largest_divisor(size(m), most);
      if (rows > 1 && rows < size(m)) band = split(m, rows);
    }
    if (range(n)) blocks.push_back(n);
    for (int id : {band, across, down})
      if (id >= 0) blocks.push_back(id);
    std::vector<int> order;
    if (const int block = merged(blocks); block >= 0) {
      bind(block, RangeKind::Block);
      order.push_back(block);
    }
    order.push_back(group);
    if (pieces) order.push_back(piece);
    for (int id : {half, eight, pair})
      if (range(id)) order.push_back(id);
    apply({OptKind::Order, 0, 0, order});
  }
};

}  // namespace

std::vector<Opt> matrix_options(Node sink, const Target& target) {
  return WgmmaTuner(sink, target).run();
}

std::vector<Opt> matrix_options(Node sink, const Target& target, const Opt& matrix, int64_t band) {
  return WgmmaTuner(sink, target).run(matrix, band);
}

}  // namespace tiny
