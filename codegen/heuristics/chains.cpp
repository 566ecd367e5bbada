// Schedules chains of products (codegen/options/fragments.h): rows over blocks and warps, or in the
// lanes of a CPU's vectors; columns in tiles along a loop that reductions roll along.
#include <algorithm>

#include "codegen/heuristics/tuner.h"
#include "codegen/kernel/lengths.h"
#include "codegen/options/fragments.h"
#include "codegen/options/stage.h"
#include "codegen/passes/passes.h"
#include "tiny/ir/sizes.h"
#include "tiny/rewrite/algebra.h"
#include "tiny/rewrite/rewrite.h"

namespace tiny {

namespace {

// The loops of a chain.
class ChainLoops : protected StagingTuner {
 protected:
  using StagingTuner::StagingTuner;
  using Product = ProductChain::Product;

  // Terms of a score, of several matrices together, and results of a row.
  static int64_t terms_of(const ProductChain& c) { return extents(c.inner, &Product::summed); }
  static int64_t results_of(const ProductChain& c) { return extents(c.outer, &Product::across); }
  // Ranges of the results' columns.
  static Ids across(const ProductChain& chain) {
    Ids out;
    for (const auto& p : chain.outer) out.push_back(range_id(p.across));
    make_unique(out);
    return out;
  }

  // How often there are so many rows, for all loops that a score is in.
  int64_t blocks_of(const ProductChain& chain, int64_t rows) const {
    int64_t blocks = ceil_div(extent(chain.m), rows);
    for (Node r : ranges_)
      if (kind(r) == RangeKind::Loop && r != chain.m && (chain.inner[0].reduce->ranges & r->ranges))
        blocks *= extent(r);
    return blocks;
  }

 private:
  static int64_t extents(const std::vector<Product>& products, Node Product::*range) {
    int64_t sum = 0;
    for (const Product& p : products) sum += extent(p.*range);
    return sum;
  }
};

// --- GPUs ----------------------------------------------------------------------------------------

class ChainTuner : ChainLoops {
 public:
  ChainTuner(Node sink, const Target& target) : ChainLoops(sink, target) {}

  std::optional<Choice> run(OptKind by) {
    constexpr int64_t kMax = 256;  // columns of results, and terms: more do not fit registers
    join_alike();
    auto chain = find_chain(sink_, target_);
    if (!chain || is_narrow(*chain)) return {};
    if (chain->outer.empty() && cut_sums(*chain, kMax)) chain = find_chain(sink_, target_);
    if (!chain) return {};
    const int64_t results = results_of(*chain);
    for (const auto& p : chain->inner)
      if (extent(p.summed) > kMax) return {};
    if (results > kMax) return {};
    const bool reduces = reduces_columns(range_id(chain->n));
    const TilePlan plan = by == OptKind::Warpgroups
                              ? plan_of_warpgroups(results, *chain)
                              : fitted(plan_for(results, chain->inner.size(), reduces), *chain);
    if (!lay_out(*chain, plan, by) || all_stage_bytes(sink_) > target_.shared_bytes) return {};
    choice_.is_gemm = true;
    return std::move(choice_);
  }

 private:
  // Sums of more terms than that in parts of a stage, whose rows have 128 bytes. False where there
  // are none.
  bool cut_sums(const ProductChain& chain, int64_t most) {
    bool any = false;
    for (const auto& p : chain.inner)
      if (extent(p.summed) > most) {
        split(range_id(p.summed), 128 / chain.unit->dtype.size());
        any = true;
      }
    return any;
  }

  // No more rows and columns than there are.
  static TilePlan fitted(TilePlan plan, const ProductChain& chain) {
    const int64_t rows = chain.unit->rows;
    for (int64_t* part : {&plan.down, &plan.warps_down})
      while (*part > 1 && plan.warps_down * plan.down * rows > extent(chain.m)) *part /= 2;
    plan.step = std::min(plan.step, round_up(extent(chain.n), chain.unit->depth));
    return plan;
  }

  // False where an option is not legal.
  bool lay_out(const ProductChain& chain, const TilePlan& plan, OptKind by) {
    const int m = range_id(chain.m), n = range_id(chain.n);
    // Bytes that a block reads along the columns.
    const int64_t streamed =
        (terms_of(chain) + results_of(chain)) * extent(chain.n) * chain.unit->dtype.size();
    Ids unrolled;
    for (const auto& p : chain.inner) unrolled.push_back(range_id(p.summed));
    const Ids columns_of_results = across(chain);
    unrolled.insert(unrolled.end(), columns_of_results.begin(), columns_of_results.end());

    const int rows = split_off(m, plan.warps_down * plan.down * chain.unit->rows);
    const int columns = split_off(n, plan.step);
    unrolled.push_back(columns);
    if (columns != n && reduces_columns(columns) && !applied({OptKind::Roll, n, 0, {}}))
      return false;
    const int y = next_range_id(sink_), x = y + 1;
    if (!applied({by, rows, plan.depth, {columns}})) return false;
    constexpr int kDigits = 5;  // y, x, i, j, h (fragments.h)
    const int first_copy = y + kDigits + static_cast<int>(columns_of_results.size());
    const int end = next_range_id(sink_);
    for (int id : unrolled) bind(id, RangeKind::Unroll);
    const int warp = bind_warps(rows, plan);
    for (int row = first_copy; row < end; row += 2) {
      const int64_t lanes = 16 / chain.unit->dtype.size();
      if (!copy_vectors(row + 1, lanes)) copy_vectors(row + 1, lanes / 4);
      if (const int rest = merged({row, row + 1}); rest >= 0) share_out(rest, {x, y, warp});
    }
    if (!bind_blocks(rows == m ? -1 : m, streamed)) return false;
    order_kinds({x});
    if (rows_first_) {
      Ids all = ids_of(ranges_);
      std::swap(all[0], all[1]);
      apply({OptKind::Order, 0, 0, all});
    }
    return true;
  }

  // The range of warps; -1 where there is one.
  int bind_warps(int rows, const TilePlan& plan) {
    if (!range(rows)) return -1;
    cut(rows, plan.down, RangeKind::Unroll);
    bind(rows, RangeKind::Thread);
    return rows;
  }

  // Little to do beside many columns, as when one word is generated at a time: too few blocks, each
  // with a long way to go.
  bool is_narrow(const ProductChain& chain) const {
    if (extent(chain.m) < chain.unit->rows) return true;
    constexpr int64_t kFewColumns = 1024, kRows = 64;
    return extent(chain.n) > kFewColumns && 4 * blocks_of(chain, kRows) < target_.cores;
  }

  // Two warpgroups share a block's stages, and steps are as long as registers allow. Two matrices
  // of scores want more registers: blocks of one warpgroup fill a multiprocessor where one of two
  // would leave half of it, and need not wait for each other (measurements.md: ChainTuner of
  // gradients).
  static TilePlan plan_of_warpgroups(int64_t results, const ProductChain& chain) {
    if (chain.inner.size() > 1) return plan(4, 1, 64);
    return plan(extent(chain.m) > 64 ? 8 : 4, 1, results <= 64 ? 128 : 64);
  }

  // Warps with so many fragments of rows each; columns of a step.
  static TilePlan plan(int64_t warps, int64_t fragments, int64_t columns) {
    return {.warps_down = warps, .down = fragments, .step = columns, .depth = 2, .mma = true};
  }

  // Two fragments of rows share what is read of the other operands, where registers hold them and
  // their scores; gradients, which need two matrices of scores, take shorter steps
  // (measurements.md: ChainTuner).
  static TilePlan plan_for(int64_t results, size_t inner, bool reduces_columns) {
    if (reduces_columns && inner == 1 && results <= 128) return plan(4, 2, 64);
    if (results <= 64) return plan(4, 2, 32);
    return plan(4, 1, 32);
  }

  // Whether something is reduced along the columns that is no product: others may need it.
  bool reduces_columns(int columns) const {
    const auto chain = find_chain(sink_, target_);
    return std::ranges::any_of(reductions_along(sink_, columns), [&](Node n) {
      return !chain || std::ranges::find(chain->outer, n, &ProductChain::Product::reduce) ==
                           chain->outer.end();
    });
  }

  int split_off(int id, int64_t amount) {
    return size(id) <= amount && size(id) % 16 == 0 ? id : split(id, amount);
  }

  // What is neither a thread nor part of a tile, the blocks of rows fastest: they share what they
  // stream. Where masks give them unequal work they are slowest, as far as the cache holds what is
  // streamed, so that the longest ones begin first (end_loops) and the shortest fill the end
  // (measurements.md: ends_by_block). False where some range is of one result alone.
  bool bind_blocks(int rows, int64_t streamed) {
    const auto all = loops_of_all(rows);
    if (!all) return false;
    const int others = merged(*all);
    bind(rows, RangeKind::Block);
    if (others >= 0 && rows >= 0 && range(rows) && ends_by_block(sink_, target_)) {
      const int64_t size = extent(range(others));
      int64_t together = std::min(size, target_.l2_bytes / std::max<int64_t>(streamed, 1));
      while (together > 1 && size % together != 0) --together;
      rows_first_ = together == size;
      if (together > 1 && together < size) bind(split(others, together), RangeKind::Block);
    }
    bind(others, RangeKind::Block);
    return true;
  }

  bool rows_first_ = false;
};

// --- CPUs ----------------------------------------------------------------------------------------

// The lanes of a vector are rows of the scores, so that nothing that is made of them goes from one
// lane to another. Columns come in tiles that reductions roll along; rows of the first product's
// operand stand transposed in a stage on the stack, elements of the other operands are single ones
// for all lanes.
class CpuChainTuner : ChainLoops {
 public:
  CpuChainTuner(Node sink, const Target& target) : ChainLoops(sink, target) {}

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
    const int64_t scores = extent(chain.n) * blocks_of(chain, 1);
    const int64_t most = scores * int64_t{sizeof(float)} > kMuch ? kWide : kNarrow;
    if (blocks_of(chain, lanes()) < target_.cores) return false;
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
    for (int id : across(chain)) unroll(id);
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
    const int64_t most = size(id) & -size(id);  // the largest power of two that divides it
    cut(id, std::min(most, lanes()), RangeKind::Vector);
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

std::optional<Choice> choose_chain_options(Node sink, const Target& target) {
  if (!all_of(sink, Op::Prefix).empty()) return {};
  if (target.kind == Target::Kind::Cpu) return CpuChainTuner(sink, target).run();
  if (warpgroup_unit(target, kBF16))
    if (auto choice = ChainTuner(sink, target).run(OptKind::Warpgroups)) return choice;
  return ChainTuner(sink, target).run(OptKind::Fragments);
}

}  // namespace tiny
