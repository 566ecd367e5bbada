// Copies between devices next to one another, so that they are made at once.
#pragma once
#include <vector>

#include "runtime/schedule/memory_plan.h"

namespace tiny {

// Another order of the same turns, in which copies wait until all is done that does not wait for
// them, and then follow one another in the order in which what they bring is made: where two GPUs
// meet, each time costs as much as many copies of a few KB. Turns of the devices alternate. A value
// that is computed again keeps its place before those that followed it.
std::vector<Turn> gather_copies(const std::vector<Job>& jobs, const std::vector<Turn>& order);

// Another order of the same jobs: those that no other waits for one after the other, at the end of
// the shortest paths first, each behind what it waits for. So the update of a weight follows its
// gradient, and the backward does not keep those of all layers.
std::vector<int> shortest_paths_first(const std::vector<Job>& jobs, const std::vector<int>& order);

}  // namespace tiny
