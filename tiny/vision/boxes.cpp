#include "tiny/vision/boxes.h"

#include <cmath>
#include <vector>

#include "tiny/ir/sizes.h"
#include "tiny/tensor/detail.h"

namespace tiny {

namespace {

constexpr int64_t kWord = 32;  // candidates that one kernel of nms() decides on

void require_boxes(const char* what, const Tensor& x) {
  detail::require_float(what, x.dtype());
  check(x.rank() >= 2 && x.size(-1) == 4, what, ": boxes of shape ", to_text(x.shape()),
        ": they are (..., n, 4)");
}

// Number i of the four numbers of each box.
Tensor coordinate(const Tensor& boxes, int64_t i) { return boxes.select(-1, i); }

struct Centred {
  Tensor x, y, width, height;
};

Centred centred(const Tensor& boxes) {
  const Tensor w = coordinate(boxes, 2) - coordinate(boxes, 0);
  const Tensor h = coordinate(boxes, 3) - coordinate(boxes, 1);
  return {coordinate(boxes, 0) + w * 0.5, coordinate(boxes, 1) + h * 0.5, w, h};
}

}  // namespace

Tensor box_area(const Tensor& boxes) {
  require_boxes("box_area", boxes);
  const Centred c = centred(boxes);
  return c.width * c.height;
}

Tensor box_iou(const Tensor& a, const Tensor& b) {
  LabelScope label("box_iou");
  require_boxes("box_iou", a);
  require_boxes("box_iou", b);
  const Tensor x = a.unsqueeze(-2), y = b.unsqueeze(-3);  // (..., n, 1, 4), (..., 1, m, 4)
  const auto side = [&](int64_t low) {
    return (minimum(coordinate(x, low + 2), coordinate(y, low + 2)) -
            maximum(coordinate(x, low), coordinate(y, low)))
        .clamp(0, {});
  };
  const Tensor common = side(0) * side(1);
  return common / (box_area(a).unsqueeze(-1) + box_area(b).unsqueeze(-2) - common);
}

Tensor clip_boxes(const Tensor& boxes, double height, double width) {
  require_boxes("clip_boxes", boxes);
  return Tensor::stack(
      {coordinate(boxes, 0).clamp(0.0, width), coordinate(boxes, 1).clamp(0.0, height),
       coordinate(boxes, 2).clamp(0.0, width), coordinate(boxes, 3).clamp(0.0, height)},
      -1);
}

Tensor encode_boxes(const Tensor& boxes, const Tensor& anchors) {
  LabelScope label("encode_boxes");
  require_boxes("encode_boxes", boxes);
  require_boxes("encode_boxes", anchors);
  const Centred b = centred(boxes), a = centred(anchors);
  return Tensor::stack({(b.x - a.x) / a.width, (b.y - a.y) / a.height, (b.width / a.width).log(),
                        (b.height / a.height).log()},
                       -1);
}

Tensor decode_boxes(const Tensor& deltas, const Tensor& anchors) {
  LabelScope label("decode_boxes");
  require_boxes("decode_boxes", deltas);
  require_boxes("decode_boxes", anchors);
  const double most = std::log(1000.0 / 16);
  const Centred a = centred(anchors);
  const Tensor x = coordinate(deltas, 0) * a.width + a.x;
  const Tensor y = coordinate(deltas, 1) * a.height + a.y;
  const Tensor w = coordinate(deltas, 2).clamp({}, most).exp() * a.width * 0.5;
  const Tensor h = coordinate(deltas, 3).clamp({}, most).exp() * a.height * 0.5;
  return Tensor::stack({x - w, y - h, x + w, y + h}, -1);
}

// --- Suppression ---------------------------------------------------------------------------------

namespace {

// Of 32 candidates, best first, those that are left, as bits of i64 (...): `alive` those that no
// candidate before them has removed, row i of `rows` (..., 32) those behind i that i removes. The
// 32 decisions follow one another in one kernel, on bits.
Tensor decide(const Tensor& alive, const Tensor& rows) {
  Tensor word = alive;
  for (int64_t i = 0; i < kWord; ++i) {
    const Tensor is_left = (word >> i) & 1;
    word = word & (rows.select(-1, i) * is_left).bitwise_not();
  }
  return word.contiguous();
}

// Bools (..., 32) as bits, and back.
Tensor to_word(const Tensor& bits) {
  const Tensor place = Tensor::arange(kWord);
  return where(bits, Tensor::full({}, 1, kI64) << place, 0).sum(-1);
}
Tensor from_word(const Tensor& word) {
  return ((word.unsqueeze(-1) >> Tensor::arange(kWord)) & 1) == 1;
}

// Which candidates are left, best first: removes (..., n, n) says whether i removes j > i; n is a
// multiple of 32. Block after block: the candidates of a block decide among themselves, then they
// remove later ones.
Tensor survivors(const Tensor& removes) {
  const int64_t n = removes.size(-1), blocks = n / kWord;
  std::vector<Tensor> kept;
  Shape shape = to_shape(removes.shape());
  shape.pop_back();
  Tensor dead = Tensor::zeros(shape, kBool);
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t begin = b * kWord, behind = n - begin - kWord;
    const Tensor mine = removes.narrow(-2, begin, kWord);  // (..., 32, n)
    const Tensor rows = to_word(mine.narrow(-1, begin, kWord)).contiguous();
    const Tensor alive = to_word(dead.narrow(-1, 0, kWord).logical_not()).contiguous();
    kept.push_back(from_word(decide(alive, rows)));
    if (behind == 0) break;
    const Tensor hit =
        logical_and(kept.back().unsqueeze(-1), mine.narrow(-1, begin + kWord, behind)).any(-2);
    dead = logical_or(dead.narrow(-1, kWord, behind), hit).contiguous();
  }
  return Tensor::cat(kept, -1);
}

}  // namespace

Tensor nms(const Tensor& boxes, const Tensor& scores, double iou_threshold, const Tensor& labels) {
  LabelScope label("nms");
  require_boxes("nms", boxes);
  detail::require_float("nms", scores.dtype());
  Shape each = to_shape(boxes.shape());
  each.pop_back();
  check(same(scores.shape(), each), "nms: scores of shape ", to_text(scores.shape()),
        " for boxes of ", to_text(boxes.shape()));
  check(!labels.defined() || same(labels.shape(), each), "nms: labels of shape ",
        labels.defined() ? std::string(to_text(labels.shape())) : "", " for boxes of ",
        to_text(boxes.shape()));
  check(iou_threshold >= 0 && iou_threshold <= 1, "nms: a threshold of ", iou_threshold,
        " is not in [0, 1]");
  const int64_t n = each.back(), padded = ceil_div(n, kWord) * kWord;
  if (numel(each) == 0) return Tensor::zeros(each, kBool);
  const NoGrad no_grad;
  const Tensor order = scores.argsort(-1, /*descending=*/true).contiguous();  // (..., n)
  Shape four = each;
  four.push_back(4);
  const Tensor sorted = boxes.gather(-2, order.unsqueeze(-1).expand(four)).contiguous();
  Shape square = each;
  square.push_back(n);
  const int rank = static_cast<int>(square.size());
  Tensor removes = logical_and(
      box_iou(sorted, sorted) > iou_threshold,
      detail::position(square, rank - 2, kI32) < detail::position(square, rank - 1, kI32));
  if (labels.defined()) {
    const Tensor of = labels.gather(-1, order).contiguous();
    removes = logical_and(removes, of.unsqueeze(-1) == of.unsqueeze(-2));
  }
  std::vector<Padding> pads(square.size());
  pads[rank - 2].after = pads[rank - 1].after = padded - n;
  const Tensor kept = survivors(removes.pad(pads, PadMode::Constant, false).contiguous());
  return Tensor::zeros(each, kBool).scatter(-1, order, kept.narrow(-1, 0, n).contiguous());
}

// --- Matching ------------------------------------------------------------------------------------

Tensor match_boxes(const Tensor& anchors, const Tensor& boxes, const Tensor& valid,
                   const MatchOptions& o) {
  LabelScope label("match_boxes");
  require_boxes("match_boxes", anchors);
  require_boxes("match_boxes", boxes);
  Shape each = to_shape(boxes.shape());
  each.pop_back();
  check(anchors.rank() == 2 && boxes.size(-2) >= 1, "match_boxes: anchors ",
        to_text(anchors.shape()), " and boxes ", to_text(boxes.shape()),
        ": they are (a, 4) and (..., m, 4) with m >= 1");
  check(valid.dtype() == kBool && same(valid.shape(), each), "match_boxes: which boxes count is ",
        valid.dtype().name(), " ", to_text(valid.shape()), " and not bool ", to_text(each));
  check(o.background <= o.foreground, "match_boxes: background below ", o.background,
        " and foreground from ", o.foreground, ": the second must not be lower");
  const NoGrad no_grad;
  // In memory: what is compared with its own maximum must have the same bits both times.
  const Tensor iou =
      where(valid.unsqueeze(-1), box_iou(boxes, anchors), -1).contiguous();  // (..., m, a)
  const Tensor most = iou.max(-2), mine = iou.argmax(-2);
  Tensor out = where(most >= o.foreground, mine, where(most >= o.background, kBetween, kNoBox));
  if (o.keeps_best) {
    const Tensor best = iou.max(-1, /*keepdim=*/true);
    const Tensor is_best = logical_and(iou == best, best > 0).any(-2);
    out = where(is_best, mine, out);
  }
  return out;
}

}  // namespace tiny
