#include "codegen/estimate.h"

#include "codegen/kernel/access.h"
#include "codegen/kernel/facts.h"
#include "codegen/kernel/option.h"

namespace tiny {

KernelWork estimate_work(Node sink) {
  KernelWork out;
  for (Node p : all_of(sink, Op::Param))
    out.bytes += static_cast<double>(elements_of(p) * p->dtype.size());
  const std::vector<Node> ranges = ranges_of(sink);
  for (Node n : topological(sink)) {
    const bool arithmetic = is_elementwise(n->op) && n->dtype.is_float() && n->op != Op::Cast;
    if (!arithmetic && n->op != Op::Reduce) continue;
    const uint64_t enclosing = n->op == Op::Reduce ? n->src(0)->ranges : n->ranges;
    out.flops += iterations_of<double>(ranges, enclosing);
  }
  return out;
}

}  // namespace tiny
