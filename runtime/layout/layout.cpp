#include "runtime/layout/layout.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "codegen/wgmma/tile.h"
#include "runtime/analysis/graph_contraction.h"
#include "runtime/analysis/skinny.h"
#include "runtime/fusion/chain.h"
#include "runtime/fusion/fuse.h"
#include "runtime/layout/convolution/fold_pixels.h"
#include "runtime/layout/convolution/im2col.h"
#include "runtime/layout/convolution/implicit.h"
#include "runtime/layout/convolution/join_results.h"
#include "runtime/layout/convolution/winograd.h"
#include "runtime/layout/cpu_tiles.h"
#include "runtime/layout/pack.h"
#include "runtime/layout/panels.h"
#include "runtime/layout/split_reduce.h"
#include "runtime/rewrites/mask_tiles.h"
#include "runtime/rewrites/narrow_sums.h"
#include "runtime/rewrites/split_joined.h"
#include "runtime/rewrites/split_products.h"
#include "runtime/rewrites/unit_products.h"
#include "tiny/ir/build.h"
#include "tiny/rewrite/rebuild.h"

namespace tiny {

namespace {

class Layouts {
 public:
  explicit Layouts(const Target& target) : target_(target) {}

  std::vector<Node> stored;

  // `innermost`: the axis of what is reduced that lies innermost in memory, -1 where it is the
  // last.
  Node reduce(Node n, int innermost = -1) {
    if (numel(n->src(0)->shape()) == 0) return n;
    Node p = with_product_on_top(n);
    if (!p && is_byte_product(n)) p = with_product_on_top(n, true);
    // Of a CPU's products those of integers have layouts for matrix units alone.
    Node any = p || target_.kind == Target::Kind::Gpu ? p : with_product_on_top(n, true);
    if (Node tiles = any ? with_tiles(any, target_) : nullptr) return tiles;
    if (is_over_own_windows(any ? any : n)) return n;
    const bool product = p != nullptr;
    if (Node row = product || innermost >= 0 ? nullptr : as_one_row(n))
      return build::reshape(reduce(row), n->shape());
    if (Node sum = product ? p : n; const auto skinny = find_skinny_product(sum, target_)) {
      if (skinny->parts == 1) return sum;
      Node parts = in_parts(sum, {skinny->axis, skinny->parts}, true);
      return build::reshape(build::reduce(Op::Add, parts, 1), sum->shape());
    }
    if (const auto fast = product ? find_winograd(p, target_) : std::nullopt)
      return fast->restored(reduce(fast->product));
    if (product && target_.has_wgmma && std::ranges::all_of(p->src(0)->srcs(), only_reorders))
      p = with_affine_operands(p);
    if (product && !find_window_product(p, target_)) p = with_plain_operands(p, target_);
    if (product) n = with_unit_rows(p);
    if (product) store_computed(n);
    if (const auto windows = product ? find_window_product(n, target_) : std::nullopt) {
      const SplitK parts = parts_of(n, *windows, target_);
      if (windows->copied || parts.count == 1) return with_windows(n, *windows, parts);
      const int64_t most = std::min<int64_t>(parts.count, 64);
      return split(n, equal_parts(n, windows->images, most), product);
    }
    if (const auto joined = product ? join_results(n, target_) : std::nullopt)
      return joined->restored(reduce(joined->product));
    if (Node neighbours = product ? with_neighbours(n, target_) : nullptr) return neighbours;
    if (Node columns = product ? with_columns(n, target_) : nullptr) {
      n = columns;
      store_computed(n);
    }
    const ReduceKind kind = !product                 ? ReduceKind::Plain
                            : is_for_matrix_units(n) ? ReduceKind::TiledProduct
                                                     : ReduceKind::Product;
    if (const Split s = choose_split(n, kind, innermost, target_); s.parts > 1)
      return split(n, s, product);
    if (!product) return with_stored_windows(n);
    return is_for_matrix_units(n) ? n : with_packed_operands(n);
  }

 private:
  // wgmma and staged operands are read in tiles that other blocks share, 16-bit floats in either
  // order.
  bool is_for_matrix_units(Node n) const {
    Node mul = base_of(n->src(0));
    if (mul->op != Op::Mul) return false;
    return std::ranges::all_of(mul->srcs(), [&](Node s) {
      while (is_view(s) && !computed_.contains(s)) s = s->src(0);
      return has_matrix_unit(target_, s->dtype) &&
             (matrix_type(s->dtype)->allows_mn_major || along_sum_.contains(mul));
    });
  }

  // A sum over windows whose elements each result reads alone, as that of a depthwise convolution:
  // a copy with padding around would take as long, and loads that leave out lanes need none.
  bool is_over_own_windows(Node n) const {
    constexpr int64_t kPhases = 16;  // pixels for each result, where windows step over some
    Node x = n->src(0);
    if (!loads_with_masks(target_) || x->op != Op::Mul) return false;
    const GraphContraction c(n);
    return std::ranges::any_of(c.operands, [&](const ProductOperand& o) {
      return is_affine(o) && has_windows(o) &&
             numel(o.point->shape()) <= kPhases * numel(n->shape()) &&
             std::ranges::all_of(c.ranges, [&](Node r) {
               return r->op != Op::Range || walk_of(o, r).kind != Walk::None;
             });
    });
  }

  bool is_byte_product(Node n) const {
    Node mul = base_of(n->src(0));
    if (!target_.has_wgmma || mul->op != Op::Mul) return false;
    return std::ranges::all_of(mul->srcs(), [&](Node s) {
      while (is_view(s)) s = s->src(0);
      return s->dtype.size() == 1 && has_matrix_unit(target_, s->dtype);
    });
  }

  // A GPU's sum over all axes as one over a single axis, where the longest of them has too few
  // divisors to be shared out: (30522, 1024) has six parts of rows.
  Node as_one_row(Node n) const {
    constexpr int64_t kManyElements = 1 << 20, kParts = 512;
    const Ints shape = n->src(0)->shape();
    if (target_.kind != Target::Kind::Gpu || numel(n->shape()) != 1) return nullptr;
    const auto longest = std::ranges::max_element(shape);
    if (numel(shape) < kManyElements || numel(shape) == *longest) return nullptr;
    if (2 * equal_parts(n, static_cast<int>(longest - shape.begin()), kParts).parts >= kParts)
      return nullptr;
    Node x = build::reshape(n->src(0), Shape{numel(shape)});
    return build::reduce(n->arg<ReduceArg>().op, x, 1);
  }

  void store_computed(Node n) {
    for (Node p : computed_operands(n, target_))
      if (!std::exchange(computed_[p], 1)) stored.push_back(p);
  }

  Node split(Node n, const Split& s, bool product) {
    Node partial = in_parts(n, s, product);
    if (product) {
      const auto windows = find_window_product(partial, target_);
      if (windows)
        partial = with_windows(partial, *windows);
      else if (!is_for_matrix_units(n))
        partial = with_packed_operands(partial);
    }
    return build::reshape(build::reduce(n->arg<ReduceArg>().op, partial, 1), n->shape());
  }

  // Windows that step over elements are read with conditions where they reach into padding, and
  // computed again where they overlap, one element after the other. From memory they are read by
  // vectors.
  Node with_stored_windows(Node n) {
    Node x = n->src(0);
    if (target_.kind != Target::Kind::Cpu) return n;
    if (is_movement(x->op)) {
      x = stored_window(x, n);
      return with_sources(n, std::span(&x, 1));
    }
    if (!is_elementwise(x->op)) return n;
    std::vector<Node> srcs;
    for (Node s : x->srcs()) srcs.push_back(is_movement(s->op) ? stored_window(s, n) : s);
    return with_operands(n, srcs);
  }

  Node stored_window(Node top, Node reduce) {
    const auto plan = plan_window(top, reduce, target_);
    return plan ? build::cast(view(*plan, top->shape()), top->dtype) : top;
  }

  static Node with_affine_operands(Node n, bool dense = false) {
    std::vector<Node> srcs;
    for (Node s : n->src(0)->srcs()) {
      Node view = with_affine_indices(s);
      srcs.push_back(dense ? with_dense_indices(view) : view);
    }
    return with_operands(n, srcs);
  }

  Node with_packed_operands(Node n) {
    if (target_.kind == Target::Kind::Cpu) n = with_affine_operands(n, true);
    Node x = n->src(0);
    const std::vector<OperandPlan> plans = plan_packing(n, target_);
    if (plans.empty()) return n;
    std::vector<Node> views;
    for (const OperandPlan& p : plans) views.push_back(build::cast(view(p, x->shape()), x->dtype));
    return with_operands(n, views);
  }

  // An operand that TMA cannot read as it lies is packed where that is little beside the GEMM: rows
  // that are no multiples of 16 bytes apart are padded, and dtypes that must be k-major, all but
  // 16-bit floats, are transposed.
  Node with_unit_rows(Node n) {
    Node x = n->src(0);
    const std::vector<OperandPlan> plans = plan_unit_rows(n, target_);
    if (plans.empty()) return n;
    std::vector<Node> views(x->srcs().begin(), x->srcs().end());
    for (size_t i = 0; i < plans.size(); ++i)
      if (plans[i].map.padded || plans[i].dim >= 0)
        views[i] = build::cast(view(plans[i], x->shape()), x->dtype);
    Node product = build::binary(Op::Mul, views[0], views[1]);
    along_sum_[product] = 1;
    return with_sources(n, std::span(&product, 1));
  }

  Node view(const OperandPlan& p, Ints shape) {
    Node x = p.point;
    if (p.map.padded) x = build::pad(x, p.map.pad);
    if (p.widened) x = build::cast(x, kF32);
    if (p.dim >= 0)
      x = packed(in_panels(x, p.dim, p.width), p.dim, p.width);
    else if (p.map.padded || p.widened)
      x = build::contiguous(x);
    else if (is_elementwise(x->op))
      stored.push_back(x);
    return build::affine(x, shape, p.map.map);
  }

  const Target& target_;
  NodeMap<char> computed_;   // operands that are, and are stored for tiles of products
  NodeMap<char> along_sum_;  // products with_unit_rows
};

// The graph with some values stored with another axis innermost, by `store`. `change` rewrites any
// other node, which it gets as it was and with its new sources.
template <class Store, class Change>
GraphPlan rewritten(std::span<const Node> roots, std::span<const Node> order,
                    std::span<const Node> stored, const NodeMap<int>& innermost, Store store,
                    Change change) {
  const NodeMap<char> in_order = innermost.size() > 0 ? values_in_order(roots) : NodeMap<char>();
  NodeMap<Node> done = rebuild_all(order, [&](Node n, Node same) {
    const LabelScope label(n->label);
    Node now = change(n, same);
    if (const int* dim = innermost.find(n))
      return store(n, now->op == Op::Contiguous ? now->src(0) : now, *dim);
    const bool has_memory =
        n->op == Op::Contiguous && innermost.contains(n->src(0)) && !in_order.contains(n);
    return has_memory ? same->src(0) : now;
  });
  GraphPlan out;
  out.roots = replaced_by(done, roots);
  for (Node s : stored)
    if (const Node* now = done.find(s))
      out.stored.push_back(innermost.contains(s) ? base_of(*now) : *now);
  out.innermost = innermost.size() > 0;
  out.now.push_back(std::move(done));
  return out;
}

}  // namespace

GraphPlan choose_layouts(std::span<const Node> given, const NodeTargets& targets) {
  std::map<const Target*, Layouts> layouts;
  std::vector<Node> roots(given.begin(), given.end()), order = topological(roots);
  std::vector<NodeMap<Node>> rewrites;
  const auto rewrite = [&](NodeMap<Node> next) {
    if (next.size() == 0) return;
    for (Node& r : roots) r = *next.find(r);
    order = topological(roots);
    rewrites.push_back(std::move(next));
  };
  rewrite(split_joined(order));
  rewrite(mask_tiles(roots, order, targets));
  rewrite(split_products(order));
  rewrite(unit_products(roots, order, targets));
  rewrite(narrow_sums(roots, order));
  const Innermost innermost = choose_innermost(roots, order, targets);
  const auto store = [&](Node n, Node now, int dim) {
    return innermost.rows.contains(n) ? packed_channels(now, dim) : packed(now, dim, INT64_MAX);
  };
  const NodeMap<int> traced =
      innermost.axes.size() > 0 ? trace_innermost(roots, innermost.axes) : NodeMap<int>();
  const Chains chains = find_chains(roots, order, {}, targets);
  const auto change = [&](Node n, Node now) {
    if (n->op != Op::ReduceAxis || chains.sums.contains(n)) return now;
    const int* axis = traced.find(n->src(0));
    const Target& target = targets.of(now);
    return layouts.try_emplace(&target, target).first->second.reduce(now, axis ? *axis : -1);
  };
  GraphPlan out = rewritten(roots, order, {}, innermost.axes, store, change);
  for (const auto& [target, chosen] : layouts)
    out.stored.insert(out.stored.end(), chosen.stored.begin(), chosen.stored.end());
  out.now.insert(out.now.begin(), std::make_move_iterator(rewrites.begin()),
                 std::make_move_iterator(rewrites.end()));
  return out;
}

GraphPlan spread_layouts(const GraphPlan& layout, std::span<const Node> outputs) {
  // Halves of parameters stay in the order of those: tiles read them in either.
  std::vector<Node> movable(outputs.begin(), outputs.end());
  std::erase_if(movable, [](Node n) {
    return n->op == Op::Cast && n->dtype.is_half() && base_of(n->src(0))->op == Op::Param;
  });
  return rewritten(
      layout.roots, topological(layout.roots), layout.stored,
      spread_innermost(layout.roots, movable),
      [](Node, Node now, int dim) { return packed(now, dim, INT64_MAX); },
      [](Node, Node now) { return now; });
}

}  // namespace tiny
