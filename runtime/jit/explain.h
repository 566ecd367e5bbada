// What the errors of a Jit say about tensors that a replay could not treat as a call does: which
// one it is, how it came to that, and what to do.
#pragma once
#include <set>
#include <string>

#include "tiny/ir/node.h"

namespace tiny {

// "f32 (4,8) of add": dtype, shape and the operation that made it.
std::string describe(Node n);

// A tensor that the step made is still there after it: a gradient, a tensor from outside without
// memory that was assigned to, or anything else.
std::string explain_left(Node n);

// The tensors to which somebody holds an assignment that was not computed yet.
class WaitingAssignments {
 public:
  WaitingAssignments();  // as it is now: asks all nodes that are held
  bool has(Node tensor) const;

 private:
  std::set<Node> targets_;
};

// The step has put a tensor from outside in another's place.
std::string explain_exchanged(Node n);

// A tensor from outside that the step read is held by fewer than at the capture.
std::string explain_lost(Node n);

}  // namespace tiny
