// The axes of an implicit GEMM (a convolution of 16-bit floats, the gradient of its weight), by the
// operands that walk along them.
#pragma once
#include <vector>

#include "codegen/target/target.h"
#include "runtime/analysis/operand.h"

namespace tiny {

class WindowAxes {
 public:
  // In an arena of the caller's, which lives as long.
  explicit WindowAxes(Node product)
      : n_(product),
        shape_(to_shape(product->src(0)->shape())),
        ranges_(ranges_of_axes(product->src(0)->shape())) {}

 protected:
  // Of a window; results that share each of them; and pixels for each element of a window. With
  // fewer, threads take no longer than it takes to store images or windows once more.
  static constexpr int64_t kMinTaps = 24, kMinUses = 32, kMinPixels = 64;

  // Whether it is such a product, for the tiles of windows of the GPU. `stops`: as of FollowHalves.
  bool find_axes(const Target& target, const NodeMap<int>* stops = nullptr);
  bool is_worth_it() const {
    return size(taps_) >= kMinTaps && size(others_) >= kMinUses &&
           size(pixels_) >= kMinPixels * size(taps_);
  }

  const ProductOperand& windows() const { return operands_[with_]; }
  const ProductOperand& other() const { return operands_[1 - with_]; }
  int64_t extent_of(int axis) const { return shape_[axis]; }
  int64_t size(const std::vector<int>& axes) const { return size_of(shape_, axes); }

  Node n_;
  Shape shape_;
  std::vector<Node> ranges_;
  std::vector<ProductOperand> operands_;
  std::vector<AffineMap> maps_;
  int with_ = 0;         // the operand of windows
  bool forward_ = true;  // else the gradient of the weight
  // Summed forward; summed in the gradient; and of the other operand alone. They stay in the order
  // of the product, in which tiles count them as one.
  std::vector<int> taps_, pixels_, others_;
};

}  // namespace tiny
