#include "runtime/schedule/passes.h"

#include <vector>

#include "tiny/ir/build.h"

namespace tiny {

namespace {

Node counted_elements(Node n, const std::vector<Node>& lengths) {
  Node mask = nullptr;
  for (int i = 0; i < n->rank; ++i) {
    if (!lengths[i]) continue;
    const DType t = n->shape()[i] < INT32_MAX ? kI32 : kI64;  // as in build::filled
    Node part = build::binary(Op::Lt, build::iota(n->shape(), i, t),
                              build::full(n->shape(), build::cast(lengths[i], t)));
    mask = mask ? build::binary(Op::And, mask, part) : part;
  }
  return mask;
}

// The mask of a node in terms of its source's elements: nullptr where it says nothing about them.
Node of_source(Node n, Node mask) {
  Node s = n->src(0);
  switch (n->op) {
    case Op::Contiguous: return mask;
    case Op::Reshape: return build::reshape(mask, s->shape());
    case Op::Permute: {
      std::vector<int64_t> back(static_cast<size_t>(n->rank));
      for (int i = 0; i < n->rank; ++i) back[static_cast<size_t>(n->ints()[i])] = i;
      return build::permute(mask, back);
    }
    case Op::ReduceAxis: return build::expand(mask, s->shape());
    default: return is_elementwise(n->op) && n->num_src == 1 ? mask : nullptr;
  }
}

}  // namespace

NodeMap<Node> elements_within_lengths(std::span<const Node> given, const NodeMap<Node>& plain,
                                      const NodeMap<Node>& now, std::span<const Node> roots) {
  // A node that also stands for one without lengths is needed as a whole.
  NodeMap<std::vector<Node>> all;
  const std::vector<Node> order = topological(given);
  for (Node n : order) {
    const Node* s = now.find(n);
    if (n->op == Op::Limit || n->op == Op::Whole || !s) continue;
    std::vector<Node> lengths;
    for (int i = 0; n->lengths && i < n->rank; ++i)
      lengths.push_back(n->length(i) ? *plain.find(n->length(i)) : nullptr);
    if (std::vector<Node>* before = all.find(*s)) {
      if (*before != lengths) before->clear();
    } else {
      all[*s] = std::move(lengths);
    }
  }
  NodeMap<int> readers = count_users(roots);
  for (Node r : roots) ++readers[r];
  NodeMap<Node> needed;
  for (Node n : order) {
    const Node* s = now.find(n);
    const auto* lengths = s ? all.find(*s) : nullptr;
    if (!lengths || lengths->empty()) continue;
    Node at = *s, mask = needed[at] = counted_elements(at, *lengths);
    while (at->num_src > 0) {
      Node below = at->src(0);
      const int* count = readers.find(below);
      const auto* own = all.find(below);
      if (!count || *count != 1 || (own && !own->empty())) break;
      if (!(mask = of_source(at, mask))) break;
      needed[at = below] = mask;
    }
  }
  return needed;
}

}  // namespace tiny
