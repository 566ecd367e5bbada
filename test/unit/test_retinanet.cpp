#include "tiny/vision/retinanet.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "test/error_of.h"
#include "tiny/tensor/random.h"
#include "tiny/train/optim.h"
#include "tiny/vision/boxes.h"

using namespace tiny;

namespace {

nn::RetinaNetOptions small_options() {
  return {.classes = 3,
          .backbone = {{1, 1, 1, 1}, 4, nn::PictureNorm::Batch},
          .channels = 8,
          .head_depth = 1,
          .anchor_size = 16};
}

// Of two pictures of 32 x 32: numbers that are no network's.
nn::RetinaNetOutputs random_outputs(int64_t classes) {
  nn::RetinaNetOutputs o{{}, {}, {}, 32, 32};
  const std::vector<std::pair<int64_t, int64_t>> grids{{4, 4}, {2, 2}};
  o.anchors = nn::make_anchors(32, 32, grids, 8);
  for (const auto& [h, w] : grids) {
    o.logits.push_back(Tensor::normal({2, h * w * 9, classes}, -1, 2).realize());
    o.deltas.push_back(Tensor::normal({2, h * w * 9, 4}, 0, 0.5).realize());
  }
  return o;
}

}  // namespace

TEST_CASE("anchors are three sizes in three shapes around each place") {
  const Tensor anchors = nn::make_anchors(64, 96, {{8, 12}, {4, 6}}, 32);
  CHECK(same(anchors.shape(), Shape{(96 + 24) * 9, 4}));
  const auto a = anchors.to_vector<float>();
  const auto box = [&](int64_t i) {
    return std::vector<float>(a.begin() + 4 * i, a.begin() + 4 * i + 4);
  };
  // torchvision's for sizes 32, 40, 50 and ratios 0.5, 1, 2, at the corner of the first place.
  CHECK(box(0) == std::vector<float>{-23, -11, 23, 11});
  CHECK(box(1) == std::vector<float>{-28, -14, 28, 14});
  CHECK(box(2) == std::vector<float>{-35, -18, 35, 18});
  CHECK(box(3) == std::vector<float>{-16, -16, 16, 16});
  CHECK(box(5) == std::vector<float>{-25, -25, 25, 25});
  CHECK(box(6) == std::vector<float>{-11, -23, 11, 23});
  CHECK(box(9 + 3) == std::vector<float>{-8, -16, 24, 16});        // the next place to the right
  CHECK(box(12 * 9 + 3) == std::vector<float>{-16, -8, 16, 24});   // the next row
  CHECK(box(96 * 9 + 3) == std::vector<float>{-32, -32, 32, 32});  // the next level
  // Distances are whole: 100 pixels on 13 places are 7 each.
  CHECK(nn::make_anchors(100, 100, {{13, 13}}, 16).to_vector<float>()[9 * 4 + 3 * 4] == -1);
  CHECK(error_of([] {
          nn::make_anchors(8, 8, {{9, 1}});
        }) == "make_anchors: a grid (9,1) for a picture (8,8)");
}

TEST_CASE("focal loss is the paper's formula, with its gradient") {
  const std::vector<float> logits{-3, -0.5, 0, 0.7, 4, 60, -60}, targets{1, 0, 1, 0, 1, 0, 1};
  for (const double gamma : {2.0, 1.5, 0.0}) {
    Tensor x = Tensor::from(logits).requires_grad_();
    const Tensor loss = sigmoid_focal_loss(x, Tensor::from(targets), 0.25, gamma);
    const auto got = loss.to_vector<float>();
    loss.sum().backward();
    const auto slopes = x.grad().to_vector<float>();
    const auto expected = [&](double v, double target) {
      const double p = 1 / (1 + std::exp(-v)), pt = target > 0 ? p : 1 - p;
      const double log_pt = -std::log1p(std::exp(target > 0 ? -v : v));
      return -(target > 0 ? 0.25 : 0.75) * std::pow(1 - pt, gamma) * log_pt;
    };
    for (size_t i = 0; i < got.size(); ++i) {
      CAPTURE(logits[i]);
      CHECK(got[i] == doctest::Approx(expected(logits[i], targets[i])).epsilon(1e-4));
      const double e = 1e-4, slope = (expected(logits[i] + e, targets[i]) -
                                      expected(logits[i] - e, targets[i])) /
                                     (2 * e);
      CHECK(slopes[i] == doctest::Approx(slope).epsilon(2e-3));
    }
  }
  const Tensor x = Tensor::from({0.0f});
  CHECK(sigmoid_focal_loss(x, x, -1, 0, Reduction::Sum).item<float>() ==
        doctest::Approx(std::log(2)));
  CHECK(error_of([&] { sigmoid_focal_loss(x, x, 2); }) ==
        "sigmoid_focal_loss: gamma 2 and alpha 2: they are at least 0 and at most 1");
}

TEST_CASE("the loss is a loop over anchors, those between the thresholds left out") {
  manual_seed(6);
  const int64_t classes = 3;
  nn::RetinaNetOptions options = small_options();
  const nn::RetinaNet network(options);
  const nn::RetinaNetOutputs o = random_outputs(classes);
  const Tensor boxes = Tensor::from(std::vector<float>{1, 2, 13, 12, 15, 14, 31, 30, 0, 0, 0, 0,  //
                                                       0, 0, 0,  0,  0,  0,  0,  0,  0, 0, 0, 0},
                                    {2, 3, 4});
  const Tensor labels = Tensor::from(std::vector<int32_t>{2, 0, -1, -1, -1, -1}, {2, 3});
  const nn::RetinaNetLoss got = network.loss(o, {boxes, labels});

  const auto match = match_boxes(o.anchors, boxes, labels >= 0).to_vector<int64_t>();
  const auto logits = Tensor::cat(o.logits, 1).to_vector<float>();
  const auto deltas = Tensor::cat(o.deltas, 1).to_vector<float>();
  const auto anchors = o.anchors.to_vector<float>(), all = boxes.to_vector<float>();
  const auto label = labels.to_vector<int32_t>();
  const int64_t a = o.anchors.size(0);
  double of_classes = 0, of_boxes = 0;
  int64_t between = 0;
  for (int64_t n = 0; n < 2; ++n) {
    double c = 0, b = 0, count = 0;
    for (int64_t i = 0; i < a; ++i) {
      const int64_t m = match[n * a + i];
      between += m == kBetween;
      if (m == kBetween) continue;
      for (int64_t k = 0; k < classes; ++k) {
        const double v = logits[(n * a + i) * classes + k], p = 1 / (1 + std::exp(-v));
        const bool is_class = m >= 0 && label[n * 3 + m] == k;
        c += is_class ? -0.25 * (1 - p) * (1 - p) * std::log(p) : -0.75 * p * p * std::log(1 - p);
      }
      if (m < 0) continue;
      ++count;
      const float *t = &all[(n * 3 + m) * 4], *r = &anchors[i * 4];
      const double w = r[2] - r[0], h = r[3] - r[1];
      const double target[] = {((t[0] + t[2]) / 2 - (r[0] + r[2]) / 2) / w,
                               ((t[1] + t[3]) / 2 - (r[1] + r[3]) / 2) / h,
                               std::log((t[2] - t[0]) / w), std::log((t[3] - t[1]) / h)};
      for (int k = 0; k < 4; ++k) {
        const double d = std::abs(deltas[(n * a + i) * 4 + k] - target[k]), beta = 1.0 / 9;
        b += d < beta ? d * d / (2 * beta) : d - beta / 2;
      }
    }
    of_classes += c / std::max(count, 1.0) / 2;
    of_boxes += b / std::max(count, 1.0) / 2;
  }
  CHECK(between > 0);
  CHECK(of_boxes > 0);
  CHECK(got.classes.item<float>() == doctest::Approx(of_classes).epsilon(1e-4));
  CHECK(got.boxes.item<float>() == doctest::Approx(of_boxes).epsilon(1e-4));
  CHECK(error_of([&] {
          network.loss(o, {boxes.select(0, 0), labels});
        }) ==
        "RetinaNet: boxes (3,4) and labels (2,3) for 2 pictures: they are (N, m, 4) and (N, m)");
}

TEST_CASE("detections are the best pairs of anchor and class, without those that say the same") {
  manual_seed(7);
  const int64_t classes = 3;
  const nn::RetinaNet network(small_options());
  const nn::RetinaNetOutputs o = random_outputs(classes);
  const nn::DetectOptions options{
      .score_threshold = 0.3, .per_level = 60, .candidates = 90, .most = 20};
  const nn::Detections got = network.detect(o, options);
  const auto boxes = got.boxes.to_vector<float>(), scores = got.scores.to_vector<float>();
  const auto labels = got.labels.to_vector<int64_t>();
  int64_t found = 0;
  for (int64_t n = 0; n < 2; ++n) {
    struct Candidate {
      float score;
      int64_t label;
      std::vector<float> box;
    };
    std::vector<Candidate> all;
    int64_t begin = 0;
    for (size_t level = 0; level < 2; ++level) {
      const int64_t a = o.logits[level].size(1);
      const auto logits = o.logits[level].select(0, n).sigmoid().to_vector<float>();
      const auto decoded =
          clip_boxes(decode_boxes(o.deltas[level].select(0, n), o.anchors.narrow(0, begin, a)), 32,
                     32)
              .to_vector<float>();
      std::vector<Candidate> here;
      for (int64_t i = 0; i < a * classes; ++i) {
        const float* b = &decoded[i / classes * 4];
        here.push_back({logits[i], i % classes, {b, b + 4}});
      }
      std::stable_sort(here.begin(), here.end(),
                       [](const auto& x, const auto& y) { return x.score > y.score; });
      here.resize(60);
      all.insert(all.end(), here.begin(), here.end());
      begin += a;
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const auto& x, const auto& y) { return x.score > y.score; });
    all.resize(90);
    std::vector<Candidate> kept;
    for (const Candidate& c : all) {
      const auto overlaps = [&](const Candidate& k) {
        const Tensor iou = box_iou(Tensor::from(k.box, {1, 4}), Tensor::from(c.box, {1, 4}));
        return k.label == c.label && iou.item<float>() > 0.5f;
      };
      if (c.score > 0.3f && kept.size() < 20 && std::none_of(kept.begin(), kept.end(), overlaps))
        kept.push_back(c);
    }
    for (size_t i = 0; i < 20; ++i) {
      const size_t at = n * 20 + i;
      CHECK(scores[at] == (i < kept.size() ? kept[i].score : 0));
      if (i >= kept.size()) continue;
      ++found;
      CHECK(labels[at] == kept[i].label);
      for (int k = 0; k < 4; ++k) CHECK(boxes[at * 4 + k] == doctest::Approx(kept[i].box[k]));
    }
  }
  CHECK(found > 5);
}

TEST_CASE("a network has torchvision's names, five levels, and begins with a low probability") {
  manual_seed(8);
  nn::RetinaNet network(small_options());
  std::set<std::string> names;
  for (const NamedTensor& t : network.state_dict()) names.insert(t.name);
  for (const char* name :
       {"backbone.body.conv1.weight", "backbone.body.bn1.running_mean",
        "backbone.body.layer1.0.conv3.weight", "backbone.body.layer4.0.downsample.0.weight",
        "backbone.body.layer2.0.downsample.1.bias", "backbone.fpn.inner_blocks.2.0.bias",
        "backbone.fpn.layer_blocks.0.0.weight", "backbone.fpn.extra_blocks.p7.weight",
        "head.classification_head.conv.0.0.weight", "head.classification_head.cls_logits.bias",
        "head.regression_head.bbox_reg.weight"})
    CHECK_MESSAGE(names.count(name), name);
  const Tensor bytes = Tensor::randint(0, 256, {2, 3, 64, 96}, kU8);
  const nn::RetinaNetOutputs o = network.outputs(nn::RetinaNet::normalized(bytes));
  std::vector<int64_t> places;
  for (const Tensor& t : o.logits) places.push_back(t.size(1) / 9);
  CHECK(places == std::vector<int64_t>{8 * 12, 4 * 6, 2 * 3, 1 * 2, 1 * 1});
  CHECK(o.anchors.size(0) == 9 * (96 + 24 + 6 + 2 + 1));
  CHECK(o.logits[0].sigmoid().mean().item<float>() == doctest::Approx(0.01).epsilon(0.05));
  CHECK(
      error_of([&] {
        network.outputs(Tensor::zeros({1, 3, 16, 64}));
      }) ==
      "RetinaNet: pictures of shape (1,3,16,64): they are (N, 3, H, W) of at least 32 x 32 pixels");
  CHECK(error_of([] {
          nn::ResNet({.depths = {1, 2}});
        }) == "ResNet: 2 stages of width 64: there are four of width 1 or more");
  CHECK(error_of([] { nn::ResNet({.depths = {1, 2, 0, 1}}); }) == "ResNet: stage 3 has 0 blocks");
}

TEST_CASE("a frozen batch norm takes the statistics that it has, in training too") {
  manual_seed(9);
  nn::FrozenBatchNorm2d frozen(2);
  nn::BatchNorm2d other(2);
  const Tensor mean = Tensor::from({1.0f, -2.0f}), var = Tensor::from({4.0f, 0.25f});
  for (Tensor* t : {&frozen.running_mean, &other.running_mean}) *t = mean;
  for (Tensor* t : {&frozen.running_var, &other.running_var}) *t = var;
  const Tensor x = Tensor::randn({3, 2, 4, 4}).realize();
  const auto expected = other(x).to_vector<float>();
  const nn::Training training;
  CHECK(frozen(x).to_vector<float>() == expected);
  CHECK(frozen.running_mean.to_vector<float>() == std::vector<float>{1, -2});
  CHECK(frozen.parameters().empty());
  CHECK(frozen.state_dict("bn1.")[3].name == "bn1.running_var");
}
