// Schedules GEMMs on the matrix units of a CPU (AMX, VNNI; codegen/options/mma.h): how many
// fragments a core holds in registers, and the order of its tiles.
#include <algorithm>

#include "codegen/heuristics/tuner.h"
#include "codegen/kernel/lengths.h"
#include "codegen/options/mma.h"
#include "tiny/ir/sizes.h"

namespace tiny {

namespace {

// Eight tiles hold the sums and one of each row and column of them. A step multiplies all pairs,
// and takes as long as that or as its loads.
RegisterTile tiles_at_once(int64_t rows, int64_t columns) {
  constexpr int64_t kTiles = 8;
  RegisterTile best;
  double least = 0;
  for (int y = 1; y <= std::min<int64_t>(3, rows); ++y)
    for (int x = 1; x <= std::min<int64_t>(3, columns); ++x) {
      if (y * x + y + x > kTiles) continue;
      const auto whole = static_cast<double>(ceil_div(rows, y) * ceil_div(columns, x));
      const double t = whole * static_cast<double>(y * x + y + x);
      if (best.rows && t >= least) continue;
      best = {y, x};
      least = t;
    }
  return best;
}

class TileTuner : Tuner {
 public:
  TileTuner(Node sink, const Target& target, bool turned) : Tuner(sink, target), turned_(turned) {}

  std::optional<Choice> run() {
    if (!find_ranges()) return {};
    const int64_t bytes = extent(range(k_)) * unit_->dtype.size();
    const int m = unit_->rows > 1 ? inner(m_, unit_->rows) : m_;
    const int n = inner(n_, unit_->columns), k = inner(k_, unit_->depth);
    const Opt opt{OptKind::Mma, m, 0, {n, k}};
    if (!is_legal(sink_, opt, target_)) return {};
    const int elements = next_range_id(sink_);
    apply(opt);
    choice_.is_gemm = true;
    const RegisterTile at_once = fragments();
    const int64_t strips = ceil_div(size(m_), at_once.rows);
    const int64_t block = strips_of_block(strips, at_once.rows * unit_->rows * bytes);
    along_columns_ = 2 * size(n_) * unit_->columns * bytes <= target_.l2_bytes;
    extend(m_, at_once.rows * block);
    extend(n_, at_once.vectors);
    if (m_ >= 0) strip_ = block < strips ? inner(m_, at_once.rows * block) : std::exchange(m_, -1);
    const int rows = unrolled(strip_, at_once.rows), columns = unrolled(n_, at_once.vectors);
    order(elements, rows, columns);
    return std::move(choice_);
  }

 private:
  // One sum of products, with one range of rows, of columns and of the sum.
  bool find_ranges() {
    const std::vector<Node> sums = all_of(sink_, Op::Reduce);
    MmaProduct p;
    if (target_.arch.empty() || sums.size() != 1 || sums[0]->num_src != 2) return false;
    if (!mma_product(sums[0], target_, p).empty() || !p.unit->group) return false;
    if (turned_) std::swap(p.a, p.b);
    unit_ = p.unit;
    k_ = range_id(sums[0]->src(1));
    const uint64_t shared = shared_ranges(sink_);
    for (Node r : ranges_)
      if (range_id(r) != k_ &&
          (kind(r) != RangeKind::Loop || !(shared & r->ranges) || has_length(sink_, r)))
        return false;
    others_ = ids_of(~(p.m() | p.n() | p.k));
    const Ids rows = ids_of(p.m()), columns = ids_of(p.n());
    m_ = merged(rows);
    n_ = merged(columns);
    return m_ >= 0 && n_ >= 0;
  }

  // The inner one of two ranges that a range becomes; -1 then stands for an outer one of one
  // iteration.
  int inner(int& id, int64_t amount) {
    if (extent(range(id)) == amount) return std::exchange(id, -1);
    const int in = next_range_id(sink_);
    apply({OptKind::Split, id, amount, {}});
    if (!range(id)) id = -1;
    return in;
  }

  void extend(int id, int64_t amount) {
    if (id >= 0 && size(id) % amount) apply({OptKind::Extend, id, amount, {}});
  }

  // `vectors`: fragments of columns.
  RegisterTile fragments() const {
    if (unit_->rows > 1) return tiles_at_once(size(m_), size(n_));
    return register_tile(target_, size(m_), size(n_), true);
  }

  // A core goes through a block of rows with the same columns: both stay in L2.
  int64_t strips_of_block(int64_t strips, int64_t strip_bytes) const {
    const int64_t most = std::clamp<int64_t>(target_.l2_bytes / 2 / strip_bytes, 1, strips);
    const int64_t blocks = ceil_div(strips, most);
    return ceil_div(strips, blocks);
  }

  int unrolled(int& id, int64_t amount) {
    if (id < 0 || amount < 2) return -1;
    const int in = inner(id, amount);
    bind(in, RangeKind::Unroll);
    return in;
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

  const bool turned_;  // the product's second factor has the rows
  const MmaUnit* unit_ = nullptr;
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

}  // namespace tiny
