#include "tiny/tensor/ops/f8_product.h"

#include <numeric>

#include "tiny/tensor/detail.h"
#include "tiny/train/mixed_precision.h"

namespace tiny {

namespace {

// A tensor is values * unit.
struct Quantised {
  Tensor values;  // in memory
  Tensor unit;    // f32, 0-d: a power of two; NaN where an element is not finite

  Quantised t() const { return {values.t(), unit}; }
};

// Exponents are read from bits: no device rounds them. An f32 has 8 bits of exponent, whose bias is
// 127, over 23 of mantissa.
Quantised quantise(const Tensor& x, DType format) {
  LabelScope label("quantise");
  // The largest number of either format is 1.75 * 2^top: beyond it in its binade is the next one.
  const int top = format == kF8E4M3 ? 8 : 15;
  constexpr int kMantissa = 23, kQuarter = 1 << 21;
  const Tensor wide = x.detach().to(kF32);
  const Tensor largest = maximum(wide.abs().max({-1}).max(), 0);  // of no elements, too
  const Tensor exponent = (largest.bitcast(kI32) + (kQuarter - 1)) >> kMantissa;
  // The unit is no subnormal number, of which some devices make zero.
  const Tensor kept = maximum(exponent, top + 1);
  const auto power = [&](const Tensor& biased) { return (biased << kMantissa).bitcast(kF32); };
  const Tensor unit = where(largest.isfinite(), power(kept - top), std::nan(""));
  return {(wide * power(2 * 127 + top - kept)).to(format).contiguous(), unit};
}

// A matrix in the order of its memory.
Quantised quantise_matrix(const Tensor& w, DType format) {
  const bool is_turned = w.t().node()->op != Op::Permute;
  return is_turned ? quantise(w.t(), format).t() : quantise(w, format);
}

// The sum over all axes but the last of each element of x times each of y: (..., k) by (..., n) to
// (k, n).
Tensor product_of_rows(const Tensor& x, const Tensor& y, DType result) {
  const bool on_several = !device_members(x.node()->device).empty();
  if (x.rank() == 2) return x.t().matmul(y, result);
  if (!x.node()->lengths && (!on_several || x.shard_axis() <= 0))
    return x.flatten(0, -2).t().matmul(y.flatten(0, -2), result);
  Shape rows(static_cast<size_t>(x.rank() - 1));
  std::iota(rows.begin(), rows.end(), 0);
  return (x.to(kF32).unsqueeze(-1) * y.to(kF32).unsqueeze(-2)).sum(rows).to(result);
}

// Both with at least two axes.
Tensor product(const Tensor& x, const Tensor& w, DType result) {
  const Autocast no_further(kF32);
  const Quantised a = quantise(x, kF8E4M3), b = quantise_matrix(w, kF8E4M3);
  const Tensor y = (a.values.matmul(b.values, kF32) * (a.unit * b.unit)).to(result);
  return detail::custom_gradient(y, {x, w}, [&](const Tensor& g) {
    const Quantised c = quantise(g, kF8E5M2);
    const Tensor by_x = (c.values.matmul(b.values.t(), kF32) * (c.unit * b.unit)).to(x.dtype());
    const Tensor by_w =
        (product_of_rows(a.values, c.values, kF32) * (a.unit * c.unit)).to(w.dtype());
    const Tensor half = g.to(x.dtype());
    return std::vector<Tensor>{
        detail::custom_gradient(by_x, {g, w},
                                [&](const Tensor& h) {
                                  return std::vector<Tensor>{
                                      h.matmul(w, g.dtype()),
                                      product_of_rows(h, half, kF32).to(w.dtype())};
                                }),
        detail::custom_gradient(by_w, {x, g}, [&](const Tensor& h) {
          return std::vector<Tensor>{half.matmul(h.t()), x.matmul(h, g.dtype())};
        })};
  });
}

}  // namespace

bool detail::is_f8_product(const Tensor& x, const Tensor& w) {
  const auto fits = [](DType t) { return t == kF32 || t.is_half(); };
  return autocasts_to_f8() && fits(x.dtype()) && fits(w.dtype()) && x.rank() > 0 && w.rank() == 2 &&
         numel(x.capacity()) > 0 && numel(w.capacity()) > 0;
}

Tensor detail::f8_product(const Tensor& x, const Tensor& w, DType result) {
  return x.rank() > 1 ? product(x, w, result) : product(x.unsqueeze(0), w, result).squeeze(0);
}

}  // namespace tiny
