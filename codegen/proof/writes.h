// Who writes which element: each element of an output exactly once, or, where a kernel combines or
// overwrites in order, no element from two parallel iterations.
#pragma once
#include <span>

#include "codegen/proof/prove.h"

namespace tiny {

// `stores` are all claims of a kernel that store to one buffer; `sink` is the kernel. `steps_left`
// of the solver are reduced by those that this takes.
Finding prove_writes(std::span<const Claim> stores, Node sink, const ProofSettings& settings,
                     int64_t& steps_left);

}  // namespace tiny
