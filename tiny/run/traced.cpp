#include "tiny/run/traced.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include "tiny/base/error.h"
#include "tiny/ir/node.h"
#include "tiny/tensor/assignments.h"
#include "tiny/tensor/random.h"

namespace tiny {

namespace {

// Memory of its own for each input, of any values: no two are the same node.
Tensor stand_in(const Tensor& example, const std::string& what) {
  const Node node = example.node();
  const Shape shape = to_shape(example.shape());
  check(numel(shape) > 0, what, ": an input has no elements");
  const std::vector<std::byte> zeros(static_cast<size_t>(numel(shape)) *
                                     static_cast<size_t>(example.dtype().size()));
  Tensor out = Tensor::from_bytes(zeros.data(), example.dtype(), shape, example.device());
  if (node->op != Op::Bound) return out;
  const Node inner = out.node();
  return Tensor(with_sources(node, {&inner, 1}));
}

bool passes_on(Node n) { return is_movement(n->op) || is_for_gradients(n->op); }

// What was computed is read where it is.
std::span<const Node> sources(Node n) {
  return n->realized != nullptr ? std::span<const Node>() : n->srcs();
}

// The nodes that are computed from, sources first.
std::vector<Node> below(const std::vector<Node>& roots) {
  std::vector<Node> out, stack(roots.rbegin(), roots.rend());
  NodeMap<char> state;  // 1: its sources are on the way, 2: done
  while (!stack.empty()) {
    Node n = stack.back();
    char& now = state[n];
    if (now != 0) {
      stack.pop_back();
      if (std::exchange(now, 2) == 1) out.push_back(n);
      continue;
    }
    now = 1;
    for (const Node s : sources(n))
      if (!state.contains(s)) stack.push_back(s);
  }
  return out;
}

// Bytes of a widened weight for each that it is stored in: of four bits as f32. What has more is
// drawn or expanded, not widened.
constexpr int64_t kWidest = 8;

int64_t bytes_of(Node n) { return numel(n->shape()) * n->dtype.size(); }

// Bytes of the memory that a value is computed from.
int64_t bytes_below(Node root) {
  int64_t out = 0;
  visit_below({root}, [&](Node n) {
    const bool is_memory = n->realized != nullptr || n->op == Op::Buffer;
    if (is_memory) out += bytes_of(n);
    return !is_memory;
  });
  return out;
}

}  // namespace

Traced trace_function(const TensorFunction& function, const std::vector<Tensor>& examples,
                      const std::string& what) {
  Traced out;
  for (const Tensor& example : examples) out.inputs.push_back(stand_in(example, what));
  const RandomState before = random_state();
  const AssignmentLog assigned;
  out.outputs = function(out.inputs);
  const RandomState after = random_state();
  check(before.key == after.key && before.counter == after.counter, what,
        ": the function takes random numbers, which another program has not");
  for (const Node n : assigned.pending()) out.assigned.emplace_back(n);
  return out;
}

std::vector<Node> constants_of(const Traced& traced, bool small) {
  std::vector<Node> roots, inputs;
  for (const Tensor& t : traced.outputs) roots.push_back(t.node());
  for (const Tensor& t : traced.assigned) roots.push_back(t.node());
  const std::vector<Node> order = below(roots);
  NodeMap<bool> varies(order.size()), has_memory(order.size());
  for (const Tensor& t : traced.inputs) {
    varies[t.node()] = true;
    for (Node n = t.node(); n->op == Op::Reshape || n->op == Op::Bound; n = n->src(0))
      varies[n->src(0)] = true;
  }
  for (const Node n : order)  // what is assigned to is another value in each run
    if (n->op == Op::Assign && n->realized == nullptr)
      for (Node old = n->src(0);; old = old->realized ? old->realized.load() : old->src(0)) {
        varies[old] = true;
        if (old->op == Op::Buffer || (!old->realized && !passes_on(old))) break;
      }
  for (const Node n : order) {
    has_memory[n] = n->op == Op::Buffer || n->realized != nullptr;
    for (const Node s : sources(n)) {
      varies[n] = varies[n] || varies[s];
      has_memory[n] = has_memory[n] || has_memory[s];
    }
  }
  std::vector<Node> out, stack;
  NodeMap<char> seen;
  const auto add = [&](Node root) {
    stack.push_back(root);
    while (!stack.empty()) {
      Node n = stack.back();
      stack.pop_back();
      while (n->realized == nullptr && passes_on(n)) n = n->src(0);
      if (!has_memory[n] || varies[n] || n->realized != nullptr || n->op == Op::Buffer) continue;
      if (std::exchange(seen[n], 1)) continue;
      const int64_t below = small ? bytes_below(n) : 0;
      if (bytes_of(n) <= below || bytes_of(n) > kWidest * below)
        out.push_back(n);
      else
        stack.insert(stack.end(), n->srcs().begin(), n->srcs().end());
    }
  };
  for (const Node n : order)
    for (const Node s : sources(n))
      if (varies[n] && !varies[s]) add(s);
  for (const Node n : roots) add(n);
  std::ranges::sort(out);
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

}  // namespace tiny
