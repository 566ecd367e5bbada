#include "runtime/rewrites/align_rows.h"

#include <vector>

#include "runtime/analysis/operand.h"
#include "runtime/analysis/views.h"
#include "tiny/ir/build.h"
#include "tiny/rewrite/rebuild.h"

namespace tiny {

namespace {

constexpr int64_t kAligned = 8;                     // 16-bit floats in 16 bytes
constexpr int64_t kManyResults = int64_t{1} << 22;  // worth other strides of what reads them

// A 16-bit float that is broadcast to the product's shape.
bool is_broadcast_half(Node factor) {
  if (factor->op != Op::Expand || factor->src(0)->op != Op::Cast) return false;
  return factor->dtype == kF32 && factor->src(0)->src(0)->dtype.is_half();
}

// `factor` for a product with `size` elements along `axis`, zeros where there were none: from a
// copy that has them, as boxes of the copy engine want.
Node grown(Node factor, int axis, int64_t size) {
  Node x = factor->src(0)->src(0);
  Shape shape = to_shape(factor->shape());
  const int64_t own = x->shape()[axis];
  if (own > 1) {
    Shape pad(2 * static_cast<size_t>(x->rank), 0);
    pad[2 * static_cast<size_t>(axis) + 1] = size - own;
    x = build::contiguous(build::pad(x, pad));
  }
  shape[static_cast<size_t>(axis)] = size;
  return build::expand(build::cast(x, kF32), shape);
}

Node aligned(Node reduce) {
  Node mul = reduce->src(0);
  const int axis = last_axis(reduce->shape());
  const int64_t columns = reduce->shape()[axis],
                size = (columns + kAligned - 1) / kAligned * kAligned;
  if (size == columns || numel(reduce->shape()) < kManyResults) return reduce;
  if (mul->op != Op::Mul || !is_product(reduce)) return reduce;
  int own = 0;
  for (Node s : mul->srcs()) {
    if (!is_broadcast_half(s)) return reduce;
    own += s->src(0)->shape()[axis] > 1;
  }
  if (own != 1) return reduce;
  Node product =
      build::binary(Op::Mul, grown(mul->src(0), axis, size), grown(mul->src(1), axis, size));
  Shape bounds;
  for (int64_t n : reduce->shape()) bounds.insert(bounds.end(), {0, n});
  return build::shrink(with_sources(reduce, std::span(&product, 1)), bounds);
}

}  // namespace

NodeMap<Node> align_rows(std::span<const Node> roots, const NodeTargets& targets) {
  return rebuild(roots, [&](Node n, Node now) {
    const bool is_sum = now->op == Op::ReduceAxis && now->arg<ReduceArg>().op == Op::Add;
    if (!is_sum || !targets.of(now).has_wgmma) return now;
    const LabelScope label(n->label);
    return aligned(now);
  });
}

}  // namespace tiny
