// Toom and Cook's small convolutions: a window of r elements slides over m + r - 1 of them, and its
// m results take as many multiplications, one at each point where polynomials are multiplied.
#pragma once
#include <functional>
#include <vector>

#include "tiny/ir/node.h"

namespace tiny {

using Matrix = std::vector<std::vector<double>>;

// y = aᵀ ((g w) ∘ (b x)) of elements x, a window w and results y, point by point. Winograd,
// "Arithmetic Complexity of Computations", 1980; the points are 0, 1, -1, 1/2, -2, 2, -1/2, as many
// as are needed, and infinity, for which all entries of `a` and `b` are exact in f32.
struct ToomCook {
  Matrix a, b, g;  // each has a row for each point: of m, of m + r - 1, and of r columns

  // `results` + `window` - 1 is at most 8.
  ToomCook(int64_t results, int64_t window);
};

Matrix transposed(const Matrix& m);

// Nodes of one shape, by the indices of several axes, the last one fastest.
struct NodeGrid {
  Shape sizes;
  std::vector<Node> nodes;

  NodeGrid(Shape sizes, const std::function<Node(const Shape& index)>& node);

  // With the sums, along an axis, of the nodes times each row of the matrix.
  NodeGrid transformed(size_t axis, const Matrix& rows) const;
  // One node of their shape: at index i along `axes` it has the elements of the node at i.
  Node selected(const std::vector<int>& axes) const;
};

}  // namespace tiny
