// TMA descriptors of a GEMM's operands, from the index and gate of their loads: a box of a tensor,
// or of the convolution windows of images (im2col mode).
#pragma once
#include <string>
#include <vector>

#include "codegen/kernel/access.h"
#include "codegen/wgmma/tile.h"

namespace tiny {

// The ranges of a tile along one side, which count as one, the outermost first.
struct MatrixSide {
  std::vector<Node> ranges;
  int64_t size = 1;  // of a tile or a step

  int64_t extent() const { return iterations_of(ranges); }
  bool has(Node range) const { return contains(ranges, range); }
  uint64_t mask() const { return mask_of(ranges); }
};

// The GEMM's tile, from the side of the operand that is described.
struct MatrixView {
  MatrixSide across;     // rows or columns
  int64_t part = 64;     // of those, what is a warpgroup's
  int blocks = 1;        // of a cluster, each of which copies a part of the boxes for all
  bool clipped = false;  // a tile need not have more of them than there are
  MatrixSide k;          // the sum's innermost
  Node begin = nullptr;  // of the tile, among the elements of `across`
  uint64_t reduced = 0;  // the ranges of the sum
  // the other reduced ranges, counted one by one: number 1, 2, ... of the steps
  std::vector<Node>* sums;
  std::vector<Node>* sources;
};

// Whether so many contiguous elements of so many bytes are copied faster in boxes of 64 bytes than
// of 128: padding outside of the tensor takes TMA more time than elements.
bool has_half_boxes(int64_t elements, int bytes);

// The reason why TMA cannot read the load; empty where it can.
std::string describe(Node load, const MatrixView& view, MatrixOperand& out);

// The only range along which the load's elements lie next to each other; nullptr where there is no
// such range.
Node contiguous_range(Node load);

}  // namespace tiny
