// SPMD partitioner (as GSPMD, DTensor): from graphs on groups of devices to graphs on single ones,
// before anything else is scheduled.
//
// A user's node on a group (Op::Shard begins one, node.h: device_members) stands for the whole
// tensor; gradients and shapes know nothing of pieces. Here every such node becomes one node for
// each device, in one of three forms: replicated, sharded along one axis, or partial, a share of a
// sum (or product, maximum) whose reduction went over the sharded axis. Shards follow the axis
// through movement, reductions, gathers and scatters. Where another form is needed, copies between
// the devices come in (collective.h): partial to replicated is an all-reduce, partial to sharded a
// reduce-scatter, sharded to replicated an all-gather, to another axis an all-to-all, one device to
// replicated a broadcast.
//
// Which form: operands of one operation take that of the first one that is sharded; an assigned
// value that of the tensor it is assigned to; movement that cannot keep the axis sharded (a flip of
// it, a reshape across it) gets the replicated tensor. A weight that is marked as gathered for use
// (fully_shard) is replicated wherever it meets something that is cut otherwise, each time anew.
#pragma once
#include <vector>

#include "tiny/ir/node.h"

namespace tiny {

struct Unsharded {
  struct Root {
    size_t begin = 0;  // its first piece
    int group = 0;     // 0: one node, on a single device
    int axis = -1;
    bool gathered_for_use = false;
  };
  std::vector<Node> pieces;  // of all roots
  std::vector<Root> roots;
};

// Throws Error for what cannot be on a group: lengths that are Variables.
Unsharded unshard(std::span<const Node> roots);

// The roots again, from nodes in the place of their pieces.
std::vector<Node> regroup(const Unsharded& from, std::span<const Node> pieces);

}  // namespace tiny
