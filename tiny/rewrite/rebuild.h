// Graphs made anew from the sources up, where the change needs more than a rule sees.
#pragma once
#include <span>
#include <vector>

#include "tiny/ir/node.h"

namespace tiny {

// The node on what became of its sources.
inline Node on_new_sources(Node n, const NodeMap<Node>& now) {
  std::vector<Node> srcs;
  for (Node s : n->srcs()) srcs.push_back(*now.find(s));
  return with_sources(n, srcs);
}

// The replacement of each node of a graph, given with sources before users: make(node, its new
// sources).
template <class Make> NodeMap<Node> remake(std::span<const Node> order, Make make) {
  NodeMap<Node> done(order.size());
  std::vector<Node> srcs;
  for (Node n : order) {
    srcs.clear();
    for (Node s : n->srcs()) srcs.push_back(*done.find(s));
    Node now = make(n, srcs);
    done[n] = now;
  }
  return done;
}
template <class Make> Node remake(Node root, Make make) {
  return *remake(topological(root), make).find(root);
}

// The same by change(node, the same on its new sources).
template <class Change> NodeMap<Node> rebuild_all(std::span<const Node> order, Change change) {
  return remake(order, [&](Node n, const std::vector<Node>& srcs) {
    return change(n, with_sources(n, srcs));
  });
}

// What became of these nodes.
inline std::vector<Node> replaced_by(const NodeMap<Node>& now, std::span<const Node> nodes) {
  std::vector<Node> out;
  for (Node n : nodes) out.push_back(*now.find(n));
  return out;
}

// Of the nodes below the roots.
template <class Change> NodeMap<Node> rebuild(std::span<const Node> roots, Change change) {
  return rebuild_all(topological(roots), change);
}

template <class Change> Node rebuild(Node root, Change change) {
  return *rebuild(std::span<const Node>(&root, 1), change).find(root);
}

// Two rewrites of the graph below the roots as one: nodes that the second does not know are gone.
inline NodeMap<Node> one_after_the_other(std::span<const Node> roots, const NodeMap<Node>& first,
                                         const NodeMap<Node>& second) {
  NodeMap<Node> out;
  for (Node n : topological(roots))
    if (const Node* between = first.find(n))
      if (const Node* now = second.find(*between)) out[n] = *now;
  return out;
}

}  // namespace tiny
