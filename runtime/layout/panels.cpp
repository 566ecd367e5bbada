#include "runtime/layout/panels.h"

#include <algorithm>

#include "codegen/heuristics/rates.h"
#include "tiny/ir/build.h"
#include "tiny/ir/sizes.h"

namespace tiny {

namespace {

constexpr int64_t kManyColumns = 256;  // in rows that are far apart

bool is_large(const ProductOperand& o, int dim, const Target& target) {
  const int64_t size = std::max(o.point->dtype.size(), 4);  // 16-bit floats are computed in f32
  return o.point->shape()[dim] >= kManyColumns &&
         numel(o.point->shape()) * size > target.l2_bytes / 2;
}

}  // namespace

int64_t panel_width(int64_t columns, const Target& target) {
  constexpr int64_t kManyRows = 1 << 20;
  if (target.kind == Target::Kind::Gpu) return int64_t{1} << 40;
  const int64_t lanes = target.vector_bytes / 4, vectors = ceil_div(columns, lanes);
  return lanes * register_tile(target, kManyRows, vectors, true).vectors;
}

bool wants_panels(const ProductOperand& o, int dim, const Target& target) {
  const int64_t columns = o.point->shape()[dim];
  return is_large(o, dim, target) && columns > panel_width(columns, target);
}

Node in_panels(Node x, int dim, int64_t width) {
  const int64_t size = x->shape()[dim];
  if (size <= width || size % width == 0 || size < kManyColumns) return x;
  std::vector<int64_t> amounts(2 * size_t{x->rank}, 0);
  amounts[2 * dim + 1] = width - size % width;
  return build::pad(x, amounts);
}

int sum_dim(const GraphContraction& c, int operand, int axis, const Target& target) {
  constexpr int64_t kPages = 64;  // in the first table of translations
  if (axis < 0 || c.moves(operand, axis) || c.extent(axis) < kPages) return -1;
  const Ints shape = c.operands[operand].point->shape();
  if (!is_large(c.operands[operand], last_axis(shape), target)) return -1;
  for (int i = 0; i < c.rank(); ++i) {
    const Walk w = c.walk(operand, i);
    if (c.is_summed(i) && w.kind == Walk::Movable && shape[w.dim] > kPages) return w.dim;
  }
  return -1;
}

bool is_worth_widening(Node product, const ProductOperand& o) {
  constexpr int64_t kUses = 32;
  return o.point->dtype.is_half() && product->dtype == kF32 &&
         numel(product->shape()) >= kUses * numel(o.point->shape());
}

}  // namespace tiny
