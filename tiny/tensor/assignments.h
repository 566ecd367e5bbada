// Records the tensors that a piece of code assigns to: a Jit computes them with its results.
#pragma once
#include <vector>

#include "tiny/ir/node.h"

namespace tiny {

// Notes the node of every tensor that this thread assigns to while it is the innermost one alive.
class AssignmentLog {
 public:
  AssignmentLog();
  ~AssignmentLog();
  AssignmentLog(const AssignmentLog&) = delete;
  AssignmentLog& operator=(const AssignmentLog&) = delete;

  static void note(Node assigned);

  // The assignments that are not computed, of tensors that still are there.
  std::vector<Node> pending() const;

 private:
  AssignmentLog* outer_;
  std::vector<Node> nodes_;  // watched
};

// Whether it is what backward() left of a leaf: Tensor::grad().
bool is_gradient(Node n);

}  // namespace tiny
