#include "tiny/vision/detection.h"

#include <algorithm>
#include <memory>

#include "tiny/base/error.h"
#include "tiny/base/parallel.h"
#include "tiny/vision/boxes.h"

namespace tiny {

DetectionSet keep_in_memory(const DetectionSet& set) {
  const auto samples =
      std::make_shared<std::vector<DetectionSample>>(static_cast<size_t>(set.size));
  in_parallel(samples->size(), core_count(),
              [&](size_t i, size_t) { (*samples)[i] = set.sample(static_cast<int64_t>(i)); });
  DetectionSet out = set;
  out.sample = [samples](int64_t i) { return samples->at(static_cast<size_t>(i)); };
  return out;
}

std::vector<Tensor> detection_batch(const DetectionSet& set,
                                    const std::vector<int64_t>& positions) {
  const auto n = static_cast<int64_t>(positions.size());
  const int64_t bytes = 3 * set.side * set.side, m = set.most_boxes;
  std::vector<uint8_t> planes(static_cast<size_t>(n * bytes));
  std::vector<float> boxes(static_cast<size_t>(n * m * 4), 0);
  std::vector<int32_t> labels(static_cast<size_t>(n * m), -1);
  in_parallel(positions.size(), core_count(), [&](size_t i, size_t) {
    const DetectionSample sample = set.sample(positions[i]);
    check(static_cast<int64_t>(sample.planes.size()) == bytes, "detection_batch: picture ",
          positions[i], " has ", sample.planes.size(), " bytes and not ", bytes);
    check(static_cast<int64_t>(sample.boxes.size()) <= m, "detection_batch: picture ", positions[i],
          " has ", sample.boxes.size(), " boxes, more than ", m);
    std::ranges::copy(sample.planes, &planes[i * bytes]);
    size_t at = i * m;
    for (const PictureBox& box : sample.boxes) {
      std::ranges::copy(box.corners, &boxes[at * 4]);
      labels[at++] = box.is_crowd ? -1 : static_cast<int32_t>(box.label);
    }
  });
  return {Tensor::from(planes, {n, 3, set.side, set.side}), Tensor::from(boxes, {n, m, 4}),
          Tensor::from(labels, {n, m})};
}

std::vector<Tensor> jitter_pictures(const std::vector<Tensor>& batch, const JitterOptions& o) {
  check(batch.size() == 3 && batch[0].rank() == 4 && batch[1].rank() == 3 && batch[2].rank() == 2,
        "jitter_pictures: takes pictures (n, 3, h, w), boxes (n, m, 4) and labels (n, m)");
  check(o.smallest >= 1.0 / 16 && o.smallest <= o.largest && o.largest <= 16,
        "jitter_pictures: scales from ", o.smallest, " to ", o.largest,
        ": they are in order and in [1/16, 16]");
  const NoGrad no_grad;
  const Tensor &images = batch[0], &boxes = batch[1], &labels = batch[2];
  const int64_t n = images.size(0), h = images.size(2), w = images.size(3);
  const auto drawn = [&](const Tensor& random) {
    const Tensor kept = random.contiguous();
    return o.devices.size() > 1 ? kept.shard(o.devices, 0) : kept;
  };
  const Tensor scale = drawn(Tensor::uniform({n, 1}, o.smallest, o.largest));
  const Tensor dx = (1 - scale) * static_cast<double>(w) * drawn(Tensor::rand({n, 1}));
  const Tensor dy = (1 - scale) * static_cast<double>(h) * drawn(Tensor::rand({n, 1}));
  Tensor mirrored = Tensor::zeros({n, 1}, kBool);
  if (o.mirrors) mirrored = drawn(Tensor::randint(0, 2, {n, 1}, kI32)) == 1;
  // Which pixel of the picture lies at pixel i of the result, (n, size).
  const auto source = [&](const Tensor& i, const Tensor& moved) {
    return ((i.to(kF32) + 0.5 - moved) / scale).floor().to(kI32).contiguous();
  };
  const Tensor column = Tensor::arange(0, w, 1, kI32);
  const Tensor x = source(where(mirrored, w - 1 - column, column), dx);
  const Tensor y = source(Tensor::arange(0, h, 1, kI32), dy);
  const auto inside = [](const Tensor& at, int64_t size) {
    return logical_and(at >= 0, at < size);
  };
  const Tensor seen =
      logical_and(inside(y, h).reshape({n, 1, h, 1}), inside(x, w).reshape({n, 1, 1, w}));
  const Shape all{n, images.size(1), h, w};
  const Tensor picked = images.gather(2, y.clamp(0, h - 1).reshape({n, 1, h, 1}).expand(all))
                            .gather(3, x.clamp(0, w - 1).reshape({n, 1, 1, w}).expand(all));
  const Tensor left = boxes.select(-1, 0) * scale + dx, right = boxes.select(-1, 2) * scale + dx;
  const auto wide = static_cast<double>(w);
  const Tensor moved =
      Tensor::stack({where(mirrored, wide - right, left), boxes.select(-1, 1) * scale + dy,
                     where(mirrored, wide - left, right), boxes.select(-1, 3) * scale + dy},
                    -1)
          .contiguous();
  const Tensor cut = clip_boxes(moved, static_cast<double>(h), wide).contiguous();
  const Tensor is_seen = box_area(cut) >= box_area(moved) * o.least_visible;
  const Tensor is_box = logical_and(is_seen, box_area(cut) > 0);
  return {where(seen, picked, int64_t{kPaddingGrey}).to(images.dtype()), cut,
          where(is_box, labels, -1).to(labels.dtype())};
}

}  // namespace tiny
