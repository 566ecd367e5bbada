// Proves the order of loads and stores in a kernel that overwrites a buffer that it reads: every
// element is read before it is written, by the iteration that writes it.
#pragma once
#include <span>

#include "codegen/proof/prove.h"

namespace tiny {

// A finding for each load of a buffer that is read and written, up to the first that is no proof.
// `claims`: all of a kernel at Form::Machine. `steps_left` of the solver are reduced by those that
// this takes. With prove_writes(), by which one iteration alone writes an element, it follows that
// no load whose value is used sees what a store of the kernel has left.
std::vector<Finding> prove_order(Node sink, std::span<const Claim> claims, int64_t& steps_left);

}  // namespace tiny
