// Checks that a kernel can be launched and computes the same after options that are each legal.
#pragma once
#include <string>

#include "codegen/target/source.h"
#include "codegen/target/target.h"
#include "tiny/ir/node.h"

namespace tiny {

// Ranges of stores that go on in order: no reduction closes them. As a mask of ids.
uint64_t ordered_ranges(Node sink);

// Why a kernel with options applied cannot run on the target; empty where nothing speaks against
// it. `before`: the kernel without options.
std::string launch_problem(Node before, Node after, const Target& target);
std::string launch_problem(const LaunchSize& size, const Target& target);

}  // namespace tiny
