// Hopper GEMM main loop (sm_90a): persistent and warp-specialised. A block computes tiles of 128 or
// more rows (range m) and up to 256 columns (range n): one producer warp or warpgroup issues TMA
// loads of the operands, two consumer warpgroups of 128 threads run wgmma on half of the rows, or
// of the columns, each, and then the epilogue, which is the rest of the kernel. A tile of 64 rows
// may be one warpgroup's alone.
//
// Clusters: the blocks of neighbouring tiles multicast the operands that they share. Or the blocks
// of a cluster share the last tiles by split-K, where these are too few for all blocks: each block
// sums a slice of k, reads the other blocks' partial sums of some of its elements through
// distributed shared memory, in the memory of its stages, and runs the epilogue of these.
//
// In the kernel graph the reduction becomes loads from an array of registers, the Param in slot -1:
// thread t of the 256 holds element (row, column) of the tile in register
//   ((piece * width + column % width) / 8 * 2 + row / 8 % 2) * 2 + column % 2,
// piece = row / 64 % pieces being one of a warpgroup's products of 64 rows and `width` columns,
// with
//   row = (t / 128 * pieces + piece) * 64 + t / 32 % 4 * 16 + row / 8 % 2 * 8 + t / 4 % 8
//   column = column / 8 * 8 + t % 4 * 2 + column % 2
// (PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16": matrix D). With a vectorized
// epilogue four threads have exchanged their elements of 32 columns: each has eight neighbouring
// columns, in register
//   ((piece * width + column % width) / 32 * 2 + row / 8 % 2) * 8 + column % 8, with
//   column = column / 32 * 32 + t % 4 * 8 + column % 8.
// Where the warpgroups split the columns, t / 128 is column / width and no part of the row. As all
// of these are ranges and options, the epilogue may be any element-wise work or reduction.
//
// Convolutions are implicit GEMMs: TMA reads an operand's convolution windows (im2col mode), rows
// (or k, in the gradient of a weight) count pixels, several ranges as one, and padding is what lies
// outside the image. In the gradient of a weight rows may count the elements of a window, box after
// box of their channels.
#pragma once
#include <optional>

#include "codegen/kernel/facts.h"
#include "codegen/kernel/option.h"
#include "codegen/target/source.h"

namespace tiny {

// The coordinate along an axis at which the TMA box of a tile and a step along k begins: `source`
// of the Matrix node, if any, plus number `step` of the steps, if any, as number / divide % modulo
// * times, plus `plus`. With `by_box`, for boxes that do not count elements, the number is the
// source plus the box's number.
struct BoxCoordinate {
  int source = -1, step = -1;
  int64_t divide = 1, modulo = 0, times = 1, plus = 0;  // no modulo: 0
  bool by_box = false;
};

// An operand of a product, [rows or columns, k].
struct MatrixOperand {
  TensorMap map;
  int64_t elements = 0;  // of the buffer
  bool k_major = false;  // contiguous along k, not along m or n
  int boxes = 1;         // copies for one step
  int advance = 0;       // along which axis of the map: the contiguous one, or that of rows
  BoxCoordinate at[8];   // of each axis, and then of the offsets in windows

  int coordinates() const { return map.rank + (map.windows ? map.rank - 2 : 0); }
  int row_bytes() const { return map.box[0] * map.element_bytes; }  // contiguous, and swizzled
  int box_bytes() const;
  int bytes() const { return boxes * box_bytes(); }
};

// A dtype of wgmma's operands, which take 32 bytes along k at a time.
struct MatrixType {
  DType dtype;                      // in memory
  const char* name;                 // in the instruction's
  DType sum;                        // dtype of the accumulators
  bool allows_mn_major = false;     // operands may be contiguous along m and n, not only along k
  bool promotes_each_step = false;  // f8: each k step is added in f32 registers (two-level
                                    // accumulation), as the instruction's own sums have few digits
};
// The row of a dtype; nullptr where there is none: f32 is multiplied as TF32 only where that is
// allowed.
const MatrixType* matrix_type(DType dtype);

// Whether one instruction takes operands of these two dtypes: 8-bit floats of either kind.
inline bool are_operands_of_one(DType a, DType b) { return a == b || (a.is_f8() && b.is_f8()); }

// The plan of the main loop: the payload of a Matrix node.
struct MatrixTile : TileShape {
  static constexpr int kMaxRegisters = 160;

  MatrixTile() = default;
  explicit MatrixTile(Node matrix);
  std::vector<int64_t> numbers() const;  // the payload

  int depth = 64;        // k elements of a step, one or half a row of 128 bytes
  DType dtype = kBF16;   // of the first operand, as wide as
  DType second = kBF16;  // that of the second
  MatrixOperand a, b;
  std::vector<int64_t> steps;  // along k: the innermost by depth, then others one by one
  int begin = -1;              // the source that is the first k of a split-K slice

  int64_t all_steps() const;
  int groups() const { return rows == 64 && !split_n ? 1 : 2; }  // warpgroups that multiply
  int multipliers() const { return groups() * 128; }             // their threads
  int registers() const { return rows * columns / multipliers(); }
  int group_rows() const { return split_n ? rows : rows / groups(); }
  int pieces() const { return group_rows() / 64; }               // products of a warpgroup
  int width() const { return split_n ? columns / 2 : columns; }  // columns of one
  int stage_bytes() const { return a.bytes() + b.bytes(); }
  const MatrixType& type() const { return *matrix_type(dtype); }
  bool reads_once() const;  // each element of the first operand is read for one tile
  int shared_by() const;    // blocks on a multiprocessor: one multiplies while another stores
  int blocks() const { return max_stages ? 1 : shared_by(); }  // at a time there
  int threads() const;                                         // of a block, the last of which fill
  // Whether the producer gives registers to the consumers (PTX ISA, setmaxnreg).
  bool sets_maxnreg() const { return blocks() == 1 && groups() == 2; }
  int stages() const;  // that fit into a block's shared memory
  int cluster() const { return cluster_m * cluster_n * split_k; }  // blocks
  bool multicasts() const { return cluster_m * cluster_n > 1; }
  // The number of blocks that each copy a part of an operand's boxes, for all of them.
  int copied_by(bool first) const { return first ? cluster_n : cluster_m; }
};

// Whether the target has wgmma for operands of this dtype.
bool has_matrix_unit(const Target& target, DType dtype);

// Whether it also has convolutions as implicit GEMMs, whose operands are major along any axis.
bool has_window_unit(const Target& target, DType dtype);

void set_launch(const MatrixTile& tile, const Target& target, LaunchSize& size);

inline bool is_accumulator(Node param) { return slot_of(param) == -1; }

}  // namespace tiny
