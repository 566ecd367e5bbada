#include "runtime/layout/convolution/im2col.h"

#include <algorithm>

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
    const ArenaScope lasting(Arena::global());
    std::vector<Node> views(2);
    std::vector<int> axes = taps_, weight = taps_;
    axes.insert(axes.end(), pixels_.begin(), pixels_.end());
    weight.insert(weight.end(), others_.begin(), others_.end());
    views[with_] = stored(with_, axes);
    views[1 - with_] = forward_ ? stored(1 - with_, weight) : c_.product->src(1 - with_);
    Node mul = build::binary(Op::Mul, views[0], views[1]);
    return make(Op::ReduceAxis, c_.reduce->dtype, {mul}, c_.reduce->arg<ReduceArg>());
  }

 private:
  // The operand in memory with these axes, the last one innermost; as the product reads it.
  Node stored(int operand, const std::vector<int>& axes) const {
    Node memory = build::contiguous(c_.view(operand, axes, c_.extents(axes)));
    return build::cast(build::affine(memory, c_.product->shape(), c_.map_of(axes)),
                       c_.product->dtype);
  }
};

}  // namespace

Node with_columns(Node product, const Target& target) {
  if (!target.has_wgmma) return nullptr;
  Columns columns(product);
  return columns.run(target) ? columns.make_product() : nullptr;
}

int columns_axis(Node product, const Target& target) {
  if (!target.has_wgmma) return -1;
  Columns columns(product);
  return columns.run(target) ? columns.axis_of_results() : -1;
}

}  // namespace tiny
