#include "tiny/tensor/checkpoint.h"

#include "tiny/autograd/recompute.h"
#include "tiny/ir/build.h"

namespace tiny {

Recomputed recomputed(Node value, std::span<const Node> inputs, Node before) {
  Recomputed out;
  NodeMap<Node> done;
  const auto set = [&](Node n, Node again) {
    done[n] = again;
    if (again != n) out.fresh.push_back(again);
  };
  const auto later = [&](Node n) {  // memory of other devices is sent here before
    const bool elsewhere = n->device && before->device && n->device != before->device;
    return elsewhere ? n : build::after(n, before);
  };
  for (Node n : inputs)
    if (!done.contains(n)) set(n, later(n));
  std::vector<Node> stack{value}, srcs;
  while (!stack.empty()) {
    Node n = stack.back();
    if (done.contains(n)) {
      stack.pop_back();
      continue;
    }
    const bool is_memory = n->realized || n->op == Op::Buffer || n->op == Op::Assign ||
                           n->op == Op::After;  // behind it is a gradient, not to be made anew
    // A Variable's number is the length of axes, which are equal where it is the same node.
    const bool stays = n->op == Op::Leaf || n->op == Op::Bound;
    if (is_memory || stays || n->num_src == 0) {
      stack.pop_back();
      set(n, is_memory && !stays ? later(n) : n);
      continue;
    }
    const size_t waiting = stack.size();
    for (Node s : n->srcs())
      if (!done.contains(s)) stack.push_back(s);
    if (stack.size() != waiting) continue;
    stack.pop_back();
    srcs.clear();
    for (Node s : n->srcs()) srcs.push_back(*done.find(s));
    set(n, with_sources(n, srcs));
  }
  out.value = *done.find(value);
  return out;
}

Tensor checkpointed(const Tensor& result, const std::vector<Tensor>& inputs) {
  if (!result.node()->needs_grad) return result;
  std::vector<Node> srcs{result.node()};
  for (const Tensor& t : inputs)
    if (t.node() != result.node()) srcs.push_back(t.node());
  return Tensor(make(Op::Checkpoint, result.dtype(), srcs));
}

}  // namespace tiny
