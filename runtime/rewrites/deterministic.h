// DETERMINISTIC=1: the same program gives the same bits in every run. All that may differ from run
// to run is the order in which a GPU's threads add to one element of a Scatter.
#pragma once
#include <span>
#include <vector>

#include "tiny/ir/node.h"

namespace tiny {

// The graphs with every Scatter whose result depends on the order of its writes replaced: the
// values are sorted by element (stable), what belongs to one element is combined by a segmented
// scan, and each element is written at most once. Sorting takes O(n log^2 n) work for n values, the
// scan O(n). Integer sums, maxima and minima do not depend on an order and stay. Where several
// values overwrite one element the last one stays, as in the plain Scatter; sums and products of
// floats differ from it by rounding.
std::vector<Node> with_ordered_scatters(std::span<const Node> roots);

}  // namespace tiny
