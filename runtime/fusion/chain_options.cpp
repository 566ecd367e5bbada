#include "runtime/fusion/chain_options.h"

#include <mutex>
#include <utility>
#include <vector>

#include "codegen/heuristics/heuristics.h"
#include "codegen/passes/passes.h"
#include "runtime/device/lru.h"
#include "tiny/base/env.h"
#include "tiny/base/text.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

Node argument(int slot, Node value) {
  Shape dims{slot};
  dims.insert(dims.end(), value->shape().begin(), value->shape().end());
  return make(Op::Param, value->dtype, {}, Ints(dims));
}

NodeRef kernel_that_stores(std::span<const Node> outputs, const NodeMap<Node>& now) {
  std::vector<Node> stores;
  for (Node n : outputs)
    stores.push_back(
        make(Op::Store, kVoid, {argument(static_cast<int>(stores.size()), n), *now.find(n)}));
  return NodeRef(make(Op::Sink, kVoid, stores));
}

bool has_chain_options(NodeRef kernel, const Target& target) {
  static std::mutex mutex;
  static auto& known = *new Lru<std::pair<NodeRef, bool>>;
  const std::string key =
      cat(reinterpret_cast<uintptr_t>(kernel.get()), ' ', target.arch, ' ', env_kernel_key());
  {
    std::lock_guard lock(mutex);
    if (const auto* entry = known.find(key)) return entry->second;
  }
  bool any = false;
  {
    Arena arena;
    ArenaScope scope(arena);
    Node loops = merge_ranges(simplify(to_ranges(kernel.get())), target);
    if (target.kind == Target::Kind::Gpu) loops = find_scans(loops);
    any = choose_chain_options(loops, target).has_value();
  }
  std::lock_guard lock(mutex);
  return known.insert(key, {std::move(kernel), any}, 256).second;
}

bool has_chain_options(std::span<const Node> outputs, std::span<const Node> inputs,
                       const Target& target) {
  NodeMap<Node> now;
  int slot = static_cast<int>(outputs.size());
  for (Node n : inputs) now[n] = argument(slot++, n);
  // From the outputs down, and up again: what is behind an input is not looked at.
  NodeMap<char> seen;
  std::vector<Node> stack(outputs.begin(), outputs.end()), srcs;
  while (!stack.empty()) {
    Node n = stack.back();
    if (n->op == Op::After && !now.contains(n)) now[n] = argument(slot++, n);
    if (now.contains(n)) {
      stack.pop_back();
    } else if (!std::exchange(seen[n], 1)) {
      stack.insert(stack.end(), n->srcs().begin(), n->srcs().end());
    } else {
      stack.pop_back();
      srcs.clear();
      for (Node s : n->srcs()) srcs.push_back(*now.find(s));
      now[n] = with_sources(n, srcs);
    }
  }
  return has_chain_options(kernel_that_stores(outputs, now), target);
}

}  // namespace tiny
