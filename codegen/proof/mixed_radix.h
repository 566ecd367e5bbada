// Recovers mixed-radix indices for the bounds prover: rewrites quotients and remainders of unrolled
// ranges to those of one counting range. A thread's elements r0*128 + r1 + 512*k, divided and taken
// modulo, leave the simplifier as r0*18 + (r0*2 + r1)/7 and the like, with another constant in each
// copy.
#pragma once
#include <vector>

#include "codegen/proof/claims/claim.h"

namespace tiny {

// Rewrites the indices and gates of accesses to one buffer, and the ranges that each runs over;
// copies that continue each other's numbers become one. The multiset of accessed elements stays the
// same. Indices of another form stay as they are.
void count_numbers(std::vector<Claim>& claims, std::vector<std::vector<Node>>& domains);

}  // namespace tiny
