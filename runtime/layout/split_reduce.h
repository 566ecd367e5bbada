// Two-kernel reductions, split-K for GEMMs: for reductions that leave too little to do in parallel,
// or read more than the caches hold. The first kernel reduces slices of an axis, the second adds
// their results.
#pragma once
#include "codegen/target/target.h"
#include "tiny/ir/node.h"

namespace tiny {

// The kind of a reduction: a GEMM's tiles may be shared among blocks (wgmma).
enum class ReduceKind { Plain, Product, TiledProduct };

struct Split {
  int axis = -1;
  int64_t parts = 1;  // 1: none
};

// The axis in as many equal parts as divide it, at most `most`.
Split equal_parts(Node reduce, int axis, int64_t most);

// Enough results for all cores need no split; few results from many elements are computed in
// slices. The number of slices depends on sizes and on how operands lie in memory alone, so that
// results are the same everywhere.
// `innermost`: the axis of the operand that lies innermost in memory, -1 where it is the last.
Split choose_split(Node reduce, ReduceKind kind, int innermost, const Target& target);

// The first of the two. The axis becomes (parts, rest), with the parts in front: (parts, results)
// and then the results.
Node in_parts(Node reduce, const Split& s, bool product);

}  // namespace tiny
