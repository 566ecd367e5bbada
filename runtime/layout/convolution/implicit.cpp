#include "runtime/layout/convolution/implicit.h"

#include <algorithm>

#include "codegen/passes/passes.h"
#include "codegen/wgmma/tile.h"
#include "runtime/distributed/collective.h"
#include "runtime/fusion/fuse.h"
#include "runtime/layout/convolution/fold_pixels.h"
#include "runtime/layout/convolution/im2col.h"
#include "runtime/layout/convolution/window_axes.h"
#include "tiny/ir/build.h"
#include "tiny/ir/sizes.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

namespace {

constexpr int64_t kFewChannels = 16;  // narrower TMA boxes are mostly zeros
constexpr int64_t kPixelBytes = 64;   // it is slow where pixels begin in the midst of that

class WindowFinder {
 public:
  WindowFinder(Node product, const NodeMap<int>* stored)
      : c_(product, FollowHalves{stored}), stored_(stored) {}

  std::optional<WindowProduct> run(const Target& target) {
    const int with = operand_of_windows(c_, target), other = 1 - with;
    if (with < 0) return {};
    // Channels are summed over where pixels are not, and the other way round in the gradient of a
    // weight. That of the result has to be zero, then, where steps go beyond the last pixel.
    const bool forward = !c_.is_summed(pixels(with, other));
    if (!forward && c_.operands[other].gate)
      c_.operands[other] = follow_halves(c_.product->src(other), c_.ranges, {stored_, true});
    const int channels = longest_axis(with, [&](int axis) {
      return c_.is_summed(axis) == forward && (forward == c_.moves(other, axis));
    });
    const int columns =
        longest_axis(other, [&](int axis) { return !c_.is_summed(axis) && !c_.moves(with, axis); });
    if (channels < 0 || columns < 0) return {};
    WindowProduct out;
    out.columns = columns;
    out.channels = channels;
    out.with = with;
    if (!forward)
      out.images = longest_axis(
          with,
          [&](int axis) {
            return c_.is_summed(axis) && !is_window(c_.operands[with], c_.walk(with, axis).dim);
          },
          2);
    out.copied = is_copied(with);
    settle(with, {channels}, kPixelBytes, out);
    settle(other, {forward ? channels : columns, columns}, forward ? kPixelBytes : 16, out);
    for (int i : {0, 1}) out.channel_dims[i] = c_.walk(i, channels).dim;
    return out;
  }

  // A convolution with windows of one element: channels that pixels lie around in memory.
  std::optional<WindowProduct> run_without_windows(const Target& target) {
    if (!suits_window_unit(c_, target) || std::ranges::any_of(c_.operands, has_windows)) return {};
    WindowProduct out;
    for (int i : {0, 1}) {
      const int channels = surrounded(i);
      if (channels < 0) continue;
      out.points[i] = c_.operands[i].point;
      out.inner[i] = c_.walk(i, channels).dim;
      if (c_.is_summed(channels))
        out.columns = longest_axis(
            1 - i, [&](int axis) { return !c_.is_summed(axis) && !c_.moves(i, axis); });
      else
        out.images = longest_axis(
            i, [&](int axis) { return c_.is_summed(axis); }, 2);
    }
    return out.points[0] || out.points[1] ? std::optional(out) : std::nullopt;
  }

 private:
  // An axis that is walked in the midst of an operand's memory, where all axes around it are either
  // summed over or counted by the result, and it is not; -1 where there is none. A batch of
  // matrices has none: what lies around its rows is of two kinds.
  int surrounded(int operand) const {
    const auto kind = [&](int axis) {
      return std::pair(c_.is_summed(axis), c_.moves(1 - operand, axis));
    };
    for (int axis = 0; axis < c_.rank(); ++axis) {
      const Walk at = c_.walk(operand, axis);
      if (c_.extent(axis) < kFewChannels || at.kind != Walk::Movable) continue;
      bool before = false, behind = false, alike = true;
      std::optional<std::pair<bool, bool>> around;
      for (int other = 0; other < c_.rank(); ++other) {
        if (other == axis || c_.extent(other) == 1 || !c_.moves(operand, other)) continue;
        const Walk w = c_.walk(operand, other);
        if (!around) around = kind(other);
        alike = alike && w.kind != Walk::Irregular && kind(other) == around &&
                kind(other) != kind(axis);
        (w.dim < at.dim ? before : behind) = true;
      }
      if (before && behind && alike) return axis;
    }
    return -1;
  }

  // Whether TMA has enough bits for the offsets in windows and the steps between them
  // (codegen/wgmma/operand.cpp: limits).
  bool is_copied(int operand) const {
    const ProductOperand& o = c_.operands[operand];
    int axes = 0;
    int64_t widest = 0, step = 0;
    for (int dim = 0; dim < o.point->rank; ++dim) {
      if (!is_window(o, dim)) continue;
      ++axes;
      int64_t reach = INT64_MAX;
      for (const auto& t : to_sum(o.at[dim]).terms) {
        reach = std::min(reach, std::abs(t.factor) * t.atom->vmax);
        step = std::max(step, std::abs(t.factor));
      }
      widest = std::max(widest, reach);
    }
    constexpr int64_t kMaxStep = 8, kWidest[] = {1 << 15, 1 << 7, 1 << 4};
    return axes >= 1 && axes <= 3 && step <= kMaxStep && widest < kWidest[axes - 1];
  }

  // The axis that counts places of windows: longer than that of a window's elements. Where they are
  // as long, weights are what is small.
  int pixels(int operand, int other) const {
    const bool weight =
        2 * numel(c_.operands[other].point->shape()) < numel(c_.operands[operand].point->shape());
    int best = -1;
    for (int dim = 0; dim < c_.operands[operand].point->rank; ++dim) {
      if (!is_window(c_.operands[operand], dim)) continue;
      for (const auto& t : to_sum(c_.operands[operand].at[dim]).terms) {
        const int axis = t.atom->arg<RangeArg>().id;
        const bool fits =
            c_.extent(axis) == c_.extent(best < 0 ? axis : best) && weight != c_.is_summed(axis);
        if (best < 0 || c_.extent(axis) > c_.extent(best) || fits) best = axis;
      }
    }
    return best;
  }

  // The longest axis along which an operand's memory is walked element by element.
  template <class Accept>
  int longest_axis(int operand, Accept accept, int64_t least = kFewChannels) const {
    int best = -1;
    for (int axis = 0; axis < c_.rank(); ++axis) {
      const Walk::Kind k = c_.walk(operand, axis).kind;
      if (c_.extent(axis) < least || (k != Walk::Contiguous && k != Walk::Movable)) continue;
      if (accept(axis) && (best < 0 || c_.extent(axis) > c_.extent(best))) best = axis;
    }
    return best;
  }

  // Any of the axes may be innermost in the operand's memory, in rows of whole `bytes`; the first
  // one is made so.
  void settle(int operand, std::initializer_list<int> axes, int64_t bytes,
              WindowProduct& out) const {
    const ProductOperand& o = c_.operands[operand];
    out.points[operand] = o.point;
    out.maps[operand] = c_.map(operand);
    for (int axis : axes) {
      const Walk w = c_.walk(operand, axis);
      const int64_t row = w.dim < 0 ? 0 : o.point->shape()[w.dim] * o.point->dtype.size();
      if (w.kind == Walk::Contiguous && row % bytes == 0) return;
    }
    out.inner[operand] = c_.walk(operand, *axes.begin()).dim;
  }

  GraphContraction c_;
  const NodeMap<int>* stored_;
};

int64_t whole_channels(int64_t size, DType dtype) {
  const int64_t whole = kPixelBytes / dtype.size();
  return round_up(size, whole);
}

// Whether a value may be stored in another order: no memory of the graph's, and no copy.
bool is_computed(Node n) {
  return is_elementwise(n->op) || is_movement(n->op) || n->op == Op::ReduceAxis ||
         n->op == Op::Contiguous;
}

// Follows a sum to its only reader's cast to 16-bit floats: the axis there that is `axis` of the
// sum.
class Readers {
 public:
  explicit Readers(std::span<const Node> roots) {
    for (Node n : topological(roots))
      for (Node s : n->srcs()) users_[s].push_back(n);
  }

  Node narrowed(Node sum, int axis, int& out) const {
    std::vector<Node> way;
    for (Node n = sum; way.empty() || !(n->op == Op::Cast && n->dtype.is_half());) {
      const auto* users = users_.find(n);
      if (!users || users->size() != 1) return nullptr;
      n = users->front();
      if (!is_movement(n->op) && !is_elementwise(n->op)) return nullptr;
      way.push_back(n);
    }
    const OwnRanges own(way.back()->shape());
    const std::vector<Node>& ranges = own.ranges;
    std::vector<Node> at = ranges;
    Node gate = nullptr;
    for (size_t i = way.size(); i-- > 0;)
      if (is_movement(way[i]->op)) at = source_indices(way[i], at, gate);
    for (size_t d = 0; d < ranges.size(); ++d)
      if (at[axis] == ranges[d]) {
        out = static_cast<int>(d);
        return way.back();
      }
    return nullptr;
  }

 private:
  NodeMap<std::vector<Node>> users_;
};

}  // namespace

std::optional<WindowProduct> find_window_product(Node product, const Target& target,
                                                 const NodeMap<int>* stored) {
  if (!target.has_wgmma) return {};
  return WindowFinder(product, stored).run(target);
}

SplitK parts_of(Node product, const WindowProduct& windows, const Target& target) {
  if (windows.images < 0) return {};
  const Ints shape = product->src(0)->shape();
  const int64_t results = numel(product->shape()), length = numel(shape) / results;
  const int64_t channels = shape[windows.channels], columns = shape[windows.columns];
  const int64_t whole = whole_channels(channels, windows.points[windows.with]->dtype);
  return best_split_k({results / (channels * columns), whole, columns}, length, target);
}

namespace {

// `x` with axis `dim` innermost, padded with zeros.
Node filled_channels(Node x, int dim) {
  Shape pads(2 * static_cast<size_t>(x->rank), 0);
  const int64_t size = x->shape()[dim];
  pads[2 * static_cast<size_t>(dim) + 1] = whole_channels(size, x->dtype) - size;
  return packed(build::pad(x, pads), dim, INT64_MAX);
}

// Whether memory was made with zeros after the first `size` places of an axis.
bool has_zeros_after(Node x, int dim, int64_t size) {
  while (x->op == Op::Contiguous || x->op == Op::Permute) {
    if (x->op == Op::Permute) dim = static_cast<int>(x->ints()[dim]);
    x = x->src(0);
  }
  if (x->op != Op::Pad) return false;
  const size_t at = 2 * static_cast<size_t>(dim);
  return x->ints()[at] == 0 && x->shape()[dim] - x->ints()[at + 1] <= size;
}

// The operand padded along its axis of channels; nullptr where the memory there is not known.
Node filled_operand(const WindowProduct& windows, int operand, int64_t size, int64_t whole) {
  const size_t stride = windows.maps[operand].map.size() / windows.points[operand]->rank;
  Node point = windows.points[operand];
  const int dim = windows.channel_dims[operand];
  if (dim < 0) return point;
  if (windows.maps[operand].map[static_cast<size_t>(dim) * stride] != 0) return nullptr;
  if (point->shape()[dim] == size && (windows.inner[operand] < 0 || windows.inner[operand] == dim))
    return filled_channels(point, dim);
  const bool known = point->shape()[dim] >= whole && windows.inner[operand] < 0 &&
                     has_zeros_after(point, dim, size);
  return known ? point : nullptr;
}

}  // namespace

// A diagonal's blocks.
Node in_parts(Node x, uint64_t summed, const SplitK& parts) {
  const size_t rank = x->rank;
  Shape line = to_shape(x->shape()), lines;
  line.insert(line.begin(), 1);
  lines = line;
  lines[0] = parts.length;
  int64_t all = 1;  // elements along the sum
  std::vector<int64_t> number(rank);
  for (size_t i = rank; i-- > 0;)
    if (summed >> i & 1) {
      number[i] = all;
      all *= x->shape()[i];
    }
  const int64_t before = (parts.count - 1) * parts.length;
  Shape pads(2 * lines.size(), 0);
  pads[0] = before;
  pads[1] = std::max<int64_t>(0, all - parts.length);
  Node padded = build::pad(build::expand(build::reshape(x, line), lines), pads);
  std::vector<int64_t> map{before, -parts.length};
  map.insert(map.end(), number.begin(), number.end());
  for (size_t d = 0; d < rank; ++d)
    for (size_t i = 0; i < rank + 2; ++i) map.push_back(i == d + 2);
  lines[0] = parts.count;
  return build::affine(padded, lines, map);
}

Node mask_k_slice(Node x, const SplitK& parts) {
  Shape shape = to_shape(x->shape());
  shape.insert(shape.begin(), 1);
  x = build::reshape(x, shape);
  shape[0] = parts.count;
  return build::expand(x, shape);
}

namespace {

// The axes of split-K's partial sums in memory, the slice first: channels of windows innermost, as
// gradients of weights have them that lie so or whose channels are outermost. The sum of slices is
// then not transposed.
Shape order_of_sums(const WindowProduct& windows, int rank) {
  Shape order{0, windows.columns + 1};
  for (int i = 0; i < rank; ++i)
    if (i != windows.columns && i != windows.channels) order.push_back(i + 1);
  order.push_back(windows.channels + 1);
  return order;
}

}  // namespace

Node first_of_axis(Node x, int axis, int64_t size) {
  Shape bounds;
  for (int i = 0; i < x->rank; ++i)
    bounds.insert(bounds.end(), {0, i == axis ? size : x->shape()[i]});
  return build::shrink(x, bounds);
}

Node packed_channels(Node x, int dim) {
  return first_of_axis(filled_channels(x, dim), dim, x->shape()[dim]);
}

Node with_windows(Node product, const WindowProduct& windows, const SplitK& parts) {
  Node x = product->src(0);
  const int64_t size = x->shape()[windows.channels];
  const int64_t whole = whole_channels(size, windows.points[windows.with]->dtype);
  Node points[2];
  bool filled = size < whole;
  for (int i = 0; filled && i < 2; ++i) {
    points[i] = filled_operand(windows, i, size, whole);
    filled = points[i] != nullptr;
  }
  Shape shape = to_shape(x->shape());
  if (filled) shape[windows.channels] = whole;
  const auto [op, axes] = product->arg<ReduceArg>();
  const Shape order = order_of_sums(windows, x->rank);
  std::vector<Node> views;
  for (int i : {0, 1}) {
    Node point = filled ? points[i] : windows.points[i];
    const bool moved = filled && windows.channel_dims[i] >= 0;
    AffineMap map = windows.maps[i];
    // Only windows may reach out of memory: what they are multiplied with gets some with zeros.
    if (map.padded && i != windows.with) {
      point = build::pad(point, map.pad);
      if (moved)
        point = packed(point, windows.channel_dims[i], INT64_MAX);
      else if (windows.inner[i] < 0)
        point = build::contiguous(point);
      map.padded = false;
    }
    if (windows.inner[i] >= 0 && !moved) point = packed_channels(point, windows.inner[i]);
    Node view = affine_view(point, map, shape);
    if (parts.count > 1) {
      view = i == windows.with ? mask_k_slice(view, parts) : in_parts(view, axes, parts);
      view = build::permute(view, order);
    }
    views.push_back(build::cast(view, x->dtype));
  }
  Node mul = build::binary(Op::Mul, views[0], views[1]);
  if (parts.count == 1) {
    Node sum = make(Op::ReduceAxis, product->dtype, {mul}, product->arg<ReduceArg>());
    return is_reduced(product, windows.channels) ? sum : first_of_axis(sum, windows.channels, size);
  }
  uint32_t summed = 0;
  Shape back(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    back[order[i]] = static_cast<int64_t>(i);
    if (order[i] > 0 && (axes >> (order[i] - 1) & 1)) summed |= uint32_t{1} << i;
  }
  Node sum = make(Op::ReduceAxis, product->dtype, {mul}, ReduceArg{op, summed});
  sum = first_of_axis(sum, static_cast<int>(order.size()) - 1, size);
  sum = build::permute(build::reduce(op, sum, 1), back);
  return build::reshape(sum, product->shape());
}

NodeMap<char> values_in_order(std::span<const Node> roots) {
  NodeMap<char> out;
  for (Node r : roots) out[base_of(r)] = 1;
  for (Node n : topological(roots))
    if (n->op == Op::Copy && !is_sum_by_kernel(n))
      for (Node s : n->srcs()) out[base_of(s)] = 1;
  return out;
}

Innermost choose_innermost(std::span<const Node> roots, std::span<const Node> order,
                           const NodeTargets& targets) {
  Innermost inner;
  struct Product {
    Node sum, on_top;
    const Target& target;
  };
  std::vector<Product> products;
  for (Node n : order) {
    if (n->op != Op::ReduceAxis) continue;
    const Target& target = targets.of(n);
    if (!target.has_wgmma) continue;
    if (Node p = with_product_on_top(n)) products.push_back({n, p, target});
  }
  if (products.empty()) return inner;
  const NodeMap<char> in_order = values_in_order(roots);
  const Readers readers(roots);
  const auto store = [&](Node n, int dim) {
    if (!is_computed(n) || in_order.contains(n)) return;
    if (!inner.axes.contains(n)) inner.axes[n] = dim;
  };
  // Gradients of weights first, which ask more of what they read.
  for (bool weights : {true, false})
    for (const auto& [n, p, target] : products) {
      auto windows = find_window_product(p, target, &inner.axes);
      if (!windows) windows = WindowFinder(p, &inner.axes).run_without_windows(target);
      const NeighbourGradient g = windows || !weights
                                      ? NeighbourGradient()
                                      : find_neighbour_gradient(p, target, inner.axes);
      if (g.point) store(g.point, g.dim);
      int dim = -1;
      if (const int axis = windows || weights ? -1 : columns_axis(p, target); axis >= 0)
        if (Node half = readers.narrowed(n, axis, dim)) store(half, dim);
      if (!windows || (windows->images >= 0) != weights) continue;
      for (int i : {0, 1})
        if (windows->inner[i] >= 0) {
          store(windows->points[i], windows->inner[i]);
          inner.rows[windows->points[i]] = 1;
        }
      if (windows->columns < 0 || weights) continue;
      if (Node half = readers.narrowed(n, windows->columns, dim)) store(half, dim);
    }
  return inner;
}

namespace {

// Where an axis of values goes. Only axes that are counted as they are: none that movement cuts up
// or joins with others.
class AxisTracer {
 public:
  explicit AxisTracer(const NodeMap<int>& stored) : stored_(stored) {}

  NodeMap<int> run(std::span<const Node> roots) {
    const std::vector<Node> order = topological(roots);
    for (int round = 0; round < 2; ++round) {
      for (Node n : order) {
        if (is_packed(n)) set(n, static_cast<int>(innermost(n)));
        if (const int* axis = stored_.find(n)) set(n, *axis);
        for (Node s : n->srcs())
          if (const int* axis = of_.find(s)) set(n, above(n, s, *axis));
      }
      for (size_t i = order.size(); i-- > 0;)
        if (const int* known = of_.find(order[i])) {
          const int axis = *known;
          for (Node s : order[i]->srcs()) set(s, below(order[i], s, axis));
        }
    }
    return std::move(of_);
  }

 private:
  void set(Node n, int axis) {
    if (axis >= 0 && axis < n->rank && n->shape()[axis] > 1 && !of_.contains(n)) of_[n] = axis;
  }
  static bool is_packed(Node n) { return n->op == Op::Permute && n->src(0)->op == Op::Contiguous; }
  static int64_t innermost(Node permute) {
    for (int i = 0; i < permute->rank; ++i)
      if (permute->ints()[i] == permute->rank - 1) return i;
    return -1;
  }

  // The axis of a source that an axis of the node counts alone, and the other way round.
  static int below(Node n, Node source, int axis) {
    if (n->op == Op::ReduceAxis) return is_reduced(n, axis) ? -1 : axis;
    if (is_elementwise(n->op) || n->op == Op::Contiguous)
      return source->rank == n->rank ? axis : -1;
    if (!is_movement(n->op)) return -1;
    const std::vector<int> to = moved(n);
    for (size_t d = 0; d < to.size(); ++d)
      if (to[d] == axis) return static_cast<int>(d);
    return -1;
  }
  static int above(Node n, Node source, int axis) {
    if (is_movement(n->op)) return moved(n)[axis];
    return below(n, source, axis);
  }

  // Of each axis of a movement's source: the one of the node that counts it.
  static std::vector<int> moved(Node n) {
    const OwnRanges own(n->shape());
    const std::vector<Node>& ranges = own.ranges;
    Node gate = nullptr;
    const std::vector<Node> at = source_indices(n, ranges, gate);
    std::vector<int> out;
    for (Node i : at) {
      const auto found = std::ranges::find(ranges, i);
      const bool alone = i->op == Op::Range && found != ranges.end();
      out.push_back(alone ? static_cast<int>(found - ranges.begin()) : -1);
    }
    return out;
  }

  const NodeMap<int>& stored_;
  NodeMap<int> of_;
};

}  // namespace

NodeMap<int> trace_innermost(std::span<const Node> roots, const NodeMap<int>& stored) {
  return AxisTracer(stored).run(roots);
}

NodeMap<int> spread_innermost(std::span<const Node> roots, std::span<const Node> outputs) {
  constexpr int64_t kLarge = 1 << 16;  // elements: others lie in caches anyway
  const NodeMap<int> axes = trace_innermost(roots, NodeMap<int>());
  const NodeMap<char> in_order = values_in_order(roots);
  NodeMap<int> out;
  for (Node n : outputs) {
    const int* axis = axes.find(n);
    if (!axis || in_order.contains(n) || numel(n->shape()) < kLarge) continue;
    const bool copy = n->op == Op::Contiguous && !is_movement(n->src(0)->op);  // in no order
    if (!is_elementwise(n->op) && n->op != Op::ReduceAxis && !copy) continue;
    int64_t behind = 1;
    for (int i = *axis + 1; i < n->rank; ++i) behind *= n->shape()[i];
    if (behind > 1 && n->shape()[*axis] >= kFewChannels) out[n] = *axis;
  }
  return out;
}

}  // namespace tiny
