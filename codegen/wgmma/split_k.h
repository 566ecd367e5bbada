// Sums of products on matrix units (codegen/wgmma/tile.h) in parts: few results of long sums, as
// those of the gradient of a weight, are computed as several partial sums each. Parts need not be
// as long as each other, nor end where a range does: one operand of the product is zero outside of
//   part * length <= number along k < (part + 1) * length.
#pragma once
#include <optional>

#include "codegen/wgmma/operand.h"

namespace tiny {

// A range of the results, and how many elements along k are of each of its iterations.
struct SumPart {
  Node range = nullptr;
  int64_t length = 0;
};

// What the mask says, that and no more; nothing where it says anything else.
std::optional<SumPart> part_of_sum(Node mask, const MatrixSide& k);

// The gradient of a weight in `parts`, and its best tile: one tap's channels along the rows, or the
// elements of windows, all `taps` times `channels`, so that what it is multiplied with is read once
// for several taps. `time`: of all tiles for one element along k, in elements of a tile of 128 rows
// and 256 columns.
struct WindowSizes {
  int64_t taps, channels, columns;
};
struct WindowTile {
  TileShape shape;
  bool by_element = false;
  double time = 0;
};
WindowTile window_tile(const WindowSizes& sizes, int64_t parts, int64_t cores);

// The same of m rows and n columns, as many times as there are `others`.
WindowTile tile_of_parts(int64_t m, int64_t n, int64_t others, int64_t cores);

}  // namespace tiny
