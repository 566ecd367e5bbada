// Which elements of a value are ever needed, where lengths that are known when a kernel runs leave
// some of them out: its kernel does not compute the others.
#pragma once
#include <span>

#include "tiny/ir/node.h"

namespace tiny {

// Masks (bool, of the value's shape) of values that are not needed as a whole. `given`: the roots
// of the graph with its lengths; `plain`: its nodes without them, where lengths are found; `now`:
// its nodes in the graph that is scheduled, `roots` those of that graph. What only such a value
// needs is needed where the value is.
NodeMap<Node> elements_within_lengths(std::span<const Node> given, const NodeMap<Node>& plain,
                                      const NodeMap<Node>& now, std::span<const Node> roots);

}  // namespace tiny
