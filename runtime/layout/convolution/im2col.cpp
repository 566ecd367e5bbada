#include "runtime/layout/convolution/im2col.h"

#include <algorithm>
#include <optional>

#include "runtime/layout/convolution/window_axes.h"
#include "tiny/ir/build.h"

namespace tiny {

namespace {

constexpr int64_t kMaxTaps = 1024;
constexpr int64_t kMinRows = 64;  // of a tile: taps, or what they are multiplied with
constexpr int64_t kMaxElements = int64_t{1} << 31;

class Columns : WindowAxes {
 public:
  using WindowAxes::WindowAxes;

  bool run(const Target& target) {
    if (!find_axes(target) || !is_worth_it()) return false;
    const int64_t taps = size(taps_), pixels = size(pixels_);
    if (!forward_ && std::max(taps, size(others_)) < kMinRows) return false;
    return taps <= kMaxTaps && taps * pixels < kMaxElements;
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
  // The operand in memory with these axes, the last one innermost; as the product reads it.
  Node stored(int operand, const std::vector<int>& axes) const {
    const AffineMap& map = maps_[operand];
    const size_t each = ranges_.size() + 1, dims = map.map.size() / each;
    AffineMap order{map.pad, map.padded, {}};
    Shape shape, back;
    for (size_t d = 0; d < dims; ++d) {
      order.map.push_back(map.map[d * each]);
      for (int axis : axes) order.map.push_back(map.map[d * each + 1 + static_cast<size_t>(axis)]);
    }
    for (int axis : axes) {
      shape.push_back(shape_[axis]);
      back.push_back(0);
      for (int i = 0; i < static_cast<int>(shape_.size()); ++i) back.push_back(i == axis);
    }
    Node memory = build::contiguous(affine_view(operands_[operand].point, order, shape));
    return build::cast(build::affine(memory, shape_, back), n_->src(0)->dtype);
  }
};

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
