#include "codegen/options/mma.h"
#include "codegen/passes/passes.h"
#include "tiny/rewrite/rewrite.h"

namespace tiny {

namespace {

bool is_rounded(Node n) {
  return n->op == Op::Cast && n->dtype.lanes == 1 && n->dtype.is_half() && n->src(0)->dtype == kF32;
}

}  // namespace

Node pair_casts(Node sink, const Target& target) {
  if (target.kind != Target::Kind::Gpu || target.language == Target::Language::LlvmIr) return sink;
  NodeMap<Node> map;
  for (Node n : topological(sink)) {
    if (n->op != Op::Mma) continue;
    for (int i = 0; i + 1 < mma_unit(n).a_count(); i += 2) {
      Node a = n->src(i), b = n->src(i + 1);
      if (!is_rounded(a) || !is_rounded(b) || a == b || map.contains(a) || map.contains(b))
        continue;
      const int64_t both[] = {0, 1};
      Node wide = make(Op::Shuffle, kF32.vec(2), {a->src(0), b->src(0)}, Ints(both));
      Node pair = make(Op::Cast, a->dtype.vec(2), {wide});
      for (int lane : {0, 1})
        map[lane ? b : a] = make(Op::Shuffle, a->dtype, {pair, pair}, Ints(&both[lane], 1));
    }
  }
  return map.size() ? substitute(sink, map) : sink;
}

}  // namespace tiny
