// Bit mask of streaming inputs, read once. GPUs load those that are larger than L2 with evict-first
// so that they do not displace it, CPUs (through LLVM) are asked for them ahead.
#pragma once
#include "codegen/target/target.h"
#include "tiny/ir/node.h"

namespace tiny {

// Bit mask of the parameters' slots that stream through a kernel, given as it is before and after
// its options are applied: elements that several reductions read are read once where threads keep
// them in registers.
uint64_t streaming_inputs(Node before, Node after, const Target& target);

}  // namespace tiny
