#include "runtime/layout/convolution/fold_pixels.h"

#include <algorithm>
#include <numeric>

#include "codegen/wgmma/tile.h"
#include "runtime/layout/convolution/implicit.h"
#include "runtime/layout/convolution/window_axes.h"
#include "tiny/ir/build.h"
#include "tiny/ir/sizes.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

namespace {

constexpr int64_t kMaxChannels = 15;  // more are boxes of their own
constexpr int64_t kBox = 32;          // elements of half a row of shared memory
constexpr int64_t kUnit = 8;          // elements of 16 bytes, at whose multiples windows begin
constexpr int64_t kMaxFill = 2;       // times as many elements as windows have

class Neighbours : WindowAxes {
 public:
  using WindowAxes::WindowAxes;

  bool run(const Target& target) {
    return find_axes(target) && find_dims() && is_worth_it() && fits();
  }

  Node make_product(const Target& target) const {
    const ArenaScope lasting(Arena::global());
    Shape shape = to_shape(c_.product->shape());
    shape[channel_] = 1;
    shape[tap_] = row_;
    SplitK parts;
    const auto [op, axes] = c_.reduce->arg<ReduceArg>();
    if (!forward_) parts = best_split_k({outer_, row_, size(others_)}, size(pixels_), target);
    Node image = view_of_image(shape);
    Node beside =
        forward_ ? view_of_weight(shape) : affine_view(other().point, map_of_other(), shape);
    if (parts.count > 1) {
      image = mask_k_slice(image, parts);
      beside = in_parts(beside, axes, parts);
    }
    const DType dtype = c_.product->dtype;
    Node mul = build::binary(Op::Mul, build::cast(image, dtype), build::cast(beside, dtype));
    Node sum = make(Op::ReduceAxis, c_.reduce->dtype, {mul},
                    ReduceArg{op, parts.count > 1 ? axes << 1 : axes});
    if (forward_) return sum;
    sum = restored(sum, parts.count > 1);
    return build::reshape(parts.count > 1 ? build::reduce(op, sum, 1) : sum, c_.reduce->shape());
  }

  NeighbourGradient gradient() const { return {inner_ < 0 ? nullptr : other().point, inner_}; }

 private:
  AffineMap map_of_other() const { return c_.map(1 - with_); }

  // The image's dimension of channels, one tap walks along it; and the innermost along which
  // windows slide with neighbouring elements.
  bool find_dims() {
    for (int d = 0; d < windows().point->rank; ++d) {
      const Sum at = to_sum(windows().at[d]);
      int tap = -1, pixel = -1;
      int64_t step = 0;
      bool simple = true;
      for (const auto& t : at.terms) {
        const int axis = t.atom->arg<RangeArg>().id;
        const bool is_tap = contains(taps_, axis);
        int& slot = is_tap ? tap : pixel;
        simple = simple && slot < 0 && (is_tap ? t.factor == 1 : t.factor > 0);
        slot = axis;
        if (!is_tap) step = t.factor;
      }
      if (!simple || tap < 0) continue;
      if (pixel < 0) {
        if (channel_ >= 0) return false;
        channel_ = tap;
        channel_dim_ = d;
      } else if (tap > tap_) {
        tap_ = tap;
        dim_ = d;
        pixel_ = pixel;
        step_ = step;
      }
    }
    return channel_ >= 0 && tap_ >= 0;
  }

  // Whether rows of neighbours fill little up.
  bool fits() {
    const int64_t channels = extent_of(channel_), taps = size(taps_);
    if (channels > kMaxChannels) return false;
    filled_ = round_up(channels, kUnit / std::gcd(kUnit, step_));
    row_ = round_up(extent_of(tap_) * filled_, kBox);
    outer_ = taps / channels / extent_of(tap_);
    if (row_ % filled_ || outer_ * row_ > kMaxFill * taps) return false;
    if (forward_) return true;
    if (others_.size() != 1 || map_of_other().padded) return false;
    const Walk walk = c_.walk(1 - with_, others_[0]);
    if (walk.kind != Walk::Contiguous && walk.kind != Walk::Movable) return false;
    if (walk.kind == Walk::Movable) inner_ = walk.dim;
    return true;
  }

  // The image with each window row's elements contiguous; `shape` is the product's.
  Node view_of_image(const Shape& shape) const {
    AffineMap map = c_.map(with_);
    const size_t each = shape.size() + 1;
    Node x = windows().point;
    const int64_t begin = map.map[static_cast<size_t>(dim_) * each];
    int64_t& after = map.pad[2 * static_cast<size_t>(dim_) + 1];
    const int64_t have = x->shape()[dim_] + map.pad[2 * static_cast<size_t>(dim_)] + after;
    const int64_t read = begin + step_ * (extent_of(pixel_) - 1) + row_ / filled_;
    after += round_up(std::max(have, read), kUnit / std::gcd(kUnit, filled_)) - have;
    map.pad[2 * static_cast<size_t>(channel_dim_) + 1] += filled_ - x->shape()[channel_dim_];
    x = build::pad(x, map.pad);
    Shape order, lines, rows;
    for (int d = 0; d < windows().point->rank; ++d)
      if (d != dim_ && d != channel_dim_) {
        order.push_back(d);
        lines.push_back(x->shape()[d]);
        const auto row = map.map.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(d) * each);
        rows.insert(rows.end(), row, row + static_cast<ptrdiff_t>(each));
      }
    lines.push_back(x->shape()[dim_] * filled_);
    order.insert(order.end(), {dim_, channel_dim_});
    rows.push_back(begin * filled_);
    for (int axis = 0; axis < c_.rank(); ++axis)
      rows.push_back(axis == pixel_ ? step_ * filled_ : axis == tap_ ? 1 : 0);
    Node memory = build::contiguous(build::permute(x, order));
    return build::affine(build::reshape(memory, lines), shape, rows);
  }

  // Zero where the image has been padded.
  Node view_of_weight(const Shape& shape) const {
    std::vector<int> axes = others_;
    for (int axis : taps_)
      if (axis != tap_ && axis != channel_) axes.push_back(axis);
    axes.insert(axes.end(), {tap_, channel_});
    Shape lines = c_.extents(axes);
    Node x = c_.view(1 - with_, axes, lines);
    Shape pads(2 * lines.size(), 0);
    pads[pads.size() - 3] = row_ / filled_ - extent_of(tap_);
    pads[pads.size() - 1] = filled_ - extent_of(channel_);
    lines.pop_back();
    lines.back() = row_;
    axes.pop_back();
    return build::affine(build::contiguous(build::reshape(build::pad(x, pads), lines)), shape,
                         c_.map_of(axes));
  }

  Node view_of_gradient(const Shape& shape) const {
    Node x = other().point;
    return affine_view(inner_ < 0 ? x : packed_channels(x, inner_), map_of_other(), shape);
  }

  // The gradient of the weight behind `before` other axes, without the padding, its axes where they
  // were.
  Node restored(Node sum, int before) const {
    const int tap = tap_ + before, place = channel_ + before + (channel_ > tap_);
    Shape cut = to_shape(sum->shape()), bounds, order;
    cut[tap] = row_ / filled_;
    cut.insert(cut.begin() + tap + 1, filled_);
    const int rank = static_cast<int>(cut.size());
    for (int i = 0; i < rank; ++i) {
      const int64_t most = i == tap ? extent_of(tap_) : i == tap + 1 ? extent_of(channel_) : cut[i];
      bounds.insert(bounds.end(), {0, most});
      if (i != tap + 1) order.push_back(i == place ? tap + 1 : i);
    }
    order.push_back(place);  // one element
    return build::permute(build::shrink(build::reshape(sum, cut), bounds), order);
  }

  int channel_ = -1, channel_dim_ = -1;   // axis of channels, and the image's
  int tap_ = -1, dim_ = -1, pixel_ = -1;  // of neighbours, and of the pixels along them
  int64_t step_ = 1;                      // pixels from one window to the next
  int inner_ = -1;  // dimension of the result's gradient that is to be innermost, and is not
  int64_t filled_ = 0, row_ = 0, outer_ = 0;  // channels; elements of a row; rows of a window
};

}  // namespace

NeighbourGradient find_neighbour_gradient(Node product, const Target& target,
                                          const NodeMap<int>& stored) {
  if (!target.has_wgmma) return {};
  Neighbours neighbours(product, &stored);
  return neighbours.run(target) ? neighbours.gradient() : NeighbourGradient();
}

Node with_neighbours(Node product, const Target& target) {
  if (!target.has_wgmma) return nullptr;
  Neighbours neighbours(product);
  return neighbours.run(target) ? neighbours.make_product(target) : nullptr;
}

}  // namespace tiny
