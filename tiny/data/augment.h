// Pictures picked, moved and mirrored on the device, and the order in which training goes through
// them. Everything is data on the device, so that a Jit can replay it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tiny/data/datasets.h"
#include "tiny/tensor/tensor.h"

namespace tiny {

// A set of pictures or digits, as bytes, in the memory of each of these devices.
struct DevicePictures {
  DevicePictures(const PictureSet& set, const std::vector<std::string>& devices);
  DevicePictures(const DigitSet& set, const std::vector<std::string>& devices);
  int64_t size() const { return images.size(0); }

  Tensor images, labels;  // u8 (n, 3, 32, 32) or (n, 1, 28, 28), u8 (n)
};

// Makes pictures to f32 numbers of mean 0 and variance 1 in each channel of these (n, c, h, w).
class ChannelScaling {
 public:
  explicit ChannelScaling(const Tensor& images);
  Tensor operator()(const Tensor& x) const { return (x.to(kF32) - mean_) * scale_; }

 private:
  Tensor mean_, scale_;  // (1, c, 1, 1)
};

// How each of m pictures is changed: pixel (y, x) of the result is pixel (y + dy, x + dx) of the
// picture, which where `mirrored` is flipped from left to right first. i32, i32 and bool, (m) or a
// shape that broadcasts to it.
struct PictureMoves {
  Tensor dy, dx, mirrored;
};

// Random moves of m pictures by -reach to reach pixels each way; `mirrored` is left to the caller.
PictureMoves random_moves(int64_t m, int64_t reach, const std::vector<std::string>& devices = {});

// The pictures at the positions `at` (m), moved: images (n, c, h, w) of any dtype to (m, c, h, w),
// one gather. Outside of a picture one sees it reflected about the middle of its outermost pixels
// (PadMode::Reflect). Moves by the height or width and more are not to be asked for. No gradient.
Tensor pick_pictures(const Tensor& images, const Tensor& at, const PictureMoves& moves);

// The positions 0 to size - 1 in random order, batch after batch; where the next one begins is a
// number on the device. The rest of an epoch that does not fill a batch is left out.
class ShuffledBatches {
 public:
  ShuffledBatches(int64_t size, int64_t batch);

  // A new order, in the same memory. Not inside a Jit.
  void restart();
  // i32 (batch), in memory of its own. state() has to be realized with what it is used for.
  Tensor next();

  int64_t count() const { return size_ / batch_; }  // batches of an epoch
  Tensor* state() { return &begin_; }

 private:
  int64_t size_, batch_;
  Tensor order_, begin_;
};

}  // namespace tiny
