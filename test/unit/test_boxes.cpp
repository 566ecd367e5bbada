#include "tiny/vision/boxes.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "test/devices.h"
#include "test/error_of.h"
#include "tiny/base/splitmix.h"
#include "tiny/run/jit.h"

using namespace tiny;

namespace {

using Box = std::vector<float>;  // x1, y1, x2, y2

// Boxes on whole numbers: areas and overlaps of floats are exact up to the last division.
std::vector<float> random_boxes(int64_t count, int room, SplitMix64& random) {
  std::vector<float> out;
  for (int64_t i = 0; i < count; ++i) {
    const int x = random.below(room), y = random.below(room);
    const int w = 1 + random.below(20), h = 1 + random.below(20);
    for (const int v : {x, y, x + w, y + h}) out.push_back(static_cast<float>(v));
  }
  return out;
}

float iou(const float* a, const float* b) {
  const float w = std::max(0.0f, std::min(a[2], b[2]) - std::max(a[0], b[0]));
  const float h = std::max(0.0f, std::min(a[3], b[3]) - std::max(a[1], b[1]));
  const float common = w * h;
  return common / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common);
}

// Greedy suppression as a plain loop: the best that is left removes what it overlaps.
std::vector<uint8_t> greedy(const std::vector<float>& boxes, const std::vector<float>& scores,
                            const std::vector<int32_t>& labels, float threshold) {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  std::vector<uint8_t> kept(scores.size());
  for (const size_t i : order) {
    kept[i] = std::none_of(order.begin(), order.end(), [&](size_t j) {
      return kept[j] && j != i && (labels.empty() || labels[i] == labels[j]) &&
             iou(&boxes[4 * i], &boxes[4 * j]) > threshold;
    });
  }
  return kept;
}

void check_nms(int64_t n, int room, int classes, float threshold, const std::string& device) {
  CAPTURE(n);
  CAPTURE(room);
  SplitMix64 random(static_cast<uint64_t>(n * 100 + room));
  const std::vector<float> boxes = random_boxes(n, room, random);
  std::vector<float> scores;
  std::vector<int32_t> labels;
  for (int64_t i = 0; i < n; ++i) {
    scores.push_back(static_cast<float>(random.below(50)));  // many are equal
    if (classes > 0) labels.push_back(random.below(classes));
  }
  const Tensor label = classes > 0 ? Tensor::from(labels, {n}, device) : Tensor();
  const Tensor kept =
      nms(Tensor::from(boxes, {n, 4}, device), Tensor::from(scores, {n}, device), threshold, label);
  const std::vector<uint8_t> expected = greedy(boxes, scores, labels, threshold);
  CHECK(kept.to_vector<uint8_t>() == expected);
  const auto left = std::count(expected.begin(), expected.end(), 1);
  CHECK(left >= 1);
  CHECK((n < 50 || left < n));  // there was something to remove
}

Tensor boxes_of(const std::vector<Box>& boxes) {
  std::vector<float> all;
  for (const Box& b : boxes) all.insert(all.end(), b.begin(), b.end());
  return Tensor::from(all, {static_cast<int64_t>(boxes.size()), 4});
}

}  // namespace

TEST_CASE("overlaps of boxes are intersection over union") {
  const Tensor a = boxes_of({{0, 0, 4, 4}, {10, 10, 12, 14}});
  const Tensor b = boxes_of({{2, 2, 6, 6}, {0, 0, 4, 4}, {4, 0, 8, 4}});
  const auto got = box_iou(a, b).to_vector<float>();
  CHECK(got == std::vector<float>{4.0f / 28, 1, 0, 0, 0, 0});
  CHECK(box_area(a).to_vector<float>() == std::vector<float>{16, 8});
  const Tensor clipped = clip_boxes(boxes_of({{-3, 2, 50, 9}, {60, -9, 70, -1}}), 8, 40);
  CHECK(clipped.to_vector<float>() == std::vector<float>{0, 2, 40, 8, 40, 0, 40, 0});
  CHECK(error_of([&] { box_iou(a, Tensor::zeros({3})); }) ==
        "box_iou: boxes of shape (3): they are (..., n, 4)");
}

TEST_CASE("encoded boxes are distances in sizes of the anchor, and come back") {
  const Tensor anchors = boxes_of({{0, 0, 10, 20}, {-5, 5, 15, 45}});
  const Tensor boxes = boxes_of({{5, 0, 15, 40}, {1, 2, 3, 5}});
  const Tensor deltas = encode_boxes(boxes, anchors);
  const auto d = deltas.to_vector<float>();
  CHECK(d[0] == doctest::Approx(0.5));
  CHECK(d[1] == doctest::Approx(0.5));
  CHECK(d[2] == doctest::Approx(0));
  CHECK(d[3] == doctest::Approx(std::log(2)));
  const auto back = decode_boxes(deltas, anchors).to_vector<float>();
  const auto expected = boxes.to_vector<float>();
  for (size_t i = 0; i < back.size(); ++i) CHECK(back[i] == doctest::Approx(expected[i]));
  // However large dw is, the box is 1000 / 16 times as wide at most.
  const auto wide =
      decode_boxes(boxes_of({{0, 0, 80, 0}}), boxes_of({{0, 0, 16, 16}})).to_vector<float>();
  CHECK(wide[2] - wide[0] == doctest::Approx(1000).epsilon(1e-5));
}

TEST_CASE("suppression keeps what a greedy loop over random boxes keeps") {
  for (const int64_t n : {1, 32, 33, 100}) check_nms(n, 40, 0, 0.5f, "CPU");
  check_nms(200, 25, 0, 0.3f, "CPU");
  check_nms(200, 25, 3, 0.3f, "CPU");
  check_nms(77, 60, 5, 0.0f, "CPU");
}

TEST_CASE("suppression on each device is that of the loop") {
  for (const std::string& device : test_devices())
    if (device != "CPU") {
      CAPTURE(device);
      check_nms(70, 20, 2, 0.4f, device);
    }
}

TEST_CASE("suppression follows a chain of boxes, each of which removes the next but one") {
  // Box i overlaps i + 1 alone: 0 removes 1, so 2 stays, and so on; a single pass removes them all.
  std::vector<float> boxes, scores;
  for (int i = 0; i < 90; ++i) {
    const auto x = static_cast<float>(6 * i);
    boxes.insert(boxes.end(), {x, 0, x + 10, 10});
    scores.push_back(static_cast<float>(-i));
  }
  const auto kept =
      nms(Tensor::from(boxes, {90, 4}), Tensor::from(scores), 0.2).to_vector<uint8_t>();
  for (size_t i = 0; i < kept.size(); ++i) CHECK(kept[i] == (i % 2 == 0));
}

TEST_CASE("suppression takes batches, inside a capture too") {
  SplitMix64 random(5);
  const int64_t n = 40;
  Jit suppress([](const Tensor& boxes, const Tensor& scores) { return nms(boxes, scores, 0.4); });
  for (int round = 0; round < 3; ++round) {
    std::vector<float> boxes = random_boxes(2 * n, 25, random), scores;
    for (int64_t i = 0; i < 2 * n; ++i) scores.push_back(random.between(0, 1));
    const auto got =
        suppress(Tensor::from(boxes, {2, n, 4}), Tensor::from(scores, {2, n})).to_vector<uint8_t>();
    for (int64_t b = 0; b < 2; ++b) {
      const std::vector<float> mine(boxes.begin() + b * n * 4, boxes.begin() + (b + 1) * n * 4);
      const std::vector<float> s(scores.begin() + b * n, scores.begin() + (b + 1) * n);
      const std::vector<uint8_t> part(got.begin() + b * n, got.begin() + (b + 1) * n);
      CHECK(part == greedy(mine, s, {}, 0.4f));
    }
  }
  CHECK(nms(Tensor::zeros({0, 4}), Tensor::zeros({0}), 0.5).numel() == 0);
}

TEST_CASE("suppression says what does not fit") {
  const Tensor boxes = Tensor::zeros({3, 4}), scores = Tensor::zeros({3});
  CHECK(error_of([&] { nms(boxes, Tensor::zeros({2}), 0.5); }) ==
        "nms: scores of shape (2) for boxes of (3,4)");
  CHECK(error_of([&] { nms(boxes, scores, 1.5); }) == "nms: a threshold of 1.5 is not in [0, 1]");
  CHECK(error_of([&] {
          nms(boxes, scores, 0.5, Tensor::zeros({3, 1}));
        }) == "nms: labels of shape (3,1) for boxes of (3,4)");
}

// --- Matching ------------------------------------------------------------------------------------

namespace {

// The rule of match_boxes as loops.
std::vector<int64_t> matched(const std::vector<float>& anchors, const std::vector<float>& boxes,
                             const std::vector<bool>& valid, const MatchOptions& o) {
  const size_t a = anchors.size() / 4, m = valid.size();
  std::vector<float> best_of_box(m, 0);
  for (size_t j = 0; j < m; ++j)
    for (size_t i = 0; i < a; ++i)
      best_of_box[j] = std::max(best_of_box[j], iou(&boxes[4 * j], &anchors[4 * i]));
  std::vector<int64_t> out;
  for (size_t i = 0; i < a; ++i) {
    float most = -1;
    int64_t mine = 0;
    bool is_best = false;
    for (size_t j = 0; j < m; ++j) {
      const float v = valid[j] ? iou(&boxes[4 * j], &anchors[4 * i]) : -1;
      if (v > most) mine = static_cast<int64_t>(j);
      most = std::max(most, v);
      is_best = is_best || (valid[j] && v > 0 && v == best_of_box[j]);
    }
    const bool has_box = most >= o.foreground || (o.keeps_best && is_best);
    out.push_back(has_box ? mine : most >= o.background ? kBetween : kNoBox);
  }
  return out;
}

}  // namespace

TEST_CASE("anchors are matched to boxes as loops do it, padded boxes left out") {
  SplitMix64 random(11);
  const int64_t a = 300, m = 5;
  const std::vector<float> anchors = random_boxes(a, 40, random);
  std::vector<float> boxes = random_boxes(2 * m, 40, random);
  const std::vector<bool> valid{true, true, false, true, false, false, false, false, false, false};
  std::copy_n(&anchors[4 * 7], 4, &boxes[0]);  // an exact hit
  std::copy_n(&anchors[4 * 9], 4, &boxes[8]);  // and one of a box that does not count
  for (const MatchOptions& o : {MatchOptions{}, MatchOptions{.keeps_best = false},
                                MatchOptions{.foreground = 0.3, .background = 0.1}}) {
    const auto got = match_boxes(Tensor::from(anchors, {a, 4}), Tensor::from(boxes, {2, m, 4}),
                                 Tensor::from(valid, {2, m}), o)
                         .to_vector<int64_t>();
    for (int64_t b = 0; b < 2; ++b) {
      const std::vector<float> mine(boxes.begin() + b * m * 4, boxes.begin() + (b + 1) * m * 4);
      const std::vector<bool> counts(valid.begin() + b * m, valid.begin() + (b + 1) * m);
      const std::vector<int64_t> part(got.begin() + b * a, got.begin() + (b + 1) * a);
      CHECK(part == matched(anchors, mine, counts, o));
    }
    CHECK(got[7] == 0);
    CHECK(std::count(got.begin() + a, got.end(), kNoBox) == a);  // a picture without boxes
    CHECK(std::count(got.begin(), got.begin() + a, kBetween) > 0);
  }
}

TEST_CASE("each box keeps its best anchor, however little they overlap") {
  const Tensor anchors = boxes_of({{0, 0, 10, 10}, {10, 0, 20, 10}, {40, 40, 50, 50}});
  const Tensor boxes = boxes_of({{9, 0, 13, 4}}), valid = Tensor::from({true});
  CHECK(match_boxes(anchors, boxes, valid).to_vector<int64_t>() ==
        std::vector<int64_t>{kNoBox, 0, kNoBox});
  CHECK(match_boxes(anchors, boxes, valid, {.keeps_best = false}).to_vector<int64_t>() ==
        std::vector<int64_t>{kNoBox, kNoBox, kNoBox});
  // One that overlaps no anchor has none: 0 is no overlap to be best with.
  CHECK(match_boxes(anchors, boxes_of({{70, 70, 80, 80}}), valid).to_vector<int64_t>() ==
        std::vector<int64_t>{kNoBox, kNoBox, kNoBox});
  CHECK(error_of([&] { match_boxes(anchors, boxes, Tensor::from({1.0f})); }) ==
        "match_boxes: which boxes count is f32 (1) and not bool (1)");
  CHECK(error_of([&] { match_boxes(anchors, boxes, valid, {.foreground = 0.3}); }) ==
        "match_boxes: background below 0.4 and foreground from 0.3: the second must not be lower");
}
