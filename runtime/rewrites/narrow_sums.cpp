#include "runtime/rewrites/narrow_sums.h"

#include <algorithm>

#include "runtime/analysis/views.h"
#include "tiny/rewrite/rebuild.h"

namespace tiny {

namespace {

// The sum that nothing but movement lies on, each step of it with one reader; nullptr for others.
Node sum_below(Node cast, const NodeMap<int>& readers) {
  Node n = cast->src(0);
  while (is_movement(n->op) && n->num_src == 1 && !n->lengths && *readers.find(n) == 1)
    n = n->src(0);
  return n->op == Op::ReduceAxis && !n->lengths && *readers.find(n) == 1 ? n : nullptr;
}

Shape sorted_sizes(Node n) {
  Shape sizes = to_shape(n->shape());
  std::erase(sizes, 1);
  std::ranges::sort(sizes);
  return sizes;
}

}  // namespace

NodeMap<Node> narrow_sums(std::span<const Node> roots, std::span<const Node> order) {
  const auto is_narrowing = [](Node n) {
    return n->op == Op::Cast && n->dtype.is_half() && n->src(0)->dtype == kF32;
  };
  if (std::ranges::none_of(order, is_narrowing)) return NodeMap<Node>();
  NodeMap<int> readers;
  for (Node n : order)
    for (Node s : n->srcs()) ++readers[s];
  for (Node r : roots) ++readers[r];
  NodeMap<Node> done;
  for (Node n : order) {
    LabelScope label(n->label);
    Node now = on_new_sources(n, done);
    if (is_narrowing(n)) {
      Node sum = sum_below(n, readers);
      if (sum && sorted_sizes(sum) != sorted_sizes(n)) {
        Node below = *done.find(sum);
        now = moved(now->src(0), below, make(Op::Cast, n->dtype, {below}));
      }
    }
    done[n] = now;
  }
  return done;
}

}  // namespace tiny
