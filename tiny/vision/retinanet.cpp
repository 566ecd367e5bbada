#include "tiny/vision/retinanet.h"

#include <algorithm>
#include <cmath>

#include "tiny/vision/boxes.h"

namespace tiny::nn {

// --- Anchors -------------------------------------------------------------------------------------

Tensor make_anchors(int64_t height, int64_t width,
                    const std::vector<std::pair<int64_t, int64_t>>& grids, int64_t size) {
  check(size >= 1, "make_anchors: a size of ", size);
  std::vector<float> out;
  for (size_t level = 0; level < grids.size(); ++level) {
    const auto [rows, columns] = grids[level];
    check(rows >= 1 && columns >= 1 && rows <= height && columns <= width, "make_anchors: a grid (",
          rows, ",", columns, ") for a picture (", height, ",", width, ")");
    const int64_t dy = height / rows, dx = width / columns;
    std::vector<float> base;  // (w, h) / 2 of each of the nine
    for (const double ratio : {0.5, 1.0, 2.0})
      for (int third = 0; third < 3; ++third) {
        const double side = std::floor(static_cast<double>(size << level) * std::exp2(third / 3.0));
        const double root = std::sqrt(ratio);
        base.push_back(static_cast<float>(std::nearbyint(side / root / 2)));
        base.push_back(static_cast<float>(std::nearbyint(side * root / 2)));
      }
    for (int64_t y = 0; y < rows; ++y)
      for (int64_t x = 0; x < columns; ++x)
        for (size_t i = 0; i < base.size(); i += 2) {
          const auto cx = static_cast<float>(x * dx), cy = static_cast<float>(y * dy);
          out.insert(out.end(), {cx - base[i], cy - base[i + 1], cx + base[i], cy + base[i + 1]});
        }
  }
  return Tensor::from(out, {static_cast<int64_t>(out.size()) / 4, 4});
}

// --- The network ---------------------------------------------------------------------------------

namespace {

std::vector<int64_t> channels_of(const ResNetOptions& o) {
  return {8 * o.width, 16 * o.width, 32 * o.width};
}

Conv2d head_conv(int64_t in, int64_t out, double bias) {
  Conv2d conv(in, out, 3, {.padding = 1});
  conv.weight = Tensor::normal({out, in, 3, 3}, 0, 0.01).requires_grad_();
  conv.bias = Tensor::full({out}, bias, kF32).contiguous().requires_grad_();
  return conv;
}

// The bias with which each class begins with the probability 0.01 (section 4.1).
double prior_bias() { return -std::log((1 - 0.01) / 0.01); }

}  // namespace

RetinaNet::Head::Head(const std::string& name_, const std::string& last_, const RetinaNetOptions& o,
                      int64_t numbers_)
    : name(name_), last(last_), numbers(numbers_) {
  for (int64_t i = 0; i < o.head_depth; ++i) convs.push_back(head_conv(o.channels, o.channels, 0));
  const double bias = last == "cls_logits" ? prior_bias() : 0;
  convs.push_back(head_conv(o.channels, kAnchorsPerPlace * numbers, bias));
}

Tensor RetinaNet::Head::operator()(const Tensor& x) {
  Tensor y = x;
  for (size_t i = 0; i < convs.size(); ++i)
    y = i + 1 < convs.size() ? convs[i](y).relu() : convs[i](y);
  const int64_t n = y.size(0), places = y.size(2) * y.size(3);
  return y.reshape({n, kAnchorsPerPlace, numbers, places})
      .permute({0, 3, 1, 2})
      .reshape({n, places * kAnchorsPerPlace, numbers});
}

RetinaNet::RetinaNet(const RetinaNetOptions& o)
    : options_(o),
      body_(o.backbone),
      pyramid_(channels_of(o.backbone), o.channels),
      classes_("head.classification_head", "cls_logits", o, o.classes),
      boxes_("head.regression_head", "bbox_reg", o, 4) {
  check(o.classes >= 1 && o.channels >= 1 && o.head_depth >= 0 && o.anchor_size >= 1,
        "RetinaNet: ", o.classes, " classes, ", o.channels, " channels, heads of ", o.head_depth,
        " convolutions, anchors of ", o.anchor_size, " pixels");
}

Children RetinaNet::children() {
  Children out{{"backbone.body", &body_}, {"backbone.fpn", &pyramid_}};
  for (Head* head : {&classes_, &boxes_})
    for (size_t i = 0; i < head->convs.size(); ++i) {
      const bool is_last = i + 1 == head->convs.size();
      const std::string name = is_last ? head->last : cat("conv.", i, ".0");
      out.push_back({cat(head->name, ".", name), &head->convs[i]});
    }
  return out;
}

Tensor RetinaNet::normalized(const Tensor& bytes) {
  check(bytes.rank() == 4 && bytes.size(1) == 3, "RetinaNet: pictures of shape ",
        to_text(bytes.shape()), ": they are (N, 3, H, W)");
  // Constants, which need no memory that a Jit would have to know.
  const auto channels = [](double red, double green, double blue) {
    const auto one = [](double v) { return Tensor::full({1, 1, 1}, v, kF32); };
    return Tensor::cat({one(red), one(green), one(blue)});
  };
  const Tensor mean = channels(0.485, 0.456, 0.406), deviation = channels(0.229, 0.224, 0.225);
  return (bytes.to(kF32) / 255 - mean) / deviation;
}

const Tensor& RetinaNet::anchors_for(const RetinaNetOutputs& o, const std::string& device,
                                     const std::vector<std::pair<int64_t, int64_t>>& grids) {
  Tensor& anchors = anchors_[cat(o.height, " ", o.width, " ", device)];
  if (!anchors.defined()) {
    anchors = make_anchors(o.height, o.width, grids, options_.anchor_size);
    if (!device.empty()) anchors = anchors.to(device).contiguous();
  }
  return anchors;
}

RetinaNetOutputs RetinaNet::outputs(const Tensor& images) {
  check(images.rank() == 4 && images.size(1) == 3 && images.size(2) >= 32 && images.size(3) >= 32,
        "RetinaNet: pictures of shape ", to_text(images.shape()),
        ": they are (N, 3, H, W) of at least 32 x 32 pixels");
  RetinaNetOutputs out{{}, {}, {}, images.size(2), images.size(3)};
  std::vector<std::pair<int64_t, int64_t>> grids;
  for (const Tensor& level : pyramid_.features(body_.features(images))) {
    out.logits.push_back(classes_(level));
    out.deltas.push_back(boxes_(level));
    grids.emplace_back(level.size(2), level.size(3));
  }
  out.anchors = anchors_for(out, images.device(), grids);
  return out;
}

// --- Losses --------------------------------------------------------------------------------------

RetinaNetLoss RetinaNet::loss(const RetinaNetOutputs& o, const TrueBoxes& truth) const {
  const int64_t n = o.logits.at(0).size(0), a = o.anchors.size(0);
  check(truth.boxes.rank() == 3 && truth.labels.rank() == 2 && truth.boxes.size(0) == n,
        "RetinaNet: boxes ", to_text(truth.boxes.shape()), " and labels ",
        to_text(truth.labels.shape()), " for ", n, " pictures: they are (N, m, 4) and (N, m)");
  const Tensor labels = truth.labels.to(kI64), boxes = truth.boxes.to(kF32);
  const Tensor match = match_boxes(o.anchors, boxes, labels >= 0).contiguous();  // (N, a)
  const Tensor has_box = match >= 0, counts = (match != kBetween), at = match.clamp(0, {});
  const Tensor share = 1 / has_box.to(kF32).sum(1).clamp(1, {});  // (N)
  const Tensor label = where(has_box, labels.gather(1, at), -1).to(kI32).contiguous();
  const Tensor box = boxes.gather(1, at.unsqueeze(-1).expand({n, a, 4}));
  // Of anchors without a box the encoding would be infinite, and its product with 0 is NaN.
  const Tensor target =
      encode_boxes(where(has_box.unsqueeze(-1), box, o.anchors), o.anchors).contiguous();
  const Tensor classes = Tensor::arange(0, options_.classes, 1, kI32);
  Tensor of_classes, of_boxes;
  int64_t begin = 0;
  for (size_t level = 0; level < o.logits.size(); ++level) {
    const int64_t count = o.logits[level].size(1);
    const auto part = [&](const Tensor& x) { return x.narrow(1, begin, count); };
    const Tensor hot = (part(label).unsqueeze(-1) == classes).to(kF32);
    const Tensor focal = sigmoid_focal_loss(o.logits[level].to(kF32), hot);
    const Tensor distance =
        smooth_l1_loss(o.deltas[level].to(kF32), part(target), Reduction::None, options_.box_beta);
    const Tensor c = where(part(counts).unsqueeze(-1), focal, 0).sum({1, 2});
    const Tensor b = where(part(has_box).unsqueeze(-1), distance, 0).sum({1, 2});
    of_classes = level ? of_classes + c : c;
    of_boxes = level ? of_boxes + b : b;
    begin += count;
  }
  return {(of_classes * share).mean(), (of_boxes * share).mean()};
}

// --- Detections ----------------------------------------------------------------------------------

namespace {

// Rows `at` (N, k) of x (N, n, width).
Tensor rows(const Tensor& x, const Tensor& at) {
  return x.gather(1, at.unsqueeze(-1).expand({at.size(0), at.size(1), x.size(-1)}));
}

// Candidates, or those of one level.
struct Candidates {
  Tensor boxes, scores, labels;

  // The k best.
  Candidates best(int64_t k) const {
    const WithIndices top = scores.topk(std::min(k, scores.size(1)), 1);
    const Tensor at = top.indices.contiguous();
    return {rows(boxes, at).contiguous(), top.values.contiguous(),
            labels.gather(1, at).contiguous()};
  }
};

Candidates of_level(const Tensor& logits, const Tensor& deltas, const Tensor& anchors,
                    int64_t per_level) {
  const int64_t n = logits.size(0), classes = logits.size(2);
  const Tensor scores = logits.to(kF32).sigmoid().flatten(1).contiguous();
  const WithIndices top = scores.topk(std::min(per_level, scores.size(1)), 1);
  const Tensor at = top.indices.contiguous(), anchor = trunc_div(at, classes);
  const Tensor all = anchors.unsqueeze(0).expand({n, anchors.size(0), 4});
  return {decode_boxes(rows(deltas.to(kF32), anchor), rows(all, anchor)), top.values,
          at - anchor * classes};
}

}  // namespace

Detections RetinaNet::detect(const RetinaNetOutputs& o, const DetectOptions& options) const {
  check(options.per_level >= 1 && options.candidates >= 1 && options.most >= 1,
        "RetinaNet: detections of ", options.per_level, " a level, ", options.candidates,
        " candidates, at most ", options.most);
  const NoGrad no_grad;
  std::vector<Tensor> boxes, scores, labels;
  int64_t begin = 0;
  for (size_t level = 0; level < o.logits.size(); ++level) {
    const int64_t count = o.logits[level].size(1);
    const Candidates c = of_level(o.logits[level], o.deltas[level],
                                  o.anchors.narrow(0, begin, count), options.per_level);
    boxes.push_back(c.boxes);
    scores.push_back(c.scores);
    labels.push_back(c.labels);
    begin += count;
  }
  const Tensor all = clip_boxes(Tensor::cat(boxes, 1), static_cast<double>(o.height),
                                static_cast<double>(o.width));
  Candidates c{all.contiguous(), Tensor::cat(scores, 1).contiguous(),
               Tensor::cat(labels, 1).contiguous()};
  c = c.best(options.candidates);
  const Tensor is_left = logical_and(nms(c.boxes, c.scores, options.iou_threshold, c.labels),
                                     c.scores > options.score_threshold);
  c.scores = where(is_left, c.scores, 0).contiguous();
  c = c.best(options.most);
  return {c.boxes, c.scores, c.labels};
}

}  // namespace tiny::nn
