#include "runtime/layout/convolution/window_axes.h"

#include "codegen/wgmma/tile.h"

namespace tiny {

int64_t WindowAxes::size(const std::vector<int>& axes) const {
  int64_t n = 1;
  for (int axis : axes) n *= extent_of(axis);
  return n;
}

bool WindowAxes::find_axes(const Target& target, const NodeMap<int>* stops) {
  for (Node s : n_->src(0)->srcs()) operands_.push_back(follow_halves(s, ranges_, {stops}));
  for (const ProductOperand& o : operands_)
    if (!is_affine(o) || !has_window_unit(target, o.point->dtype)) return false;
  if (operands_[0].point->dtype != operands_[1].point->dtype || !pads_alone(operands_))
    return false;
  with_ = has_windows(operands_[0]) ? 0 : 1;
  if (!has_windows(windows()) || has_windows(other())) return false;
  std::vector<int> summed, own;
  for (int axis = 0; axis < static_cast<int>(shape_.size()); ++axis) {
    if (extent_of(axis) == 1) continue;
    Node range = ranges_[axis];
    const bool here = walk_of(windows(), range).kind != Walk::None;
    const bool there = walk_of(other(), range).kind != Walk::None;
    if (is_reduced(n_, axis) != (here && there)) return false;
    (here && there ? summed : here ? own : others_).push_back(axis);
  }
  forward_ = size(summed) < size(own);
  taps_ = forward_ ? summed : own;
  pixels_ = forward_ ? own : summed;
  for (const ProductOperand& o : operands_) maps_.push_back(affine_map(o, ranges_));
  return true;
}

}  // namespace tiny
