#include "tiny/models/files/formats/dequantize.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "tiny/base/error.h"

namespace tiny {

namespace {

// What blocks.cpp says of each layout holds here as well. A block's bytes are the last axis.
using Blocks = QuantizedBlocks;

Tensor field(const Tensor& block, int64_t at, int64_t bytes) { return block.narrow(-1, at, bytes); }

// An f16 of two bytes, (..., 1).
Tensor f16_at(const Tensor& block, int64_t at) {
  const Tensor low = field(block, at, 1).to(kU16), high = field(block, at + 1, 1).to(kU16);
  return (low | (high << 8)).bitcast(kF16);
}

// Elements of `bits` bits: byte l of `lanes` bytes holds, from the low bits on, those of elements
// l, l + lanes, l + 2 lanes, ... of a run. (..., bytes) to (..., elements), u8.
Tensor planes(const Tensor& bytes, int64_t lanes, int bits) {
  const Tensor shifts = Tensor::arange(0, 8, bits, kU8).unsqueeze(1);
  const Tensor runs = bytes.unflatten(-1, {-1, 1, lanes});
  return ((runs >> shifts) & ((1 << bits) - 1)).flatten(-3);
}

Tensor less(const Tensor& codes, int offset) { return codes.bitcast(kI8) - offset; }

// Codes in groups of `size`, with one scale for each block.
Blocks plain(const Tensor& codes, int64_t size, const Tensor& scale, const Tensor& min = {}) {
  Blocks out;
  out.codes = codes.unflatten(-1, {-1, size});
  out.scale = scale.unsqueeze(-1);
  if (min.defined()) out.min = min.unsqueeze(-1);
  return out;
}

// The same with integers that multiply it, one for each group.
Blocks scaled(const Tensor& codes, int64_t size, const Tensor& scale, const Tensor& scales) {
  Blocks out = plain(codes, size, scale);
  out.scales = scales.unsqueeze(-1);
  return out;
}

Blocks with_mins(Blocks blocks, const Tensor& min, const Tensor& mins) {
  blocks.min = min.unsqueeze(-1);
  blocks.mins = mins.unsqueeze(-1);
  return blocks;
}

// The value of a table of 16 at each code, by halving the table with each bit: bytes are chosen by
// vectors, which a look-up in memory is not.
Tensor looked_up(const Tensor& codes, const int (&table)[16]) {
  std::vector<Tensor> left;
  for (const int value : table) left.push_back(Tensor::full({}, value, kI8));
  for (int bit = 1; left.size() > 1; bit *= 2) {
    const Tensor is_set = (codes & bit) != 0;
    std::vector<Tensor> half;
    for (size_t i = 0; i < left.size(); i += 2) half.push_back(where(is_set, left[i + 1], left[i]));
    left = std::move(half);
  }
  return left[0];
}

constexpr int kNonLinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                1,    13,   25,  38,  53,  69,  89,  113};
constexpr int kTwiceE2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

Blocks q4_0(const Tensor& b) {
  return plain(less(planes(field(b, 2, 16), 16, 4), 8), 32, f16_at(b, 0));
}

Blocks q4_1(const Tensor& b) {
  return plain(less(planes(field(b, 4, 16), 16, 4), 0), 32, f16_at(b, 0), -f16_at(b, 2));
}

// Nibbles with fifth bits from a word, of which bit j is element j's.
Tensor five_bits(const Tensor& nibbles, const Tensor& word) {
  return planes(nibbles, 16, 4) | (planes(word, 1, 1) << 4);
}

Blocks q5_0(const Tensor& b) {
  return plain(less(five_bits(field(b, 6, 16), field(b, 2, 4)), 16), 32, f16_at(b, 0));
}

Blocks q5_1(const Tensor& b) {
  return plain(less(five_bits(field(b, 8, 16), field(b, 4, 4)), 0), 32, f16_at(b, 0),
               -f16_at(b, 2));
}

Blocks q8_0(const Tensor& b) { return plain(less(field(b, 2, 32), 0), 32, f16_at(b, 0)); }

Blocks q2_k(const Tensor& b) {
  const Tensor both = field(b, 0, 16);
  const Tensor codes = less(planes(field(b, 16, 64), 32, 2), 0);
  return with_mins(scaled(codes, 16, f16_at(b, 80), both & 15), f16_at(b, 82), both >> 4);
}

Blocks q3_k(const Tensor& b) {
  const Tensor scales = planes(field(b, 96, 8), 8, 4) | (planes(field(b, 104, 4), 4, 2) << 4);
  const Tensor codes = planes(field(b, 32, 64), 32, 2) | (planes(field(b, 0, 32), 32, 1) << 2);
  return scaled(less(codes, 4), 16, f16_at(b, 108), less(scales, 32));
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

Blocks q4_k(const Tensor& b) {
  const ScalesAndMins six = six_bits(field(b, 4, 12));
  const Tensor codes = less(planes(field(b, 16, 128), 32, 4), 0);
  return with_mins(scaled(codes, 32, f16_at(b, 0), six.scales), f16_at(b, 2), six.mins);
}

Blocks q5_k(const Tensor& b) {
  const ScalesAndMins six = six_bits(field(b, 4, 12));
  const Tensor codes = planes(field(b, 48, 128), 32, 4) | (planes(field(b, 16, 32), 32, 1) << 4);
  return with_mins(scaled(less(codes, 0), 32, f16_at(b, 0), six.scales), f16_at(b, 2), six.mins);
}

Blocks q6_k(const Tensor& b) {
  const Tensor codes = planes(field(b, 0, 128), 64, 4) | (planes(field(b, 128, 64), 32, 2) << 4);
  return scaled(less(codes, 32), 16, f16_at(b, 208), less(field(b, 192, 16), 0));
}

Blocks iq4_nl(const Tensor& b) {
  return plain(looked_up(planes(field(b, 2, 16), 16, 4), kNonLinear), 32, f16_at(b, 0));
}

Blocks iq4_xs(const Tensor& b) {
  const Tensor scales = planes(field(b, 4, 4), 1, 4) | (planes(field(b, 2, 2), 1, 2) << 4);
  const Tensor codes = looked_up(planes(field(b, 8, 128), 16, 4), kNonLinear);
  return scaled(codes, 32, f16_at(b, 0), less(scales, 32));
}

// 2^(e - 128) by its bits: below 2^-126 the exponent's are 0.
Blocks mxfp4(const Tensor& b) {
  const Tensor e = field(b, 0, 1).to(kI32);
  const Tensor small = Tensor::full({}, int64_t{1} << 21, kI32) << minimum(e, 1);
  const Tensor bits = where(e < 2, small, maximum(e - 1, 0) << 23);
  return plain(looked_up(planes(field(b, 1, 16), 16, 4), kTwiceE2M1), 32, bits.bitcast(kF32));
}

struct Row {
  std::string_view name;
  Blocks (*blocks)(const Tensor& bytes);
  int lowest, bits;
};
constexpr Row kRows[] = {
    {"Q4_0", q4_0, -8, 4},  {"Q4_1", q4_1, 0, 4},     {"Q5_0", q5_0, -16, 5},
    {"Q5_1", q5_1, 0, 5},   {"Q8_0", q8_0, -128, 8},  {"Q2_K", q2_k, 0, 2},
    {"Q3_K", q3_k, -4, 3},  {"Q4_K", q4_k, 0, 4},     {"Q5_K", q5_k, 0, 5},
    {"Q6_K", q6_k, -32, 6}, {"IQ4_NL", iq4_nl, 0, 0}, {"IQ4_XS", iq4_xs, 0, 0},
    {"MXFP4", mxfp4, 0, 0},
};

const Row* find_row(const StoredType& type) {
  const auto* row = std::find_if(std::begin(kRows), std::end(kRows),
                                 [&](const Row& r) { return r.name == type.name; });
  return row == std::end(kRows) ? nullptr : row;
}

}  // namespace

bool has_quantized_blocks(const StoredType& type) { return find_row(type) != nullptr; }

QuantizedBlocks quantized_blocks(const Tensor& bytes, const StoredType& type) {
  const Row* row = find_row(type);
  check(row, "quantized_blocks: ", type.name, " is no type of quantised blocks that is known");
  check(bytes.dtype() == kU8 && bytes.rank() > 0 && bytes.size(-1) % type.bytes == 0,
        "quantized_blocks: ", bytes.dtype(), " ", to_text(bytes.shape()),
        ", expected u8 with rows of whole blocks of ", type.name, ", ", type.bytes, " bytes each");
  Blocks blocks = row->blocks(bytes.unflatten(-1, {-1, type.bytes}));
  blocks.lowest = row->lowest;
  blocks.bits = row->bits;
  return blocks;
}

QuantizedBlocks quantized_blocks(const Tensor& codes, int bits, const Tensor& scale,
                                 const Tensor& min) {
  check(codes.dtype() == kI8 && codes.rank() == 2,
        "quantized_blocks: codes are i8 (out, in) and not ", codes.dtype(), " ",
        to_text(codes.shape()));
  check(bits > 0 && bits <= 8, "quantized_blocks: codes of ", bits, " bits, expected 1 to 8");
  for (const Tensor* t : {&scale, &min})
    check(
        !t->defined() || (t->dtype().is_float() && t->rank() == 2 && t->size(0) == codes.size(0) &&
                          t->size(1) > 0 && codes.size(1) % t->size(1) == 0),
        "quantized_blocks: scales or minima ", to_text(t->defined() ? t->shape() : codes.shape()),
        " for codes ", to_text(codes.shape()), ", expected floats (out, groups)");
  const auto of_group = [](const Tensor& t) { return t.unsqueeze(-1).unsqueeze(-1); };
  Blocks out;
  out.codes = codes.reshape({codes.size(0), scale.size(1), 1, -1});
  out.scale = of_group(scale);
  if (min.defined()) {
    check(min.size(1) == scale.size(1), "quantized_blocks: ", min.size(1), " minima for ",
          scale.size(1), " scales of a row");
    out.min = of_group(min);
  }
  out.lowest = -(1 << (bits - 1));
  out.bits = bits;
  return out;
}

Tensor unpack_int4(const Tensor& bytes) {
  check(bytes.dtype() == kU8 && bytes.rank() > 0, "unpack_int4: bytes are u8 and not ",
        bytes.dtype(), " ", to_text(bytes.shape()));
  const Tensor nibbles = planes(bytes, 1, 4);
  return less(nibbles ^ 8, 8);
}

Tensor dequantize(const QuantizedBlocks& blocks) {
  const auto times = [](const Tensor& one, const Tensor& each) {
    return each.defined() ? one.to(kF32) * each.to(kF32) : one.to(kF32);
  };
  Tensor values = blocks.codes.to(kF32) * times(blocks.scale, blocks.scales);
  if (blocks.min.defined()) values = values - times(blocks.min, blocks.mins);
  return values.flatten(-3);
}

Tensor dequantize(const Tensor& bytes, const StoredType& type) {
  return dequantize(quantized_blocks(bytes, type));
}

}  // namespace tiny
