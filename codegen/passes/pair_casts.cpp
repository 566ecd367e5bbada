#include <map>
#include <set>
#include <utility>

#include "codegen/kernel/facts.h"
#include "codegen/options/mma.h"
#include "codegen/passes/passes.h"
#include "tiny/rewrite/rewrite.h"

namespace tiny {

namespace {

bool is_rounded(Node n) {
  return n->op == Op::Cast && n->dtype.lanes == 1 && n->dtype.is_half() && n->src(0)->dtype == kF32;
}

// Pairs the outermost casts at the same places of two values that are computed alike.
// `seen`: values that were looked at, together.
void find_pairs(Node a, Node b, NodeMap<Node>& map, std::set<std::pair<Node, Node>>& seen) {
  if (a == b || a->op != b->op || a->num_src != b->num_src || !is_elementwise(a->op) ||
      map.contains(a) || map.contains(b) || !seen.emplace(a, b).second)
    return;
  if (is_rounded(a) && is_rounded(b)) {
    const int64_t both[] = {0, 1};
    Node wide = make(Op::Shuffle, kF32.vec(2), {a->src(0), b->src(0)}, Ints(both));
    Node pair = make(Op::Cast, a->dtype.vec(2), {wide});
    for (int lane : {0, 1})
      map[lane ? b : a] = make(Op::Shuffle, a->dtype, {pair, pair}, Ints(&both[lane], 1));
    return;
  }
  for (uint32_t i = 0; i < a->num_src; ++i)
    find_pairs(a->src(static_cast<int>(i)), b->src(static_cast<int>(i)), map, seen);
}

bool is_pair(Node n) {
  return n->op == Op::Shuffle && n->dtype == kF32.vec(2) && n->src(0)->dtype.lanes == 1;
}

// Both elements of such a pair in f32 again, a word at a time: where sums roll along with them, and
// not in gradients (measurements.md: widen_pairs).
Node widen_pairs(Node sink) {
  NodeMap<Node> map;
  for (Node n : topological(sink)) {
    Node lane = n->op == Op::Cast && n->dtype == kF32 ? n->src(0) : nullptr;
    if (!lane || lane->op != Op::Shuffle || lane->src(0) != lane->src(1)) continue;
    Node pair = lane->src(0);
    if (pair->op != Op::Cast || pair->dtype.lanes != 2 || !is_pair(pair->src(0))) continue;
    Node wide = make(Op::Cast, kF32.vec(2), {pair});
    map[n] = make(Op::Shuffle, kF32, {wide, wide}, lane->payload);
  }
  return map.size() ? substitute(sink, map) : sink;
}

// Where a scalar load reads, without the constant that is added to it.
struct Place {
  Node param, first;
  int64_t offset = 0;
};
Place place_of(Node load) {
  Node at = load->src(1);
  if (at->op == Op::Add && at->src(1)->is_const())
    return {load->src(0), at->src(0), at->src(1)->int_value()};
  return {load->src(0), at, 0};
}

// Pairs of elements that lie side by side, from memory that the kernel does not write. Few, as of
// what there is for each row, would only take their registers early.
NodeMap<Node> find_neighbours(Node sink) {
  constexpr size_t kMany = 32;
  std::vector<Node> written;
  for (Node s : sink->srcs())
    if (s->op == Op::Store) written.push_back(s->src(0));
  std::map<std::pair<Node, Node>, std::map<int64_t, Node>> places;
  std::map<Node, size_t> count;
  for (Node n : all_of(sink, Op::Load)) {
    const bool is_plain = n->num_src == 2 && n->dtype.lanes == 1 && n->src(1)->dtype.lanes == 1 &&
                          n->src(0)->op == Op::Param;
    if (!is_plain || contains(written, n->src(0))) continue;
    const Place p = place_of(n);
    places[{p.param, p.first}][p.offset] = n;
    ++count[p.param];
  }
  NodeMap<Node> map;
  for (const auto& [place, loads] : places)
    for (const auto& [offset, low] : loads) {
      const auto high = loads.find(offset + 1);
      if (high == loads.end() || known_factor(low->src(1)) % 2 || count[place.first] < kMany)
        continue;
      Node both = make(Op::Load, low->dtype.vec(2), {low->src(0), low->src(1)});
      for (const int64_t lane : {0, 1})
        map[lane ? high->second : low] =
            make(Op::Shuffle, low->dtype, {both, both}, Ints(&lane, 1));
    }
  return map;
}

}  // namespace

Node pair_loads(Node sink, const Target& target) {
  if (target.kind != Target::Kind::Gpu || target.language == Target::Language::LlvmIr) return sink;
  const NodeMap<Node> map = find_neighbours(sink);
  return map.size() ? substitute(sink, map) : sink;
}

Node pair_casts(Node sink, const Target& target) {
  if (target.kind != Target::Kind::Gpu || target.language == Target::Language::LlvmIr) return sink;
  for (;;) {
    NodeMap<Node> map;
    std::set<std::pair<Node, Node>> seen;
    for (Node n : topological(sink)) {
      if (is_pair(n)) find_pairs(n->src(0), n->src(1), map, seen);
      if (n->op != Op::Mma) continue;
      for (int i = 0; i + 1 < mma_a_count(n); i += 2)
        if (is_rounded(n->src(i))) find_pairs(n->src(i), n->src(i + 1), map, seen);
    }
    if (!map.size()) return all_of(sink, Op::Roll).empty() ? sink : widen_pairs(sink);
    sink = substitute(sink, map);
  }
}

}  // namespace tiny
