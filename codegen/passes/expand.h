// Ranges of kind Unroll and Vector disappear: a node under an unrolled range is repeated for each
// of its values, a node under a vector range gets that many lanes. Vectors stay vectors.
#pragma once
#include "codegen/target/target.h"
#include "tiny/ir/node.h"

namespace tiny {

// A Reduce that closes an unrolled range becomes one accumulator for each of its values, combined
// at the end; one that closes a vector range accumulates lanes and folds them at the end. A GPU's
// thread with several sums side by side keeps the unrolled range of each: the renderer asks the
// compiler to unroll that loop.
Node unroll(Node sink, const Target& target);

// At most one vector range may reach any node.
Node vectorize(Node sink, const Target& target);

// Whether vectors whose elements go between one another's (2 or 4 apart, along an unrolled range)
// are stored as one.
bool joins_stores(const Target& target);

}  // namespace tiny
