// How the operands of products are stored so that their readers go through memory in order.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "codegen/target/target.h"
#include "runtime/analysis/operand.h"

namespace tiny {

// What is done to an operand: `point` is padded, stored with axis `dim` innermost, and seen
// through an affine map.
struct OperandPlan {
  Node point = nullptr;
  AffineMap map;
  int dim = -1;               // -1: as it is
  bool widened = false;       // stored as f32
  int64_t width = INT64_MAX;  // of panels, of which the last may be wider than what is left
};

// Those of both operands of a product for matrix units that the copy engine feeds, padded or stored
// with the sum innermost where they have to be. Empty where they are for no matrix unit.
std::vector<OperandPlan> plan_unit_rows(Node reduce, const Target& target);

// `view`, an operand of a product, by way of memory in the order of one of the views that it is
// made of, where indices are no sums of ranges otherwise: what lies in memory by windows, as the
// gradient of a pool, or by heads, and is read by rows. As it is where that is not little beside
// the product.
Node with_affine_indices(Node view);

// Those of both operands of any other product. Empty where they are not affine views, or padded in
// a way of their own.
std::vector<OperandPlan> plan_packing(Node reduce, const Target& target);

// That of windows that step over elements. Nothing where they do not, or are as good as stored.
std::optional<OperandPlan> plan_window(Node view, Node reduce, const Target& target);

// Operands of a product for such matrix units that are computed, as halves of parameters in f32, or
// what is multiplied as TF32, where to write and read them once more is little beside the product:
// tiles are copied as they lie in memory. None of windows: those have a layout of their own
// (runtime/layout/convolution/implicit.h), or are none for these tiles.
std::vector<Node> computed_operands(Node reduce, const Target& target);

}  // namespace tiny
