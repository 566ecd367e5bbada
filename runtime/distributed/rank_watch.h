// Sums that devices of several processes make together run on after they were started: a thread
// looks at them. When one does not end, because a rank has ended or is late (COLLECTIVE_TIMEOUT),
// it is given up, and what the program asks for next is an Error that says which rank, and which
// sum. The threads tell one another over connections of their own how far their ranks are.
#pragma once
#include <memory>
#include <span>
#include <string>

#include "runtime/device/device.h"

namespace tiny {

// Starts a sum. They are numbered on all ranks alike, those too in which a rank has no part (`sum`
// is null). Waits while too many have not ended. `what`: "all_reduce of f32[128], step 7 of 30";
// `ranks` make it.
void start_sum(std::shared_ptr<SumOfRanks> sum, std::span<const int> ranks,
               const std::string& what);

// Throws Error where a sum has been given up; waits so long for that to become known.
void throw_failed_sum(double seconds = 0);

}  // namespace tiny
