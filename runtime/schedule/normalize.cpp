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
  while (n->op == Op::Reshape) n = n->src(0);
  return n->op == Op::Param || n->op == Op::Copy;
}

bool is_empty(Node n) { return numel(n->shape()) == 0; }

// Nothing below a value without elements is read, nor what is padded or gathered from one. Such
// nodes become constants, so that no kernel has an operand without elements: indices of one would
// be divided by an extent of 0.
bool reads_nothing(Node n) {
  return is_empty(n) || ((n->op == Op::Pad || n->op == Op::Gather) && is_empty(n->src(0)));
}

}  // namespace

Normalized normalize(std::span<const Node> roots) {
  Normalized out;
  NodeMap<Node> done;
  std::vector<Node> stack;
  std::vector<Node> srcs;
  for (Node r : roots) stack.push_back(resolved(r));
  std::reverse(stack.begin(), stack.end());
  while (!stack.empty()) {
    Node n = stack.back();
    if (done.contains(n)) {
      stack.pop_back();
      continue;
    }
    if (reads_nothing(n)) {
      stack.pop_back();
      done[n] = build::full(n->shape(), n->dtype, int64_t{0});
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
    done[n] = with_sources(n, srcs);
  }
  for (Node r : roots) out.roots.push_back(*done.find(resolved(r)));
  return out;
}

}  // namespace tiny
