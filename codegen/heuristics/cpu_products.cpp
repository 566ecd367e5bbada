// Schedules GEMMs on the matrix units of a CPU (AMX, VNNI; codegen/options/mma.h), and chains of
// products (runtime/fusion/chain.h) on any.
#include <algorithm>

#include "codegen/heuristics/tuner.h"
#include "codegen/kernel/lengths.h"
#include "codegen/options/fragments.h"
#include "tiny/ir/sizes.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

namespace {

// --- GEMMs: how many fragments a core holds in registers, and the order of its tiles -------------

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
    const int64_t bytes = extent(range(k_)) * unit().dtype.size();
    const int m = unit().rows > 1 ? cut(m_, unit().rows) : m_;
    const int n = cut(n_, unit().columns), k = cut(k_, unit().depth);
    const Opt opt{OptKind::Mma, m, 0, {n, k}};
    if (!is_legal(sink_, opt, target_)) return {};
    const int elements = next_range_id(sink_);
    apply(opt);
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

// --- Chains --------------------------------------------------------------------------------------

// The lanes of a vector are rows of the scores, so that nothing that is made of them goes from one
// lane to another. Columns come in tiles that reductions roll along; rows of the first product's
// operand stand transposed in a stage on the stack, elements of the other operands are single ones
// for all lanes.
class CpuChainTuner : Tuner {
 public:
  CpuChainTuner(Node sink, const Target& target) : Tuner(sink, target) {}

  std::optional<Choice> run() {
    join_alike();
    auto chain = find_chain(sink_, target_);
    if (!chain && split_groups()) chain = find_chain(sink_, target_);
    if (!chain || !is_supported(*chain) || !is_worth_it(*chain) || !lay_out(*chain)) return {};
    return std::move(choice_);
  }

 private:
  // Rows of several heads that share keys: a loop of each group and one of its rows, where both are
  // one and operands depend on the quotient. False where there are none.
  bool split_groups() {
    for (Node n : topological(sink_)) {
      if (n->op != Op::FloorDiv || !n->src(1)->is_const()) continue;
      Node r = n->src(0);
      const int64_t each = n->src(1)->int_value();
      if (r->op != Op::Range || kind(r) != RangeKind::Loop || each < 2 || extent(r) % each)
        continue;
      split(range_id(r), each);
      return true;
    }
    return false;
  }

  int64_t lanes() const { return target_.vector_bytes / 4; }

  static int64_t results_of(const ProductChain& chain) {
    int64_t columns = 0;
    for (const auto& p : chain.outer) columns += extent(p.across);
    return columns;
  }

  // Terms of a score, of several matrices together.
  static int64_t terms_of(const ProductChain& chain) {
    int64_t terms = 0;
    for (const auto& p : chain.inner) terms += extent(p.summed);
    return terms;
  }

  // Of 16-bit floats pairs alone are multiplied as fast as by kernels of their own; f16 has none.
  // Rows of a Variable's number end with it in those.
  bool is_supported(const ProductChain& chain) const {
    if (has_length(sink_, chain.m)) return false;
    if (chain.unit) return chain.unit->rows == 1;
    const auto is_f32 = [](const ProductChain::Product& p) {
      return p.a->dtype == kF32 && p.b->dtype == kF32;
    };
    return std::ranges::all_of(chain.inner, is_f32) && std::ranges::all_of(chain.outer, is_f32);
  }

  // What a chain saves are scores that go to memory and back. What it costs are results that go to
  // L1 and back for each tile of columns, which are fewer the wider results are, and in gradients
  // scores that are computed again: more than it saves unless results are narrow, and worth it for
  // the memory of many scores alone (measurements.md: CpuChainTuner).
  bool is_worth_it(const ProductChain& chain) const {
    constexpr int64_t kNarrow = 64, kWide = 128, kMuch = 32 << 20;
    if (extent(chain.m) < lanes() || extent(chain.n) <= columns_of(chain)) return false;
    int64_t scores = extent(chain.n), blocks = 1;
    for (Node r : ranges_) {
      if (kind(r) != RangeKind::Loop || !(chain.inner[0].reduce->ranges & r->ranges)) continue;
      scores *= extent(r);
      blocks *= r == chain.m ? ceil_div(extent(r), lanes()) : extent(r);
    }
    const int64_t most = scores * int64_t{sizeof(float)} > kMuch ? kWide : kNarrow;
    if (blocks < target_.cores) return false;
    if (chain.outer.empty()) return true;  // nothing is computed twice (sizes.h)
    return results_of(chain) <= most && terms_of(chain) <= most;
  }

  // Columns of a tile: the sum of a score for each is in a register, and for each product of scores
  // and values an instruction in the loop's text.
  int64_t columns_of(const ProductChain& chain) const {
    constexpr int64_t kProducts = 1024;
    const auto inner = static_cast<int64_t>(chain.inner.size());
    const int64_t most = std::max<int64_t>(target_.vector_registers / 2 / inner, 2);
    return std::clamp<int64_t>(kProducts / std::max<int64_t>(results_of(chain), 1) / 2 * 2, 2,
                               most);
  }

  bool lay_out(const ProductChain& chain) {
    const int m = range_id(chain.m), n = range_id(chain.n);
    Ids across, sums;
    for (const auto& p : chain.outer) across.push_back(range_id(p.across));
    for (const auto& p : chain.inner) sums.push_back(range_id(p.summed));
    make_unique(across);
    make_unique(sums);
    const int columns = piece_of(n, columns_of(chain));
    if (!applied({OptKind::Roll, n, 0, {}})) return false;
    const int rows = piece_of(m, lanes());
    if (chain.unit) {
      if (!pairs(rows, columns)) return false;
    } else {
      for (const auto& p : chain.inner)
        if (!stage(range_id(p.summed), rows)) return false;
    }
    bind(columns, RangeKind::Unroll);
    for (int id : across) unroll(id);
    bind(rows, RangeKind::Vector);
    return order();
  }

  // The operand with the rows: copied along these.
  bool stage(int summed, int rows) {
    for (int factor : {0, 1}) {
      const int copies = next_range_id(sink_);
      const Opt opt{OptKind::Stage, summed, 1, {summed, rows}, {}, {factor}};
      if (!applied(opt)) continue;
      bind(copies + 1, RangeKind::Vector);
      return true;
    }
    return false;
  }

  // All products on the unit that adds pairs.
  bool pairs(int rows, int columns) {
    const int first = next_range_id(sink_);
    if (!applied({OptKind::Fragments, rows, 0, {columns}})) return false;
    const int end = next_range_id(sink_);
    bind(first, RangeKind::Unroll);  // of scores that are multiplied again
    for (int copy = first + 2; copy < end; copy += 2) copy_vectors(copy);
    return true;
  }

  // Vectors along a stage's contiguous range.
  void copy_vectors(int id) {
    for (int64_t n = lanes(); n > 1; n /= 2)
      if (size(id) % n == 0) return bind(piece_of(id, n), RangeKind::Vector);
  }

  // Columns of results: as many as lanes together, so that stores can transpose them; all of a
  // number that nothing divides.
  void unroll(int id) {
    const int64_t together = largest_divisor(size(id), lanes());
    const int inner = size(id) > lanes() && together > 1 ? piece_of(id, together) : id;
    bind(id, RangeKind::Unroll);
    if (inner != id) bind(inner, RangeKind::Unroll);
  }

  // The loops that the whole chain runs in are divided among the cores.
  bool order() {
    const auto loops = loops_of_all();
    if (!loops) return false;
    bind(merged(*loops), RangeKind::Core);
    order_kinds();
    return true;
  }
};

}  // namespace

std::optional<Choice> choose_tile_options(Node sink, const Target& target) {
  for (bool turned : {false, true})
    if (auto choice = TileTuner(sink, target, turned).run()) return choice;
  return {};
}

std::optional<Choice> choose_cpu_chain_options(Node sink, const Target& target) {
  if (!all_of(sink, Op::Prefix).empty()) return {};
  return CpuChainTuner(sink, target).run();
}

}  // namespace tiny
