// Windows that move over spatial axes: what convolutions and pools share of their attributes.
#pragma once
#include <vector>

#include "tiny/onnx/call/call.h"

namespace tiny::onnx {

// For each spatial axis.
struct Windows {
  Shape kernel, strides, dilations;
  std::vector<Padding> pads;
  Shape results;  // the number of windows
  // What the padding has to be for the last window to fit: more or less than `pads` at the end.
  std::vector<Padding> needed;

  bool is_symmetric() const;  // `pads` are as long on both sides
};

// Of x (N, C, spatial...); the kernel's sizes are the attribute kernel_shape, or these.
Windows windows_of(Call& c, const Tensor& x, const Shape& kernel = {});

// The padding of spatial axes with none for the first two in front.
std::vector<Padding> with_leading_axes(const std::vector<Padding>& spatial);

// x convolved without a bias, in the dtype of its operands, f64 or f32.
Tensor convolved(const Tensor& x, const Tensor& weight, const Tensor& bias, const Windows& windows,
                 int64_t groups);

}  // namespace tiny::onnx
