// Copies between devices next to one another, so that they can be made at once.
#pragma once
#include <vector>

#include "runtime/memory_plan.h"

namespace tiny {

// The same order, but that a copy comes right after the copies before it unless it needs what is
// computed since.
std::vector<Turn> gather_copies(const std::vector<Job>& jobs, const std::vector<Turn>& order);

}  // namespace tiny
