// Indices that take a number apart which several ranges and unrolled copies make up. A thread's
// elements r0*128 + r1 + 512*k, divided and taken modulo, leave the simplifier as r0*18 +
// (r0*2 + r1)/7 and the like, with another constant in each copy; here they become quotients and
// remainders of one range that counts the number.
#pragma once
#include <vector>

#include "codegen/proof/claims/claim.h"

namespace tiny {

// Rewrites the indices and gates of accesses to one buffer, and the ranges that each runs over;
// copies that continue each other's numbers become one. What is accessed how often stays the same.
// Leaves everything as it is where it is not of this form.
void count_numbers(std::vector<Claim>& claims, std::vector<std::vector<Node>>& domains);

}  // namespace tiny
