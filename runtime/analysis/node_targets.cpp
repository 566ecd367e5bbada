#include "runtime/analysis/node_targets.h"

#include <algorithm>

#include "codegen/kernel/facts.h"
#include "runtime/device/device.h"

namespace tiny {

NodeTargets::NodeTargets(const std::vector<int>& inputs, int fallback)
    : inputs_(inputs), fallback_(fallback) {
  const bool same = std::ranges::all_of(inputs, [&](int d) { return d == inputs[0]; });
  if (same) common_ = inputs.empty() ? fallback : inputs[0];
}

const Target& NodeTargets::of(Node n) const {
  if (all_) return *all_;
  int device = device_of(n);
  if (!device) device = fallback_;
  for (const auto& [known, target] : targets_)
    if (known == device) return *target;
  const std::span<const int> members = device_members(device);
  const Target& target = find_device(device_name(members.empty() ? device : members[0])).target();
  targets_.emplace_back(device, &target);
  return target;
}

// A node that a Copy feeds knows its device (tiny/ir/facts.cpp). Others have that of a Param.
int NodeTargets::device_of(Node root) const {
  if (all_) return 0;
  if (root->device) return root->device;
  if (common_) return common_;
  std::vector<Node> stack{root};
  while (!stack.empty()) {
    Node n = stack.back();
    int device = n->op == Op::Param ? inputs_[slot_of(n)] : n->device;
    const size_t before = stack.size();
    for (size_t i = 0; !device && i < n->num_src; ++i) {
      if (const int* of = known_.find(n->src(i)))
        device = *of;
      else
        stack.push_back(n->src(i));
    }
    if (!device && stack.size() != before) continue;
    stack.resize(before - 1);
    known_[n] = device;
  }
  return *known_.find(root);
}

}  // namespace tiny
