// Loops that end where a Variable says. A reduction over an axis with a length, and a store into
// one, select with a gate, position < n, that fails for good from some iteration of a loop on; the
// loop then ends there, at an extent that is computed before it, instead of at its bound.
#pragma once
#include "codegen/target/target.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

// Exchanges the extents of such loops (Loop, Reduce, and a CPU's Core) in a kernel graph whose
// options have been applied. Gates stay: only time depends on this pass.
Node end_loops(Node sink, const Target& target);

// Whether a condition on the range is known when the kernel runs: its loop may end early, which
// that of a range merged with another could not.
bool has_length(Node sink, Node range);

// Conditions without all of which a value is the one that leaves a reduction by `op` as it is.
std::vector<Node> conditions_of(Node value, Op op);

// a - b of two integers, exactly.
Sum difference(Node a, Node b);

// Whether a Where, of tensors or in a kernel, leaves out what lies beyond the length of an axis.
bool selects_by_length(Node n);

}  // namespace tiny
