#include "runtime/layout_columns.h"

#include <algorithm>
#include <optional>

#include "codegen/matrix.h"
#include "runtime/operand.h"
#include "tiny/algebra.h"
#include "tiny/build.h"

namespace tiny {

namespace {

// Of a window; and results that share each of them. With fewer, threads take no longer than it
// takes to write the windows and read them again.
constexpr int64_t kFewestTaps = 24, kMostTaps = 1024, kFewestUses = 32;
constexpr int64_t kFewestPixels = 64;  // for each element of a window
constexpr int64_t kFewestRows = 64;    // of a tile: taps, or what they are multiplied with
constexpr int64_t kMostElements = int64_t{1} << 31;

class Columns {
 public:
  explicit Columns(Node product)
      : n_(product),
        shape_(to_shape(product->src(0)->shape())),
        ranges_(ranges_of_axes(product->src(0)->shape())) {}

  // The axes of both operands, of windows alone and of the other alone become taps, pixels and what
  // they have in common. They stay in the order of the product, in which tiles count them as one,
  // and which is the same forward and in the gradient.
  bool run(const Target& target) {
    for (Node s : n_->src(0)->srcs()) operands_.push_back(follow_halves(s, ranges_, {}));
    for (const Operand& o : operands_)
      if (!is_affine(o) || !has_window_unit(target, o.point->dtype)) return false;
    if (operands_[0].point->dtype != operands_[1].point->dtype || !pads_alone(operands_))
      return false;
    with_ = has_windows(operands_[0]) ? 0 : 1;
    if (!has_windows(operands_[with_]) || has_windows(operands_[1 - with_])) return false;
    std::vector<int> summed, own, others;
    for (int axis = 0; axis < static_cast<int>(shape_.size()); ++axis) {
      if (shape_[axis] == 1) continue;
      const bool here = moves(with_, axis), there = moves(1 - with_, axis);
      if (is_reduced(n_, axis) != (here && there)) return false;
      (here && there ? summed : here ? own : others).push_back(axis);
    }
    forward_ = size(summed) < size(own);
    taps_ = forward_ ? summed : own;
    pixels_ = forward_ ? own : summed;
    others_ = others;
    for (const Operand& o : operands_) maps_.push_back(affine_map(o, ranges_));
    const int64_t taps = size(taps_), pixels = size(pixels_);
    if (!forward_ && std::max(taps, size(others)) < kFewestRows) return false;
    return taps >= kFewestTaps && taps <= kMostTaps && size(others) >= kFewestUses &&
           pixels >= kFewestPixels * taps && taps * pixels < kMostElements;
  }

  int axis_of_results() const { return forward_ && others_.size() == 1 ? others_[0] : -1; }

  Node make_product() const {
    std::vector<Node> views(2);
    std::vector<int> axes = taps_, weight = taps_;
    axes.insert(axes.end(), pixels_.begin(), pixels_.end());
    weight.insert(weight.end(), others_.begin(), others_.end());
    views[with_] = stored(with_, axes);
    views[1 - with_] = forward_ ? stored(1 - with_, weight) : n_->src(0)->src(1 - with_);
    Node mul = build::binary(Op::Mul, views[0], views[1]);
    return make(Op::ReduceAxis, n_->dtype, {mul}, n_->arg<ReduceArg>());
  }

 private:
  int64_t size(const std::vector<int>& axes) const {
    int64_t n = 1;
    for (int axis : axes) n *= shape_[static_cast<size_t>(axis)];
    return n;
  }
  bool moves(int operand, int axis) const {
    return walk_of(operands_[static_cast<size_t>(operand)], ranges_[static_cast<size_t>(axis)])
               .kind != Walk::None;
  }

  // The operand in memory with these axes, the last one innermost; as the product reads it.
  Node stored(int operand, const std::vector<int>& axes) const {
    const AffineMap& map = maps_[static_cast<size_t>(operand)];
    const size_t each = ranges_.size() + 1, dims = map.map.size() / each;
    AffineMap order{map.pad, map.padded, {}};
    Shape shape, back;
    for (size_t d = 0; d < dims; ++d) {
      order.map.push_back(map.map[d * each]);
      for (int axis : axes) order.map.push_back(map.map[d * each + 1 + static_cast<size_t>(axis)]);
    }
    for (int axis : axes) {
      shape.push_back(shape_[static_cast<size_t>(axis)]);
      back.push_back(0);
      for (int i = 0; i < static_cast<int>(shape_.size()); ++i) back.push_back(i == axis);
    }
    Node memory =
        build::contiguous(affine_view(operands_[static_cast<size_t>(operand)].point, order, shape));
    return build::cast(build::affine(memory, shape_, back), n_->src(0)->dtype);
  }

  Node n_;
  Shape shape_;
  std::vector<Node> ranges_;
  std::vector<Operand> operands_;
  std::vector<AffineMap> maps_;
  int with_ = 0;
  bool forward_ = true;
  std::vector<int> taps_, pixels_, others_;
};

}  // namespace

namespace {

bool has_columns(const Target& target) {
  return target.kind == Target::Kind::Gpu && target.has_wgmma;
}

}  // namespace

Node with_columns(Node product, const Target& target) {
  if (!has_columns(target)) return nullptr;
  Arena arena;
  std::optional<Columns> columns;
  {
    ArenaScope scope(arena);
    columns.emplace(product);
    if (!columns->run(target)) return nullptr;
  }
  return columns->make_product();
}

int columns_axis(Node product, const Target& target) {
  if (!has_columns(target)) return -1;
  Arena arena;
  ArenaScope scope(arena);
  Columns columns(product);
  return columns.run(target) ? columns.axis_of_results() : -1;
}

}  // namespace tiny
