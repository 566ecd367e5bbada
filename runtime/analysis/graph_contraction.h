// A contraction of the tensor graph: a reduction of products of two operands, each followed down to
// where it lies in memory or is computed. Matrix products, convolutions and the gradients of both
// are such. codegen/kernel/contraction.h has that of a kernel.
#pragma once
#include <vector>

#include "runtime/analysis/operand.h"

namespace tiny {

// The axes that have more than one element: of one operand alone (rows, columns), of both, and
// summed. `is_whole`: there are no others, each term has elements of its own of both.
struct ContractionAxes {
  std::vector<int> own[2], batch, k;
  bool is_whole = true;
};

// Nodes made while it is in scope are in its ranges' arena.
struct GraphContraction : OwnRanges {
  // Operands as of `follow`, those of the reduction's product or, as many, other views; or as of
  // `follow_halves`.
  explicit GraphContraction(Node sum);
  GraphContraction(Node sum, std::span<const Node> views);
  GraphContraction(Node sum, const FollowHalves& how);

  int rank() const { return product->rank; }
  int64_t extent(int axis) const { return product->shape()[axis]; }
  Shape extents(const std::vector<int>& axes) const;
  int64_t size(const std::vector<int>& axes) const { return numel(extents(axes)); }
  bool is_summed(int axis) const { return is_reduced(reduce, axis); }
  Walk walk(int operand, int axis) const { return walk_of(operands[operand], ranges[axis]); }
  bool moves(int operand, int axis) const { return walk(operand, axis).kind != Walk::None; }
  ContractionAxes axes() const;
  // The only summed axis of more than one element; -1: there are several, or none.
  int summed_axis() const;

  AffineMap map(int operand) const { return affine_map(operands[operand], ranges); }
  // The operand by some of the axes, the others being at zero; -1 is one that moves nothing.
  Node view(int operand, const std::vector<int>& axes, Ints shape) const;
  // What has these axes, one dimension each, as build::affine reads it by all of them.
  std::vector<int64_t> map_of(const std::vector<int>& axes) const;

  Node reduce, product;
  std::vector<ProductOperand> operands;
};

}  // namespace tiny
