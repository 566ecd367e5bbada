#include "runtime/analysis/views.h"

#include <algorithm>

#include "codegen/kernel/lengths.h"
#include "runtime/device/buffer.h"

namespace tiny {

Node base_of(Node n) {
  while (is_movement(n->op)) n = n->src(0);
  return n;
}

Node moved(Node root, Node base, Node onto) {
  if (root == base) return onto;
  std::vector<Node> srcs(root->srcs().begin(), root->srcs().end());
  srcs[0] = moved(srcs[0], base, onto);
  return make(root->op, srcs[0]->dtype, srcs, root->payload);
}

Node as_halves(Node x) {
  Node wide = base_of(x);
  const bool widens = wide->op == Op::Cast && wide->dtype == kF32 && wide->src(0)->dtype.is_half();
  return widens ? moved(x, wide, wide->src(0)) : nullptr;
}

bool is_leaf(Node n) {
  return n->op == Op::Param || n->op == Op::Const || n->op == Op::Iota || n->op == Op::After;
}

bool is_product_term(Node term) {
  Node x = base_of(term);
  while (x->op == Op::Cast || selects_by_length(x)) x = base_of(x->src(x->op == Op::Cast ? 0 : 1));
  if (x->op != Op::Mul) return false;
  const int64_t size = numel(term->shape());
  return std::ranges::all_of(x->srcs(), [&](Node s) {
    while (is_movement(s->op) || s->op == Op::Cast) s = s->src(0);
    return numel(s->shape()) * 4 <= size;
  });
}

std::span<const Node> used_sources(Node n) {
  return n->op == Op::Assign ? n->srcs().subspan(1) : n->srcs();
}

namespace {

bool is_usable(Node realized) {
  Node base = base_of(realized);  // a constant has no buffer
  if (base->op == Op::Multi) return std::ranges::all_of(base->srcs(), is_usable);
  return base->op != Op::Buffer || !base->arg<BufferArg>().buffer->moved();
}

}  // namespace

Node resolved(Node n) {
  for (;;) {
    if (n->realized && is_usable(n->realized)) return n->realized;
    if (!is_for_gradients(n->op) && n->op != Op::Checkpoint && n->op != Op::WithDerivative &&
        n->op != Op::CustomGradient)
      return n;
    n = n->src(0);
  }
}

}  // namespace tiny
