#include "runtime/layout/convolution/toom_cook.h"

#include <cmath>
#include <span>
#include <utility>

#include "tiny/ir/build.h"

namespace tiny {

namespace {

Matrix zero_matrix(int64_t rows, int64_t columns) {
  return Matrix(static_cast<size_t>(rows), std::vector<double>(static_cast<size_t>(columns)));
}

// The coefficients, lowest first, of the product of (x - p) over all points but number `but`.
void set_vanishing(std::vector<double>& out, std::span<const double> points, size_t but) {
  out[0] = 1;
  size_t degree = 0;
  for (size_t i = 0; i < points.size(); ++i) {
    if (i == but) continue;
    ++degree;
    for (size_t j = degree + 1; j-- > 0;)
      out[j] = (j > 0 ? out[j - 1] : 0) - (j < degree ? points[i] * out[j] : 0);
  }
}

}  // namespace

ToomCook::ToomCook(int64_t results, int64_t window) {
  // In this order sums are the most exact (measurements.md: winograd).
  constexpr double kPoints[] = {0, 1, -1, 0.5, -2, 2, -0.5};
  const int64_t count = results + window - 1;
  const std::span points(kPoints, static_cast<size_t>(count - 1));
  a = zero_matrix(count, results);
  b = zero_matrix(count, count);
  g = zero_matrix(count, window);
  for (size_t i = 0; i < points.size(); ++i) {
    double scale = 1;
    for (size_t j = 0; j < points.size(); ++j)
      if (j != i) scale *= points[i] - points[j];
    for (size_t j = 0; j < a[i].size(); ++j) a[i][j] = std::pow(points[i], j);
    for (size_t j = 0; j < g[i].size(); ++j) g[i][j] = std::pow(points[i], j) / scale;
    set_vanishing(b[i], points, i);
  }
  a.back().back() = g.back().back() = 1;
  set_vanishing(b.back(), points, points.size());
}

Matrix transposed(const Matrix& m) {
  Matrix out = zero_matrix(static_cast<int64_t>(m[0].size()), static_cast<int64_t>(m.size()));
  for (size_t i = 0; i < m.size(); ++i)
    for (size_t j = 0; j < m[i].size(); ++j) out[j][i] = m[i][j];
  return out;
}

NodeGrid::NodeGrid(Shape s, const std::function<Node(const Shape&)>& node) : sizes(std::move(s)) {
  Shape index(sizes.size());
  for (int64_t i = 0, n = numel(sizes); i < n; ++i) {
    nodes.push_back(node(index));
    for (size_t d = sizes.size(); d-- > 0 && ++index[d] == sizes[d];) index[d] = 0;
  }
}

NodeGrid NodeGrid::transformed(size_t axis, const Matrix& rows) const {
  Shape to = sizes;
  to[axis] = static_cast<int64_t>(rows.size());
  return NodeGrid(to, [&](const Shape& index) {
    const std::vector<double>& row = rows[static_cast<size_t>(index[axis])];
    Node sum = nullptr;
    for (size_t j = 0; j < row.size(); ++j) {
      if (row[j] == 0) continue;
      int64_t at = 0;
      for (size_t d = 0; d < sizes.size(); ++d)
        at = at * sizes[d] + (d == axis ? static_cast<int64_t>(j) : index[d]);
      Node x = nodes[static_cast<size_t>(at)];
      if (row[j] != 1) x = build::binary(Op::Mul, x, build::full(x->shape(), x->dtype, row[j]));
      sum = sum ? build::binary(Op::Add, sum, x) : x;
    }
    return sum;
  });
}

Node NodeGrid::selected(const std::vector<int>& axes) const {
  const Shape shape = to_shape(nodes[0]->shape());
  std::vector<Node> left = nodes;
  for (size_t d = axes.size(); d-- > 0;) {
    const auto size = static_cast<size_t>(sizes[d]);
    Node at = build::iota(shape, axes[d], kI32);
    std::vector<Node> rows;
    for (size_t i = 0; i < left.size(); i += size) {
      Node x = left[i + size - 1];
      for (size_t k = size - 1; k > 0; --k) {
        Node limit = build::full(shape, kI32, static_cast<int64_t>(k));
        x = build::where(build::binary(Op::Lt, at, limit), left[i + k - 1], x);
      }
      rows.push_back(x);
    }
    left = std::move(rows);
  }
  return left[0];
}

}  // namespace tiny
