#include "codegen/wgmma/split_k.h"

#include "codegen/kernel/access.h"
#include "codegen/wgmma/product.h"
#include "tiny/ir/sizes.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

// Where parts begin at multiples of what the inner ranges count, a bound has the outer ones alone.
std::optional<KSlice> k_slice_of(Node mask, const MatrixSide& k) {
  if (mask->op != Op::And) return {};
  KSlice part;
  int bounds = 0;
  for (Node c : mask->srcs()) {
    if (c->op != Op::Lt || c->src(0)->dtype != kIndex) return {};
    Sum s = to_sum(index_add(c->src(1), index_mul(c->src(0), -1)));  // > 0
    std::erase_if(s.terms, [](const Sum::Term& t) { return t.factor == 0; });
    const auto factor = [&](Node r) {
      for (const auto& t : s.terms)
        if (t.atom == r) return t.factor;
      return int64_t{0};
    };
    size_t terms = 1, i = k.ranges.size();
    int64_t inner = 1;
    while (i > 1 && factor(k.ranges[i - 1]) == 0) inner *= extent(k.ranges[--i]);
    const int64_t sign = factor(k.ranges[i - 1]);
    for (int64_t behind = sign; i-- > 0; ++terms) {
      if (factor(k.ranges[i]) != behind) return {};
      behind *= extent(k.ranges[i]);
    }
    for (const auto& t : s.terms) {
      if (k.has(t.atom)) continue;
      const int64_t length = -sign * t.factor * inner;
      if (t.atom->op != Op::Range || length < 1 || (part.range && part.range != t.atom)) return {};
      if (part.length && part.length != length) return {};
      part.range = t.atom;
      part.length = length;
    }
    if (s.terms.size() != terms) return {};
    if (sign == 1 && s.constant == 1)
      bounds |= 1;
    else if (sign == -1 && s.constant * inner == part.length)
      bounds |= 2;
  }
  return bounds == 3 ? std::optional(part) : std::nullopt;
}

namespace {

// With split-K (measurements.md: kPartTiles).
constexpr RatedTile kPartTiles[] = {{{128, 256}, 1.0, 1.0, 1},
                                    {{256, 128}, 1.0, 1.0, 1},
                                    {{128, 128}, 0.93, 0.66, 2},
                                    {{256, 64}, 0.75, 0.75, 1},
                                    {{128, 64}, 0.67, 0.44, 2}};

// Of all tiles on multiprocessors that take one after the other, for one element along k.
double time_of(const RatedTile& tile, int64_t m, int64_t n, int64_t others, int64_t cores) {
  const int64_t all = ceil_div(m, tile.shape.rows) * ceil_div(n, tile.shape.columns) * others;
  const int64_t turns = all / (cores * tile.blocks), rest = all % (cores * tile.blocks);
  const double shared = tile.blocks / tile.rate;
  const double last = rest == 0 ? 0 : rest <= cores ? 1 / tile.alone : shared;
  return (static_cast<double>(turns) * shared + last) * tile.shape.rows * tile.shape.columns;
}

}  // namespace

WindowTile tile_of_parts(int64_t m, int64_t n, int64_t others, int64_t cores) {
  WindowTile best;
  for (const RatedTile& tile : kPartTiles) {
    const double time = time_of(tile, m, n, others, cores);
    if (best.time == 0 || time < best.time) best = {tile.shape, false, time};
  }
  return best;
}

WindowTile window_tile(const WindowSizes& w, int64_t parts, int64_t cores) {
  WindowTile best = tile_of_parts(w.channels, w.columns, w.taps * parts, cores);
  if (w.taps < 2 || w.channels % 32) return best;
  const int64_t all = w.taps * w.channels;
  const auto consider = [&](const RatedTile& tile) {
    const double time = time_of(tile, all, w.columns, parts, cores);
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

}  // namespace tiny
