// Which values of a tensor graph get memory; all others are computed where they are used.
#pragma once
#include <span>
#include <vector>

#include "runtime/analysis/node_targets.h"
#include "runtime/analysis/views.h"
#include "runtime/fusion/chain.h"
#include "tiny/ir/node.h"

namespace tiny {

struct Stored {
  NodeMap<char> values;
  NodeMap<char> sent;  // those that are copied to another device
  Chains chains;       // what is inside of them is no value with memory
};

// Roots, reductions and what has side effects; what is used several times and is not cheap; what
// is broadcast or looked up many times; and those given; but nothing inside of a chain. `order`:
// all nodes, sources first. `refused`: products that are no chains.
Stored choose_stored(std::span<const Node> roots, std::span<const Node> order,
                     std::span<const Node> given, const NodeTargets& targets,
                     const std::set<Node>& refused = {});

// What it takes to compute elements again from what is stored.
struct Cost {
  int work = 0;             // of one element, see work_of
  std::vector<Node> loads;  // distinct values read that are about as large as the whole, `size`
};
void add_cost(Node n, int64_t size, const NodeMap<char>& stored, NodeMap<char>& seen, Cost& cost);

// Whether a GPU computes rows where they are looked up: that reads no more than rows in memory.
bool is_computed_at_places(Node data, const Cost& c);

}  // namespace tiny
