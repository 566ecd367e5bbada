#include "tiny/models/files/formats/dequantize.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "tiny/base/error.h"

namespace tiny {

namespace {

// What blocks.cpp says of each layout holds here as well. A block's bytes are the last axis.
using Parts = QuantizedParts;

Tensor field(const Tensor& block, int64_t at, int64_t bytes) { return block.narrow(-1, at, bytes); }

// An f16 of two bytes as f32, (..., 1).
Tensor f16_at(const Tensor& block, int64_t at) {
  const Tensor low = field(block, at, 1).to(kU16), high = field(block, at + 1, 1).to(kU16);
  return (low | (high << 8)).bitcast(kF16).to(kF32);
}

// Elements of `bits` bits: byte l of `lanes` bytes holds, from the low bits on, those of elements
// l, l + lanes, l + 2 lanes, ... of a run. (..., bytes) to (..., elements), u8.
Tensor planes(const Tensor& bytes, int64_t lanes, int bits) {
  const Tensor shifts = Tensor::arange(0, 8, bits, kU8).unsqueeze(1);
  const Tensor runs = bytes.unflatten(-1, {-1, 1, lanes});
  return ((runs >> shifts) & ((1 << bits) - 1)).flatten(-3);
}

Tensor with_offset(const Tensor& codes, int offset) { return codes.bitcast(kI8) - offset; }

// Codes in groups of `size`; scales and minima, one for each group.
Parts grouped(const Tensor& codes, int64_t size, const Tensor& scale, const Tensor& min = {}) {
  return {codes.unflatten(-1, {-1, size}), scale.unsqueeze(-1),
          min.defined() ? min.unsqueeze(-1) : Tensor()};
}

// The value of a table of 16 at each code, by halving the table with each bit: bytes are chosen by
// vectors, which a look-up in memory is not.
Tensor looked_up(const Tensor& codes, const int (&table)[16]) {
  std::vector<Tensor> left;
  for (const int value : table) left.push_back(Tensor::full({}, value, kI8));
  for (int bit = 1; left.size() > 1; bit *= 2) {
    const Tensor is_set = (codes & bit) != 0;
    std::vector<Tensor> half;
    for (size_t i = 0; i < left.size(); i += 2)
      half.push_back(where(is_set, left[i + 1], left[i]));
    left = std::move(half);
  }
  return left[0];
}

constexpr int kNonLinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                1,    13,   25,  38,  53,  69,  89,  113};
constexpr int kTwiceE2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

Parts q4_0(const Tensor& b) {
  return grouped(with_offset(planes(field(b, 2, 16), 16, 4), 8), 32, f16_at(b, 0));
}

Parts q4_1(const Tensor& b) {
  return grouped(planes(field(b, 4, 16), 16, 4).bitcast(kI8), 32, f16_at(b, 0), -f16_at(b, 2));
}

// Nibbles with fifth bits from a word, of which bit j is element j's.
Tensor five_bits(const Tensor& nibbles, const Tensor& word) {
  return planes(nibbles, 16, 4) | (planes(word, 1, 1) << 4);
}

Parts q5_0(const Tensor& b) {
  return grouped(with_offset(five_bits(field(b, 6, 16), field(b, 2, 4)), 16), 32, f16_at(b, 0));
}

Parts q5_1(const Tensor& b) {
  return grouped(five_bits(field(b, 8, 16), field(b, 4, 4)).bitcast(kI8), 32, f16_at(b, 0),
                 -f16_at(b, 2));
}

Parts q8_0(const Tensor& b) {
  return grouped(field(b, 2, 32).bitcast(kI8), 32, f16_at(b, 0));
}

Parts q2_k(const Tensor& b) {
  const Tensor scales = field(b, 0, 16);
  return grouped(planes(field(b, 16, 64), 32, 2).bitcast(kI8), 16, f16_at(b, 80) * (scales & 15),
                 f16_at(b, 82) * (scales >> 4));
}

Parts q3_k(const Tensor& b) {
  const Tensor scales =
      planes(field(b, 96, 8), 8, 4) | (planes(field(b, 104, 4), 4, 2) << 4);
  const Tensor codes = planes(field(b, 32, 64), 32, 2) | (planes(field(b, 0, 32), 32, 1) << 2);
  return grouped(with_offset(codes, 4), 16, f16_at(b, 108) * with_offset(scales, 32));
}

// The scales and minima of Q4_K and Q5_K, of 6 bits each: (..., 8).
struct ScalesAndMins {
  Tensor scales, mins;
};
ScalesAndMins six_bits(const Tensor& packed) {
  const auto part = [&](int64_t at) { return field(packed, at, 4).unsqueeze(-2); };
  const Tensor is_low = (Tensor::arange(2) == 0).unsqueeze(1), low = part(0), mid = part(4);
  const Tensor scales = where(is_low, low & 63, (part(8) & 15) | ((low >> 6) << 4));
  const Tensor mins = where(is_low, mid & 63, (part(8) >> 4) | ((mid >> 6) << 4));
  return {scales.flatten(-2), mins.flatten(-2)};
}

Parts q4_k(const Tensor& b) {
  const ScalesAndMins six = six_bits(field(b, 4, 12));
  return grouped(planes(field(b, 16, 128), 32, 4).bitcast(kI8), 32, f16_at(b, 0) * six.scales,
                 f16_at(b, 2) * six.mins);
}

Parts q5_k(const Tensor& b) {
  const ScalesAndMins six = six_bits(field(b, 4, 12));
  const Tensor codes = planes(field(b, 48, 128), 32, 4) | (planes(field(b, 16, 32), 32, 1) << 4);
  return grouped(codes.bitcast(kI8), 32, f16_at(b, 0) * six.scales, f16_at(b, 2) * six.mins);
}

Parts q6_k(const Tensor& b) {
  const Tensor codes = planes(field(b, 0, 128), 64, 4) | (planes(field(b, 128, 64), 32, 2) << 4);
  return grouped(with_offset(codes, 32), 16, f16_at(b, 208) * field(b, 192, 16).bitcast(kI8));
}

Parts iq4_nl(const Tensor& b) {
  return grouped(looked_up(planes(field(b, 2, 16), 16, 4), kNonLinear), 32, f16_at(b, 0));
}

Parts iq4_xs(const Tensor& b) {
  const Tensor scales = planes(field(b, 4, 4), 1, 4) | (planes(field(b, 2, 2), 1, 2) << 4);
  return grouped(looked_up(planes(field(b, 8, 128), 16, 4), kNonLinear), 32,
                 f16_at(b, 0) * with_offset(scales, 32));
}

// 2^(e - 128) by its bits: below 2^-126 the exponent's are 0.
Parts mxfp4(const Tensor& b) {
  const Tensor e = field(b, 0, 1).to(kI32);
  const Tensor bits = where(e < 2, Tensor(int32_t{1} << 21).to(kI32) << minimum(e, 1),
                            maximum(e - 1, 0) << 23);
  return grouped(looked_up(planes(field(b, 1, 16), 16, 4), kTwiceE2M1), 32, bits.bitcast(kF32));
}

struct Row {
  std::string_view name;
  Parts (*parts)(const Tensor& blocks);
};
constexpr Row kRows[] = {
    {"Q4_0", q4_0}, {"Q4_1", q4_1}, {"Q5_0", q5_0},     {"Q5_1", q5_1},     {"Q8_0", q8_0},
    {"Q2_K", q2_k}, {"Q3_K", q3_k}, {"Q4_K", q4_k},     {"Q5_K", q5_k},     {"Q6_K", q6_k},
    {"IQ4_NL", iq4_nl}, {"IQ4_XS", iq4_xs}, {"MXFP4", mxfp4},
};

const Row* find_row(const StoredType& type) {
  const auto* row = std::find_if(std::begin(kRows), std::end(kRows),
                                 [&](const Row& r) { return r.name == type.name; });
  return row == std::end(kRows) ? nullptr : row;
}

}  // namespace

bool has_quantized_parts(const StoredType& type) { return find_row(type) != nullptr; }

QuantizedParts quantized_parts(const Tensor& bytes, const StoredType& type) {
  const Row* row = find_row(type);
  check(row, "quantized_parts: ", type.name, " is no type of quantised blocks that is known");
  check(bytes.dtype() == kU8 && bytes.rank() > 0 && bytes.size(-1) % type.bytes == 0,
        "quantized_parts: ", bytes.dtype(), " ", to_text(bytes.shape()), ", expected u8 with rows of ",
        "whole blocks of ", type.name, ", ", type.bytes, " bytes each");
  Parts parts = row->parts(bytes.unflatten(-1, {-1, type.bytes}));
  const auto joined = [](const Tensor& t) { return t.defined() ? t.flatten(-3, -2) : t; };
  return {joined(parts.codes), joined(parts.scale), joined(parts.min)};
}

Tensor dequantize(const QuantizedParts& parts) {
  const Tensor scaled = parts.codes.to(kF32) * parts.scale;
  return (parts.min.defined() ? scaled - parts.min : scaled).flatten(-2);
}

Tensor dequantize(const Tensor& bytes, const StoredType& type) {
  return dequantize(quantized_parts(bytes, type));
}

}  // namespace tiny
