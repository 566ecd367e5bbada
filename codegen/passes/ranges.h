// From a tensor graph to loops: each output becomes a store in a nest of ranges, and the value
// stored is found by asking every node below for its element at an index. Movement is thereby
// arithmetic on indices, padding a gate, a reduction a node that closes ranges of its own.
#pragma once
#include <vector>

#include "tiny/ir/node.h"

namespace tiny {

// `kernel` is Sink(Store(Param, value, [gate])...) in tensor form; elements of a value where its
// gate (bool, of its shape) is false are left out. Outputs of one kernel share the ranges
// of the axes in which their shapes agree, reductions those of the axes that they reduce. A later
// output that an earlier one needs (the maximum of a row, on the way to its softmax) is stored in
// the loops in which the earlier one computes it.
Node to_ranges(Node kernel);

// Of the movement node `n`: where its element at the indices `at` comes from in its source. What
// must hold for there to be such an element (Pad) is added to `gate`, nullptr standing for true.
std::vector<Node> source_indices(Node n, const std::vector<Node>& at, Node& gate);

}  // namespace tiny
