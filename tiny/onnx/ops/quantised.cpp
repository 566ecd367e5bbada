// Quantised operators: integers that stand for real numbers, y = (q - zero point) * scale.

#include "tiny/onnx/ops/table.h"
#include "tiny/onnx/ops/windows.h"

namespace tiny::onnx {

namespace {

// Scale or zero point as it broadcasts to x: of all elements, of an axis, or of blocks along it.
Tensor spread(Call& c, const Tensor& x, const Tensor& t) {
  if (t.numel() == 1 && t.rank() <= 1) return t.reshape({});
  const int64_t axis = axis_of(x, c.integer("axis", 1));
  const int64_t block = c.integer("block_size", 0);
  if (t.rank() == 1 && block == 0) {
    c.require(t.numel() == x.size(axis), t.numel(), " scales for axis ", axis, " of ",
              to_text(x.shape()));
    return along_axis(t, axis, x.rank());
  }
  c.require(block > 0 && t.rank() == x.rank(), "scales ", to_text(t.shape()), " in blocks of ",
            block, " of ", to_text(x.shape()));
  return t.repeat_interleave(block, axis).narrow(axis, 0, x.size(axis));
}

// Rounded to even, limited to the integers of the dtype.
Tensor to_quantised(const Tensor& scaled, const Tensor& zero_point, DType dtype) {
  if (dtype.is_f8()) return scaled.to(dtype);
  Tensor rounded = scaled.round();
  if (zero_point.defined()) rounded = rounded + zero_point.to(rounded.dtype());
  return rounded.clamp(static_cast<double>(int_min(dtype)), static_cast<double>(int_max(dtype)))
      .to(dtype);
}

DType quantised_dtype(Call& c) {
  if (c.has(2)) return c[2].dtype();
  if (const int64_t type = c.integer("output_dtype", 0); type != 0) {
    const auto dtype = dtype_of_type(type);
    c.require(dtype.has_value(), "no tensor is of type ", name_of_type(type), " here");
    return *dtype;
  }
  return kU8;
}

Tensors quantize_linear(Call& c) {
  const Tensor& x = c[0];
  const DType dtype = quantised_dtype(c);
  const Tensor wide = x.dtype() == kF32 ? x : x.to(kF32);
  const Tensor scaled = wide / spread(c, x, c[1]).to(kF32);
  const Tensor zero_point = c.has(2) && !dtype.is_f8() ? spread(c, x, c[2]) : Tensor();
  return {to_quantised(scaled, zero_point, dtype)};
}

Tensors dequantize_linear(Call& c) {
  const Tensor &x = c[0], &scale = c[1];
  Tensor value = x.to(kF32);
  if (c.has(2)) value = value - spread(c, x, c[2]).to(kF32);
  return {(value * spread(c, x, scale).to(kF32)).to(scale.dtype())};
}

// The range of x, with 0 in it, to u8.
Tensors dynamic_quantize_linear(Call& c) {
  const Tensor& x = c[0];
  const Tensor low = minimum(x.min(), 0), high = maximum(x.max(), 0);
  const Tensor scale = (high - low) / 255;
  const Tensor safe = where(scale == 0, 1, scale);
  const Tensor zero_point = (-low / safe).round().clamp(0, 255);
  return {to_quantised(x / safe, zero_point, kU8), scale, zero_point.to(kU8)};
}

// Less its zero point, as i32. `per_row`: a zero point of one axis belongs to the rows of a matrix.
Tensor centred(const Tensor& x, const Tensor& zero_point, bool per_row) {
  const Tensor wide = x.to(kI32);
  if (!zero_point.defined()) return wide;
  const Tensor z = zero_point.to(kI32);
  if (z.numel() == 1) return wide - z.reshape({});
  return wide - (per_row && z.rank() == 1 ? z.unsqueeze(1) : z);
}

// Products of bytes are summed as such where no zero point is in the way.
Tensor integer_matmul(const Tensor& a, const Tensor& a_zero, const Tensor& b,
                      const Tensor& b_zero) {
  return centred(a, a_zero, true).matmul(centred(b, b_zero, false));
}

Tensors matmul_integer(Call& c) {
  return {integer_matmul(c[0], c.optional(2), c[1], c.optional(3)).to(kI32)};
}

Tensors qlinear_matmul(Call& c) {
  const auto scale = [](const Tensor& t, bool per_row) {
    const Tensor s = t.to(kF32);
    return s.numel() == 1 ? s.reshape({}) : per_row && s.rank() == 1 ? s.unsqueeze(1) : s;
  };
  const Tensor sums = integer_matmul(c[0], c[2], c[3], c[5]).to(kF32);
  const Tensor scaled = sums * (scale(c[1], true) * scale(c[4], false) / scale(c[6], false));
  return {to_quantised(scaled, c[7].numel() == 1 ? c[7].reshape({}) : c[7], c[7].dtype())};
}

// Sums of products of integers below 2^53 are exact in f64, and in f32 below 2^24.
Tensor integer_convolution(Call& c, const Tensor& x, const Tensor& x_zero, const Tensor& weight,
                           const Tensor& weight_zero) {
  const Shape shape = sizes(weight);
  const Windows w = windows_of(c, x, Shape(shape.begin() + 2, shape.end()));
  const int64_t terms = numel(Ints(shape).subspan(1));
  const DType wide = terms * 255 * 255 < (1 << 24) ? kF32 : kF64;
  const Tensor z = weight_zero.defined() && weight_zero.numel() > 1
                       ? along_axis(weight_zero, 0, weight.rank())
                       : weight_zero;
  return convolved(centred(x, x_zero, false).to(wide), centred(weight, z, false).to(wide), Tensor(),
                   w, c.integer("group", 1))
      .to(kI32);
}

Tensors conv_integer(Call& c) {
  return {integer_convolution(c, c[0], c.optional(2), c[1], c.optional(3))};
}

Tensors qlinear_conv(Call& c) {
  const Tensor &x = c[0], &weight = c[3];
  Tensor sums = integer_convolution(c, x, c[2], weight, c[5]);
  if (c.has(8)) sums = sums + along_axis(c[8], 1, x.rank());
  const Tensor scale = c[1].reshape({}) * c[4] / c[6].reshape({});
  const Tensor by_channel = scale.numel() == 1 ? scale.reshape({}) : along_axis(scale, 1, x.rank());
  return {to_quantised(sums.to(kF32) * by_channel, c[7].reshape({}), c[7].dtype())};
}

constexpr TypeSet kQuantised = kBytes | type_set(kI16, kU16, kI32, kF8E4M3, kF8E5M2);

constexpr Operator kQuantisedRows[] = {
    {"ConvInteger", 10, kBytes, conv_integer},
    {"DequantizeLinear", 10, kQuantised, dequantize_linear},
    {"DynamicQuantizeLinear", 11, type_set(kF32), dynamic_quantize_linear},
    {"MatMulInteger", 10, kBytes, matmul_integer},
    {"QLinearConv", 10, kBytes, qlinear_conv},
    {"QLinearMatMul", 10, kBytes, qlinear_matmul},
    {"QuantizeLinear", 10, kFloats | type_set(kI32), quantize_linear},
};

}  // namespace

std::span<const Operator> quantised_operators() { return kQuantisedRows; }

}  // namespace tiny::onnx
