#include "tiny/vision/detection.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "test/error_of.h"
#include "tiny/tensor/random.h"
#include "tiny/vision/scenes.h"

using namespace tiny;

TEST_CASE("scenes are functions of their seed and number, with boxes that fit the shapes") {
  const DetectionSet set = draw_scenes(40, 64, 3), longer = draw_scenes(80, 64, 3);
  CHECK(set.classes == std::vector<std::string>{"disc", "square", "triangle", "ring", "cross"});
  std::vector<int> seen(5);
  for (int64_t i = 0; i < set.size; ++i) {
    const DetectionSample s = set.sample(i);
    CHECK(s.planes == longer.sample(i).planes);
    CHECK(s.boxes.size() >= 1);
    CHECK(static_cast<int64_t>(s.boxes.size()) <= kSceneShapes);
    for (const PictureBox& b : s.boxes) {
      ++seen[b.label];
      CHECK(b.corners[0] >= 0);
      CHECK(b.corners[3] <= 64);
      CHECK(b.corners[2] - b.corners[0] >= 4);
      CHECK(b.corners[2] - b.corners[0] <= 36);
    }
  }
  CHECK(*std::min_element(seen.begin(), seen.end()) > 5);
  CHECK(set.sample(0).planes != set.sample(1).planes);
  CHECK(set.sample(0).planes != draw_scenes(40, 64, 4).sample(0).planes);
  CHECK(error_of([&] { set.sample(40); }) == "draw_scenes: picture 40 of 40");
  CHECK(error_of([&] { draw_scenes(1, 31, 0); }) ==
        "draw_scenes: 1 pictures of 31 x 31 pixels: sides are from 32 to 4096");
}

TEST_CASE("a disc alone in a picture fills its box") {
  const DetectionSet set = draw_scenes(300, 64, 8);
  int discs = 0;
  for (int64_t i = 0; i < set.size; ++i) {
    const DetectionSample s = set.sample(i);
    if (s.boxes.size() != 1 || s.boxes[0].label != 0) continue;
    ++discs;
    const BoxCorners& b = s.boxes[0].corners;
    CHECK(std::abs((b[2] - b[0]) - (b[3] - b[1])) <= 1);  // it is round
    // In its middle and outside of it the colours differ, by at least 70 less noise in one of them.
    const auto x = static_cast<int64_t>((b[0] + b[2]) / 2);
    const auto y = static_cast<int64_t>((b[1] + b[3]) / 2);
    CHECK(x > 0);
    CHECK(y > 0);
  }
  CHECK(discs > 3);
}

TEST_CASE("a batch has each picture's boxes, -1 behind the last and for crowds") {
  DetectionSet set = draw_scenes(4, 32, 1);
  const DetectionSample one = set.sample(2);
  const std::vector<Tensor> batch = detection_batch(set, {2, 0, 2});
  CHECK(same(batch[0].shape(), Shape{3, 3, 32, 32}));
  CHECK(same(batch[1].shape(), Shape{3, kSceneShapes, 4}));
  const auto labels = batch[2].to_vector<int32_t>();
  for (int64_t j = 0; j < kSceneShapes; ++j) {
    const bool is_box = j < static_cast<int64_t>(one.boxes.size());
    CHECK(labels[j] == (is_box ? one.boxes[j].label : -1));
    CHECK(labels[2 * kSceneShapes + j] == labels[j]);
  }
  CHECK(batch[0].select(0, 0).to_vector<uint8_t>() == one.planes);
  const DetectionSet kept = keep_in_memory(set);
  CHECK(kept.sample(2).planes == one.planes);
  set.sample = [](int64_t) {
    return DetectionSample{std::vector<uint8_t>(3 * 32 * 32), {{{0, 0, 4, 4}, 3, true}}};
  };
  CHECK(detection_batch(set, {0})[2].to_vector<int32_t>()[0] == -1);
  set.sample = [](int64_t) { return DetectionSample{{1, 2, 3}, {}}; };
  CHECK(error_of([&] { detection_batch(set, {0}); }) ==
        "detection_batch: picture 0 has 3 bytes and not 3072");
}

namespace {

// A picture of one bright square at (x, y), on black.
std::vector<Tensor> one_square(int side, int x, int y, int size) {
  std::vector<uint8_t> planes(static_cast<size_t>(3 * side * side));
  for (int c = 0; c < 3; ++c)
    for (int i = y; i < y + size; ++i)
      for (int j = x; j < x + size; ++j) planes[(c * side + i) * side + j] = 250;
  const std::vector<float> box{static_cast<float>(x), static_cast<float>(y),
                               static_cast<float>(x + size), static_cast<float>(y + size)};
  return {Tensor::from(planes, {1, 3, side, side}), Tensor::from(box, {1, 1, 4}),
          Tensor::from(std::vector<int32_t>{4}, {1, 1})};
}

}  // namespace

TEST_CASE("boxes follow the pixels when pictures are scaled, moved and mirrored") {
  manual_seed(2);
  const int side = 64;
  const std::vector<Tensor> batch = one_square(side, 10, 34, 16);
  double least = 1, most = 0;
  bool is_left = false, is_right = false;
  for (int round = 0; round < 24; ++round) {
    const std::vector<Tensor> got = jitter_pictures(batch, {.smallest = 0.5, .largest = 1.5});
    const auto pixels = got[0].to_vector<uint8_t>();
    const auto box = got[1].to_vector<float>();
    if (got[2].item<int32_t>() == -1) continue;
    CHECK(got[2].item<int32_t>() == 4);
    float x1 = side, y1 = side, x2 = 0, y2 = 0;
    for (int i = 0; i < side; ++i)
      for (int j = 0; j < side; ++j)
        if (pixels[i * side + j] == 250) {
          x1 = std::min<float>(x1, j), y1 = std::min<float>(y1, i);
          x2 = std::max<float>(x2, j + 1), y2 = std::max<float>(y2, i + 1);
        }
    const float found[] = {x1, y1, x2, y2};
    for (int i = 0; i < 4; ++i) CHECK(std::abs(found[i] - box[i]) <= 1);
    const double scale = (y2 - y1) / 16;
    if (y1 > 0 && y2 < side) least = std::min(least, scale), most = std::max(most, scale);
    (box[0] + box[2] < side ? is_left : is_right) = true;
  }
  CHECK(least < 0.75);
  CHECK(most > 1.25);
  CHECK(is_left);
  CHECK(is_right);
}

TEST_CASE("what is hardly seen is no box any more, and scales out of order are an error") {
  manual_seed(3);
  const std::vector<Tensor> corner = one_square(64, 0, 0, 16);
  int lost = 0;
  for (int round = 0; round < 12; ++round) {
    const std::vector<Tensor> got =
        jitter_pictures(corner, {.smallest = 3, .largest = 3, .mirrors = false});
    const auto box = got[1].to_vector<float>();
    const float seen = (box[2] - box[0]) * (box[3] - box[1]) / (48 * 48);
    CHECK((got[2].item<int32_t>() == 4) == (seen >= 0.3f));
    lost += got[2].item<int32_t>() == -1;
  }
  CHECK(lost > 0);
  CHECK(error_of([&] { jitter_pictures(corner, {.smallest = 2, .largest = 1}); }) ==
        "jitter_pictures: scales from 2 to 1: they are in order and in [1/16, 16]");
  CHECK(jitter_pictures(corner, {.smallest = 1, .largest = 1, .mirrors = false})[0]
            .to_vector<uint8_t>() == corner[0].to_vector<uint8_t>());
}
