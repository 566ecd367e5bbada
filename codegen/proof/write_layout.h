// Mixed-radix layouts of stores: r0*12 + r1*4 + r2 with extents 3 and 4 writes every number once.
// Recovers the layout from vectorised and unrolled copies (many stores, with constants of their own
// and gates at the tail).
#pragma once
#include <span>
#include <vector>

#include "codegen/proof/claims/claim.h"

namespace tiny {

// Whether the stores, each for all values of its domain that its gate lets through, write every
// element of the buffer exactly once. False: it is not of this form.
bool written_once(std::span<const Claim> stores, std::span<const std::vector<Node>> domains);

// Whether iterations that differ in one of the ranges never write the same element.
bool written_apart(std::span<const Claim> stores, std::span<const Node> ranges);

}  // namespace tiny
