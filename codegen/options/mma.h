// GEMMs on a warp's tensor cores (mma.sync, MFMA, WMMA), with any prologue and epilogue. The
// threads of a warp hold a fragment of some rows (range m) and columns (range n) between them; the
// table of units gives the lane and register of each element.
//
// In the kernel graph the product of a sum's operands becomes an Mma node: the amount that one
// instruction adds to one of the thread's elements. Its sources: the thread's elements of the first
// operand, those of the second, and the number of its element of the result. The elements along k
// of a thread are free as long as both operands agree: neighbours. Once the last source is a
// number, an Mma without it is all of the thread's elements, and a Shuffle takes some of them.
// Payload: Ints{row of the table}. In front of the number, or last without one, there may be a
// whole fragment that the product is added to.
//
// Hopper's wgmma multiplies with four warps at a time: fragments are those of four mma.sync beside
// each other, rows below rows, and one instruction computes all columns of a tile. Its operands are
// tiles in shared memory, but the first may be in registers; see WarpgroupProduct.
//
// The units of CPUs (AMX, VNNI) are rows of the same table: the elements of a whole warp are in the
// registers of one thread, so that an operand is one load of a packed fragment
// (runtime/layout/cpu_tiles.h), or a load for each row of a tile, equally far apart.
#pragma once
#include <optional>

#include "codegen/kernel/choice.h"
#include "codegen/kernel/contraction.h"
#include "codegen/kernel/option.h"

namespace tiny {

// One coordinate of what a thread of a warp holds: with thread = y * width + x, the coordinate of
// its element i, 0 <= i < count, is y * of_y + x * of_x + i * step.
struct LanePlace {
  int of_y = 0, of_x = 0, step = 1, count = 1;
};

// An instruction: D (rows x columns) += A (rows x depth) B (depth x columns).
struct MmaUnit {
  const char* arch;       // what the names of the architectures begin with; "": NVIDIA's
  DType dtype;            // of A and B in memory
  const char* function;   // in the kernel's text: D = function(A, B, D), of vectors
  const char* convert;    // of an element before it, where there is one
  const char* intrinsic;  // of LLVM, for AMD's
  int rows, columns, depth;
  int width;                     // of the threads' numbers, see LanePlace
  LanePlace a_row, b_column, k;  // k: of both operands
  LanePlace row, column;         // of the result; neighbours along the columns are a vector
  DType sum = kF32;              // of D
  DType second = dtype;          // of B, where A has another one
  int group = 0;           // CPU: elements along k that lie next to each other for each column of B
  bool fnuz = false;       // its 8-bit floats are FNUZ's: each is half of what it is in memory
  bool warpgroup = false;  // four warps multiply together

  int a_count() const { return a_row.count * k.count; }
  int b_count() const { return b_column.count * k.count; }
  // Whether it computes B^T A^T: see the table.
  bool is_transposed() const { return width == 16 && column.count > 1; }
  int results() const { return row.count * column.count; }
};

// The unit for operands of this dtype; nullptr where there is none: f32 is multiplied as TF32 only
// where that is allowed.
const MmaUnit* mma_unit(const Target& target, DType dtype);

// The unit for rows and columns of these dtypes, which may be two of 8-bit floats.
const MmaUnit* mma_unit(const Target& target, DType rows, DType columns);

// The unit of four warps for operands of this dtype; nullptr where there is none.
const MmaUnit* warpgroup_unit(const Target& target, DType dtype);

// What a product of four warps is, beside its unit: 64 rows of A, all columns of B, and 16 elements
// along k. An operand in shared memory is two Loads, of the first and the last element that the
// instruction reads of a swizzled stage (StageTile); A may be a thread's
// elements instead. (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions")
struct WarpgroupProduct {
  struct Operand {
    bool in_registers = false;
    bool along_k = true;  // its elements lie next to each other along k, else across
    int rows = 0;         // of the stage's tile
  };
  Operand a, b;
  int columns = 0;  // of B
};
WarpgroupProduct warpgroup_product(Node mma);
Node warpgroup_mma(const MmaUnit& unit, const WarpgroupProduct& product,
                   std::span<const Node> srcs);

// A thread's elements of the result of an Mma, and how many sources are its first operand.
int mma_results(Node mma);
int mma_a_count(Node mma);

// The unit of a CPU for rows and columns of these dtypes.
const MmaUnit* tile_unit(const Target& target, DType rows, DType columns);

// The unit of an Mma node, and its payload.
const MmaUnit& mma_unit(Node mma);
Payload mma_payload(const MmaUnit& unit);

// A sum of products whose factors are as the matrix units take them: f32, or what is narrower
// before it is widened. Why they cannot be multiplied there; empty where they can.
struct MmaProduct : Contraction {
  const MmaUnit* unit = nullptr;
};
std::string mma_product(Node reduce, const Target& target, MmaProduct& out);

// How a thread gets its elements of operands: one by one, or as matrices
// (codegen/options/load_matrix.h).
enum MmaReads : int64_t { kMmaElements, kMmaMatrices };

// Why the option is not legal; empty where it is. Option: rows along axis, columns along axes[0],
// sums along axes[1], how operands are read as its amount; the ranges of a thread's rows and
// columns and of the warp's threads get the next three ids.
std::string mma_problem(Node sink, const Opt& opt, const Target& target);
Node use_mma(Node sink, const Opt& opt, const Target& target);

// Whether the product is added to a fragment, its last source.
inline bool adds_fragment(Node mma) {
  return mma->srcs().back()->dtype == mma->dtype && mma->dtype.lanes > 1 &&
         mma->srcs().back()->op != Op::Load;
}

inline bool is_fragment_product(Node n) { return n->op == Op::Mma && !adds_fragment(n); }

// That fragment; nullptr where there is none.
inline Node fragment_below(Node mma) {
  return mma->op == Op::Mma && adds_fragment(mma) ? mma->srcs().back() : nullptr;
}

// An Mma whose last source is a number, as a Shuffle of all elements.
Node mma_elements(Node mma);

// A sum of elements of fragments as the elements of a sum of fragments, which the matrix units add
// to; nullptr for any other reduction.
Node mma_sum(Node reduce);

}  // namespace tiny
