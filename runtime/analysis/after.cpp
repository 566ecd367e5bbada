#include "runtime/analysis/after.h"

#include <algorithm>

#include "runtime/analysis/views.h"

namespace tiny {

Node behind(Node n) {
  while (n->op == Op::After) n = base_of(n->src(0));
  return n;
}

NodeMap<Node> put_afters_on_memory(std::vector<Node>& roots, std::vector<Node>& stored) {
  std::vector<Node> all = roots;
  all.insert(all.end(), stored.begin(), stored.end());
  const std::vector<Node> order = topological(all);
  if (std::none_of(order.begin(), order.end(), [](Node n) { return n->op == Op::After; }))
    return NodeMap<Node>();
  NodeMap<Node> done;
  std::vector<Node> srcs;
  for (Node n : order) {
    srcs.clear();
    for (Node s : n->srcs()) srcs.push_back(*done.find(s));
    if (n->op != Op::After) {
      done[n] = with_sources(n, srcs);
      continue;
    }
    Node base = base_of(srcs[0]);
    const bool is_constant = base->op == Op::Const || base->op == Op::Iota;
    done[n] =
        is_constant ? srcs[0] : moved(srcs[0], base, make(Op::After, n->dtype, {base, srcs[1]}));
  }
  for (Node& r : roots) {
    r = *done.find(r);
    for (Node b = base_of(r); b->op == Op::After; b = base_of(r)) r = moved(r, b, b->src(0));
  }
  for (Node& n : stored) n = *done.find(n);
  return done;
}

}  // namespace tiny
