// Which values of a tensor graph get memory, and which of them are computed together in one kernel.
#pragma once
#include <vector>

#include "runtime/analysis/node_targets.h"
#include "runtime/fusion/materialize.h"
#include "tiny/ir/node.h"

namespace tiny {

// One kernel to be: the values that it writes, the largest ones first. `inputs` are values of other
// groups and Params; those in `elsewhere` are read at other elements than the one being written.
// Those in `after` are not read, and computed before.
struct Group {
  std::vector<Node> outputs;
  std::vector<Node> inputs;
  std::vector<Node> elsewhere;
  std::vector<Node> after;
};

// Groups in an order in which they can run. `roots` are the values asked for; movement on top of
// them is not materialised. `stored`: further values that get memory. The graph has Params for
// leaves and no Detach or Leaf; what an After reads gets memory.
std::vector<Group> fuse(std::span<const Node> roots, std::span<const Node> stored = {},
                        const NodeTargets& targets = Target{});

}  // namespace tiny
