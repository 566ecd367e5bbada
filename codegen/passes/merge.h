// Adjacent loops that walk memory as one become one: an element-wise kernel over (64,32,28,28) is a
// single loop over its elements.
#pragma once
#include "codegen/target/target.h"
#include "tiny/ir/node.h"

namespace tiny {

Node merge_ranges(Node sink, const Target& target);

}  // namespace tiny
