// Long sums in parts. A running sum of n numbers in one accumulator is off by up to n roundings:
// that of a million equal f32 by a hundredth of its value. Summed in parts of at most 512 numbers,
// and the parts so again, it is off by a few times 512 of them.
#pragma once
#include "codegen/kernel/option.h"
#include "codegen/target/target.h"
#include "tiny/ir/node.h"

namespace tiny {

// Options that split the loops which sums of f32 run through too long: loops of loops. CPUs only: a
// GPU's threads share a sum between them.
std::vector<Opt> split_sums(Node sink, const Target& target);

// Sums over several loops, vectors and unrolled loops done, become sums of sums: the inner loops
// have an accumulator of their own.
Node nest_sums(Node sink, const Target& target);

}  // namespace tiny
