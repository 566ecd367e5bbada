// Rewrites GEMMs into the form that TMA and wgmma take: rows that begin at multiples of 16 bytes,
// and one reduced axis.
#pragma once
#include <span>

#include "runtime/analysis/node_targets.h"
#include "tiny/ir/node.h"

namespace tiny {

// Products of 16-bit floats for such units whose rows are no multiples of 16 bytes long (a
// vocabulary of 50,257 words). Rows of results get a few columns more, which nobody reads: they
// begin where vectors may be stored and loaded. Where rows of an operand are odd, neighbouring axes
// that are summed become one, for which layouts have a padded copy. Four to seven rows or columns
// of much work, and two to seven terms of many results, are padded to the eight of the smallest
// tile, and the result is cut. `order`: all nodes, sources
// first. Gives each as it is then, none where nothing is summed on such units.
NodeMap<Node> unit_products(std::span<const Node> roots, std::span<const Node> order,
                            const NodeTargets& targets);

}  // namespace tiny
