#include "runtime/analysis/views.h"

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

}  // namespace tiny
