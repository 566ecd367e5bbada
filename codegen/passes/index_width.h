// Replaces the dtype of index arithmetic by machine integers, whose width is proved from bounds.
#pragma once
#include "codegen/target/target.h"
#include "tiny/ir/node.h"

namespace tiny {

// Vectors (and on a GPU scalars) of dtype Index become i32 where the bounds of the node and of its
// Index sources fit, else i64; scalars on a CPU always i64, which its addresses want. Casts are
// inserted where widths meet. No Index is left.
Node choose_index_width(Node sink, const Target& target);

}  // namespace tiny
