// Block-wide reductions and scans (codegen/kernel/linear.h, Group and Prefix), with a proof: the
// threads of a warp exchange values by shuffles, the warps through an array in shared memory.
#pragma once
#include <span>

#include "codegen/kernel/finding.h"
#include "tiny/ir/node.h"
#include "tiny/ir/sizes.h"

namespace tiny {

// Neighbours: each warp leaves its value in element warp() of the array, or of one half of it;
// after a barrier every thread reads the values of its group. Threads with threads of other groups
// between them: each warp leaves a value for each group that it has threads of; the second half of
// a group's values is added to the first, again and again, until there is one. In a loop the array
// is double-buffered: threads that still read values meet others that write the next ones, but
// never those that write once more, behind the next barrier.
struct ThreadGroup {
  int threads = 1;  // of the block
  int width = 1;    // so many combine theirs
  int warp = 32;
  bool turns = false;  // the array is double-buffered
  int apart = 1;       // from one to the next of them; 1: neighbours

  int warps() const { return ceil_div(threads, warp); }
  int values() const { return warps() * (apart < warp ? apart : warp); }
  int elements() const { return turns ? 2 * values() : values(); }
};

// Of a Reduce or Prefix over ranges of kind Thread, of which `threads` are those of the block, x
// last, in warps of so many.
ThreadGroup group_of(Node reduce, std::span<const Node> threads, int warp, bool in_loop);

// Why the threads of a kernel cannot combine what its reductions want; empty where they can.
std::string grouping_problem(Node sink, int warp);

// Whether all threads of a group combine theirs, each once, and no two threads meet in an element
// of shared memory with no barrier between, one of them writing. `in_loop`: the group combines
// again and again. No barrier is in a branch: loops have the same turns in all threads.
Finding prove_group(const ThreadGroup& group, bool in_loop);

// Of every such node in a kernel at Form::Machine, for warps of so many threads; 0: of 32, and of
// 64 as well.
std::vector<Finding> prove_groups(Node sink, int warp = 0);

}  // namespace tiny
