#include "runtime/layout_windows.h"

#include <algorithm>

#include "codegen/matrix.h"
#include "codegen/ranges.h"
#include "runtime/fuse.h"
#include "tiny/algebra.h"
#include "tiny/build.h"

namespace tiny {

namespace {

constexpr int64_t kFewChannels = 16;  // narrower boxes of the copy engine are mostly zeros

class Finder {
 public:
  explicit Finder(Node product) : n_(product), ranges_(ranges_of_axes(product->src(0)->shape())) {}

  std::optional<WindowProduct> run(const Target& target) {
    for (Node s : n_->src(0)->srcs()) operands_.push_back(follow(s, ranges_));
    for (const Operand& o : operands_)
      if (!is_affine(o) || !has_matrix_unit(target, o.point->dtype)) return {};
    if (!pads_alone(operands_)) return {};
    const int with = is_windows(0) ? 0 : 1, other = 1 - with;
    if (!is_windows(with) || is_windows(other)) return {};
    // Channels are summed over where pixels are not, and the other way round in the gradient of a
    // weight.
    const bool forward = !is_reduced(n_, pixels(with));
    const int channels = widest(with, [&](int axis) {
      return is_reduced(n_, axis) == forward && (forward == moves(other, axis));
    });
    const int columns =
        widest(other, [&](int axis) { return !is_reduced(n_, axis) && !moves(with, axis); });
    if (channels < 0 || columns < 0) return {};
    WindowProduct out;
    out.columns = columns;
    if (!forward)
      out.images = widest(
          with,
          [&](int axis) {
            return is_reduced(n_, axis) &&
                   !is_window(with, walk_of(operands_[with], ranges_[axis]).dim);
          },
          2);
    const bool good = settle(with, {channels}, out) &&
                      settle(other, {forward ? channels : columns, columns}, out);
    return good ? std::optional(out) : std::nullopt;
  }

 private:
  int64_t size(int axis) const { return n_->src(0)->shape()[axis]; }
  bool moves(int operand, int axis) const {
    return walk_of(operands_[operand], ranges_[axis]).kind != Walk::None;
  }
  // Whether several ranges walk along a dimension and do more than count it together.
  bool is_window(int operand, int dim) const {
    auto terms = to_sum(operands_[operand].at[static_cast<size_t>(dim)]).terms;
    std::sort(terms.begin(), terms.end(),
              [](const auto& x, const auto& y) { return x.factor < y.factor; });
    for (size_t i = 0; i + 1 < terms.size(); ++i)
      if (terms[i].factor * terms[i].atom->src(0)->vmax != terms[i + 1].factor) return true;
    return false;
  }
  bool is_windows(int operand) const {
    for (int dim = 0; dim < operands_[operand].point->rank; ++dim)
      if (is_window(operand, dim)) return true;
    return false;
  }

  // The axis that counts places of windows: longer than that of a window's elements.
  int pixels(int operand) const {
    int best = -1;
    for (int dim = 0; dim < operands_[operand].point->rank; ++dim) {
      if (!is_window(operand, dim)) continue;
      for (const auto& t : to_sum(operands_[operand].at[static_cast<size_t>(dim)]).terms) {
        const int axis = t.atom->arg<RangeArg>().id;
        if (best < 0 || size(axis) > size(best)) best = axis;
      }
    }
    return best;
  }

  // The longest axis along which an operand's memory is walked element by element.
  template <class Accept>
  int widest(int operand, Accept accept, int64_t least = kFewChannels) const {
    int best = -1;
    for (int axis = 0; axis < static_cast<int>(ranges_.size()); ++axis) {
      const Walk::Kind k = walk_of(operands_[operand], ranges_[axis]).kind;
      if (size(axis) < least || (k != Walk::Contiguous && k != Walk::Movable)) continue;
      if (accept(axis) && (best < 0 || size(axis) > size(best))) best = axis;
    }
    return best;
  }

  // Any of the axes may be innermost in the operand's memory; the first one is made so.
  bool settle(int operand, std::initializer_list<int> axes, WindowProduct& out) const {
    const Operand& o = operands_[operand];
    out.points[operand] = o.point;
    out.maps[operand] = affine_map(o, ranges_);
    for (int axis : axes)
      if (walk_of(o, ranges_[axis]).kind == Walk::Contiguous) return rows_are_aligned(o, axis);
    const Walk w = walk_of(o, ranges_[*axes.begin()]);
    out.inner[operand] = w.dim;
    return w.kind == Walk::Movable && rows_are_aligned(o, *axes.begin());
  }

  // The copy engine steps by multiples of 16 bytes.
  bool rows_are_aligned(const Operand& o, int axis) const {
    const int dim = walk_of(o, ranges_[axis]).dim;
    return o.point->shape()[dim] * o.point->dtype.size() % 16 == 0;
  }

  Node n_;
  std::vector<Node> ranges_;
  std::vector<Operand> operands_;
};

bool is_computed(Node n) {
  return is_elementwise(n->op) || n->op == Op::ReduceAxis || n->op == Op::Contiguous;
}

// From a sum on to where its only reader makes halves of it: which axis of those is `axis` of the
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
    Arena arena;
    ArenaScope scope(arena);
    const std::vector<Node> ranges = ranges_of_axes(way.back()->shape());
    std::vector<Node> at = ranges;
    Node gate = nullptr;
    for (size_t i = way.size(); i-- > 0;)
      if (is_movement(way[i]->op)) at = source_indices(way[i], at, gate);
    for (size_t d = 0; d < ranges.size(); ++d)
      if (at[static_cast<size_t>(axis)] == ranges[d]) {
        out = static_cast<int>(d);
        return way.back();
      }
    return nullptr;
  }

 private:
  NodeMap<std::vector<Node>> users_;
};

}  // namespace

std::optional<WindowProduct> find_window_product(Node product, const Target& target) {
  if (target.kind != Target::Kind::Gpu || !target.has_wgmma) return {};
  Arena arena;
  ArenaScope scope(arena);
  return Finder(product).run(target);
}

// Each turn of all multiprocessors takes as long as its longest tile; partial sums are written and
// read again.
int64_t parts_of(Node product, const WindowProduct& windows, const Target& target) {
  if (windows.images < 0) return 1;
  constexpr double kFlops = 5e12, kBytes = 3e12;  // of a multiprocessor; of memory, per second
  const Ints shape = product->src(0)->shape();
  const int64_t images = shape[windows.images], results = numel(product->shape());
  const int64_t tiles = std::max<int64_t>(1, results / (128 * 128));
  const double work = 2.0 * static_cast<double>(numel(shape)) / kFlops / static_cast<double>(tiles);
  int64_t best = 1;
  double best_time = 0;
  for (int64_t parts = 1; parts <= std::min<int64_t>(images, 64); ++parts) {
    if (images % parts) continue;
    const int64_t turns = (tiles * parts + target.cores - 1) / target.cores;
    const double sums = parts == 1 ? 0 : 8.0 * static_cast<double>(parts * results) / kBytes + 3e-6;
    const double time = work * static_cast<double>(turns) / static_cast<double>(parts) + sums;
    if (parts > 1 && time >= best_time) continue;
    best = parts;
    best_time = time;
  }
  return best;
}

Node with_windows(Node product, const WindowProduct& windows) {
  Node x = product->src(0);
  std::vector<Node> views;
  for (int i : {0, 1}) {
    Node point = windows.points[i];
    if (windows.inner[i] >= 0) point = packed(point, windows.inner[i], INT64_MAX);
    views.push_back(build::cast(affine_view(point, windows.maps[i], x->shape()), x->dtype));
  }
  Node mul = with_sources(x, views);
  return with_sources(product, std::span(&mul, 1));
}

NodeMap<int> choose_innermost(std::span<const Node> roots, const Target& target) {
  NodeMap<int> inner;
  if (target.kind != Target::Kind::Gpu || !target.has_wgmma) return inner;
  NodeMap<char> results;
  for (Node r : roots) results[base_of(r)] = 1;
  const Readers readers(roots);
  const auto store = [&](Node n, int dim) {
    if (is_computed(n) && !results.contains(n) && !inner.contains(n)) inner[n] = dim;
  };
  for (Node n : topological(roots)) {
    Node p = n->op == Op::ReduceAxis ? with_product_on_top(n) : nullptr;
    const auto windows = p ? find_window_product(p, target) : std::nullopt;
    if (!windows) continue;
    for (int i : {0, 1})
      if (windows->inner[i] >= 0) store(windows->points[i], windows->inner[i]);
    int dim = -1;
    if (Node half = readers.narrowed(n, windows->columns, dim)) store(half, dim);
  }
  return inner;
}

}  // namespace tiny
