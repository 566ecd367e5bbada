#include "runtime/analysis/skinny.h"

#include <algorithm>

#include "codegen/heuristics/rates.h"
#include "codegen/options/mma.h"
#include "runtime/analysis/graph_contraction.h"
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
bool is_matrix(const GraphContraction& c, int operand) {
  const ProductOperand& o = c.operands[operand];
  int64_t elements = 1;
  for (int i = 0; i < c.rank(); ++i)
    if (c.moves(operand, i)) elements *= c.extent(i);
  return elements == numel(o.point->shape()) || (is_affine(o) && !has_windows(o));
}

}  // namespace

std::optional<SkinnyProduct> find_skinny_product(Node product, const Target& target) {
  // Of few elements there is no time to gain.
  constexpr int64_t kMinElements = int64_t{1} << 18, kBlocks = 6, kShortest = 256;
  if (target.kind != Target::Kind::Gpu || product->arg<ReduceArg>().op != Op::Add ||
      product->src(0)->op != Op::Mul)
    return {};
  const GraphContraction c(product);
  for (int i : {0, 1}) {
    const ProductOperand& o = c.operands[i];
    if (!o.point->dtype.is_half() || !mma_unit(target, o.point->dtype) || o.gate ||
        !is_matrix(c, i))
      return {};
  }
  const ContractionAxes axes = c.axes();
  if (!axes.is_whole || axes.k.size() != 1 ||
      c.operands[0].point->dtype != c.operands[1].point->dtype)
    return {};
  const int wide = c.size(axes.own[0]) < c.size(axes.own[1]);
  const int64_t rows = c.size(axes.own[1 - wide]), columns = c.size(axes.own[wide]);
  const int64_t terms = c.size(axes.k);
  if (!is_thin_stage(rows, columns, terms)) return {};
  Node point = c.operands[wide].point;
  if (!is_elementwise(point->op) || numel(point->shape()) < kMinElements || !is_cheap(point))
    return {};
  SkinnyProduct out{point, axes.k[0], 1};
  // Partial sums of split-K are f32: little beside the operands.
  const int64_t tile = skinny_columns(rows, target);
  const int64_t blocks = ceil_div(columns, tile) * c.size(axes.batch);
  const int64_t most =
      std::min({kBlocks * target.cores / blocks, terms / kShortest, terms / (16 * rows)});
  if (most > 1) out.parts = largest_divisor(terms, most);
  return out;
}

}  // namespace tiny
