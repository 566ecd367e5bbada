#include "codegen/passes/passes.h"

#include <algorithm>

#include "tiny/base/error.h"
#include "tiny/rewrite/rebuild.h"

namespace tiny {

namespace {

bool is_index(Node n) { return n->dtype.scalar == Scalar::Index; }

bool fits_i32(Node n) { return n->vmin >= INT32_MIN && n->vmax <= INT32_MAX; }

// An operation is exact in i32 where its result and all that it is computed from fit.
Scalar width_of(Node n, const Target& target) {
  const bool wants_i32 = n->dtype.lanes > 1 || target.kind == Target::Kind::Gpu;
  const bool fits = fits_i32(n) && std::ranges::all_of(n->srcs(), [](Node s) {
                      return !is_index(s) || fits_i32(s);
                    });
  return wants_i32 && fits ? Scalar::I32 : Scalar::I64;
}

// `n`, of a width already, in another one. Its value fits both.
Node to_width(Node n, Scalar width) {
  const DType to{width, n->dtype.lanes};
  if (n->dtype == to) return n;
  if (n->is_const()) return constant(to, n->int_value());
  return make(Op::Cast, to, {n});
}

// Sources that were Index, in the width `n` needs them in.
void unify(Node n, std::vector<Node>& srcs, Scalar width) {
  for (size_t i = 0; i < srcs.size(); ++i)
    if (is_index(n->src(static_cast<int>(i)))) srcs[i] = to_width(srcs[i], width);
}

Node convert(Node n, std::vector<Node>& srcs, const Target& target) {
  if (is_index(n)) {
    const Scalar width = width_of(n, target);
    const DType dtype{width, n->dtype.lanes};
    if (n->is_const()) return constant(dtype, n->int_value());
    // A cast to Index keeps its source; from one, it is at most a change of width.
    if (n->is(Op::Cast) && is_index(n->src(0))) return to_width(srcs[0], width);
    unify(n, srcs, width);
    return make(n->op, dtype, srcs, n->payload);
  }
  if (is_comparison(n->op) && is_index(n->src(0))) {
    const bool narrow =
        std::ranges::all_of(srcs, [](Node s) { return s->dtype.scalar == Scalar::I32; });
    unify(n, srcs, narrow ? Scalar::I32 : Scalar::I64);
  }
  return with_sources(n, srcs);  // loads and stores take an index of either width
}

}  // namespace

Node choose_index_width(Node sink, const Target& target) {
  return remake(sink, [&](Node n, std::vector<Node>& srcs) { return convert(n, srcs, target); });
}

}  // namespace tiny
