// Rewrites of a tensor graph that decide how values lie in memory, before kernels are chosen:
// reductions that leave too little to do in parallel, or read more than the caches hold, are split
// in two; operands of products are stored so that the innermost loop reads them in order.
#pragma once
#include <vector>

#include "codegen/target.h"
#include "tiny/node.h"

namespace tiny {

struct Layout {
  std::vector<Node> roots;   // the rewritten graph
  std::vector<Node> stored;  // values in it that products read: they get memory as they are
};
Layout choose_layouts(std::span<const Node> roots, const Target& target);

}  // namespace tiny
