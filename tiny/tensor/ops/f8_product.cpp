#include "tiny/tensor/ops/f8_product.h"

#include <numeric>

#include "tiny/tensor/detail.h"
#include "tiny/train/mixed_precision.h"

namespace tiny {

namespace {

// Whether Autocast has anything to narrow.
bool is_narrowed(const Tensor& x) { return x.dtype() == kF32 || x.dtype().is_half(); }

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
  const Tensor wide = detail::autocast(x.detach()).to(kF32);
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
  return w.node()->op == Op::Permute ? quantise(w.t(), format).t() : quantise(w, format);
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

// The gradient of a product in e5m2 by its operands, themselves products of 8-bit floats.
std::vector<Tensor> gradients_of(const Tensor& g, const Tensor& x, const Tensor& w,
                                 const Quantised& a, const Quantised& b) {
  const Quantised c = quantise(g, kF8E5M2);
  const Tensor sums = c.values.matmul(b.values.t(), kF32) * (c.unit * b.unit);
  const Tensor by_x = sums.to(x.dtype()).contiguous();  // written so, and not as f32
  const Tensor by_w = (product_of_rows(a.values, c.values, kF32) * (a.unit * c.unit)).to(w.dtype());
  const Tensor half = g.to(x.dtype());
  const auto of_by_x = [&](const Tensor& h) {
    return std::vector<Tensor>{h.matmul(w, g.dtype()),
                               product_of_rows(h, half, kF32).to(w.dtype())};
  };
  const auto of_by_w = [&](const Tensor& h) {
    return std::vector<Tensor>{half.matmul(h.t()), x.matmul(h, g.dtype())};
  };
  return {detail::custom_gradient(by_x, {g, w}, of_by_x),
          detail::custom_gradient(by_w, {x, g}, of_by_w)};
}

// Of an x with at least two axes.
Tensor product(const Tensor& given_x, const Tensor& given_w, DType result, const Tensor& bias) {
  const Quantised a = quantise(given_x, kF8E4M3), b = quantise_matrix(given_w, kF8E4M3);
  const Tensor x = detail::autocast(given_x), w = detail::autocast(given_w);
  const Autocast no_further(kF32);
  const Tensor sums = a.values.matmul(b.values, kF32) * (a.unit * b.unit);
  const auto product_gradients = [&](const Tensor& g) { return gradients_of(g, x, w, a, b); };
  if (!bias.defined()) return detail::custom_gradient(sums.to(result), {x, w}, product_gradients);
  // All three read the gradient from memory: it is computed once.
  const Tensor y = (sums + bias.to(kF32)).to(result);
  return detail::custom_gradient(y, {x, w, bias}, [&](const Tensor& given) {
    const Tensor g = given.contiguous();
    std::vector<Tensor> out = product_gradients(g);
    Shape rows(static_cast<size_t>(g.rank() - 1));
    std::iota(rows.begin(), rows.end(), 0);
    out.push_back(g.to(kF32).sum(rows).to(bias.dtype()));
    return out;
  });
}

}  // namespace

bool detail::is_f8_product(const Tensor& x, const Tensor& w) {
  return autocasts_to_f8() && is_narrowed(x) && is_narrowed(w) && x.rank() > 0 && w.rank() == 2 &&
         numel(x.capacity()) > 0 && numel(w.capacity()) > 0;
}

Tensor detail::f8_product(const Tensor& x, const Tensor& w, DType result, const Tensor& bias) {
  if (x.rank() == 1) return f8_product(x.unsqueeze(0), w, result, bias).squeeze(0);
  const bool is_row = bias.defined() && is_narrowed(bias) && bias.rank() == 1 &&
                      bias.capacity()[0] == w.capacity()[1];
  const Tensor y = product(x, w, result, is_row ? bias : Tensor());
  return bias.defined() && !is_row ? y + autocast(bias) : y;
}

}  // namespace tiny
