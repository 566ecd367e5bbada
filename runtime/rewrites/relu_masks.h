// ReLU's gradient mask: reuses the stored output (`y <= 0`) instead of recomputing the input.
#pragma once
#include <span>
#include <vector>

#include "runtime/analysis/node_targets.h"
#include "runtime/analysis/plan.h"

namespace tiny {

// The graph with `x <= 0` replaced by `y <= 0` where y = where(x <= 0, 0, x) gets memory and x
// would be computed again from two values or more that are as large.
GraphPlan reuse_masks(const GraphPlan& layout, const NodeTargets& targets);

}  // namespace tiny
