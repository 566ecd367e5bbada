#include "runtime/analysis/after.h"

#include <algorithm>

#include "runtime/analysis/views.h"
#include "tiny/rewrite/rebuild.h"

namespace tiny {

Node behind(Node n) {
  while (n->op == Op::After) n = base_of(n->src(0));
  return n;
}

NodeMap<Node> put_afters_on_memory(std::vector<Node>& roots, std::vector<Node>& stored) {
  std::vector<Node> all = roots;
  all.insert(all.end(), stored.begin(), stored.end());
  const std::vector<Node> order = topological(all);
  if (std::ranges::none_of(order, [](Node n) { return n->op == Op::After; }))
    return NodeMap<Node>();
  const NodeMap<Node> done = rebuild(all, [](Node, Node now) {
    if (now->op != Op::After) return now;
    const Node value = now->src(0), base = base_of(value);
    const bool is_constant = base->op == Op::Const || base->op == Op::Iota;
    return is_constant ? value
                       : moved(value, base, make(Op::After, now->dtype, {base, now->src(1)}));
  });
  for (Node& r : roots) {
    r = *done.find(r);
    for (Node b = base_of(r); b->op == Op::After; b = base_of(r)) r = moved(r, b, b->src(0));
  }
  for (Node& n : stored) n = *done.find(n);
  return done;
}

}  // namespace tiny
