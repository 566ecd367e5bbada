#include "runtime/jit/explain.h"

#include <algorithm>

#include "runtime/jit/forms.h"
#include "tiny/base/error.h"
#include "tiny/ir/facts.h"
#include "tiny/tensor/assignments.h"

namespace tiny {

namespace {

Node below_gradients(Node n) {
  while (is_for_gradients(n->op)) n = n->src(0);
  return n;
}

}  // namespace

WaitingAssignments::WaitingAssignments() {
  for (Node n : Arena::global().held()) {
    Node at = below_gradients(n);
    while (at->op == Op::Assign && !at->realized) {
      at = below_gradients(at->src(0));
      targets_.insert({at, below_views(at)});
    }
  }
}

bool WaitingAssignments::has(Node tensor) const {
  return targets_.contains(tensor) || targets_.contains(below_views(tensor));
}

std::string describe(Node n) {
  return cat(n->dtype, ' ', to_text(n->shape()), *n->label ? cat(" of ", n->label) : "");
}

std::string explain_left(Node n) {
  if (is_gradient(n))
    return cat(
        "Jit: a gradient that backward() makes in the step, ", describe(n),
        ", is still there after it, and a replay could not add to it: put all micro-steps of "
        "a batch and optimizer.step() into one step, where their gradients add up, or end "
        "the step with zero_grad()");
  if (below_gradients(n)->op == Op::Assign)
    return cat("Jit: the step assigns to a tensor from outside, ", describe(n),
               ", that has no memory of its own yet (a constant or an expression), so that each "
               "replay would leave it another one: give it memory before the step, "
               "t = t.contiguous(); t.realize()");
  return cat(
      "Jit: a tensor made in the step, ", describe(n),
      ", is still there after it, and no replay would make it again: return it, assign() it "
      "to a tensor from outside, or let it go; a cache that grows has its full size from the "
      "beginning, and a part of it is assigned to");
}

std::string explain_exchanged(Node n) {
  return cat("Jit: the step puts a tensor from outside, ", describe(n),
             ", in another's place, as std::swap and = do, which no replay would do: assign() its "
             "values, or do it between calls");
}

std::string explain_lost(Node n) {
  const std::string which = cat("Jit: a tensor from outside that the step reads, ", describe(n));
  if (WaitingAssignments().has(n))
    return which + ", was assigned to without realize(): realize() it before the step";
  return which +
         ", was replaced by another or let go since the capture: give it to the Jit as an "
         "argument, "
         "assign() to it and realize() it, or make a new Jit";
}

}  // namespace tiny
