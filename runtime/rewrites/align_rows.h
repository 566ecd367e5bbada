// Rows of a large product's results that lie at odd places in memory get longer.
#pragma once
#include <span>

#include "runtime/analysis/node_targets.h"
#include "tiny/ir/node.h"

namespace tiny {

// Products for matrix units whose rows of results, as 16-bit floats, are no multiples of 16 bytes
// long (a vocabulary of 50,257 words) are computed with a few columns more, which nobody reads:
// rows then begin where vectors may be stored and loaded. Gives each node below the roots as it is
// then.
NodeMap<Node> align_rows(std::span<const Node> roots, const NodeTargets& targets);

}  // namespace tiny
