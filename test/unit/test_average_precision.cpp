#include "tiny/vision/average_precision.h"

#include <doctest/doctest.h>

#include "test/error_of.h"

using namespace tiny;

namespace {

const BoxCorners kBox{0, 0, 10, 10}, kOther{50, 50, 60, 60}, kNowhere{80, 0, 90, 10};

PictureResult picture(std::vector<PictureBox> truth, std::vector<FoundBox> found) {
  return {std::move(truth), std::move(found)};
}

}  // namespace

TEST_CASE("what is found exactly has a precision of 1, what is not of 0") {
  const AveragePrecision all = average_precision(
      {picture({{kBox, 0}, {kOther, 0}}, {{kOther, 0, 0.9f}, {kBox, 0, 0.3f}})}, 1);
  CHECK(all.mean == doctest::Approx(1));
  CHECK(all.at_50 == doctest::Approx(1));
  const AveragePrecision none = average_precision({picture({{kBox, 0}}, {})}, 1);
  CHECK(none.mean == 0);
  // A class that nothing shows counts for nothing, whatever is found of it.
  const AveragePrecision two =
      average_precision({picture({{kBox, 0}}, {{kBox, 0, 0.5f}, {kBox, 1, 0.9f}})}, 2);
  CHECK(two.mean == doctest::Approx(1));
  CHECK(two.by_class[1] == -1);
}

TEST_CASE("precision is read at 101 recalls, and made to fall") {
  // A hit, a miss, a hit of two boxes: precision 1 up to the recall 0.5 (51 recalls), then 2 / 3.
  const AveragePrecision p =
      average_precision({picture({{kBox, 0}, {kOther, 0}},
                                 {{kBox, 0, 0.9f}, {kNowhere, 0, 0.8f}, {kOther, 0, 0.7f}})},
                        1);
  CHECK(p.at_50 == doctest::Approx((51 + 50 * 2.0 / 3) / 101));
  // A miss first: 1 / 2 at every recall up to 0.5, 2 / 3 above; falling makes all of it 2 / 3.
  const AveragePrecision late =
      average_precision({picture({{kBox, 0}, {kOther, 0}},
                                 {{kNowhere, 0, 0.9f}, {kBox, 0, 0.8f}, {kOther, 0, 0.7f}})},
                        1);
  CHECK(late.at_50 == doctest::Approx(2.0 / 3));
  // One of two boxes is never found.
  const AveragePrecision half =
      average_precision({picture({{kBox, 0}, {kOther, 0}}, {{kBox, 0, 0.9f}})}, 1);
  CHECK(half.at_50 == doctest::Approx(51.0 / 101));
}

TEST_CASE("the mean goes over overlaps from 0.5 to 0.95") {
  // The box found has an overlap of 0.8 with the true one: a hit for 0.5, 0.55, ..., 0.8.
  const AveragePrecision p = average_precision({picture({{kBox, 0}}, {{{0, 0, 10, 8}, 0, 1}})}, 1);
  CHECK(p.at_50 == doctest::Approx(1));
  CHECK(p.at_75 == doctest::Approx(1));
  CHECK(p.mean == doctest::Approx(0.7));
  const AveragePrecision below =
      average_precision({picture({{kBox, 0}}, {{{0, 0, 10, 7}, 0, 1}})}, 1);
  CHECK(below.at_75 == 0);
  CHECK(below.mean == doctest::Approx(0.5));
}

TEST_CASE(
    "a box is hit once, by the best score, and each detection hits the box it overlaps most") {
  const AveragePrecision twice =
      average_precision({picture({{kBox, 0}}, {{kBox, 0, 0.9f}, {kBox, 0, 0.8f}})}, 1);
  CHECK(twice.at_50 == doctest::Approx(1));  // the second is a miss after the last recall
  // The better one lies in another picture and is wrong: precision 1 / 2.
  const AveragePrecision elsewhere = average_precision(
      {picture({{kBox, 0}}, {{kBox, 0, 0.5f}}), picture({}, {{kBox, 0, 0.9f}})}, 1);
  CHECK(elsewhere.at_50 == doctest::Approx(0.5));
  const BoxCorners near{0, 0, 10, 12};
  const AveragePrecision both =
      average_precision({picture({{kBox, 0}, {near, 0}}, {{near, 0, 0.9f}, {kBox, 0, 0.8f}})}, 1);
  CHECK(both.mean == doctest::Approx(1));
}

TEST_CASE("of each class only the best detections of a picture count") {
  const std::vector<FoundBox> found{{kNowhere, 0, 0.9f}, {kBox, 0, 0.8f}};
  CHECK(average_precision({picture({{kBox, 0}}, found)}, 1, 1).at_50 == 0);
  CHECK(average_precision({picture({{kBox, 0}}, found)}, 1, 2).at_50 == doctest::Approx(0.5));
}

TEST_CASE("crowds are neither hits nor misses, however often they are found") {
  const PictureBox crowd{{40, 40, 100, 100}, 0, true};
  const std::vector<FoundBox> found{
      {{40, 40, 60, 60}, 0, 0.9f}, {{60, 60, 80, 80}, 0, 0.8f}, {kBox, 0, 0.7f}};
  CHECK(average_precision({picture({crowd, {kBox, 0}}, found)}, 1).mean == doctest::Approx(1));
  CHECK(average_precision({picture({{kBox, 0}}, found)}, 1).at_50 == doctest::Approx(1.0 / 3));
  // A picture of crowds alone shows no box that could be found.
  CHECK(average_precision({picture({crowd}, found)}, 1).by_class[0] == -1);
}

TEST_CASE("labels that are no class are an error") {
  CHECK(error_of([] {
          average_precision({picture({{kBox, 2}}, {})}, 2);
        }) == "average_precision: a label 2 of 2 classes");
  CHECK(error_of([] {
          average_precision({picture({}, {{kBox, -1, 1}})}, 2);
        }) == "average_precision: a label -1 of 2 classes");
  CHECK(error_of([] { average_precision({}, 0); }) ==
        "average_precision: 0 classes, at most 100 detections");
}
