#include "runtime/analysis/skinny.h"

#include <algorithm>

#include "codegen/heuristics/rates.h"
#include "codegen/options/mma.h"
#include "runtime/analysis/operand.h"
#include "runtime/analysis/recompute_cost.h"
#include "tiny/ir/sizes.h"

namespace tiny {

namespace {

// Whether a value takes few operations on what lies in memory, or is one that does.
bool is_cheap(Node value) {
  constexpr int kMaxWork = 24;
  constexpr size_t kMaxNodes = 64;
  int work = 0;
  size_t nodes = 0;
  bool cheap = true;
  visit_below({value}, [&](Node n) {
    cheap &= n->op != Op::Gather && ++nodes <= kMaxNodes;
    if (!cheap || (!is_movement(n->op) && !is_elementwise(n->op))) return false;
    return cheap = (work += work_of(n->op)) <= kMaxWork;
  });
  return cheap;
}

// Whether the operand is a matrix, or several: each of its elements is there once, however its
// index is made; or it is a part of one.
bool is_matrix(const ProductOperand& o, Node product, const std::vector<Node>& ranges) {
  int64_t elements = 1;
  for (int i = 0; i < product->rank; ++i)
    if (walk_of(o, ranges[i]).kind != Walk::None) elements *= product->src(0)->shape()[i];
  return elements == numel(o.point->shape()) || (is_affine(o) && !has_windows(o));
}

}  // namespace

std::optional<SkinnyProduct> find_skinny_product(Node product, const Target& target) {
  // Of few elements there is no time to gain.
  constexpr int64_t kMinElements = int64_t{1} << 18, kBlocks = 6, kShortest = 256;
  Node mul = product->src(0);
  while (is_view(mul)) mul = mul->src(0);
  if (target.kind != Target::Kind::Gpu || product->arg<ReduceArg>().op != Op::Add ||
      mul->op != Op::Mul || mul->num_src != 2 || mul != product->src(0))
    return {};
  const OwnRanges own(mul->shape());
  std::vector<ProductOperand> operands;
  for (Node s : mul->srcs()) operands.push_back(follow(s, own.ranges));
  for (const ProductOperand& o : operands)
    if (!o.point->dtype.is_half() || !mma_unit(target, o.point->dtype) || o.gate ||
        !is_matrix(o, product, own.ranges))
      return {};
  const ProductAxes axes = axes_of(product, operands, own.ranges);
  if (!axes.is_whole || axes.k.size() != 1 || operands[0].point->dtype != operands[1].point->dtype)
    return {};
  const auto size = [&](const std::vector<int>& a) { return size_of(mul->shape(), a); };
  const int wide = size(axes.own[0]) < size(axes.own[1]);
  const int64_t rows = size(axes.own[1 - wide]), columns = size(axes.own[wide]);
  const int64_t terms = size(axes.k);
  if (!is_thin_stage(rows, columns, terms)) return {};
  Node point = operands[wide].point;
  if (!is_elementwise(point->op) || numel(point->shape()) < kMinElements || !is_cheap(point))
    return {};
  SkinnyProduct out{point, axes.k[0], 1};
  // Partial sums of split-K are f32: little beside the operands.
  const int64_t tile = skinny_columns(rows, target);
  const int64_t blocks = ceil_div(columns, tile) * size(axes.batch);
  const int64_t most =
      std::min({kBlocks * target.cores / blocks, terms / kShortest, terms / (16 * rows)});
  if (most > 1) out.parts = largest_divisor(terms, most);
  return out;
}

}  // namespace tiny
