// What a search over options may try next: choices one edit away from a known one. Edits work on
// the common option language, so that they serve every device and everything that a heuristic
// chooses.
#pragma once
#include <string>
#include <vector>

#include "codegen/kernel/choice.h"

namespace tiny {

// Choices that differ from `choice` in one edit: another amount of a split, an option left out, a
// loop that is split, unrolled, vectorised, spread or bound to the cores, two ranges with their
// parts exchanged, merged or joined, another order, the compiler's other effort; and, of a product
// on a GPU, other tiles in shared memory, or none there. `loops` is the kernel before any option
// (loops_of). No text occurs twice. Edits are made without the kernel's graph, so that they are
// cheap: lower() says which of them are legal.
std::vector<Choice> neighbours(Node loops, const Choice& choice, const Target& target);

}  // namespace tiny
