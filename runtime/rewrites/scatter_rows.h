// Embedding gradient by gather-reduce: finds each row's first and last index, writes their sum
// once, scatter-adds the rest.
#pragma once
#include <span>
#include <vector>

#include "runtime/analysis/node_targets.h"
#include "tiny/ir/node.h"

namespace tiny {

// The graphs with each such Scatter replaced (written_rows) where that moves fewer bytes.
std::vector<Node> with_written_rows(std::span<const Node> roots, const NodeTargets& targets);

// An equal of a Scatter that adds rows, the last axes of values and base, to a base of one number;
// nullptr for any other. The first and the last of the rows with each index are found by their
// numbers (a Scatter of integers), one kernel writes the table with the sum of those two, and a
// Scatter adds the rest: little where indices are spread out. A row is then read once and its table
// row written once, instead of filled, read and written. Where all indices are equal nearly
// everything is scattered, which costs more than without.
Node written_rows(Node scatter);

}  // namespace tiny
