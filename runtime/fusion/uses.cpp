#include "runtime/fusion/uses.h"

#include <queue>
#include <utility>

#include "codegen/kernel/lengths.h"
#include "runtime/analysis/views.h"

namespace tiny {

Uses::Uses(std::span<const Node> roots, std::span<const Node> order)
    : position_(order.size()), first_(order.size() + 2) {
  std::vector<uint32_t> sources;  // of all nodes in order, by position
  for (Node n : order) {
    position_[n] = static_cast<uint32_t>(position_.size());
    for (Node s : used_sources(n)) {
      sources.push_back(*position_.find(s));
      ++first_[sources.back() + 2];
    }
  }
  for (size_t i = 2; i < first_.size(); ++i) first_[i] += first_[i - 1];
  users_.resize(sources.size());
  auto source = sources.begin();
  for (Node n : order)
    for (size_t i = used_sources(n).size(); i > 0; --i) users_[first_[*source++ + 1]++] = n;
  for (Node r : roots) is_root_[r] = 1;
}

std::span<const Node> Uses::of(Node n) const {
  const uint32_t* at = position_.find(n);
  if (!at) return {};
  return std::span(users_).subspan(first_[*at], first_[*at + 1] - first_[*at]);
}

Node Uses::product_of(Node n) const {
  for (int depth = 0; depth < 12; ++depth) {
    const auto users = of(n);
    if (users.empty()) return nullptr;
    n = users.front();
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
    const auto users = of(at);
    if (users.empty() || is_root_.contains(at)) return false;
    for (Node user : users) {
      if (!is_elementwise(user->op) || !same(user->shape(), n->shape())) return false;
      if (!std::exchange(seen[user], 1)) open.push(user);
    }
  }
  return false;
}

}  // namespace tiny
