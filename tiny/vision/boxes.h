// Boxes of objects in pictures: overlaps, encodings relative to anchors, the matching of anchors to
// boxes, suppression of boxes that say the same. All of it is a graph of tensors, without a value
// that is read on the host.
//
//   const Tensor kept = nms(boxes, scores, 0.5, labels);
//
// A box is (x1, y1, x2, y2) with x1 <= x2 and y1 <= y2, in pixels or any other unit. Boxes are
// floats of shape (..., n, 4) (Error for others); leading axes broadcast. Names are torchvision's.
#pragma once
#include <cstdint>

#include "tiny/tensor/tensor.h"

namespace tiny {

// --- Boxes ---------------------------------------------------------------------------------------

Tensor box_area(const Tensor& boxes);  // (..., n)
// Intersection over union of each box of a (..., n, 4) with each of b (..., m, 4): (..., n, m).
// NaN for two boxes without any area.
Tensor box_iou(const Tensor& a, const Tensor& b);
// The parts of the boxes that lie in a picture of this size; what lies outside becomes empty.
Tensor clip_boxes(const Tensor& boxes, double height, double width);

// Boxes relative to anchors of the same shape: (dx, dy, dw, dh), where dx and dy are distances of
// the centres in widths and heights of the anchor, dw and dh logarithms of ratios of widths and
// heights (R. Girshick et al., arXiv 1311.2524, appendix C). What has no width or height gets
// infinities.
Tensor encode_boxes(const Tensor& boxes, const Tensor& anchors);
// The way back. dw and dh count as at most log(1000 / 16), as torchvision has it, so that no box
// becomes infinite.
Tensor decode_boxes(const Tensor& deltas, const Tensor& anchors);

// Which boxes are left, bool (..., n), when from the highest score down each box removes those
// after it that overlap it by more than `iou_threshold` (in [0, 1], else Error) and have the same
// label, where labels (..., n) are given: greedy non-maximum suppression, of each class by itself.
// Of equal scores the first comes first. The work grows with n^2 and the number of kernels with n /
// 32; no gradient.
Tensor nms(const Tensor& boxes, const Tensor& scores, double iou_threshold,
           const Tensor& labels = Tensor());

struct MatchOptions {
  double foreground = 0.5;  // an anchor has the box that it overlaps most if by at least so much,
  double background = 0.4;  // and none if by less than this
  bool keeps_best = true;   // nor is an anchor without one that a box overlaps more than any other
};
inline constexpr int64_t kNoBox = -1, kBetween = -2;

// For each anchor (a, 4) the number of its box (RetinaNet, T.-Y. Lin et al., arXiv 1708.02002,
// section 4): boxes (..., m, 4) with m >= 1 of which those count that are `valid`, bool (..., m).
// i64 (..., a): a number below m, kNoBox, or kBetween where the overlap is between the two
// thresholds. As in torchvision all anchors count as best that a box overlaps equally, and each has
// the box that it overlaps most itself. Error for thresholds out of order. No gradient.
Tensor match_boxes(const Tensor& anchors, const Tensor& boxes, const Tensor& valid,
                   const MatchOptions& options = {});

}  // namespace tiny
