// From groups of values in order to the steps of a schedule.
#pragma once
#include <span>

#include "runtime/schedule/order.h"
#include "runtime/schedule/schedule.h"

namespace tiny {

// Which elements of a value are ever needed, where lengths that are known when a kernel runs leave
// some of them out: masks (bool, of the value's shape) of values that are not needed as a whole.
// `given`: the roots of the graph with its lengths; `plain`: its nodes without them, where lengths
// are found; `now`: its nodes in the graph that is scheduled, `roots` those of that graph. What
// only such a value needs is needed where the value is.
NodeMap<Node> elements_within_lengths(std::span<const Node> given, const NodeMap<Node>& plain,
                                      const NodeMap<Node>& now, std::span<const Node> roots);

// Adds values, steps and results to a schedule that has its inputs: a kernel graph for each group
// of values, copies between devices, and the memory that they work on. `needed`: of values that are
// not needed as a whole, the mask of the elements that are. `fallback`: the device of what is made
// of constants alone.
void add_steps(Schedule& out, std::span<const Node> roots, const OrderedGroups& ordered,
               const NodeMap<Node>& needed, int fallback);

}  // namespace tiny
