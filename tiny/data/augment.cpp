#include "tiny/data/augment.h"

namespace tiny {

namespace {

Tensor spread_over(const Tensor& x, const std::vector<std::string>& devices) {
  return devices.empty() ? x : x.shard(devices, 0);
}

// Positions outside of 0 to last are seen in the mirror.
Tensor reflected(const Tensor& position, int32_t last) {
  return last - (last - position.abs()).abs();
}

}  // namespace

DevicePictures::DevicePictures(const PictureSet& set, const std::vector<std::string>& devices)
    : images(Tensor::from(set.images, {set.size(), 3, kPictureSide, kPictureSide}).shard(devices)),
      labels(Tensor::from(set.labels).shard(devices)) {
  Tensor* const both[] = {&images, &labels};
  Tensor::realize(both);
}

DevicePictures::DevicePictures(const DigitSet& set, const std::vector<std::string>& devices)
    : images(Tensor::from(set.images, {set.size(), 1, kDigitSide, kDigitSide}).shard(devices)),
      labels(Tensor::from(set.labels).shard(devices)) {
  Tensor* const both[] = {&images, &labels};
  Tensor::realize(both);
}

ChannelScaling::ChannelScaling(const Tensor& images) {
  const Tensor x = images.to(kF32);
  mean_ = x.mean({0, 2, 3}, true);
  scale_ = x.var({0, 2, 3}, true).rsqrt();
  Tensor* const both[] = {&mean_, &scale_};
  Tensor::realize(both);
}

PictureMoves random_moves(int64_t m, int64_t reach, const std::vector<std::string>& devices) {
  check(m >= 0 && reach >= 0 && reach < INT32_MAX, "random_moves: of ", m, " pictures by ", reach,
        " pixels");
  const auto draw = [&] {
    return spread_over(Tensor::randint(-reach, reach + 1, {m}, kI32).contiguous(), devices);
  };
  const Tensor dy = draw();
  return {dy, draw(), Tensor()};
}

Tensor pick_pictures(const Tensor& images, const Tensor& at, const PictureMoves& moves) {
  check(images.rank() == 4 && at.rank() == 1,
        "pick_pictures: takes images (n, c, h, w) and positions (m) and not ",
        to_text(images.shape()), " and ", to_text(at.shape()));
  const int64_t m = at.size(0), c = images.size(1);
  const auto h = static_cast<int32_t>(images.size(2)), w = static_cast<int32_t>(images.size(3));
  const Tensor row = Tensor::arange(0, h, 1, kI32), column = Tensor::arange(0, w, 1, kI32);
  const auto lifted = [](const Tensor& move) { return move.unsqueeze(-1); };
  const Tensor y = reflected(row + lifted(moves.dy), h - 1);
  const Tensor seen = reflected(column + lifted(moves.dx), w - 1);
  const Tensor x =
      moves.mirrored.defined() ? where(lifted(moves.mirrored), w - 1 - seen, seen) : seen;
  return images.index({at.reshape({m, 1, 1, 1}), Tensor::arange(0, c, 1, kI32).reshape({c, 1, 1}),
                       y.reshape({-1, 1, h, 1}), x.reshape({-1, 1, 1, w})});
}

ShuffledBatches::ShuffledBatches(int64_t size, int64_t batch) : size_(size), batch_(batch) {
  check(batch >= 1 && batch <= size, "ShuffledBatches: batches of ", batch, " of ", size,
        " samples");
  order_ = Tensor::from(std::vector<int32_t>(static_cast<size_t>(size)));
  begin_ = Tensor::from({0});
  restart();
}

void ShuffledBatches::restart() {
  order_.assign(Tensor::randperm(size_).to(kI32));
  begin_.assign(Tensor::zeros({1}, kI32));
  Tensor* const both[] = {&order_, &begin_};
  Tensor::realize(both);
}

Tensor ShuffledBatches::next() {
  const Tensor at =
      order_.index_select(0, Tensor::arange(0, batch_, 1, kI32) + begin_).contiguous();
  begin_.assign(begin_ + static_cast<int32_t>(batch_));
  return at;
}

}  // namespace tiny
