// A chain of movement operations as one map of indices: what an exporter writes as few operators.
#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "tiny/ir/node.h"

namespace tiny::onnx {

// out[i...] = source[offset_d + sum over axes a of factors_d[a] i_a for each axis d of the source].
struct IndexMap {
  Node source = nullptr;
  Shape shape;  // of the result
  Shape offsets;
  std::vector<Shape> factors;  // per axis of the source, one for each axis of the result

  // The axes of the result that an axis of the source depends on, ascending.
  std::vector<size_t> axes_of(size_t source_axis) const;
  // The axis of the result that is this whole axis of the source, element by element.
  std::optional<size_t> plain_axis(size_t source_axis) const;
  // Whether each axis of the result moves along one axis of the source at most.
  bool is_separable() const;
};

// The shape in which memory is known: a view of a Buffer, by that; nullptr where none is.
using KnownViews = std::function<Node(Node)>;

// Follows movement operations down from n, as far as they are such a map together: the deepest
// source of which they are. A Pad is followed where none of its zeros is read. A node that is no
// movement, or none that is such a map, is its own source; memory is seen in the shape that it is
// known in, else in that of n's view.
IndexMap index_map(Node n, const KnownViews& known);

}  // namespace tiny::onnx
