#include "runtime/fusion/dependence_graph.h"

#include <algorithm>
#include <utility>

#include "tiny/base/error.h"
#include "tiny/ir/node.h"

namespace tiny {

int DependenceGraph::add() {
  const int v = static_cast<int>(vertices_.size());
  vertices_.push_back({.place = v});
  order_.push_back(v);
  return v;
}

void DependenceGraph::set_producers(int v, std::vector<int> producers) {
  vertices_[v].producers = std::move(producers);
}

int DependenceGraph::find(int v) const {
  for (int into; (into = vertices_[v].merged_into) >= 0; v = into)
    if (const int next = vertices_[into].merged_into; next >= 0) vertices_[v].merged_into = next;
  return v;
}

std::vector<int> DependenceGraph::producers(int v) const {
  std::vector<int> out;
  visit_producers(v, [&](int p) {
    if (!contains(out, p)) out.push_back(p);
  });
  return out;
}

bool DependenceGraph::depends(int v, int on) const {
  return v == on || contains(producers(v), on) || reaches_otherwise(on, v);
}

// Visits what lies between the two, until visit(vertex) is true.
template <class Visit> void DependenceGraph::visit_between(int p, int c, Visit visit) const {
  ++search_;
  std::vector<int> stack{c};
  while (!stack.empty()) {
    const int v = stack.back();
    stack.pop_back();
    for (int first : vertices_[v].producers) {
      const int q = find(first);
      if (vertices_[q].place <= vertices_[p].place || q == c) continue;
      if (std::exchange(vertices_[q].searched_by, search_) == search_) continue;
      if (visit(q)) return;
      stack.push_back(q);
    }
  }
}

bool DependenceGraph::reaches_otherwise(int p, int c) const {
  bool found = false;
  visit_between(p, c, [&](int v) {
    return found = std::ranges::any_of(vertices_[v].producers, [&](int q) { return find(q) == p; });
  });
  return found;
}

std::vector<int> DependenceGraph::between(int p, int c) const {
  std::vector<int> out;
  visit_between(p, c, [&](int v) {
    out.push_back(v);
    return false;
  });
  return out;
}

void DependenceGraph::merge(int p, int c) {
  place_together(p, c);
  vertices_[p].merged_into = c;
}

// Of what lies between two vertices that become one, all that the later one depends on comes before
// them, the rest behind.
void DependenceGraph::place_together(int p, int c) {
  const auto [first, last] =
      std::minmax(p, c, [&](int a, int b) { return vertices_[a].place < vertices_[b].place; });
  const int begin = vertices_[first].place, end = vertices_[last].place;
  std::vector<int> order = between(first, last);
  std::ranges::sort(order, {}, [&](int v) { return vertices_[v].place; });
  order.push_back(c);
  std::vector<int> behind;
  for (int at = begin; at <= end; ++at)
    if (const int v = order_[at]; v != p && v != c && vertices_[v].searched_by != search_)
      behind.push_back(v);
  order.insert(order.end(), behind.begin(), behind.end());
  order.push_back(p);
  for (size_t i = 0; i < order.size(); ++i) {
    vertices_[order[i]].place = begin + static_cast<int>(i);
    order_[vertices_[order[i]].place] = order[i];
  }
}

std::vector<int> DependenceGraph::sources_first() const {
  enum { kNew, kOpen, kDone };
  std::vector<char> state(vertices_.size(), kNew);
  std::vector<int> order, stack;
  for (int root = 0; root < static_cast<int>(vertices_.size()); ++root) {
    if (find(root) == root) stack.push_back(root);
    while (!stack.empty()) {
      const int v = stack.back();
      if (state[v] == kNew) {
        state[v] = kOpen;
        for (int p : producers(v)) {
          expect(state[p] != kOpen, "kernels depend on each other in a circle");
          if (state[p] == kNew) stack.push_back(p);
        }
        continue;
      }
      stack.pop_back();
      if (std::exchange(state[v], kDone) == kOpen) order.push_back(v);
    }
  }
  return order;
}

}  // namespace tiny
