// The launch of a kernel: grid and block of a GPU, chunks of a CPU's parallel loop, shared memory.
#pragma once
#include "codegen/target/source.h"
#include "codegen/target/target.h"
#include "tiny/ir/node.h"

namespace tiny {

// Of a kernel graph with options applied and gates lowered.
LaunchSize launch_size(Node sink, const Target& target);

}  // namespace tiny
