// Chooses the memory layouts of a tensor graph before fusion: reductions that leave too little to
// do in parallel, or read more than the caches hold, are split in two; operands of GEMMs are packed
// so that the innermost loop reads them in order.
#pragma once
#include <vector>

#include "runtime/analysis/node_targets.h"
#include "runtime/analysis/plan.h"
#include "tiny/ir/node.h"

namespace tiny {

GraphPlan choose_layouts(std::span<const Node> roots, const NodeTargets& targets);

// Of a graph with such values: those that get memory, `outputs`, follow what they are computed
// from, or read with.
GraphPlan spread_layouts(const GraphPlan& layout, std::span<const Node> outputs);

}  // namespace tiny
