#include "codegen/passes/passes.h"

#include "codegen/kernel/access.h"
#include "codegen/kernel/lengths.h"
#include "codegen/kernel/option.h"

namespace tiny {

namespace {

int divisions(Node sink) {
  int count = 0;
  for (Node n : topological(sink)) {
    const bool gated = n->op == Op::Lt || n->op == Op::And;
    count += (n->op == Op::FloorDiv || n->op == Op::FloorMod) && n->dtype == kIndex;
    count += gated;
  }
  return count;
}

// Whether all that runs in one of the two loops runs in the other too, as a loop of the same kind.
bool go_together(Node sink, Node a, Node b) {
  if (kind(a) != kind(b)) return false;
  for (Node n : topological(sink)) {
    if (n->op == Op::Store && (n->ranges >> range_id(a) & 1) != (n->ranges >> range_id(b) & 1))
      return false;
    if (n->op != Op::Reduce) continue;
    int closes = 0;
    for (Node r : n->srcs().subspan(1)) closes += r == a || r == b;
    if (closes == 1) return false;
  }
  return true;
}

// Where every access is linear in both, the steps alone decide.
bool may_merge(Node sink, Node a, Node b) {
  for (const Access& access : accesses(sink)) {
    const int64_t outer = stride(access.node, range_id(a)),
                  inner = stride(access.node, range_id(b));
    if (outer != kIrregular && inner != kIrregular && outer != inner * extent(b)) return false;
  }
  return go_together(sink, a, b);
}

}  // namespace

Node merge_ranges(Node sink, const Target& target) {
  const std::vector<Node> ranges = ranges_of(sink);
  for (size_t i = ranges.size(); i-- > 1;) {
    const std::vector<Node> now = ranges_of(sink);
    // The inner range of an earlier merge is gone; its place is taken by the merged one.
    Node a = nullptr, b = nullptr;
    for (size_t k = 0; k + 1 < now.size(); ++k)
      if (range_id(now[k]) == range_id(ranges[i - 1])) {
        a = now[k];
        b = now[k + 1];
      }
    if (!a || !may_merge(sink, a, b)) continue;
    if (has_length(sink, a) || has_length(sink, b)) continue;
    Node merged = apply(sink, {OptKind::Merge, range_id(a), range_id(b), {}}, target);
    if (divisions(merged) <= divisions(sink)) sink = merged;
  }
  return sink;
}

}  // namespace tiny
