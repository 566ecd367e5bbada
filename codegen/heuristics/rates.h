// Tile plans of products, the rates at which they multiply, and what heuristics and the search
// estimate with these: a heuristic is a loop over candidate plans, of which the fastest is taken.
// Where a rate was measured stands in docs/measurements.md, by the name of its table.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "codegen/options/mma.h"
#include "codegen/target/target.h"

namespace tiny {

// --- Choosing ------------------------------------------------------------------------------------

// The plan that takes the least time, the first of equals; nullptr where each takes INFINITY, as
// those do that do not fit.
template <class Plans, class Time> auto fastest(const Plans& plans, const Time& time) {
  decltype(&*std::begin(plans)) best = nullptr;
  double least = INFINITY;
  for (const auto& plan : plans)
    if (const double t = time(plan); t < least) {
      least = t;
      best = &plan;
    }
  return best;
}

// Those that take less than `most`, the fastest first, with their times.
template <class Plan, class Time>
std::vector<std::pair<double, Plan>> ranked(const std::vector<Plan>& plans, double most,
                                            const Time& time) {
  std::vector<std::pair<double, Plan>> out;
  for (const Plan& plan : plans)
    if (const double t = time(plan); t < most) out.emplace_back(t, plan);
  std::ranges::stable_sort(out, {}, [](const auto& timed) { return timed.first; });
  return out;
}

// --- Tiles of a GPU's blocks ---------------------------------------------------------------------

// A block's tile of results, and how its operands are staged. A warp is 4 x 8 threads: 8 of them
// that read next to each other are a quarter of a warp, which shared memory serves at a time.
struct TilePlan {
  int64_t warps_down = 1, warps_across = 1;  // of a block
  int64_t down = 1, across = 1;              // results of a thread, or a warp's fragments
  double rate = 1;                           // of multiplications, that of the largest tile being 1
  // Elements along the sum that are staged at a time; of the gradient of a convolution's filters
  // lines of pixels; 0: as many as a fragment has.
  int64_t step = 16;
  int64_t depth = 3;  // tiles of each operand in shared memory; 0: none is staged

  bool mma = false;       // on a warp's tensor cores (codegen/options/mma.h)
  bool matrices = false;  // fragments are read by ldmatrix (codegen/options/load_matrix.h)

  static constexpr int64_t kDown = 4, kAcross = 8;
  int64_t rows() const { return warps_down * (mma ? 16 : kDown) * down; }
  int64_t columns() const { return warps_across * kAcross * across; }
};

// Plans of staged GEMMs: on ordinary arithmetic units and on a warp's tensor cores; of convolutions
// on the former; and of skinny GEMMs, whose tiles hold all rows or all columns.
std::span<const TilePlan> stage_plans(bool mma);
std::span<const TilePlan> convolution_plans();
std::span<const TilePlan> skinny_plans();

// Whether a product is large enough for staging: `others` products at once of so many rows,
// columns, and terms of each sum; on matrix units, and of windows, only of long sums
// (measurements.md: is_worth_staging).
bool is_worth_staging(int64_t rows, int64_t columns, int64_t terms, int64_t others, bool long_sums,
                      const Target& target);

// Skinny GEMMs, whose other operand is computed as it is staged.
int64_t skinny_columns(int64_t rows, const Target& target);  // of a block's tile
bool is_thin_stage(int64_t rows, int64_t columns, int64_t terms);

// A tile and its rate of multiplications, relative to the fastest one: where so many blocks share a
// multiprocessor, and where one has it alone.
struct RatedTile {
  TileShape shape;
  double rate = 1, alone = rate;
  int blocks = 1;

  int64_t size() const { return int64_t{shape.rows} * shape.columns; }
};

// The results of a GEMM, `others` times m by n.
struct Results {
  int64_t m, n, others;
};

// Of all tiles, which multiprocessors take in waves: for one element along k, in elements of a tile
// of rate 1.
double time_in_waves(const RatedTile& tile, const Results& results, int64_t cores);

// --- Tiles of threads ----------------------------------------------------------------------------

// A piece of a range that goes to each thread.
struct TilePiece {
  int id;
  int64_t size;
};

// A GEMM on ordinary arithmetic units, operands in memory: what a thread has of it.
struct ThreadPlan {
  std::vector<TilePiece> tile;  // of results
  int vector = -1;              // the range of the tile along which an operand is loaded in vectors
  std::vector<int> order;       // of the threads' results: the last one lies along the warp
  std::vector<TilePiece> unrolled;  // of the sum
};

// A load of the sum: its stride along each range.
struct LoadOperand {
  std::array<int64_t, 64> stride{};
  int vectors = -1;   // the range along which it can be loaded in vectors of four
  int64_t bytes = 4;  // of an element
};

// The GEMM that plans are for.
struct ThreadTiles {
  std::vector<LoadOperand> operands;
  std::array<int64_t, 64> extent{};  // of each range
  int64_t results = 1, terms = 1;    // in all; of each sum
};

// In cycles; INFINITY where registers do not suffice.
double time_of_threads(const ThreadPlan& p, const ThreadTiles& c, const Target& target);

// --- Warps on tensor cores -----------------------------------------------------------------------

// A range, and how far its neighbours' elements of an operand are apart.
struct LoopStep {
  int64_t size, step;
};
// Of ranges, the innermost first, each `every`th element up to `count`.
struct LoopSteps {
  std::vector<LoopStep> ranges;
  int64_t count, every;
};
// How many different places sums of both have: what several fragments share is loaded once.
int64_t distinct_places(const LoopSteps& a, const LoopSteps& b);

// What a warp does with fragments, in units of their own, and what hides its latencies: warps, as
// many as have registers (measurements.md: MmaTuner).
struct WarpRates {
  double load = 6, staged = 2;    // four bytes for each thread: from memory, from a stage
  double multiply = 2;            // a fragment by another one
  double step = 5, barrier = 30;  // of a loop
  double latency = 16;            // of one warp, as a part of its work
  double registers = 1.2;         // for each that the program needs
  double other_registers = 45;    // beside those
  double most_registers = INFINITY;
  double all_registers = 65536;  // of a multiprocessor

  // Warps of a multiprocessor whose threads hold so many values.
  double resident(double values, const Target& target) const {
    const double each = std::min(registers * values + other_registers, most_registers);
    return all_registers / (target.warp * each);
  }
  // How many times as long work takes as with enough warps.
  double waiting(double warps) const { return 1 + latency / std::max(warps, 0.5); }
};
constexpr WarpRates kWarpRates;

// Where the warps of a block share the stages of convolution windows. These rank 90 plans for five
// convolutions and gradients of MNIST's network, and find where registers alone are better
// (measurements.md: WindowTuner).
constexpr WarpRates kWindowRates{.load = 4.5,
                                 .multiply = 7.5,
                                 .latency = 2.5,
                                 .registers = 1.5,
                                 .other_registers = 50,
                                 .most_registers = 255};

// Of a plan whose operands are in registers, for so many fragments in all. `left`: share of the
// columns' loads that remain.
double time_of_fragments(const MmaUnit& unit, const TilePlan& plan, double left, int64_t fragments,
                         const Target& target);

// --- Tiles of Hopper's wgmma ---------------------------------------------------------------------

// Tiles of GEMMs without split-K, some of which only one range of rows has, or only several.
struct WgmmaTile : RatedTile {
  enum class Rows : uint8_t { Any, One, Several } rows = Rows::Any;
  bool half_boxes = false;  // room for stages of half a row of 128 bytes alone
  double reading = 1;       // of its rate, where the epilogue reads an element for each result
};
std::span<const WgmmaTile> wgmma_tiles();

// The best tile of a GEMM with split-K.
RatedTile split_k_tile(const Results& results, int64_t cores);

// The gradient of a weight in `parts`, and its best tile: one tap's channels along the rows, or the
// elements of windows, all `taps` times `channels`, so that what it is multiplied with is read once
// for several taps. `time`: as of time_in_waves.
struct WindowSizes {
  int64_t taps, channels, columns;
};
struct WindowTile {
  TileShape shape;
  bool by_element = false;
  double time = 0;
};
WindowTile window_tile(const WindowSizes& sizes, int64_t parts, int64_t cores);

// Split-K: slices of `length` elements each, counted along all reduced axes; the last one may be
// shorter.
struct SplitK {
  int64_t count = 1, length = 0;
};
// Into which slices a sum of `length` terms is best cut, in tiles of the gradient of a weight.
SplitK best_split_k(const WindowSizes& sizes, int64_t length, const Target& target);

// --- Register tiles of a CPU ---------------------------------------------------------------------

// The tile of a product's results that a core keeps in its registers.
struct RegisterTile {
  int rows = 0, vectors = 0;  // of columns
};

// The best tile for results of so many rows and vectors of columns. `extends`: the last rows may
// be computed in part, else the tile's rows divide them.
RegisterTile register_tile(const Target& target, int64_t rows, int64_t vectors, bool extends);

// What a step of a tile's sum costs for each of its products, of which some are beyond the rows.
double step_cost(int64_t rows, const RegisterTile& tile);

// How much longer the products of a tile take than those of one with few loads beside them.
double load_bound(const RegisterTile& tile);

}  // namespace tiny
