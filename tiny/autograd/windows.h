// Sliding windows over one axis as movement operations, and their gradient. Convolutions and pools
// are built on them; unfold() is them.
#pragma once
#include <optional>

#include "tiny/ir/node.h"

namespace tiny {

struct WindowArg {
  int64_t size = 1;      // elements of a window
  int64_t step = 1;      // from one window to the next
  int64_t dilation = 1;  // from one element of a window to the next
  int64_t padding = 0;   // elements in front whose gradient nobody wants
};

// The elements from the first to the last of a window, both included. Error for more than a tensor
// may have.
int64_t span_of(const char* what, const WindowArg& w);

namespace build {

// out[..., i, ..., j] = x[..., i * step + j * dilation, ...]: `axis` counts the windows, and a new
// last axis the elements of one. Several arguments are for the axes from `axis` on, and add as many
// last axes. At least one window must fit.
Node windows(Node x, int axis, std::span<const WindowArg> args);
inline Node windows(Node x, int axis, WindowArg w) { return windows(x, axis, std::span(&w, 1)); }

}  // namespace build

// Gradient of windows: what a plain walk backwards would turn into a sum over copies of the whole
// axis is one view again, summed over the elements of a window. Where the gradient is itself a sum,
// as that of a convolution is, both become one reduction, so that the windows are never stored.
struct WindowGrad {
  Node source;    // the node that the gradient is for
  Node gradient;  // in its shape
};

// `shrink` is a Shrink node with gradient `grad`. Nothing unless it is the end of windows' chain.
std::optional<WindowGrad> windows_grad(Node shrink, Node grad);

// build::shrink of a gradient; of a sum (seen through movement and masks) it leaves out the terms
// of what is cut off.
Node crop_sum(Node x, Ints begin_end);

}  // namespace tiny
