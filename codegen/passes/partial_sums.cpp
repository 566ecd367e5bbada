#include "codegen/passes/passes.h"

#include <algorithm>

#include "codegen/kernel/access.h"
#include "tiny/rewrite/rebuild.h"

namespace tiny {

namespace {

constexpr int64_t kMaxTerms = 512;  // that one accumulator adds
constexpr int64_t kMinTerms = 32;   // of a part, so that parts cost little

bool is_sum(Node n) {
  return n->op == Op::Reduce && n->arg<OpArg>().op == Op::Add && n->dtype.scalar == Scalar::F32 &&
         n->src(0)->op != Op::Roll;
}

// A loop of a sum with more terms than it should have, nullptr where there is none. What is summed
// beside rolled sums goes along with them in their order.
Node long_loop(Node sink) {
  uint64_t rolled = 0;
  for (Node n : topological(sink))
    if (n->op == Op::Reduce && n->src(0)->op == Op::Roll) rolled |= reduced_ranges(n);
  for (Node n : topological(sink)) {
    if (!is_sum(n)) continue;
    for (Node r : n->srcs().subspan(1))
      if (kind(r) == RangeKind::Reduce && r->src(0)->is_const() && extent(r) > kMaxTerms &&
          !(r->ranges & rolled))
        return r;
  }
  return nullptr;
}

// The largest divisor that is long enough for a part, else the longest part.
int64_t part_of(int64_t n) {
  for (int64_t part = kMaxTerms; part >= kMinTerms; --part)
    if (n % part == 0) return part;
  return kMaxTerms;
}

// The sum as sums of sums, from the innermost loop outwards: a new accumulator wherever the terms
// would be too many.
Node nested(Node sum) {
  std::vector<Node> loops(sum->srcs().begin() + 1, sum->srcs().end());
  std::ranges::sort(loops, [](Node a, Node b) { return range_id(a) > range_id(b); });
  Node value = sum->src(0);
  for (size_t i = 0; i < loops.size();) {
    std::vector<Node> srcs{value};
    for (int64_t terms = 1; i < loops.size(); ++i) {
      terms *= extent(loops[i]);
      if (srcs.size() > 1 && terms > kMaxTerms) break;
      srcs.insert(srcs.begin() + 1, loops[i]);
    }
    value = make(Op::Reduce, sum->dtype, srcs, sum->payload);
  }
  return value;
}

}  // namespace

std::vector<Opt> split_sums(Node sink, const Target& target) {
  std::vector<Opt> out;
  if (target.kind != Target::Kind::Cpu) return out;
  while (Node r = long_loop(sink)) {
    const int inner = next_range_id(sink);
    if (inner >= 62) break;
    Opt order{OptKind::Order, 0, 0, {}};
    for (Node other : ranges_of(sink)) {
      order.axes.push_back(range_id(other));
      if (other == r) order.axes.push_back(inner);
    }
    for (const Opt& o : {Opt{OptKind::Split, range_id(r), part_of(extent(r)), {}}, order}) {
      sink = apply(sink, o, target);
      out.push_back(o);
    }
  }
  return out;
}

Node nest_sums(Node sink, const Target& target) {
  if (target.kind != Target::Kind::Cpu) return sink;
  return rebuild(
      sink, [](Node, Node now) { return is_sum(now) && now->num_src > 2 ? nested(now) : now; });
}

}  // namespace tiny
