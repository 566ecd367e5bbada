// The search's static knowledge of a kernel: a cost model for options, the data to fill its buffers
// with, and the unoptimised kernel that computes the reference.
#pragma once
#include "codegen/lower.h"
#include "runtime/search/bench.h"

namespace tiny {

// Seconds that a lowered kernel may take, from its instructions, its loops' footprints in the
// caches, its chains of additions, registers and occupancy. For ranking candidates of one kernel.
// Made up of throughputs of a usual processor; that of GPUs is not fitted to any.
double estimate_seconds(const Lowered& low, const Target& target);

// Buffers with values for all slots of a kernel: indices that stay inside what they index, eighths
// for floats, poison where all elements are written. Throws Error where a length is computed by the
// kernel itself.
KernelCase case_of(Node loops, const std::string& device, const Target& target);

// The kernel's loops, cut down to the last iterations where all of them would need more than `most`
// accesses to memory: computes the end of each output. Nothing (nullptr) where it cannot be cut.
Node reference_loops(Node loops, double most);

}  // namespace tiny
