// Products on the matrix units of a GPU. One block works on a tile of 128 or more rows (range m)
// and up to 256 columns (range n) of the result: two warpgroups of 128 threads multiply half of the
// rows, or of the columns, each (wgmma, sm_90a); another, or a warp, does nothing but ask the copy
// engine for the operands' next boxes. The two do with the result what the rest of the kernel says.
// Blocks stay and take tile after tile. A tile of 64 rows may be one warpgroup's alone.
//
// Blocks may run in clusters. Those of tiles side by side copy a part of what they all read to all
// of them. Or they share the last tiles, where these are too few for all blocks, and have parts of
// the sums of one each: when these are done each block gets from the others, into the memory of its
// stages, what they have of some of the threads' elements, adds it up and goes on with these
// threads alone.
//
// In the kernel graph the reduction becomes loads from an array of registers, the Param in slot -1:
// thread t of the 256 holds element (row, column) of the tile in register
//   ((piece * width + column % width) / 8 * 2 + row / 8 % 2) * 2 + column % 2,
// piece = row / 64 % pieces being one of a warpgroup's products of 64 rows and `width` columns,
// with
//   row = (t / 128 * pieces + piece) * 64 + t / 32 % 4 * 16 + row / 8 % 2 * 8 + t / 4 % 8
//   column = column / 8 * 8 + t % 4 * 2 + column % 2
// (PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16": matrix D). Where four threads have
// exchanged what they have of 32 columns, each has eight columns side by side, in register
//   ((piece * width + column % width) / 32 * 2 + row / 8 % 2) * 8 + column % 8, with
//   column = column / 32 * 32 + t % 4 * 8 + column % 8.
// Where the warpgroups share the columns, t / 128 is column / width and no part of the row. As all
// of these are ranges and options, anything may be done with the result before it is stored.
//
// An operand may be the windows of images, as a convolution reads them: rows (or k, in the gradient
// of a weight) then count pixels, several ranges as one, and padding is what lies outside. In the
// gradient of a weight rows may count the elements of a window, box after box of their channels.
#pragma once
#include <optional>

#include "codegen/kernel/option.h"
#include "codegen/target/source.h"

namespace tiny {

// Where the box of a tile and a step along k begins along an axis: `source` of the Matrix node, if
// any, plus number `step` of the steps, if any, as number / divide % modulo * times, plus `plus`.
// Of boxes that count something else than elements, the source plus the box's number is the number.
struct MatrixPlace {
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
  MatrixPlace at[8];     // of each axis, and then of the offsets in windows

  int places() const { return map.rank + (map.windows ? map.rank - 2 : 0); }
  int row_bytes() const { return map.box[0] * map.element_bytes; }  // contiguous, and swizzled
  int box_bytes() const;
  int bytes() const { return boxes * box_bytes(); }
};

// A kind of operands that the instructions take, 32 bytes along k at a time.
struct MatrixType {
  DType dtype;       // in memory, of both
  const char* name;  // in the instruction's
  DType sum;         // what products are added up in
  // Whether operands may be contiguous along m and n, and whether each step's products are added up
  // apart: the instruction's sums have few digits.
  bool turns = false, apart = false;
};
// That of a dtype; nullptr where there is none: f32 is multiplied as TF32 only where that is
// allowed.
const MatrixType* matrix_type(DType dtype);

// What the payload of a Matrix node says.
struct MatrixTile {
  static constexpr int kMostRegisters = 160;

  MatrixTile() = default;
  explicit MatrixTile(Node matrix);
  std::vector<int64_t> numbers() const;  // the payload

  int rows = 128, columns = 256;
  bool halved = false;  // each warpgroup has half of the columns, not of the rows
  bool wide = false;    // threads have eight columns side by side
  bool deep = false;    // as many stages as fit where others would share a multiprocessor
  int depth = 64;       // k elements of a step, one or half a row of 128 bytes
  DType dtype = kBF16;  // of both operands
  MatrixOperand a, b;
  std::vector<int64_t> steps;  // along k: the innermost by depth, then others one by one
  int begin = -1;              // source of where the first step begins along k, of a part of a sum
  int down = 1, across = 1;    // tiles of a cluster: they share columns, rows
  int parts = 1;               // of a shared tile's sums, by as many blocks of a cluster

  int64_t all_steps() const;
  int groups() const { return rows == 64 && !halved ? 1 : 2; }  // warpgroups that multiply
  int multipliers() const { return groups() * 128; }            // their threads
  int registers() const { return rows * columns / multipliers(); }
  int group_rows() const { return halved ? rows : rows / groups(); }
  int pieces() const { return group_rows() / 64; }              // products of a warpgroup
  int width() const { return halved ? columns / 2 : columns; }  // columns of one
  int stage_bytes() const { return a.bytes() + b.bytes(); }
  const MatrixType& type() const { return *matrix_type(dtype); }
  bool reads_once() const;  // whether no element of the first operand is read for two tiles
  int shared_by() const;    // blocks on a multiprocessor: one multiplies while another stores
  int blocks() const { return deep ? 1 : shared_by(); }  // at a time there
  int threads() const;                                   // of a block, the last of which fill
  bool reallots() const { return blocks() == 1 && groups() == 2; }  // registers, to multipliers
  int stages() const;                                    // that fit into a block's shared memory
  int cluster() const { return down * across * parts; }  // blocks
  bool shares() const { return down * across > 1; }      // what blocks copy
  int copied_by(bool first) const {
    return first ? across : down;
  }  // blocks, of an operand's boxes
};

// Whether products of this dtype can be made there.
bool has_matrix_unit(const Target& target, DType dtype);

// Whether it also makes products of windows (convolutions), whose operands lie in any order.
bool has_window_unit(const Target& target, DType dtype);

// The option's amount: a tile's columns, and its rows where they are no 128 that are shared out.
struct TileShape {
  int rows = 128, columns = 256;
  bool halved = false, wide = false, deep = false;
  int down = 1, across = 1, parts = 1;  // of a cluster, see MatrixTile
};
int64_t amount_of(const TileShape& shape);
TileShape shape_of(int64_t amount);

// All options of a kernel with the given one first; none where no legal one pays.
std::vector<Opt> matrix_options(Node sink, const Target& target);

// Those with this one first, which is legal. `band`: tiles one below the other that run at a time.
constexpr int64_t kMatrixBand = 16;
std::vector<Opt> matrix_options(Node sink, const Target& target, const Opt& matrix,
                                int64_t band = kMatrixBand);

void set_launch(const MatrixTile& tile, const Target& target, LaunchSize& size);

inline bool is_accumulator(Node param) { return param->ints()[0] == -1; }

}  // namespace tiny
