// Split-K for wgmma (codegen/wgmma/tile.h): a GEMM of few results and long sums, such as the
// gradient of a weight, is computed as several partial sums. Slices need not be as long as each
// other, nor end where a range does: one operand is masked outside of
//
//   slice * length <= number along k < (slice + 1) * length.
#pragma once
#include <optional>

#include "codegen/wgmma/operand.h"

namespace tiny {

// A range of the results, and how many elements along k are of each of its iterations.
struct KSlice {
  Node range = nullptr;
  int64_t length = 0;
};

// The slice of k that a mask selects; nothing where it selects anything else.
std::optional<KSlice> k_slice_of(Node mask, const MatrixSide& k);

// A tile, and its rate of multiplications relative to 128 rows and 256 columns: where so many
// blocks share a multiprocessor, and where one has it alone.
struct RatedTile {
  TileShape shape;
  double rate = 1, alone = 1;
  int blocks = 1;
};

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

// The best tile of a GEMM of m rows and n columns, repeated `others` times.
WindowTile tile_of_parts(int64_t m, int64_t n, int64_t others, int64_t cores);

}  // namespace tiny
