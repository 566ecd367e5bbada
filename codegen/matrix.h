// Products on the matrix units of a GPU. One block works on a tile of 128 or 256 rows (range m) and
// up to 256 columns (range n) of the result: two warpgroups of 128 threads multiply half of the
// rows each (wgmma, sm_90a); another, or a warp, does nothing but ask the copy engine for the
// operands' next boxes. The two do with the result what the rest of the kernel says. Blocks stay
// and take tile after tile.
//
// In the kernel graph the reduction becomes loads from an array of registers, the Param in slot -1:
// thread t of the 256 holds element (row, column) of the tile in register
//   ((block * columns + column) / 8 * 2 + row / 8 % 2) * 2 + column % 2,
// block = row / 64 % blocks being one of 1 or 2 for 128 or 256 rows, with
//   row = (t / 128 * blocks + block) * 64 + t / 32 % 4 * 16 + row / 8 % 2 * 8 + t / 4 % 8
//   column = column / 8 * 8 + t % 4 * 2 + column % 2
// (PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16": matrix D). As all of these are
// ranges and options, anything may be done with the result before it is stored.
//
// An operand may be the windows of images, as a convolution reads them: rows (or k, in the gradient
// of a weight) then count pixels, several ranges as one, and padding is what lies outside.
#pragma once
#include "codegen/option.h"
#include "codegen/source.h"

namespace tiny {

// Where the box of a tile and a step along k begins along an axis: `source` of the Matrix node, if
// any, plus number `step` of the steps, if any, as number / divide % modulo * times, plus `plus`.
struct MatrixPlace {
  int source = -1, step = -1;
  int64_t divide = 1, modulo = 0, times = 1, plus = 0;  // no modulo: 0
};

// An operand of a product, [rows or columns, k].
struct MatrixOperand {
  TensorMap map;
  int64_t elements = 0;  // of the buffer
  bool k_major = false;  // contiguous along k, not along m or n
  int boxes = 1;         // copies for one step; they advance along the contiguous axis
  MatrixPlace at[8];     // of each axis, and then of the offsets in windows

  int places() const { return map.rank + (map.windows ? map.rank - 2 : 0); }
};

// What the payload of a Matrix node says.
struct MatrixTile {
  static constexpr int kMultipliers = 256, kStep = 64;  // k elements of a step

  MatrixTile() = default;
  explicit MatrixTile(Node matrix);

  int rows = 128, columns = 256;
  DType dtype = kBF16;  // of both operands
  MatrixOperand a, b;
  std::vector<int64_t> steps;  // along k: the innermost in steps of kStep, then others one by one

  int64_t all_steps() const;
  int registers() const { return rows * columns / kMultipliers; }
  int a_bytes() const { return rows * 128; }
  int b_bytes() const { return columns * 128; }
  int blocks() const;   // at a time on a multiprocessor: one multiplies while another stores
  int threads() const;  // of a block, the last of which fill
  int stages() const;  // that fit into a block's shared memory
};

// Whether products of this dtype can be made there.
bool has_matrix_unit(const Target& target, DType dtype);

// Of the option: what is added to its columns for tiles of 256 rows.
constexpr int64_t kTallTile = 1024;

// Why the option is not legal; empty where it is.
std::string matrix_problem(Node sink, const Opt& opt);
Node use_matrix_unit(Node sink, const Opt& opt);

// All options of a kernel with the given one first; none where no legal one pays.
std::vector<Opt> matrix_options(Node sink, const Target& target);

void set_launch(const MatrixTile& tile, const Target& target, LaunchSize& size);

inline bool is_accumulator(Node param) { return param->ints()[0] == -1; }

}  // namespace tiny
