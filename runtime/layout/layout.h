// Rewrites of a tensor graph that decide how values lie in memory, before kernels are chosen:
// reductions that leave too little to do in parallel, or read more than the caches hold, are split
// in two; operands of products are stored so that the innermost loop reads them in order.
#pragma once
#include <vector>

#include "runtime/analysis/node_targets.h"
#include "tiny/ir/node.h"

namespace tiny {

struct Layout {
  std::vector<Node> roots;   // the rewritten graph
  std::vector<Node> stored;  // values in it that products read: they get memory as they are
  bool innermost = false;    // some values lie with another axis innermost than their shape says
};
Layout choose_layouts(std::span<const Node> roots, const NodeTargets& targets);

// Of a graph with such values: those that get memory, `outputs`, follow what they are computed
// from, or read with.
Layout spread_layouts(const Layout& layout, std::span<const Node> outputs);

}  // namespace tiny
