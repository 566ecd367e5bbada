#include "runtime/rewrites/relu_masks.h"

#include <algorithm>

#include "runtime/fusion/materialize.h"
#include "tiny/ir/build.h"
#include "tiny/rewrite/rebuild.h"

namespace tiny {

namespace {

bool is_zero(Node n) { return base_of(n)->is_const(0); }

// `n` is where(x <= 0, 0, x).
bool is_rectified(Node n) {
  if (n->op != Op::Where || n->src(0)->op != Op::Le || !is_zero(n->src(1))) return false;
  Node mask = n->src(0);
  return mask->src(0) == n->src(2) && is_zero(mask->src(1)) && n->dtype == n->src(2)->dtype;
}

// Rectified values, by their masks, and how they are seen in memory.
class Masks {
 public:
  Masks(std::span<const Node> order, const NodeMap<char>& stored) : stored_(stored) {
    for (Node n : order) {
      if (is_rectified(n) && !seen_.contains(n->src(0)) && is_dear(n->src(2))) {
        if (stored.contains(n)) seen_[n->src(0)] = n;
        rectified_[n] = 1;
      }
      // With an axis innermost: a permutation of memory that is a permutation of the value.
      if (n->op != Op::Permute || n->src(0)->op != Op::Contiguous) continue;
      Node below = n->src(0)->src(0);
      if (below->op == Op::Permute && rectified_.contains(below->src(0)) && is_identity(n, below))
        seen_[below->src(0)->src(0)] = n;
    }
  }

  // The stored value that the mask's input is computed into; nullptr where the mask is to stay.
  Node value_of(Node mask) const {
    const Node* seen = seen_.find(mask);
    return seen ? *seen : nullptr;
  }
  bool is_rectified_value(Node n) const { return rectified_.contains(n); }

 private:
  bool is_dear(Node x) const {
    Cost cost;
    NodeMap<char> seen;
    add_cost(x, numel(x->shape()), stored_, seen, cost);
    return cost.loads.size() >= 2;
  }
  static bool is_identity(Node above, Node below) {
    for (int i = 0; i < above->rank; ++i)
      if (below->ints()[above->ints()[i]] != i) return false;
    return true;
  }

  const NodeMap<char>& stored_;
  NodeMap<Node> seen_;       // by mask
  NodeMap<char> rectified_;  // dear values
};

}  // namespace

GraphPlan reuse_masks(const GraphPlan& layout, const NodeTargets& targets) {
  const std::vector<Node> order = topological(layout.roots);
  if (std::ranges::none_of(order, is_rectified)) return layout;
  const Stored stored = choose_stored(layout.roots, order, layout.stored, targets);
  const Masks masks(order, stored.values);
  std::vector<Node> first;  // the values that are read instead of masks
  for (Node n : order)
    if (Node value = masks.value_of(n)) first.push_back(value);
  if (first.empty()) return layout;
  for (Node r : layout.roots) first.push_back(r);
  NodeMap<Node> done;
  std::vector<Node> srcs;
  for (Node n : topological(first)) {
    srcs.clear();
    for (Node s : n->srcs()) {
      Node value = masks.is_rectified_value(n) ? nullptr : masks.value_of(s);
      if (value && done.contains(value)) {
        LabelScope label(s->label);
        s = build::binary(Op::Le, *done.find(value), *done.find(s->src(1)));
        srcs.push_back(s);
      } else {
        srcs.push_back(*done.find(s));
      }
    }
    done[n] = with_sources(n, srcs);
  }
  GraphPlan out;
  out.roots = replaced_by(done, layout.roots);
  out.stored = replaced_by(done, layout.stored);
  out.innermost = layout.innermost;
  out.now.push_back(std::move(done));
  return out;
}

}  // namespace tiny
