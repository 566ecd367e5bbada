// Watchdog of all-reduces among processes: a thread looks at those that have started. When one does
// not end, because a rank has ended or is late (COLLECTIVE_TIMEOUT), it is given up, and the
// program's next request is an Error that says which rank, and which sum. The threads tell one
// another over connections of their own how far their ranks are.
#pragma once
#include <memory>
#include <span>
#include <string>

#include "runtime/device/device.h"

namespace tiny {

// Starts a sum. They are numbered on all ranks alike, those too in which a rank has no part (`sum`
// is null). Waits while too many have not ended. `what`: "all_reduce of f32[128], step 7 of 30";
// `ranks` make it.
void start_sum(std::shared_ptr<PendingAllReduce> sum, std::span<const int> ranks,
               const std::string& what);

// Throws Error where a sum has been given up; waits so long for that to become known.
void throw_failed_sum(double seconds = 0);

}  // namespace tiny
