// Order of the loads and stores of a kernel that writes over a buffer that it reads: what an
// iteration both reads and writes it reads first.
#pragma once
#include <span>

#include "codegen/prove.h"

namespace tiny {

// A finding for each buffer that is read and written. `claims`: all of a kernel at Stage::Machine.
// Nothing is claimed of loads of elements that another expression writes, such as the last one that
// an extended range reads again and drops.
std::vector<Finding> prove_order(Node sink, std::span<const Claim> claims);

}  // namespace tiny
