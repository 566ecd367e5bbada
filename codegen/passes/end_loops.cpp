#include "codegen/kernel/access.h"
#include "codegen/kernel/lengths.h"
#include "codegen/passes/passes.h"

namespace tiny {

namespace {

bool is_loop(Node range, const Target& target) {
  const RangeKind k = kind(range);
  return k == RangeKind::Loop || k == RangeKind::Reduce ||
         (k == RangeKind::Core && target.kind == Target::Kind::Cpu);
}

}  // namespace

Node end_loops(Node sink, const Target& target) {
  if (all_of(sink, Op::Bound).empty() || !all_of(sink, Op::Matrix).empty()) return sink;
  NodeMap<Node> now;
  for (Node range : all_of(sink, Op::Range)) {
    if (!is_loop(range, target)) continue;
    Node end = end_of_loop(sink, range);
    if (!end) continue;
    if (end->vmin < 0) end = make(Op::Max, kIndex, {end, index(0)});
    if (end->vmax > extent(range)) end = make(Op::Min, kIndex, {end, index(extent(range))});
    now[range] = make(Op::Range, kIndex, {end}, range->payload);
  }
  std::vector<Node> srcs;
  for (Node n : topological(sink)) {
    if (now.contains(n)) continue;
    srcs.clear();
    for (Node s : n->srcs()) srcs.push_back(*now.find(s));
    now[n] = with_sources(n, srcs);
  }
  return *now.find(sink);
}

}  // namespace tiny
