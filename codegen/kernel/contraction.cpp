#include "codegen/kernel/contraction.h"

#include <utility>

#include "tiny/rewrite/algebra.h"

namespace tiny {

Node Contraction::gate() const {
  Node out = nullptr;
  for (Node mask : masks) out = both(out, mask->src(0));
  return out;
}

std::optional<Contraction> contraction_of(Node reduce) {
  Contraction c;
  c.reduce = reduce;
  c.product = reduce->src(0);
  for (Node& n = c.product; n->op != Op::Mul; n = n->src(n->op == Op::Where ? 1 : 0)) {
    if (n->op == Op::Where && n->src(2)->is_const(0))
      c.masks.push_back(n);
    else if (n->op == Op::Cast)
      c.is_converted = true;
    else
      return {};
  }
  if (reduce->arg<OpArg>().op != Op::Add) return {};
  c.a = c.product->src(0);
  c.b = c.product->src(1);
  c.k = reduced_ranges(reduce);
  return c;
}

std::optional<Contraction> only_contraction(Node sink) {
  const std::vector<Node> reduces = all_of(sink, Op::Reduce);
  return reduces.size() == 1 ? contraction_of(reduces[0]) : std::nullopt;
}

std::vector<Node> reductions_along(Node sink, int id) {
  std::vector<Node> out = all_of(sink, Op::Reduce);
  const uint64_t bit = id < 0 ? 0 : uint64_t{1} << id;
  std::erase_if(out, [&](Node reduce) { return !(reduced_ranges(reduce) & bit); });
  return out;
}

void turn_to_store(Contraction& c, Node store) {
  for (int id = 0; id < 64; ++id)
    if ((c.m() >> id & 1) && stride(store, id) == 1) return std::swap(c.a, c.b);
}

}  // namespace tiny
