#include "runtime/analysis/views.h"

#include <algorithm>

#include "runtime/device/buffer.h"

namespace tiny {

Node base_of(Node n) {
  while (is_movement(n->op)) n = n->src(0);
  return n;
}

bool is_leaf(Node n) {
  return n->op == Op::Param || n->op == Op::Const || n->op == Op::Iota || n->op == Op::After;
}

std::span<const Node> used_sources(Node n) {
  return n->op == Op::Assign ? n->srcs().subspan(1) : n->srcs();
}

namespace {

bool is_usable(Node realized) {
  Node base = base_of(realized);  // a constant has no buffer
  if (base->op == Op::Multi)
    return std::all_of(base->srcs().begin(), base->srcs().end(), is_usable);
  return base->op != Op::Buffer || !base->arg<BufferArg>().buffer->moved();
}

}  // namespace

Node resolved(Node n) {
  for (;;) {
    if (n->realized && is_usable(n->realized)) return n->realized;
    if (!is_for_gradients(n->op) && n->op != Op::Checkpoint && n->op != Op::WithDerivative)
      return n;
    n = n->src(0);
  }
}

}  // namespace tiny
