// Order of the loads and stores of a kernel that writes over a buffer that it reads: every element
// is read before it is written, by the iteration that writes it.
#pragma once
#include <span>

#include "codegen/prove.h"

namespace tiny {

// A finding for each buffer that is read and written. `claims`: all of a kernel at Stage::Machine.
// Together with prove_writes(), by which an element is written by one iteration alone, it follows
// that no load sees what a store of the kernel has left.
std::vector<Finding> prove_order(Node sink, std::span<const Claim> claims);

}  // namespace tiny
