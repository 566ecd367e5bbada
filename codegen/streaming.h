// Bit mask of streaming inputs: read once, larger than L2. Loaded with evict-first so that they do
// not displace L2.
#pragma once
#include "codegen/target/target.h"
#include "tiny/ir/node.h"

namespace tiny {

// Bit mask of the parameters' slots that stream through a GPU's kernel, given as it is before and
// after its options are applied: elements that several reductions read are read once where threads
// keep them in registers. 0 on a CPU.
uint64_t streaming_inputs(Node before, Node after, const Target& target);

}  // namespace tiny
