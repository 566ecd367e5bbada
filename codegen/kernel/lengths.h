// Loop-bound tightening for lengths that are Variables. A reduction over an axis with a length, and
// a store into one, select by a monotone predicate, position < n; the loop ends where it turns
// false, at an extent that is computed before the loop, instead of at its bound.
#pragma once
#include "tiny/rewrite/algebra.h"

namespace tiny {

// Whether a condition on the range is known when the kernel runs: its loop may end early, which
// that of a range merged with another could not.
bool has_length(Node sink, Node range);

// Conditions without all of which a value is the one that leaves a reduction by `op` as it is.
std::vector<Node> conditions_of(Node value, Op op);

// The conditions that all hold where a gate does.
void add_conditions(Node gate, std::vector<Node>& out);

// a - b of two integers, exactly.
Sum difference(Node a, Node b);

// Whether a Where, of tensors or in a kernel, masks elements beyond the length of an axis.
bool selects_by_length(Node n);

}  // namespace tiny
