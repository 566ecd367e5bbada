#include "runtime/schedule/normalize.h"

#include <algorithm>

#include "runtime/device/buffer.h"
#include "runtime/distributed/collective.h"
#include "runtime/fusion/fuse.h"
#include "tiny/ir/build.h"

namespace tiny {

namespace {

// Whether copies can read it where it is: memory in its own order.
bool is_whole_memory(Node n) {
  while (n->op == Op::Reshape || n->op == Op::After) n = n->src(0);
  return n->op == Op::Param || n->op == Op::Copy;
}

// Whether it is a view of memory, and not computed.
bool is_memory(Node n) {
  for (Node next; (next = base_of(resolved(n))) != n;) n = next;
  return n->op == Op::Param || n->op == Op::Buffer;
}

bool is_empty(Node n) { return numel(n->shape()) == 0; }

// Nothing below a value without elements is read, nor what is padded, gathered or reduced from one.
// Such nodes become constants, so that no kernel has an operand without elements: indices of one
// would be divided by an extent of 0. nullptr for the others.
Node without_reads(Node n) {
  if (is_empty(n)) return build::full(n->shape(), n->dtype, int64_t{0});
  if (n->num_src == 0 || !is_empty(n->src(0))) return nullptr;
  if (n->op == Op::ReduceAxis) return build::identity(n->arg<ReduceArg>().op, n->dtype, n->shape());
  const bool is_zero = n->op == Op::Pad || n->op == Op::Gather;
  return is_zero ? build::full(n->shape(), n->dtype, int64_t{0}) : nullptr;
}

// Floats that were made wider and become as narrow as they were are those that they were.
Node without_widening(Node n) {
  if (n->op != Op::Cast || n->src(0)->op != Op::Cast || !n->dtype.is_float()) return n;
  Node wide = n->src(0), given = wide->src(0);
  const bool is_wider = wide->dtype.is_float() && wide->dtype.size() > n->dtype.size();
  return given->dtype == n->dtype && is_wider ? given : n;
}

// Whether memory of some device is read, or positions of one made.
bool is_placed(Node root) {
  const auto nodes = topological(root);
  return std::any_of(nodes.begin(), nodes.end(),
                     [](Node n) { return n->op == Op::Param || n->device; });
}

}  // namespace

Normalized normalize(std::span<const Node> roots) {
  Normalized out;
  NodeMap<Node> done;
  std::vector<Node> stack;
  std::vector<Node> srcs;
  bool has_new_constants = false;  // something became a constant
  for (Node r : roots) stack.push_back(resolved(r));
  std::reverse(stack.begin(), stack.end());
  while (!stack.empty()) {
    Node n = stack.back();
    if (done.contains(n)) {
      stack.pop_back();
      continue;
    }
    if (Node constant = without_reads(n)) {
      stack.pop_back();
      done[n] = constant;
      has_new_constants = true;
      continue;
    }
    const size_t before = stack.size();
    for (Node s : n->srcs())
      if (!done.contains(resolved(s))) stack.push_back(resolved(s));
    if (stack.size() != before) continue;
    stack.pop_back();
    if (n->op == Op::Buffer) {
      const int64_t arg[] = {static_cast<int64_t>(out.buffers.size()), n->arg<BufferArg>().size};
      done[n] = make(Op::Param, n->dtype, {}, Ints(arg));
      out.buffers.push_back(n);
      continue;
    }
    srcs.clear();
    for (Node s : n->srcs()) srcs.push_back(*done.find(resolved(s)));
    for (Node& s : srcs) {
      if (n->op != Op::Copy || is_sum_by_kernel(n) || is_whole_memory(s)) continue;
      const LabelScope label(n->label);
      s = build::contiguous(s);
    }
    if (n->op == Op::Assign && is_memory(srcs[0]) && !is_memory(n->src(0)))
      srcs[0] = build::contiguous(srcs[0]);  // not that of the tensor that it turned out to equal
    // Views that were kept apart for what lies between them are one here, as they are without it.
    if (is_movement(n->op) && n->num_src == 1 && srcs[0]->op == n->op) {
      const LabelScope label(n->label);
      done[n] = build::movement(n->op, srcs[0], n->ints());
      continue;
    }
    done[n] = without_widening(with_sources(n, srcs));
  }
  for (Node r : roots) out.roots.push_back(*done.find(resolved(r)));
  if (!has_new_constants) return out;
  // A result of constants alone still lies where those lie that it had for sources.
  for (size_t i = 0; i < roots.size(); ++i)
    if (const int device = resolved(roots[i])->device; device && !is_placed(out.roots[i]))
      out.roots[i] = build::copy_to(build::contiguous(out.roots[i]), device);
  return out;
}

}  // namespace tiny
