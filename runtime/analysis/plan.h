// GraphPlan: a tensor graph on its way to kernels, with the decisions on memory so far; each
// rewrite of the whole graph takes one and gives another.
#pragma once
#include <vector>

#include "tiny/ir/node.h"

namespace tiny {

struct GraphPlan {
  std::vector<Node> roots;   // the rewritten graph
  std::vector<Node> stored;  // values in it that products read: they get memory as they are
  bool innermost = false;    // some values lie with another axis innermost than their shape says
  // How nodes of the graph that was rewritten came to be those of this one: map after map.
  std::vector<NodeMap<Node>> now;
};

}  // namespace tiny
