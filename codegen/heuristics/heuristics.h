// Chooses options for a kernel without any search: the heuristics, in the order in which they are
// asked. Those for products loop over the tile plans of codegen/heuristics/rates.h.
#pragma once
#include <optional>
#include <vector>

#include "codegen/heuristics/rates.h"
#include "codegen/kernel/choice.h"

namespace tiny {

// Options for a kernel graph whose ranges are all of kind Loop and Reduce.
Choice choose_cpu_options(Node sink, const Target& target);
Choice choose_gpu_options(Node sink, const Target& target);

inline Choice choose_options(Node sink, const Target& target) {
  return target.kind == Target::Kind::Cpu ? choose_cpu_options(sink, target)
                                          : choose_gpu_options(sink, target);
}

// Each of the following gives nothing, or no options, for a kernel that it is not for, or where
// nothing that is legal pays.

// --- Products ------------------------------------------------------------------------------------

// Hopper GEMMs and implicit GEMMs on wgmma, the Matrix option first (codegen/wgmma/tile.h).
std::vector<Opt> matrix_options(Node sink, const Target& target);
// With that option given, which is legal. `band`: tiles of one column of the grid that run at a
// time, so that their operands stay in L2.
constexpr int64_t kMatrixBand = 16;
std::vector<Opt> matrix_options(Node sink, const Target& target, const Opt& matrix,
                                int64_t band = kMatrixBand);

// Chains of products (codegen/options/fragments.h).
std::optional<Choice> choose_chain_options(Node sink, const Target& target);

// GEMMs on a warp's tensor cores, operands staged or in registers alone (codegen/options/mma.h).
std::optional<Choice> choose_mma_options(Node sink, const Target& target);
// The same with operands in registers alone, by other plans: the most promising ones first.
std::vector<Choice> mma_choices(Node sink, const Target& target, size_t most);

// GEMMs on the matrix units of a CPU.
std::optional<Choice> choose_tile_options(Node sink, const Target& target);

// Options that stage both factors of the kernel's product, with the plan that is best of these.
std::optional<Choice> choose_stage_options(Node sink, const Target& target,
                                           std::span<const TilePlan> plans);

// Options for mma.sync that stage both factors, of convolution windows the halo once: none where
// the kernel has none, or the plan does not fit. Of the plan count a warp's fragments and what is
// staged: the gradient of filters so many lines of pixels, else a few channels.
std::optional<Choice> choose_window_options(Node sink, const Target& target, const TilePlan& plan);
// By the best plan, where it takes less time than that, in units of kWarpRates.
std::optional<Choice> choose_window_options(Node sink, const Target& target, double time);
// The options of all plans that fit.
std::vector<Choice> window_choices(Node sink, const Target& target);

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
