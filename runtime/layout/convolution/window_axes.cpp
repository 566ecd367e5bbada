#include "runtime/layout/convolution/window_axes.h"

#include "codegen/wgmma/tile.h"

namespace tiny {

bool WindowAxes::find_axes(const Target& target, const NodeMap<int>* stops) {
  for (Node s : n_->src(0)->srcs()) operands_.push_back(follow_halves(s, ranges_, {stops}));
  for (const ProductOperand& o : operands_)
    if (!is_affine(o) || !has_window_unit(target, o.point->dtype)) return false;
  if (operands_[0].point->dtype != operands_[1].point->dtype || !pads_alone(operands_))
    return false;
  with_ = has_windows(operands_[0]) ? 0 : 1;
  if (!has_windows(windows()) || has_windows(other())) return false;
  const ProductAxes axes = axes_of(n_, operands_, ranges_);
  if (!axes.is_whole || !axes.batch.empty()) return false;
  const std::vector<int>&own = axes.own[with_], &summed = axes.k;
  others_ = axes.own[1 - with_];
  forward_ = size(summed) < size(own);
  taps_ = forward_ ? summed : own;
  pixels_ = forward_ ? own : summed;
  for (const ProductOperand& o : operands_) maps_.push_back(affine_map(o, ranges_));
  return true;
}

}  // namespace tiny
