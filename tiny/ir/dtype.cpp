#include "tiny/ir/dtype.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "tiny/base/error.h"

namespace tiny {
namespace {

struct ScalarRow {
  const char* name;
  int size;
};

// In the order of Scalar.
constexpr ScalarRow kScalars[] = {{"void", 0},   {"bool", 1},   {"i8", 1},  {"i16", 2},  {"i32", 4},
                                  {"i64", 8},    {"u8", 1},     {"u16", 2}, {"u32", 4},  {"u64", 8},
                                  {"f8e4m3", 1}, {"f8e5m2", 1}, {"f16", 2}, {"bf16", 2}, {"f32", 4},
                                  {"f64", 8},    {"index", 0}};
static_assert(std::size(kScalars) == static_cast<size_t>(Scalar::Index) + 1);

const ScalarRow& row_of(DType t) { return kScalars[static_cast<size_t>(t.scalar)]; }

// Bool below integers below floats.
int kind_of(DType t) { return t.is_bool() ? 0 : t.is_int() ? 1 : 2; }

DType promote_ints(DType a, DType b) {
  if (a.scalar == Scalar::Index || b.scalar == Scalar::Index) return {Scalar::Index, a.lanes};
  if (a.is_signed() == b.is_signed()) return std::max(a.scalar, b.scalar) == a.scalar ? a : b;
  const DType with_sign = a.is_signed() ? a : b;
  const DType without = a.is_signed() ? b : a;
  if (with_sign.size() > without.size()) return with_sign;
  check(without.scalar != Scalar::U64, "promote: no integer dtype holds both ", a, " and ", b,
        "; cast one of them");
  const auto unsigned_rank = static_cast<int>(without.scalar) - static_cast<int>(Scalar::U8);
  return {static_cast<Scalar>(static_cast<int>(Scalar::I8) + unsigned_rank + 1), a.lanes};
}

DType promote_floats(DType a, DType b) {
  if (a.is_half() == b.is_half() && a.is_narrow() && b.is_narrow())
    return {Scalar::F32, a.lanes};  // the two different ones
  return a.scalar > b.scalar ? a : b;
}

}  // namespace

int DType::size() const { return row_of(*this).size; }

std::string DType::name() const {
  return lanes == 1 ? row_of(*this).name : cat(row_of(*this).name, "x", lanes);
}

std::ostream& operator<<(std::ostream& out, DType t) { return out << t.name(); }

DType promote(DType a, DType b) {
  expect(a.lanes == b.lanes, "promote: ", a, " and ", b, " have different numbers of lanes");
  expect(a.scalar != Scalar::Void && b.scalar != Scalar::Void, "promote: ", a, " and ", b,
         ": a statement has no value");
  if (a == b) return a;
  if (kind_of(a) != kind_of(b)) return kind_of(a) > kind_of(b) ? a : b;
  return a.is_int() ? promote_ints(a, b) : promote_floats(a, b);
}

int64_t int_min(DType t) {
  expect(t.is_int() || t.is_bool(), "int_min: ", t, " is no integer dtype");
  if (!t.is_signed()) return 0;
  const int bits = t.scalar == Scalar::Index ? 64 : t.bits();
  return std::numeric_limits<int64_t>::min() >> (64 - bits);
}

int64_t int_max(DType t) {
  expect(t.is_int() || t.is_bool(), "int_max: ", t, " is no integer dtype");
  if (t.is_bool()) return 1;
  const int bits = t.scalar == Scalar::Index ? 64 : t.bits();
  const int value_bits = std::min(t.is_signed() ? bits - 1 : bits, 63);
  return std::numeric_limits<int64_t>::max() >> (63 - value_bits);
}

// IEEE 754 binary32 has 8 exponent and 23 mantissa bits, binary16 has 5 and 10, bfloat16 8 and 7.

uint16_t f32_to_f16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  // NaN: quiet, with the upper bits of the payload.
  if (magnitude > 0x7f800000u) return sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  // From 65520, half way between the largest finite value and 65536, on: infinity.
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;
  // Below 2^-14 the result is subnormal, in steps of 2^-24. That is the step of a float in
  // [0.5, 1), so adding 0.5 rounds to it, ties to even, and the sum's low bits are the result.
  if (magnitude < 0x38800000u) {
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(sum) - 0x3f000000u);
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return sign | static_cast<uint16_t>((rounded - 0x38000000u) >> 13);
}

float f16_to_f32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude < 0x400u) {  // zero or subnormal: exact in binary32
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
  }
  const uint32_t rebias = magnitude >= 0x7c00u ? 0x70000000u : 0x38000000u;
  return std::bit_cast<float>(sign | ((magnitude << 13) + rebias));
}

namespace {

struct Float8Layout {
  int drop;         // mantissa bits that f32 has more
  uint32_t rebias;  // of the exponent, in f32's bits
  uint32_t normal;  // the smallest normal number, as f32's bits
  float unit;       // an f32 whose last bit has the weight of a subnormal's
  uint8_t largest, overflow;
};

Float8Layout layout_of(Scalar format) {
  if (format == Scalar::F8E4M3) return {20, 120u << 23, 121u << 23, 0x1p14f, 0x7e, 0x7e};
  return {21, 112u << 23, 113u << 23, 0x1p7f, 0x7b, 0x7c};
}

}  // namespace

uint8_t f32_to_f8(float x, Scalar format) {
  const Float8Layout f = layout_of(format);
  const uint32_t bits = std::bit_cast<uint32_t>(x), magnitude = bits & 0x7fffffffu;
  const auto sign = static_cast<uint8_t>(bits >> 24 & 0x80u);
  if (x != x) return sign | 0x7f;
  uint32_t code = 0;
  if (magnitude < f.normal) {
    const float sum = std::bit_cast<float>(magnitude) + f.unit;
    code = std::bit_cast<uint32_t>(sum) - std::bit_cast<uint32_t>(f.unit);
  } else {
    const uint32_t odd = magnitude >> f.drop & 1u;
    code = (magnitude - f.rebias + (1u << (f.drop - 1)) - 1 + odd) >> f.drop;
  }
  return static_cast<uint8_t>(sign | (code > f.largest ? f.overflow : code));
}

float f8_to_f32(uint8_t bits, Scalar format) {
  if (format == Scalar::F8E5M2) return f16_to_f32(static_cast<uint16_t>(bits << 8));
  const uint32_t code = bits & 0x7fu, sign = static_cast<uint32_t>(bits & 0x80u) << 24;
  // Times 2^120, the difference of the biases, which normalises subnormals.
  const float value = std::bit_cast<float>(code << 20) * 0x1p120f;
  const uint32_t magnitude = code == 0x7f ? 0x7fc00000u : std::bit_cast<uint32_t>(value);
  return std::bit_cast<float>(magnitude | sign);
}

uint16_t f32_to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  // A carry out of the mantissa into the exponent is right, up to infinity.
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace tiny
