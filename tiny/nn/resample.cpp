// Resampling along one axis after the other. Positions are fractions of integers, so that they are
// exact for every size.
#include "tiny/ir/sizes.h"
#include "tiny/nn/functional.h"
#include "tiny/tensor/detail.h"

namespace tiny {

namespace {

// Element i of m is x's element floor(i n / m), or floor((i + 1/2) n / m) where exact.
Tensor nearest_axis(const Tensor& x, int axis, int64_t m, bool exact) {
  const int64_t n = x.size(axis);
  if (m == n) return x;
  if (m % n == 0) return x.repeat_interleave(m / n, axis);
  if (n % m == 0) {
    const int64_t step = n / m;
    return x.unflatten(axis, {m, step}).select(axis + 1, exact ? step / 2 : 0);
  }
  const Tensor i = Tensor::arange(m);
  const Tensor at = exact ? floor_div((i * 2 + 1) * n, 2 * m) : floor_div(i * n, m);
  return x.index_select(axis, at);
}

// Weighs the two neighbours of the position (i + 1/2) n / m - 1/2 (0 if negative), or of
// i (n - 1) / (m - 1).
Tensor linear_axis(const Tensor& x, int axis, int64_t m, bool align_corners) {
  const int64_t n = x.size(axis);
  if (m == n) return x;
  const Tensor i = Tensor::arange(m);
  const int64_t divisor = align_corners ? std::max<int64_t>(m - 1, 1) : 2 * m;
  const Tensor position =
      align_corners ? (m > 1 ? i * (n - 1) : i * 0) : maximum((i * 2 + 1) * n - m, 0);
  const Tensor low = floor_div(position, divisor), high = minimum(low + 1, n - 1);
  Shape lifted(x.rank() - axis, 1);
  lifted[0] = m;
  const Tensor rest = (position - low * divisor).to(x.dtype()) / static_cast<double>(divisor);
  const Tensor weight = rest.reshape(lifted);
  return x.index_select(axis, low) * (1 - weight) + x.index_select(axis, high) * weight;
}

}  // namespace

Tensor interpolate(const Tensor& x, const PerAxis& size, Resample mode, bool align_corners) {
  LabelScope label("interpolate");
  check(x.rank() >= 3, "interpolate: takes (N, C, spatial...) and not ", to_text(x.capacity()));
  check(!align_corners || mode == Resample::Linear,
        "interpolate: align_corners is for Resample::Linear");
  if (mode == Resample::Linear) detail::require_float("interpolate", x.dtype());
  const Shape sizes = size.of("interpolate", "size", x.rank() - 2, 1);
  Tensor y = mode == Resample::Linear ? x.to(detail::compute_dtype(x.dtype())) : x;
  for (int axis = 2; axis < x.rank(); ++axis) {
    check(x.capacity()[axis] > 0, "interpolate: nothing to take from in ", to_text(x.capacity()));
    const int64_t m = sizes[axis - 2];
    checked_mul("interpolate", 2 * m + 1, x.capacity()[axis]);
    y = mode == Resample::Linear ? linear_axis(y, axis, m, align_corners)
                                 : nearest_axis(y, axis, m, mode == Resample::NearestExact);
  }
  return y.to(x.dtype());
}

Tensor pixel_shuffle(const Tensor& x, int64_t upscale_factor) {
  const int64_t r = upscale_factor;
  check(x.rank() >= 3 && r >= 1 && x.size(-3) % (r * r) == 0, "pixel_shuffle: the channels of ",
        to_text(x.capacity()), " are no multiple of ", r, " x ", r);
  const int64_t c = x.size(-3) / (r * r), h = x.size(-2), w = x.size(-1);
  const Tensor apart = x.unflatten(-3, {c, r, r});                  // (..., C, r, r, H, W)
  const Tensor blocks = apart.transpose(-2, -3).transpose(-3, -4);  // (..., C, H, r, r, W)
  Shape shape = to_shape(x.capacity());
  shape.resize(shape.size() - 3);
  shape.insert(shape.end(), {c, h * r, w * r});
  return blocks.transpose(-1, -2).reshape(shape);
}

Tensor channel_shuffle(const Tensor& x, int64_t groups) {
  check(x.rank() >= 2 && groups >= 1 && x.size(1) % groups == 0,
        "channel_shuffle: the channels of ", to_text(x.capacity()), " are no multiple of ", groups,
        " groups");
  const Tensor apart = x.unflatten(1, {groups, x.size(1) / groups});
  return apart.transpose(1, 2).reshape(to_shape(x.capacity()));
}

}  // namespace tiny
