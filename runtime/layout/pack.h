// Packs the operands of GEMMs so that their readers go through memory in order.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "codegen/target/target.h"
#include "runtime/analysis/operand.h"

namespace tiny {

// The layout of an operand: `point` is padded, stored with axis `dim` innermost, and seen through
// an affine map.
struct OperandPlan {
  Node point = nullptr;
  AffineMap map;
  int dim = -1;               // -1: as it is
  bool widened = false;       // stored as f32
  int64_t width = INT64_MAX;  // of panels, of which the last may be wider than what is left
};

// Plans for both operands of a GEMM that TMA feeds, padded or k-major where they have to be. Empty
// where the GEMM is not for wgmma.
std::vector<OperandPlan> plan_unit_rows(Node reduce, const Target& target);

// `view`, an operand of a product, by way of memory in the order of one of the views that it is
// made of, where indices are no sums of ranges otherwise: what lies in memory by windows, as the
// gradient of a pool, or by heads, and is read by rows. As it is where that is not little beside
// the product.
Node with_affine_indices(Node view);

// The same where elements of its memory are left out, as by a convolution of 1 x 1 that steps over
// pixels: what is read lies together then, and pixels of all rows are one axis.
Node with_dense_indices(Node view);

// Both operands of a product for matrix units, no windows, by way of memory where one is read with
// a condition (padding), and for wgmma where it is read backwards or in steps, where its rows begin
// between multiples of 16 bytes, or where it is narrower than the other one. As they are where that
// is not little beside the product.
Node with_plain_operands(Node reduce, const Target& target);

// Plans for both operands of any other product. Empty where they are not affine views, or padded in
// a way of their own.
std::vector<OperandPlan> plan_packing(Node reduce, const Target& target);

// The sum of the product of other operands.
Node with_operands(Node reduce, std::span<const Node> operands);

// Whether one of the operands is transposed while the product is computed.
bool turns_operand(Node reduce, const Target& target);

// The plan of strided or dilated windows. Nothing for others, or where they are as good as stored.
std::optional<OperandPlan> plan_window(Node view, Node reduce, const Target& target);

// Computed operands of a wgmma GEMM, as casts of f32 parameters to 16-bit floats, or operands of
// TF32, where writing and reading them is little beside the GEMM: TMA copies tiles as they lie in
// memory. No convolution windows: these have a layout of their own
// (runtime/layout/convolution/implicit.h), or are none for these tiles.
std::vector<Node> computed_operands(Node reduce, const Target& target);

}  // namespace tiny
