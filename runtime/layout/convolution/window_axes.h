// The axes of an implicit GEMM (a convolution of 16-bit floats, the gradient of its weight), by the
// operands that walk along them.
#pragma once
#include <vector>

#include "codegen/target/target.h"
#include "runtime/analysis/graph_contraction.h"

namespace tiny {

// Whether its operands are views of what the GPU's tiles of windows take.
bool suits_window_unit(const GraphContraction& c, const Target& target);

// The operand of such that is read by windows where the other one is not; -1: there is none.
int operand_of_windows(const GraphContraction& c, const Target& target);

class WindowAxes {
 public:
  // `stops`: as of FollowHalves.
  explicit WindowAxes(Node product, const NodeMap<int>* stops = nullptr)
      : c_(product, FollowHalves{stops}) {}

 protected:
  // Of a window; results that share each of them; and pixels for each element of a window. With
  // fewer, threads take no longer than it takes to store images or windows once more.
  static constexpr int64_t kMinTaps = 24, kMinUses = 32, kMinPixels = 64;

  // Whether it is such a product, for the tiles of windows of the GPU.
  bool find_axes(const Target& target);
  bool is_worth_it() const {
    return size(taps_) >= kMinTaps && size(others_) >= kMinUses &&
           size(pixels_) >= kMinPixels * size(taps_);
  }

  const ProductOperand& windows() const { return c_.operands[with_]; }
  const ProductOperand& other() const { return c_.operands[1 - with_]; }
  int64_t extent_of(int axis) const { return c_.extent(axis); }
  int64_t size(const std::vector<int>& axes) const { return c_.size(axes); }

  GraphContraction c_;
  int with_ = 0;         // the operand of windows
  bool forward_ = true;  // else the gradient of the weight
  // Summed forward; summed in the gradient; and of the other operand alone. They stay in the order
  // of the product, in which tiles count them as one.
  std::vector<int> taps_, pixels_, others_;
};

}  // namespace tiny
