// The neighbourhood of a choice in the search space: choices one edit away. Edits work on the
// common option language, so that they serve every device and all heuristics' choices.
#pragma once
#include <string>
#include <vector>

#include "codegen/kernel/choice.h"

namespace tiny {

// Choices that differ from `choice` in one edit: another amount of a split, an option dropped, a
// loop that is split, unrolled, vectorised, spread or bound to the cores, two ranges with their
// roles exchanged, merged or joined, another order, the compiler's other effort; and, of a GEMM on
// a GPU, other tiles in shared memory, or none there. `loops` is the kernel before any option
// (loops_of). No text occurs twice. Edits are made without the kernel's graph, so that they are
// cheap: lower() says which of them are legal.
std::vector<Choice> neighbours(Node loops, const Choice& choice, const Target& target);

}  // namespace tiny
