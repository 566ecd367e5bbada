// Proofs about stages in shared memory (codegen/options/stage.h).
#pragma once
#include <vector>

#include "codegen/kernel/finding.h"
#include "codegen/options/stage.h"

namespace tiny {

// Whether no thread fills what another may still read, and what is read has arrived.
Finding prove_schedule(const StageSchedule& schedule);

// Whether every element that a thread reads from a stage was put there, by one thread.
std::vector<Finding> prove_stages(Node sink);

}  // namespace tiny
