// From graphs on groups of devices to graphs on single ones, before anything else is scheduled.
//
// A user's node on a group (Op::Shard begins one, node.h: device_members) stands for the whole
// tensor; gradients and shapes know nothing of pieces. Here every such node becomes one node for
// each device: all of the tensor, a part of one axis, or a share of a sum (or product, maximum)
// that is still pending, because its reduction went over the axis that is cut. Parts follow the
// axis through movement, reductions, gathers and scatters. Where one is needed in another form,
// copies between the devices come in (collective.h): a pending sum needed whole is an all-reduce,
// needed in parts a reduce-scatter; parts needed whole are an all-gather, cut along another axis an
// all-to-all; a tensor on one device that gets copies on others is a broadcast.
//
// Which form: operands of one operation take that of the first one that is cut; what is assigned
// that of the tensor it is assigned to; movement that cannot keep the cut axis in parts (a flip of
// it, a reshape across it) gets the whole tensor.
#pragma once
#include <vector>

#include "tiny/ir/node.h"

namespace tiny {

struct Unsharded {
  struct Root {
    size_t begin = 0;  // its first piece
    int group = 0;     // 0: one node, on a single device
    int axis = -1;
  };
  std::vector<Node> pieces;  // of all roots
  std::vector<Root> roots;
};

// Throws Error for what cannot be on a group: lengths that are Variables.
Unsharded unshard(std::span<const Node> roots);

// The roots again, from nodes in the place of their pieces.
std::vector<Node> regroup(const Unsharded& from, std::span<const Node> pieces);

}  // namespace tiny
