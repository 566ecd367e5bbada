// Schedules chains of products on a warp's matrix units (codegen/options/fragments.h): rows over
// blocks and warps, columns in tiles along a loop that reductions roll along.
#include <algorithm>

#include "codegen/heuristics/tuner.h"
#include "codegen/options/fragments.h"
#include "codegen/options/stage.h"
#include "codegen/passes/passes.h"
#include "tiny/ir/sizes.h"
#include "tiny/rewrite/algebra.h"
#include "tiny/rewrite/rewrite.h"

namespace tiny {

namespace {

class ChainTuner : StagingTuner {
 public:
  ChainTuner(Node sink, const Target& target) : StagingTuner(sink, target) {}

  std::optional<Choice> run(OptKind by) {
    constexpr int64_t kMax = 256;  // columns of results, and terms: more do not fit registers
    join_alike();
    auto chain = find_chain(sink_, target_);
    if (!chain || is_narrow(*chain)) return {};
    if (chain->outer.empty() && cut_sums(*chain, kMax)) chain = find_chain(sink_, target_);
    if (!chain) return {};
    int64_t results = 0;
    for (const auto& p : chain->outer) results += extent(p.across);
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
    const int64_t streamed = bytes_streamed(chain);
    Ids unrolled;
    for (const auto& p : chain.inner) unrolled.push_back(range_id(p.summed));
    Ids across;
    for (const auto& p : chain.outer) across.push_back(range_id(p.across));
    make_unique(across);
    unrolled.insert(unrolled.end(), across.begin(), across.end());

    const int rows = split_off(m, plan.warps_down * plan.down * chain.unit->rows);
    const int columns = split_off(n, plan.step);
    unrolled.push_back(columns);
    if (columns != n && reduces_columns(columns) && !applied({OptKind::Roll, n, 0, {}}))
      return false;
    const int y = next_range_id(sink_), x = y + 1;
    if (!applied({by, rows, plan.depth, {columns}})) return false;
    constexpr int kDigits = 5;  // y, x, i, j, h (fragments.h)
    const int first_copy = y + kDigits + static_cast<int>(across.size());
    const int end = next_range_id(sink_);
    for (int id : unrolled) bind(id, RangeKind::Unroll);
    const int warp = bind_warps(rows, plan);
    for (int row = first_copy; row < end; row += 2) {
      const int64_t lanes = 16 / chain.unit->dtype.size();
      if (!copy_vectors(row + 1, lanes)) copy_vectors(row + 1, lanes / 4);
      if (const int rest = merged({row, row + 1}); rest >= 0) share_out(rest, {x, y, warp});
    }
    if (!bind_blocks(rows == m ? -1 : m, streamed)) return false;
    order_kinds(x);
    if (rows_first_) {
      Ids all = ids_of(ranges_);
      std::swap(all[0], all[1]);
      apply({OptKind::Order, 0, 0, all});
    }
    return true;
  }

  // Bytes that a block reads along the columns.
  static int64_t bytes_streamed(const ProductChain& chain) {
    int64_t terms = 0;
    for (const auto& p : chain.inner) terms += extent(p.summed);
    for (const auto& p : chain.outer) terms += extent(p.across);
    return terms * extent(chain.n) * chain.unit->dtype.size();
  }

  // The range of warps; -1 where there is one.
  int bind_warps(int rows, const TilePlan& plan) {
    if (!range(rows)) return -1;
    if (plan.down > 1) {
      const int each = plan.warps_down > 1 ? split(rows, plan.down) : rows;
      bind(each, RangeKind::Unroll);
      if (each == rows) return -1;
    }
    bind(rows, RangeKind::Thread);
    return rows;
  }

  // Little to do beside many columns, as when one word is generated at a time: too few blocks, each
  // with a long way to go.
  bool is_narrow(const ProductChain& chain) const {
    if (extent(chain.m) < chain.unit->rows) return true;
    constexpr int64_t kFewColumns = 1024, kRows = 64;
    int64_t blocks = ceil_div(extent(chain.m), kRows);
    for (Node r : ranges_)
      if (kind(r) == RangeKind::Loop && r != chain.m && (chain.inner[0].reduce->ranges & r->ranges))
        blocks *= extent(r);
    return extent(chain.n) > kFewColumns && 4 * blocks < target_.cores;
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

}  // namespace

std::optional<Choice> choose_chain_options(Node sink, const Target& target) {
  if (target.kind == Target::Kind::Cpu) return choose_cpu_chain_options(sink, target);
  if (!all_of(sink, Op::Prefix).empty()) return {};
  if (warpgroup_unit(target, kBF16))
    if (auto choice = ChainTuner(sink, target).run(OptKind::Warpgroups)) return choice;
  return ChainTuner(sink, target).run(OptKind::Fragments);
}

}  // namespace tiny
