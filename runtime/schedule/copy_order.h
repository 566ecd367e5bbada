// Copies between devices next to one another, so that they are made at once.
#pragma once
#include <vector>

#include "runtime/schedule/memory_plan.h"

namespace tiny {

// Another order of the same turns, in which copies wait until all is done that does not wait for
// them, and then follow one another in the order in which what they bring is made: where two GPUs
// meet, each time costs as much as many copies of a few KB. Turns of the devices alternate. A value
// that is computed again keeps its place before those that followed it. Without `ahead` copies only
// wait for what comes before the first that waits for them: nothing is computed, and kept, early.
// Those that run beside other launches (Job::beside_others) begin when they are worth one. Where a
// device would wait for that long with nothing to do, copies are made as soon as there is what they
// bring instead, and the devices' turns come in the order in which they would begin.
std::vector<Turn> gather_copies(const std::vector<Job>& jobs, const std::vector<Turn>& order,
                                bool ahead = true);

// Of several orders of these jobs the one whose highest peak on a device is lowest: the given one,
// and one in which those that no other waits for follow one another, at the end of the shortest
// paths first, each behind what it waits for. So the update of a weight follows its gradient, and
// the backward does not keep those of all layers. `budget`: of recompute_for_memory; where it has a
// limit, of the orders that keep to it the one that computes least again.
std::vector<Turn> order_of_least_memory(const std::vector<Job>& jobs,
                                        const std::vector<JobValue>& values,
                                        const std::vector<int>& order, const MemoryBudget& budget);

}  // namespace tiny
