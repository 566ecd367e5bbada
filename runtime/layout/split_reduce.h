// Reductions that leave too little to do in parallel, or read more than the caches hold, are made
// in two: of parts of an axis, and of what those give.
#pragma once
#include "codegen/target/target.h"
#include "tiny/ir/node.h"

namespace tiny {

// What a reduction is of: a product may be one whose tiles blocks share (matrix units).
enum class ReduceKind { Plain, Product, TiledProduct };

struct Split {
  int axis = -1;
  int64_t parts = 1;  // 1: none
};

// The axis in as many equal parts as divide it, at most `most`.
Split equal_parts(Node reduce, int axis, int64_t most);

// Enough results for all cores need no split; few results from many elements are computed in
// parts. The number of parts depends on sizes alone, so that results are the same everywhere.
// `innermost`: the axis of what is reduced that lies innermost in memory, -1 where it is the last.
Split choose_split(Node reduce, ReduceKind kind, int innermost, const Target& target);

// The first of the two. The axis becomes (parts, rest), with the parts in front: (parts, results)
// and then the results.
Node in_parts(Node reduce, const Split& s, bool product);

}  // namespace tiny
