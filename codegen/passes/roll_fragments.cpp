#include <algorithm>

#include "codegen/passes/passes.h"
#include "tiny/rewrite/rewrite.h"

namespace tiny {

namespace {

// Of a sum of rolled elements of a fragment, the fragment; nullptr for any other node.
Node fragment_of(Node n) {
  if (n->op != Op::Reduce || n->arg<OpArg>().op != Op::Add || n->src(0)->op != Op::Roll)
    return nullptr;
  Node elements = n->src(0)->src(0);
  if (elements->op != Op::Shuffle || elements->src(0) != elements->src(1)) return nullptr;
  return elements->src(0)->op == Op::Mma ? elements->src(0) : nullptr;
}

std::span<const int64_t> lanes_of(Node sum) { return sum->src(0)->src(0)->ints(); }

// The scales of all of them as one vector; nullptr where they are too many.
Node joined(const std::vector<Node>& sums, int lanes) {
  std::vector<Node> own;
  std::vector<int64_t> picks;
  for (Node sum : sums) {
    Node scale = sum->src(0)->src(1);
    auto at = std::ranges::find(own, scale);
    if (at == own.end()) at = own.insert(at, scale);
    const int64_t begin = (at - own.begin()) * own[0]->dtype.lanes;
    for (int i = 0; i < scale->dtype.lanes; ++i) picks.push_back(begin + i);
  }
  if (own.size() == 1 && own[0]->dtype.lanes == lanes) return own[0];
  if (own.size() > 2) return nullptr;
  return make(Op::Shuffle, own[0]->dtype.vec(lanes), {own[0], own.back()}, Ints(picks));
}

// Whether these are all lanes of the fragment in order, and go through the same loops.
bool is_whole(const std::vector<Node>& sums, int lanes) {
  int64_t next = 0;
  for (Node sum : sums) {
    if (!std::ranges::equal(sum->srcs().subspan(1), sums[0]->srcs().subspan(1))) return false;
    for (int64_t lane : lanes_of(sum))
      if (lane != next++) return false;
  }
  return next == lanes;
}

}  // namespace

Node roll_fragments(Node sink) {
  NodeMap<std::vector<Node>> sums;
  NodeMap<char> running;  // terms whose accumulators are read while their loops go on
  const std::vector<Node> order = topological(sink);
  for (Node n : order) {
    if (Node all = fragment_of(n)) sums[all].push_back(n);
    if (n->op == Op::Prefix) running[n->src(0)] = 1;
  }
  NodeMap<Node> map;
  for (Node all : order) {
    std::vector<Node>* parts = sums.find(all);
    if (!parts) continue;
    std::ranges::sort(*parts, [](Node a, Node b) { return lanes_of(a)[0] < lanes_of(b)[0]; });
    const auto is_read = [&](Node sum) { return running.contains(sum->src(0)); };
    if (!is_whole(*parts, all->dtype.lanes) || std::ranges::any_of(*parts, is_read)) continue;
    Node scale = joined(*parts, all->dtype.lanes);
    if (!scale) continue;
    std::vector<Node> srcs((*parts)[0]->srcs().begin(), (*parts)[0]->srcs().end());
    srcs[0] = make(Op::Roll, all->dtype, {all, scale});
    Node sum = make(Op::Reduce, all->dtype, srcs, (*parts)[0]->payload);
    for (Node part : *parts)
      map[part] = make(Op::Shuffle, part->dtype, {sum, sum}, part->src(0)->src(0)->payload);
  }
  return map.size() ? substitute(sink, map) : sink;
}

}  // namespace tiny
