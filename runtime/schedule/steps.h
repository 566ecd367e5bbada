// The steps of a schedule: a kernel graph for each group of values, copies between devices, and the
// memory that they work on.
#pragma once
#include "runtime/schedule/order.h"
#include "runtime/schedule/schedule.h"

namespace tiny {

// Adds values, steps and results to a schedule that has its inputs. `needed`: of values that are
// not needed as a whole, the mask of the elements that are. `fallback`: the device of what is made
// of constants alone.
void add_steps(Schedule& out, std::span<const Node> roots, const OrderedGroups& ordered,
               const NodeMap<Node>& needed, int fallback);

}  // namespace tiny
