// Sums of rows at places that are looked up, as the gradient of an embedding is: written, where
// they would be added to a table that is filled first.
#pragma once
#include <span>
#include <vector>

#include "runtime/analysis/node_targets.h"
#include "tiny/ir/node.h"

namespace tiny {

// The graphs with each such Scatter replaced (written_rows) where that moves fewer bytes.
std::vector<Node> with_written_rows(std::span<const Node> roots, const NodeTargets& targets);

// The same as a Scatter that adds rows, the last axes of values and base, to a base of one number;
// nullptr for any other. Of the rows for each place the first and the last are found by their
// numbers (a Scatter of integers), one kernel writes the table with the sum of those two, and a
// Scatter adds what is left over: few rows where places are spread out. A row is then read once and
// its place written once, instead of filled, read and written. Where all have one place nearly
// everything is left over, which costs more than without.
Node written_rows(Node scatter);

}  // namespace tiny
