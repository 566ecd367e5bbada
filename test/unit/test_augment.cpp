#include "tiny/data/augment.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "tiny/run/jit.h"
#include "tiny/tensor/random.h"

using namespace tiny;

namespace {

Tensor integers(const std::vector<int32_t>& values) { return Tensor::from(values); }

}  // namespace

TEST_CASE("picked pictures are moved and mirrored as a loop over their pixels does") {
  constexpr int kH = 5, kW = 7, kC = 2;
  manual_seed(4);
  const Tensor images = Tensor::randint(0, 256, {4, kC, kH, kW}, kU8).contiguous();
  const std::vector<int32_t> at{3, 0, 3, 1, 2}, dy{0, -2, 2, 4, -4}, dx{1, -6, 0, 6, 3},
      mirrored{0, 1, 1, 0, 1};
  const Tensor got =
      pick_pictures(images, integers(at), {integers(dy), integers(dx), integers(mirrored) == 1});
  CHECK(got.dtype() == kU8);
  const auto from = images.to_vector<uint8_t>(), to = got.to_vector<uint8_t>();
  const auto reflect = [](int p, int last) { return last - std::abs(last - std::abs(p)); };
  for (int i = 0; i < 5; ++i)
    for (int c = 0; c < kC; ++c)
      for (int y = 0; y < kH; ++y)
        for (int x = 0; x < kW; ++x) {
          const int sy = reflect(y + dy[i], kH - 1), seen = reflect(x + dx[i], kW - 1);
          const int sx = mirrored[i] ? kW - 1 - seen : seen;
          CHECK(to[((i * kC + c) * kH + y) * kW + x] ==
                from[((at[i] * kC + c) * kH + sy) * kW + sx]);
        }
}

TEST_CASE("one move for all pictures, and none mirrored where nothing is said") {
  const Tensor images = Tensor::arange(0, 18, 1, kF32).reshape({2, 1, 3, 3}).contiguous();
  const Tensor got = pick_pictures(images, integers({1, 0}), {integers({1}), integers({0}), {}});
  CHECK(got.to_vector<float>() == std::vector<float>{12, 13, 14, 15, 16, 17, 12, 13, 14,  //
                                                     3, 4, 5, 6, 7, 8, 3, 4, 5});
  CHECK_THROWS_WITH_AS(
      pick_pictures(images, images, {integers({1}), integers({0}), {}}),
      "pick_pictures: takes images (n, c, h, w) and positions (m) and not (2,1,3,3) and (2,1,3,3)",
      Error);
}

TEST_CASE("a set of pictures is on each of its devices, and is scaled by channel") {
  const PictureSet set = draw_pictures(40, 0, 1).train;
  const DevicePictures pictures(set, {"CPU", "CPU:1"});
  CHECK(pictures.size() == 40);
  CHECK(pictures.images.to("CPU").to_vector<uint8_t>() == set.images);
  CHECK(pictures.labels.to("CPU").to_vector<uint8_t>() == set.labels);
  const DevicePictures here(set, {"CPU"});
  const Tensor x = ChannelScaling(here.images)(here.images);
  for (float mean : x.mean({0, 2, 3}).to_vector<float>()) CHECK(std::abs(mean) < 1e-4);
  for (float var : x.var({0, 2, 3}).to_vector<float>()) CHECK(std::abs(var - 1) < 1e-4);
}

TEST_CASE("random moves take every value of their reach about equally often") {
  manual_seed(5);
  const PictureMoves moves = random_moves(5000, 2);
  CHECK_FALSE(moves.mirrored.defined());
  const auto dy = moves.dy.to_vector<int32_t>(), dx = moves.dx.to_vector<int32_t>();
  for (const auto& move : {dy, dx})
    for (int v = -2; v <= 2; ++v) {
      const auto count = std::count(move.begin(), move.end(), v);
      CHECK(count > 900);
      CHECK(count < 1100);
    }
  CHECK(dy != dx);
  CHECK(*std::max_element(dy.begin(), dy.end()) == 2);
  CHECK(*std::min_element(dy.begin(), dy.end()) == -2);
}

TEST_CASE("an epoch's batches take each sample once, in an order of its own, also in a Jit") {
  manual_seed(6);
  ShuffledBatches order(10, 3);
  CHECK(order.count() == 3);
  Tensor taken = Tensor::from(std::vector<int32_t>(10));
  Jit next([&] {
    Tensor at = order.next();
    taken.assign(taken + (at.unsqueeze(1) == Tensor::arange(10)).to(kI32).sum(0).to(kI32));
    Tensor* const all[] = {&taken, &at, order.state()};
    Tensor::realize(all);
    return at;
  });
  std::vector<std::vector<int32_t>> epochs;
  for (int epoch = 0; epoch < 4; ++epoch) {
    if (epoch) order.restart();
    taken.assign(taken.zeros_like()).realize();
    std::vector<int32_t> all;
    for (int i = 0; i < 3; ++i)
      for (int32_t at : next().to_vector<int32_t>()) all.push_back(at);
    epochs.push_back(all);
    const auto counts = taken.to_vector<int32_t>();
    CHECK(std::count(counts.begin(), counts.end(), 1) == 9);
    CHECK(std::count(counts.begin(), counts.end(), 0) == 1);
  }
  CHECK(epochs[0] != epochs[1]);
  CHECK(epochs[2] != epochs[3]);
  CHECK_THROWS_WITH_AS(ShuffledBatches(3, 4), "ShuffledBatches: batches of 4 of 3 samples", Error);
}

TEST_CASE("digits on devices are bytes with one channel") {
  const MnistData drawn = draw_digits(3, 2, 1);
  const DevicePictures digits(drawn.train, {"CPU"});
  CHECK(digits.size() == 3);
  CHECK(digits.images.size(1) == 1);
  CHECK(digits.images.size(2) == kDigitSide);
  CHECK(digits.images.to_vector<uint8_t>() == drawn.train.images);
  CHECK(digits.labels.to_vector<uint8_t>() == drawn.train.labels);
}
