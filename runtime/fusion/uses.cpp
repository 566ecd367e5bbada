#include "runtime/fusion/uses.h"

#include <queue>
#include <utility>

#include "codegen/kernel/lengths.h"
#include "runtime/analysis/views.h"

namespace tiny {

Uses::Uses(std::span<const Node> roots, std::span<const Node> order) {
  for (Node n : order) {
    position_[n] = position_.size();
    for (Node s : used_sources(n)) users_[s].push_back(n);
  }
  for (Node r : roots) is_root_[r] = 1;
}

size_t Uses::count(Node n) const {
  const auto* users = of(n);
  return users ? users->size() : 0;
}

Node Uses::product_of(Node n) const {
  for (int depth = 0; depth < 12; ++depth) {
    const auto* users = of(n);
    if (!users || users->empty()) return nullptr;
    n = users->front();
    if (n->op == Op::ReduceAxis) return n;
    const bool passed_on = n->op == Op::Mul || n->op == Op::Cast || selects_by_length(n);
    if (!is_movement(n->op) && !passed_on) return nullptr;
  }
  return nullptr;
}

bool Uses::meet_again(Node n) const {
  constexpr int kMax = 256;  // nodes
  const auto later = [&](Node a, Node b) { return *position_.find(a) > *position_.find(b); };
  std::priority_queue<Node, std::vector<Node>, decltype(later)> open(later);
  NodeMap<char> seen;
  open.push(n);
  for (int i = 0; i < kMax && !open.empty(); ++i) {
    Node at = open.top();
    open.pop();
    if (i > 0 && open.empty()) return true;
    const auto* users = of(at);
    if (!users || is_root_.contains(at)) return false;
    for (Node user : *users) {
      if (!is_elementwise(user->op) || !same(user->shape(), n->shape())) return false;
      if (!std::exchange(seen[user], 1)) open.push(user);
    }
  }
  return false;
}

}  // namespace tiny
