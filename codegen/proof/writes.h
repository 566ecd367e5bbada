// Proves that each element of an output is written exactly once or, where a kernel combines or
// overwrites in order, by no two parallel iterations.
#pragma once
#include <span>

#include "codegen/proof/prove.h"

namespace tiny {

// `stores` are all claims of a kernel that store to one buffer; `sink` is the kernel. `steps_left`
// of the solver are reduced by those that this takes.
Finding prove_writes(std::span<const Claim> stores, Node sink, const ProofSettings& settings,
                     int64_t& steps_left);

}  // namespace tiny
