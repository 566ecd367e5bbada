#include "runtime/layout/convolution/window_axes.h"

#include <algorithm>

#include "codegen/wgmma/tile.h"

namespace tiny {

bool suits_window_unit(const GraphContraction& c, const Target& target) {
  return std::ranges::all_of(c.operands,
                             [&](const ProductOperand& o) {
                               return is_affine(o) && has_window_unit(target, o.point->dtype);
                             }) &&
         pads_alone(c.operands);
}

int operand_of_windows(const GraphContraction& c, const Target& target) {
  if (!suits_window_unit(c, target)) return -1;
  const bool second = has_windows(c.operands[1]);
  return second == has_windows(c.operands[0]) ? -1 : second;
}

bool WindowAxes::find_axes(const Target& target) {
  with_ = operand_of_windows(c_, target);
  if (with_ < 0 || c_.operands[0].point->dtype != c_.operands[1].point->dtype) return false;
  const ContractionAxes axes = c_.axes();
  if (!axes.is_whole || !axes.batch.empty()) return false;
  const std::vector<int>&own = axes.own[with_], &summed = axes.k;
  others_ = axes.own[1 - with_];
  forward_ = size(summed) < size(own);
  taps_ = forward_ ? summed : own;
  pixels_ = forward_ ? own : summed;
  return true;
}

}  // namespace tiny
