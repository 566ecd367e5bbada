// Implicit GEMM for convolutions of 16-bit floats (codegen/wgmma/tile.h), and their gradients: TMA
// reads the windows of images whose channels are innermost in memory (im2col mode). Values that
// such GEMMs read or write are stored so; to the program their shapes stay the same.
#pragma once
#include <optional>

#include "codegen/heuristics/rates.h"
#include "runtime/analysis/node_targets.h"
#include "runtime/analysis/operand.h"

namespace tiny {

// A convolution as TMA would read it: the axis of each operand's memory that has to be innermost,
// -1 where it lies well, and the axis of the channels in windows; which operand is windows; the
// axes of the product that count columns, those channels, and the images that are summed over, in
// the gradient of a weight.
struct WindowProduct {
  Node points[2] = {};
  int inner[2] = {-1, -1}, channel_dims[2] = {-1, -1};
  int with = 0, columns = -1, channels = -1, images = -1;
  bool copied = true;  // no window is too wide for TMA
  AffineMap maps[2];
};

// `product` is a sum of the product of two views. Nothing where it is no convolution for matrix
// units. Operands are read from values that are `stored` (with an axis innermost) where they can.
std::optional<WindowProduct> find_window_product(Node product, const Target& target,
                                                 const NodeMap<int>* stored = nullptr);

// An operand of such a product, whose axes `summed` are summed over, once for each part: as it is,
// or zero where an element is in another part.
Node mask_k_slice(Node x, const SplitK& parts);
Node in_parts(Node x, uint64_t summed, const SplitK& parts);

// Into which parts the sum of the gradient of a weight is best cut.
SplitK parts_of(Node product, const WindowProduct& windows, const Target& target);

// The product with views of the operands in the layouts that TMA needs. Channels are padded with
// zeros to whole boxes where they can be, as TMA is slow where a box reaches out of a tensor. With
// split-K it is a sum of sums.
Node with_windows(Node product, const WindowProduct& windows, const SplitK& parts = {});

// `x` cut after the first `size` places of an axis.
Node first_of_axis(Node x, int axis, int64_t size);

// `x` with axis `dim` innermost, in rows of 16-bit floats that begin at multiples of 64 bytes.
Node packed_channels(Node x, int dim);

// Values that lie in memory in the order of their axes: those asked for, and what is sent to other
// devices as it lies there.
NodeMap<char> values_in_order(std::span<const Node> roots);

// Values of the graph that are to be stored with an axis innermost, because such products read
// them, in whole `rows`, or because 16-bit floats are computed from them. `order`: all nodes,
// sources first.
struct Innermost {
  NodeMap<int> axes;
  NodeMap<char> rows;
};
Innermost choose_innermost(std::span<const Node> roots, std::span<const Node> order,
                           const NodeTargets& targets);

// The axis of each value that lies innermost in memory, or would if the value were stored with what
// it is made of and what is made of it: by the way that axes take through movement, element-wise
// functions and reductions from what is `packed`, and from values that are to be (`stored`).
NodeMap<int> trace_innermost(std::span<const Node> roots, const NodeMap<int>& stored);

// Of a graph in which `packed` has put axes innermost: which of `outputs` should follow.
NodeMap<int> spread_innermost(std::span<const Node> roots, std::span<const Node> outputs);

}  // namespace tiny
