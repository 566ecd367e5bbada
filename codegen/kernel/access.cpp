#include "codegen/kernel/access.h"

#include <algorithm>

#include "codegen/kernel/option.h"
#include "tiny/ir/sizes.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

Node make_range(int64_t extent, int id, RangeKind kind) {
  return make(Op::Range, kIndex, {index(extent)}, RangeArg{id, kind});
}

int64_t stride(Node access, int id) {
  const uint64_t bit = uint64_t{1} << id;
  Node at = access->src(1);
  if (!(at->ranges & bit)) return 0;
  int64_t step = 0;
  for (const auto& t : to_sum(at).terms) {
    if (!(t.atom->ranges & bit)) continue;
    if (t.atom->op != Op::Range) return kIrregular;
    step = t.factor;
  }
  return step;
}

namespace {

// Whether a reduction or a stage below the index has the range for a loop of its own.
bool is_closed_below(Node at, Node range) {
  const auto nodes = topological(at);
  return std::ranges::any_of(nodes, [&](Node n) {
    const auto srcs = n->srcs();
    return n->op != Op::Range && !(n->ranges & range->ranges) && contains(srcs, range);
  });
}

}  // namespace

int64_t stride_in_block(Node access, Node range, int64_t block) {
  const int64_t s = stride(access, range_id(range));
  if (s != kIrregular || block < 2 || is_closed_below(access->src(1), range)) return s;
  constexpr int kInner = 63;
  Node outer = make(Op::Range, kIndex, {index(ceil_div(extent(range), block))}, range->payload);
  Node inner = make(Op::Range, kIndex, {index(block)}, RangeArg{kInner});
  Node at = substitute(access->src(1), range, index_add(index_mul(outer, block), inner));
  int64_t step = 0;
  for (const auto& t : to_sum(simplify(at)).terms) {
    if (!(t.atom->ranges >> kInner & 1)) continue;
    if (t.atom->op != Op::Range) return kIrregular;
    step = t.factor;
  }
  return step;
}

uint64_t mask_of(Node n, std::initializer_list<RangeKind> kinds) {
  uint64_t out = 0;
  for (Node r : all_of(n, Op::Range))
    if (contains(kinds, kind(r))) out |= r->ranges;
  return out;
}

std::vector<Node> all_of(Node sink, Op op) {
  std::vector<Node> out;
  for (Node n : topological(sink))
    if (n->op == op) out.push_back(n);
  return out;
}

Node gated_load(Node n) {
  while (n->op == Op::Cast && n->dtype.is_float() && n->src(0)->dtype.is_float()) n = n->src(0);
  return n->op == Op::Load && n->num_src > 2 ? n : nullptr;
}

bool is_implied(Node one, Node by) {
  if (one == by) return true;
  if (one->op != Op::Lt || by->op != Op::Lt || one->src(0)->dtype != kIndex ||
      by->src(0)->dtype != kIndex)
    return false;
  const auto slack = [](Node n) { return index_add(n->src(1), index_mul(n->src(0), -1)); };
  Node more = index_add(slack(one), index_mul(slack(by), -1));
  return more->is_const() && more->int_value() >= 0;
}

uint64_t shared_ranges(Node sink) {
  uint64_t shared = ~uint64_t{0};
  for (Node s : sink->srcs()) shared &= s->ranges;
  return shared;
}

namespace {

// Loads below `item` (a store or the value of a reduction) that run in its loops.
void loads_of(Node n, NodeMap<char>& seen, std::vector<Node>& out) {
  if (seen.contains(n) || n->op == Op::Reduce || n->op == Op::Stage) return;
  seen[n] = 1;
  if (n->op == Op::Load) out.push_back(n);
  for (Node s : n->srcs()) loads_of(s, seen, out);
}

}  // namespace

std::vector<Access> accesses(Node sink) {
  std::vector<Access> out;
  const std::vector<Node> ranges = ranges_of(sink);
  for (Node item : topological(sink)) {
    if (item->op != Op::Reduce && item->op != Op::Store) continue;
    uint64_t enclosing = item->ranges;
    if (item->op == Op::Reduce) enclosing |= item->src(0)->ranges;
    const auto count = iterations_of<double>(ranges, enclosing);
    NodeMap<char> seen;
    std::vector<Node> nodes;
    for (Node s : item->srcs()) loads_of(s, seen, nodes);
    if (item->op == Op::Store) nodes.push_back(item);
    for (Node n : nodes) out.push_back({n, item, count, enclosing});
  }
  return out;
}

}  // namespace tiny
