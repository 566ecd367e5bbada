#include "codegen/heuristics/rates.h"

#include <algorithm>
#include <set>

#include "codegen/kernel/access.h"
#include "codegen/wgmma/tile.h"
#include "tiny/ir/sizes.h"

namespace tiny {

// --- Tiles of a GPU's blocks ---------------------------------------------------------------------

namespace {

// Measured rates (measurements.md: StagePlan). Larger tiles would need more registers than two
// blocks on a multiprocessor have.
constexpr double kSearched = 1e-3;  // of plans that only a search tries
constexpr TilePlan kPlans[] = {
    {4, 2, 8, 8, 1.0, 16, 2},       {4, 2, 8, 8, kSearched, 32, 2}, {2, 2, 8, 8, 1.0, 16, 2},
    {4, 1, 8, 8, kSearched, 16, 2}, {2, 1, 8, 8, kSearched, 16, 2}, {2, 2, 8, 4, 0.95, 16, 2},
    {2, 2, 4, 4, 0.75, 16, 2},
};
// Convolutions: their windows are copied element by element, the filters in vectors, of which tall
// tiles take more (measurements.md: StagePlan).
constexpr TilePlan kWindowPlans[] = {
    {4, 1, 8, 8, 1.0, 16, 2},  {4, 2, 8, 8, 0.97, 16, 2}, {2, 2, 8, 8, 0.95, 16, 2},
    {4, 1, 8, 4, 0.95, 16, 2}, {2, 2, 8, 4, 0.93, 16, 2}, {2, 2, 4, 4, 0.7, 16, 2},
};
constexpr TilePlan kMmaPlans[] = {
    {2, 2, 4, 8, 1.0, 16, 3, true},
    {1, 4, 4, 8, 0.9, 16, 3, true},
    {2, 2, 4, 4, 0.6, 16, 3, true},
    {2, 2, 2, 4, 0.45, 16, 3, true},
    // Fragments as matrices: for a search, as no GPU has timed them yet.
    {2, 2, 4, 8, kSearched, 32, 2, true, true},
    {2, 2, 4, 8, kSearched, 16, 4, true, true},
    {2, 4, 4, 8, kSearched, 16, 3, true, true},
    {2, 2, 4, 4, kSearched, 32, 3, true, true},
};

// Skinny GEMMs: memory limits, and tiles hold all rows, or all columns.
constexpr TilePlan kSkinnyPlans[] = {
    {1, 4, 1, 2, 1.0, 16, 2, true}, {1, 4, 1, 4, 1.0, 16, 2, true}, {1, 4, 2, 4, 1.0, 16, 2, true},
    {1, 4, 4, 4, 1.0, 16, 2, true}, {4, 1, 2, 2, 1.0, 16, 2, true}, {4, 1, 2, 4, 1.0, 16, 2, true},
    {4, 1, 2, 8, 1.0, 16, 2, true},
};

}  // namespace

std::span<const TilePlan> stage_plans(bool mma) {
  return mma ? std::span<const TilePlan>(kMmaPlans) : std::span<const TilePlan>(kPlans);
}

bool is_worth_staging(int64_t rows, int64_t columns, int64_t terms, int64_t others, bool long_sums,
                      const Target& target) {
  constexpr int64_t kMin = 64;
  const int64_t shortest = long_sums ? 64 : 16;
  const TilePlan& least = kPlans[std::size(kPlans) - 1];
  const int64_t tiles = ceil_div(rows, least.rows()) * ceil_div(columns, least.columns()) * others;
  return rows >= kMin && columns >= kMin && terms >= shortest && 2 * tiles >= target.cores;
}

std::span<const TilePlan> convolution_plans() { return kWindowPlans; }
std::span<const TilePlan> skinny_plans() { return kSkinnyPlans; }

// Narrow tiles give memory more blocks to serve, wide ones reuse more rows (measurements.md:
// skinny_columns).
int64_t skinny_columns(int64_t rows, const Target& target) {
  return rows > 16 || target.language != Target::Language::Cuda ? 128 : 64;
}

bool is_thin_stage(int64_t rows, int64_t columns, int64_t terms) {
  constexpr int64_t kMaxRows = 64, kMinColumns = 64, kShortest = 256;
  return rows > 1 && rows <= kMaxRows && columns >= kMinColumns && terms >= kShortest;
}

double time_in_waves(const RatedTile& tile, const Results& results, int64_t cores) {
  const int64_t all = ceil_div(results.m, tile.shape.rows) *
                      ceil_div(results.n, tile.shape.columns) * results.others;
  const int64_t wave = cores * tile.blocks, rest = all % wave;
  const bool alone = rest > 0 && rest <= cores;  // in the last wave
  const int64_t shared = all / wave * tile.blocks + (rest > cores ? tile.blocks : 0);
  if (tile.alone == tile.rate)
    return static_cast<double>((shared + alone) * tile.size()) / tile.rate;
  return (static_cast<double>(shared) / tile.rate + alone / tile.alone) *
         static_cast<double>(tile.size());
}

// --- Tiles of threads ----------------------------------------------------------------------------

namespace {

constexpr int64_t kWarp = 32;  // threads that load together

int64_t piece_of(const std::vector<TilePiece>& pieces, int id) {
  for (const TilePiece& p : pieces)
    if (p.id == id) return p.size;
  return 1;
}

// Different elements that a thread reads of an operand when the pieces advance: windows that
// slide over the same elements share them.
int64_t distinct_elements(const LoadOperand& o, const std::vector<TilePiece>& a,
                          const std::vector<TilePiece>& b) {
  std::vector<std::pair<int64_t, int64_t>> steps;  // stride, how many
  for (const auto* pieces : {&a, &b})
    for (const TilePiece& p : *pieces) {
      const int64_t s = o.stride[p.id];
      if (s == 0) continue;
      const auto at = std::ranges::find_if(
          steps, [&](const auto& step) { return step.first == s && s != kIrregular; });
      if (at == steps.end())
        steps.emplace_back(s, p.size);
      else
        at->second += p.size - 1;
    }
  int64_t n = 1;
  for (const auto& [s, count] : steps) n *= count;
  return n;
}

// Cycles of L1 for one load by a whole warp: the lines that its threads touch.
int64_t lines_of_warp(const LoadOperand& o, const ThreadPlan& p, const ThreadTiles& c,
                      int64_t lanes) {
  std::vector<int64_t> seen;
  int64_t bytes = 0, last = INT64_MIN;
  for (int64_t t = 0; t < kWarp; ++t) {
    int64_t rest = t, at = 0;
    for (size_t i = p.order.size(); i-- > 0;) {
      const int id = p.order[i];
      const int64_t each = piece_of(p.tile, id), n = c.extent[id] / each, s = o.stride[id];
      const int64_t step = i ? rest % n : rest;
      rest /= n;
      if (step) at += s == kIrregular ? step * 1024 : step * s * each;
    }
    if (at != last) bytes += lanes * o.bytes;
    last = at;
    const int64_t line = at * o.bytes >> 7;
    if (!contains(seen, line)) seen.push_back(line);
  }
  return std::max(static_cast<int64_t>(seen.size()), (bytes + 127) / 128);
}

}  // namespace

// Cycles of the arithmetic and the loads of all warps, on as many multiprocessors as have
// something to do. The constants fit 124 tiles of four convolutions (measurements.md:
// ProductTuner).
double time_of_threads(const ThreadPlan& p, const ThreadTiles& c, const Target& target) {
  constexpr double kLoop = 10, kOverlap = 0.6, kHeld = 0.5, kHidden = 1.5, kLastRound = 0.25;
  constexpr double kMaxRegisters = 230, kAllRegisters = 65536;
  int64_t tile = 1, body = 1;
  for (const TilePiece& x : p.tile) tile *= x.size;
  for (const TilePiece& x : p.unrolled) body *= x.size;
  double loads = 0, wavefronts = 0, held = 0;
  for (const LoadOperand& o : c.operands) {
    const int64_t lanes = p.vector >= 0 && o.vectors == p.vector ? 4 : 1;
    const int64_t n = distinct_elements(o, p.tile, p.unrolled) / lanes;
    loads += static_cast<double>(n);
    wavefronts += static_cast<double>(n * lines_of_warp(o, p, c, lanes));
    held += static_cast<double>(std::min(n * lanes, 2 * distinct_elements(o, p.tile, {})));
  }
  const double issued = (static_cast<double>(tile * body) + loads + kLoop) / 4;
  const double busy = std::max(issued, wavefronts) + kOverlap * std::min(issued, wavefronts);
  const double registers = static_cast<double>(tile) + kHeld * held + 24;
  if (registers > kMaxRegisters) return INFINITY;
  const double resident = std::min(64.0, std::floor(kAllRegisters / (registers * kWarp) / 4) * 4);
  const double warps =
      std::ceil(static_cast<double>(c.results) / static_cast<double>(tile * kWarp));
  const double per_core = warps / target.cores;
  const double rounds = per_core <= resident ? std::ceil(per_core / 4) / (per_core / 4)
                                             : 1 + kLastRound * resident / per_core;
  const double ready = std::min(resident, per_core) / 4;  // warps of a scheduler
  return busy * static_cast<double>(c.terms / body) * per_core * rounds * (1 + kHidden / ready);
}

// --- Warps on tensor cores -----------------------------------------------------------------------

int64_t distinct_places(const LoopSteps& a, const LoopSteps& b) {
  const auto place = [](const LoopSteps& w, int64_t i) {
    int64_t number = i * w.every, at = 0;
    for (const LoopStep& r : w.ranges) {
      at += number % r.size * r.step;
      number /= r.size;
    }
    return at;
  };
  std::set<int64_t> places;
  for (int64_t x = 0; x < a.count; ++x)
    for (int64_t i = 0; i < b.count; ++i) places.insert(place(a, x) + place(b, i));
  return static_cast<int64_t>(places.size());
}

// Loads and multiplications of a step, on as many multiprocessors as have something to do, hidden
// by as many warps as have registers. The constants fit 190 tiles of eight convolutions of MNIST's
// network (measurements.md: MmaTuner).
double time_of_fragments(const MmaUnit& unit, const TilePlan& plan, double left, int64_t fragments,
                         const Target& target) {
  const WarpRates& r = kWarpRates;
  const auto held = static_cast<double>(plan.down * plan.across);
  const double loads = static_cast<double>(unit.a_count() * plan.down) +
                       static_cast<double>(unit.b_count() * plan.across) * left;
  const double work = r.load * (unit.dtype.size() / 4.0) * loads + r.multiply * held + r.step;
  const double per_core = static_cast<double>(fragments) / held / target.cores;
  const double resident = std::min(per_core, r.resident(unit.results() * held, target));
  return work * std::max(per_core, 1.0) * r.waiting(resident);
}

// --- Tiles of Hopper's wgmma ---------------------------------------------------------------------

namespace {

// Wide tiles multiply faster, as far as they fill a wave (measurements.md: best_tile).
// Warpgroups that split the columns of 64 rows are nearly as fast as with 128 rows, and twice as
// many tiles fill waves better. The rates of tall tiles, which read their columns half as often,
// are guesses, and so are those of windows with few columns: TMA sets them, by the rows and columns
// that it copies.
constexpr auto kAny = WgmmaTile::Rows::Any, kOne = WgmmaTile::Rows::One,
               kSeveral = WgmmaTile::Rows::Several;
constexpr WgmmaTile kWgmmaTiles[] = {
    {{{128, 256}, 1.0}, kAny, false, 0.87},
    {{{128, 128}, 0.87}},
    {{{128, 64}, 0.6}},
    {{{256, 128}, 1.0}},
    {{{256, 64}, 0.75}},
    {{{128, 192}, 0.98}, kOne, false, 0.95},
    {{{64, 256, true}, 0.95}, kOne},
    {{{64, 192}, 0.8}, kOne},
    {{{64, 128}, 0.75}, kOne},
    {{{64, 64}, 0.44}, kOne},
    {{{64, 32}, 0.27}, kOne},
    {{{512, 64}, 0.84}, kSeveral, true},
    {{{384, 32}, 0.45}, kSeveral},
};

// With split-K (measurements.md: kPartTiles).
constexpr RatedTile kPartTiles[] = {{{128, 256}, 1.0, 1.0, 1},
                                    {{256, 128}, 1.0, 1.0, 1},
                                    {{128, 128}, 0.93, 0.66, 2},
                                    {{256, 64}, 0.75, 0.75, 1},
                                    {{128, 64}, 0.67, 0.44, 2}};

}  // namespace

std::span<const WgmmaTile> wgmma_tiles() { return kWgmmaTiles; }

RatedTile split_k_tile(const Results& results, int64_t cores) {
  return *fastest(kPartTiles, [&](const RatedTile& t) { return time_in_waves(t, results, cores); });
}

WindowTile window_tile(const WindowSizes& w, int64_t parts, int64_t cores) {
  const Results by_tap{w.channels, w.columns, w.taps * parts};
  const RatedTile tile = split_k_tile(by_tap, cores);
  WindowTile best{tile.shape, false, time_in_waves(tile, by_tap, cores)};
  if (w.taps < 2 || w.channels % 32) return best;
  const int64_t all = w.taps * w.channels;
  const auto consider = [&](const RatedTile& tile) {
    const double time = time_in_waves(tile, {all, w.columns, parts}, cores);
    if (time < best.time) best = {tile.shape, true, time};
  };
  for (const RatedTile& tile : kPartTiles)
    if (tile.shape.rows > w.channels) consider(tile);
  // As many elements as registers hold, in boxes of so many channels that rows are shared out.
  for (int wide : {64, 128}) {
    if (w.columns <= wide / 2) continue;
    constexpr int64_t kThreads = 256;  // of two warpgroups
    const int64_t most = MatrixTile::kMaxRegisters * kThreads / wide / 64 * 64;
    const int64_t rows = (ceil_div(all, ceil_div(all, most)) + 63) / 64 * 64;
    const double rate = wide == 64 ? 0.58 : 0.98;
    consider({{static_cast<int>(rows), wide, true}, rate, rate, 1});
  }
  return best;
}

// Each wave takes as long as its longest tile; partial sums are written and
// read again. Parts are whole steps of the matrix units, so that none reads what is another's.
SplitK best_split_k(const WindowSizes& sizes, int64_t length, const Target& target) {
  constexpr double kFlops = 6e12, kBytes = 3e12;  // of a multiprocessor; of memory, per second
  constexpr double kLaunch = 3e-6;
  constexpr int64_t kStep = 64, kMax = 256;
  constexpr int64_t kAround = 4;  // steps that take as long as a tile's first loads and last stores
  const int64_t steps = ceil_div(length, kStep);
  const double results = static_cast<double>(sizes.taps * sizes.channels * sizes.columns);
  std::vector<SplitK> splits;
  for (int64_t parts = 1; parts <= std::min(steps, kMax); ++parts)
    if (const int64_t each = ceil_div(steps, parts); ceil_div(steps, each) == parts)
      splits.push_back({parts, each * kStep});  // of others the last slices would have nothing
  const auto time = [&](const SplitK& s) {
    const double tiles = window_tile(sizes, s.count, target.cores).time;
    const double sums =
        s.count == 1 ? 0 : 8 * static_cast<double>(s.count) * results / kBytes + kLaunch;
    return 2 * static_cast<double>(s.length + kAround * kStep) * tiles / kFlops + sums;
  };
  const SplitK* best = fastest(splits, time);
  return best ? *best : SplitK{};
}

// --- Register tiles of a CPU ---------------------------------------------------------------------

// Two of each are done at a time, but loads also cross cache lines and miss (measurements.md:
// load_bound).
double load_bound(const RegisterTile& tile) {
  constexpr double kLoad = 1.4;
  const double loads = tile.rows + tile.vectors, products = tile.rows * tile.vectors;
  return std::max(1.0, kLoad * loads / products);
}

// Where products are what a step waits for, it is still better with fewer loads.
double step_cost(int64_t rows, const RegisterTile& tile) {
  constexpr double kBeside = 0.2;
  const double loads = tile.rows + tile.vectors, products = tile.rows * tile.vectors;
  const auto used = static_cast<double>(rows) / static_cast<double>(round_up(rows, tile.rows));
  return (load_bound(tile) + kBeside * loads / products) / used;
}

// A panel of columns is not to be cut: its vectors are a multiple of the tile's, of which more than
// four serve numbers that these do not divide, as the 49 vectors of 28 x 28 pixels.
RegisterTile register_tile(const Target& target, int64_t rows, int64_t vectors, bool extends) {
  constexpr int64_t kMaxVectors = 7, kMaxRows = 16;
  std::vector<RegisterTile> tiles;
  for (int v = 1; v <= std::min(kMaxVectors, vectors); ++v)
    for (int r = 1; r <= std::min(kMaxRows, rows); ++r)
      if (vectors % v == 0 && r * v + v + 1 <= target.vector_registers &&
          (extends || rows % r == 0))
        tiles.push_back({r, v});
  const auto* best = fastest(tiles, [&](const RegisterTile& t) { return step_cost(rows, t); });
  return best ? *best : RegisterTile();
}

}  // namespace tiny
