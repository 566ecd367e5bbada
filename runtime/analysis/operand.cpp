#include "runtime/analysis/operand.h"

#include <algorithm>
#include <cstdlib>

#include "codegen/kernel/access.h"
#include "codegen/kernel/lengths.h"
#include "codegen/passes/passes.h"
#include "runtime/analysis/views.h"
#include "tiny/ir/build.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

namespace {

bool is_affine(Node at) {
  for (const auto& t : to_sum(at).terms)
    if (t.atom->op != Op::Range) return false;
  return true;
}

// Axes of memory that the reader steps through as one (blocks, and the elements of a block) become
// one.
void join_axes(ProductOperand& o) {
  Shape shape = to_shape(o.point->shape());
  for (size_t d = 0; d + 1 < shape.size();) {
    Node joined = index_add(index_mul(o.at[d], shape[d + 1]), o.at[d + 1]);
    if ((is_affine(o.at[d]) && is_affine(o.at[d + 1])) || !is_affine(joined)) {
      ++d;
      continue;
    }
    o.at[d] = joined;
    o.at.erase(o.at.begin() + static_cast<ptrdiff_t>(d) + 1);
    shape[d] *= shape[d + 1];
    shape.erase(shape.begin() + static_cast<ptrdiff_t>(d) + 1);
  }
  ArenaScope lasting(Arena::global());
  o.point = build::reshape(o.point, shape);
}

// The conditions under which all indices lie inside the point.
std::vector<Node> bounds_of(const ProductOperand& o) {
  std::vector<Node> out;
  for (size_t d = 0; d < o.at.size(); ++d) {
    const int64_t size = o.point->shape()[static_cast<int>(d)];
    if (o.at[d]->vmin < 0) out.push_back(less(index(-1), o.at[d]));
    if (o.at[d]->vmax >= size) out.push_back(less(o.at[d], index(size)));
  }
  return out;
}

bool is_subset(const std::vector<Node>& some, const std::vector<Node>& all) {
  return std::ranges::all_of(some, [&](Node n) { return contains(all, n); });
}

// `top` with `from`, a node below it by movement, replaced.
Node rebuilt(Node top, Node from, Node to) {
  if (top == from) return to;
  Node src = rebuilt(top->src(0), from, to);
  return with_sources(top, std::span(&src, 1));
}

}  // namespace

Node with_product_on_top(Node n, bool integers) {
  Node mul = base_of(n->src(0));
  if (mul->op != Op::Mul || !(mul->dtype.is_float() || integers)) return nullptr;
  std::vector<Node> factors;
  for (Node s : mul->srcs()) {
    factors.push_back(rebuilt(n->src(0), mul, s));
    while (is_view(s)) s = s->src(0);
    if (numel(s->shape()) * 8 > numel(n->src(0)->shape())) return nullptr;
  }
  Node product = build::binary(Op::Mul, factors[0], factors[1]);
  return with_sources(n, std::span(&product, 1));
}

bool only_reorders(Node view) {
  for (; is_view(view); view = view->src(0))
    if (view->op != Op::Cast && view->op != Op::Reshape && view->op != Op::Permute &&
        view->op != Op::Expand)
      return false;
  return true;
}

OwnRanges::OwnRanges(Ints shape) {
  for (size_t i = 0; i < shape.size(); ++i)
    ranges.push_back(
        shape[i] == 1 ? index(0)
                      : make(Op::Range, kIndex, {index(shape[i])}, RangeArg{static_cast<int>(i)}));
}

namespace {

// One node of movement, or the first cast, further down; false where there is none.
bool descend(ProductOperand& o) {
  if (!is_view(o.point)) return false;
  Node below = o.point->src(0);
  if (o.point->op == Op::Reshape && below->op == Op::Param) return false;
  if (o.point->op == Op::Cast) {
    if (o.casts++) return false;
  } else {
    o.at = source_indices(o.point, o.at, o.gate);
  }
  o.point = below;
  return true;
}

}  // namespace

ProductOperand follow(Node top, const std::vector<Node>& ranges) {
  ProductOperand o{top, ranges, nullptr, 0};
  while (descend(o)) {
  }
  if (o.point->op == Op::Reshape) join_axes(o);
  return o;
}

ProductOperand follow_halves(Node top, const std::vector<Node>& ranges, const FollowHalves& how) {
  ProductOperand o{top, ranges, nullptr, 0}, best = o;
  do {
    if (how.without_gate && o.gate) return best;
    if (!is_affine(o) || !o.point->dtype.is_half()) continue;
    best = o;
    if (how.stops && how.stops->contains(o.point)) return best;
  } while (descend(o));
  if (o.point->op == Op::Reshape) join_axes(o);
  return is_affine(o) || !best.point->dtype.is_half() ? o : best;
}

bool pads_alone(const std::vector<ProductOperand>& operands) {
  std::vector<Node> gates, bounds;
  for (const ProductOperand& o : operands) {
    std::vector<Node> have;
    if (o.gate) add_conditions(o.gate, have);
    const std::vector<Node> want = bounds_of(o);
    if (!is_subset(want, have)) return false;
    gates.insert(gates.end(), have.begin(), have.end());
    bounds.insert(bounds.end(), want.begin(), want.end());
  }
  return std::ranges::all_of(gates, [&](Node gate) {
    return std::ranges::any_of(bounds, [&](Node bound) { return is_implied(gate, bound); });
  });
}

bool is_affine(const ProductOperand& o) {
  return std::ranges::all_of(o.at, [](Node i) { return is_affine(i); });
}

bool is_window(const ProductOperand& o, int dim) {
  auto terms = to_sum(o.at[dim]).terms;
  std::ranges::sort(
      terms, [](const auto& x, const auto& y) { return std::abs(x.factor) < std::abs(y.factor); });
  for (size_t i = 0; i + 1 < terms.size(); ++i)
    if (std::abs(terms[i].factor) * terms[i].atom->src(0)->vmax != std::abs(terms[i + 1].factor))
      return true;
  return false;
}

bool has_windows(const ProductOperand& o) {
  for (int dim = 0; dim < o.point->rank; ++dim)
    if (is_window(o, dim)) return true;
  return false;
}

Walk walk_of(const ProductOperand& o, Node range) {
  Walk w{Walk::None, -1};
  for (size_t d = 0; d < o.at.size(); ++d) {
    if (!(o.at[d]->ranges & range->ranges)) continue;
    if (w.kind != Walk::None) return {};
    for (const auto& t : to_sum(o.at[d]).terms)
      if (t.atom == range && t.factor != 1) return {};
    w = {Walk::Movable, static_cast<int>(d)};
  }
  if (w.kind == Walk::None) return w;
  int64_t behind = 1;
  for (int d = w.dim + 1; d < o.point->rank; ++d) behind *= o.point->shape()[d];
  if (behind == 1) w.kind = Walk::Contiguous;
  return w;
}

Node packed(Node x, int dim, int64_t width) {
  const int64_t size = x->shape()[dim];
  const bool panels = size > width && size % width == 0;
  Shape split = to_shape(x->shape()), order, back;
  if (panels) {
    split[dim] = size / width;
    split.insert(split.begin() + dim + 1, width);
    order.push_back(dim);
  }
  const int last = panels ? dim + 1 : dim;
  for (int i = 0; i < static_cast<int>(split.size()); ++i)
    if (i != last && !(panels && i == dim)) order.push_back(i);
  order.push_back(last);
  back.resize(order.size());
  for (size_t i = 0; i < order.size(); ++i) back[order[i]] = static_cast<int64_t>(i);
  Node p = build::contiguous(build::permute(build::reshape(x, split), order));
  return build::reshape(build::permute(p, back), x->shape());
}

AffineMap affine_map(const ProductOperand& o, const std::vector<Node>& ranges) {
  AffineMap m;
  for (size_t d = 0; d < o.at.size(); ++d) {
    const int64_t size = o.point->shape()[static_cast<int>(d)];
    const int64_t before = std::max<int64_t>(0, -o.at[d]->vmin);
    const int64_t after = std::max<int64_t>(0, o.at[d]->vmax - size + 1);
    m.pad.insert(m.pad.end(), {before, after});
    m.padded |= before || after;
    const Sum s = to_sum(o.at[d]);
    m.map.push_back(s.constant + before);
    for (Node r : ranges) {
      int64_t factor = 0;
      for (const auto& t : s.terms)
        if (t.atom == r) factor = t.factor;
      m.map.push_back(factor);
    }
  }
  return m;
}

Node affine_view(Node x, const AffineMap& map, Ints shape) {
  if (map.padded) x = build::pad(x, map.pad);
  return build::affine(x, shape, map.map);
}

}  // namespace tiny
