#include "runtime/analysis/skinny.h"

#include <algorithm>

#include "codegen/options/mma.h"
#include "codegen/options/stage.h"
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

bool is_moved(const ProductOperand& o, Node range) {
  return std::ranges::any_of(o.at, [&](Node at) { return (at->ranges & range->ranges) != 0; });
}

// Whether the operand is a matrix, or several: each of its elements is there once, however its
// index is made; or it is a part of one.
bool is_matrix(const ProductOperand& o, Node product, const std::vector<Node>& ranges) {
  int64_t elements = 1;
  for (int i = 0; i < product->rank; ++i)
    if (is_moved(o, ranges[i])) elements *= product->src(0)->shape()[i];
  return elements == numel(o.point->shape()) || (is_affine(o) && !has_windows(o));
}

// How many elements the axes count that only one of the operands has, that both have, and the sum.
struct Sizes {
  int64_t own[2] = {1, 1}, both = 1, terms = 1;
  int axis = -1;  // of the sum
};

std::optional<Sizes> sizes_of(Node product, const std::vector<ProductOperand>& operands,
                              const std::vector<Node>& ranges) {
  Sizes out;
  for (int i = 0; i < product->rank; ++i) {
    const int64_t size = product->src(0)->shape()[i];
    if (size == 1) continue;
    const bool in_a = is_moved(operands[0], ranges[i]);
    const bool in_b = is_moved(operands[1], ranges[i]);
    if (is_reduced(product, i)) {
      if (!in_a || !in_b || out.axis >= 0) return {};
      out.axis = i;
      out.terms = size;
    } else {
      (in_a && in_b ? out.both : out.own[in_a ? 0 : 1]) *= size;
    }
  }
  return out;
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
  const auto sizes = sizes_of(product, operands, own.ranges);
  if (!sizes || operands[0].point->dtype != operands[1].point->dtype) return {};
  const int wide = sizes->own[0] < sizes->own[1];
  const int64_t rows = sizes->own[1 - wide], columns = sizes->own[wide];
  if (!is_thin_stage(rows, columns, sizes->terms)) return {};
  Node point = operands[wide].point;
  if (!is_elementwise(point->op) || numel(point->shape()) < kMinElements || !is_cheap(point))
    return {};
  SkinnyProduct out{point, sizes->axis, 1};
  // Partial sums of split-K are f32: little beside the operands.
  const int64_t tile = skinny_columns(rows, target);
  const int64_t blocks = ceil_div(columns, tile) * sizes->both;
  const int64_t most = std::min(
      {kBlocks * target.cores / blocks, sizes->terms / kShortest, sizes->terms / (16 * rows)});
  if (most > 1) out.parts = largest_divisor(sizes->terms, most);
  return out;
}

}  // namespace tiny
