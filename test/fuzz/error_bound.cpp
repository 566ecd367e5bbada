#include "test/fuzz/error_bound.h"

#include <cmath>

#include "tiny/ir/build.h"

namespace tiny::fuzz {

namespace {

using build::binary;
using build::unary;

Node magnitude(Node n) {
  Node x = build::cast(n, kF64);
  return binary(Op::Max, x, unary(Op::Neg, x));
}
Node scaled(Node x, double factor) {
  return binary(Op::Mul, x, build::full(x->shape(), kF64, factor));
}
Node sum(Node x, Node y) { return !x ? y : !y ? x : binary(Op::Add, x, y); }
Node product(Node x, Node y) { return x && y ? binary(Op::Mul, x, y) : nullptr; }
Node plus(Node x, double c) { return binary(Op::Add, x, build::full(x->shape(), kF64, c)); }
Node zeros(Node like) { return build::full(like->shape(), kF64, 0.0); }

double elements(Node n) { return static_cast<double>(numel(n->shape())); }

// |f'(x)| times the source's error, and the rounding of f itself.
Node through_unary(Node n, Node e) {
  Node x = magnitude(n->src(0)), y = magnitude(n);
  switch (n->op) {
    case Op::Neg: return e;
    case Op::Recip: return sum(product(e, binary(Op::Mul, y, y)), scaled(y, 2));
    case Op::Sqrt: return sum(e ? binary(Op::Div, e, scaled(y, 2)) : nullptr, scaled(y, 2));
    case Op::Exp2: return sum(product(e, y), binary(Op::Mul, scaled(y, 4), plus(x, 1)));
    case Op::Log2:
      return sum(e ? binary(Op::Div, scaled(e, 2), x) : nullptr, scaled(plus(y, 1), 4));
    case Op::Sin: return sum(e, scaled(plus(scaled(x, 0.1), 1), 4));
    default: return e;  // exact sources only
  }
}

Node through_binary(Node n, Node ex, Node ey) {
  Node x = magnitude(n->src(0)), y = magnitude(n->src(1)), out = magnitude(n);
  switch (n->op) {
    case Op::Add:
    case Op::Sub: return sum(sum(ex, ey), sum(out, scaled(sum(x, y), 0.5)));
    case Op::Mul: {
      Node both = product(ex, ey);  // all that is left where both should be zero
      const Node first = sum(sum(product(ex, y), product(ey, x)), out);
      return sum(first, both ? scaled(both, 0x1p-22) : nullptr);
    }
    case Op::Div:
      return sum(sum(ex ? binary(Op::Div, ex, y) : nullptr,
                     ey ? binary(Op::Div, product(ey, out), y) : nullptr),
                 scaled(out, 3));
    default: return sum(ex, ey);
  }
}

}  // namespace

Node ErrorBounds::source(Node n, int i) { return *known_.find(n->src(i)); }

Node ErrorBounds::made(Node n) {
  if (!n->dtype.is_float()) return nullptr;
  switch (n->op) {
    case Op::Const:
    case Op::Buffer:
    case Op::Iota: return nullptr;
    case Op::Cast: return source(n, 0);
    case Op::Assign: return source(n, 1);
    case Op::Contiguous:
    case Op::Detach:
    case Op::RoundGradient:
    case Op::After:
    case Op::Checkpoint:
    case Op::WithDerivative:
    case Op::CustomGradient:
    case Op::Leaf:
    case Op::Copy:
    case Op::Shard: return source(n, 0);
    case Op::Where: {
      Node x = source(n, 1), y = source(n, 2);
      if (!x && !y) return nullptr;
      return build::where(n->src(0), x ? x : zeros(n), y ? y : zeros(n));
    }
    case Op::ReduceAxis: {
      const ReduceArg how = n->arg<ReduceArg>();
      Node e = source(n, 0);
      if (how.op != Op::Add) return e ? build::reduce(Op::Max, e, how.axes) : nullptr;
      const double count = elements(n->src(0)) / std::max(1.0, elements(n));
      Node all = build::reduce(Op::Add, magnitude(n->src(0)), how.axes);
      return sum(e ? build::reduce(Op::Add, e, how.axes) : nullptr, scaled(all, 4 + count / 8));
    }
    case Op::Gather: {
      Node e = source(n, 0);
      return e ? build::gather(e, n->srcs().subspan(1)) : nullptr;
    }
    case Op::Scatter: {
      // As if all that is written were added up, with as many roundings as there are values.
      Node e = source(n, 0), v = source(n, 1);
      const bool adds = n->arg<ScatterArg>().op == Op::Add;
      if (adds) v = sum(v, scaled(magnitude(n->src(1)), 4 + elements(n->src(1)) / 8));
      if (adds) e = sum(e, scaled(magnitude(n->src(0)), 4 + elements(n->src(1)) / 8));
      if (!e && !v) return nullptr;
      return build::scatter(e ? e : zeros(n), v ? v : zeros(n->src(1)), n->srcs().subspan(2),
                            ScatterArg{Op::Add, false});
    }
    default: break;
  }
  if (is_movement(n->op)) {
    Node e = source(n, 0);
    return e ? make(n->op, kF64, {e}, n->payload) : nullptr;
  }
  if (info(n->op).cls == OpClass::Unary) return through_unary(n, source(n, 0));
  return through_binary(n, source(n, 0), source(n, 1));
}

Node ErrorBounds::of(Node root) {
  for (Node n : topological(root))
    if (!known_.contains(n)) {
      Node e = made(n);
      known_[n] = e;
    }
  return *known_.find(root);
}

}  // namespace tiny::fuzz
