#include "tiny/models/files/formats/stored_type.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

#include "tiny/base/error.h"
#include "tiny/models/files/formats/blocks.h"

namespace tiny {

namespace {

// Floats of one element a block. T: a storage type of tiny/ir/dtype.h, float or double.
template <class T> void decode_each(const std::byte* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, from + i * static_cast<int64_t>(sizeof value), sizeof value);
    to[i] = static_cast<float>(value);
  }
}

template <class T> void encode_each(const float* from, int64_t count, std::byte* to) {
  for (int64_t i = 0; i < count; ++i) {
    const T value = static_cast<T>(from[i]);
    std::memcpy(to + i * static_cast<int64_t>(sizeof value), &value, sizeof value);
  }
}

// Powers of two, of which all bits set is no number.
void decode_e8m0(const std::byte* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    const int e = std::to_integer<int>(from[i]);
    to[i] = e == 255 ? std::nanf("") : std::ldexp(1.0f, e - 127);
  }
}

// 8-bit floats without infinities and without a negative zero, whose pattern is no number; the
// bias is one more than that of the types without these letters (arXiv 2206.02915).
template <int mantissa> void decode_fnuz(const std::byte* from, int64_t count, float* to) {
  constexpr int kBias = 1 << (6 - mantissa), kOne = 1 << mantissa;
  for (int64_t i = 0; i < count; ++i) {
    const int bits = std::to_integer<int>(from[i]), m = bits & (kOne - 1);
    const int e = (bits & 127) >> mantissa;
    const float magnitude = e == 0 ? std::ldexp(static_cast<float>(m), 1 - kBias - mantissa)
                                   : std::ldexp(static_cast<float>(kOne + m), e - kBias - mantissa);
    to[i] = bits == 128 ? std::nanf("") : bits > 128 ? -magnitude : magnitude;
  }
}

using namespace blocks;

// Types without a decoder are here so that a file that holds some can be opened.
constexpr StoredType kTypes[] = {
    {"F32", 0, true, kF32, 1, 4, decode_each<float>, encode_each<float>},
    {"F16", 1, true, kF16, 1, 2, decode_each<Half>, encode_each<Half>},
    {"BF16", 30, true, kBF16, 1, 2, decode_each<BFloat16>, encode_each<BFloat16>},
    {"F64", 28, true, kF64, 1, 8, decode_each<double>, encode_each<double>},
    {"I8", 24, true, kI8, 1, 1, nullptr, nullptr},
    {"I16", 25, true, kI16, 1, 2, nullptr, nullptr},
    {"I32", 26, true, kI32, 1, 4, nullptr, nullptr},
    {"I64", 27, true, kI64, 1, 8, nullptr, nullptr},

    {"BOOL", -1, true, kBool, 1, 1, nullptr, nullptr},
    {"U8", -1, true, kU8, 1, 1, nullptr, nullptr},
    {"U16", -1, true, kU16, 1, 2, nullptr, nullptr},
    {"U32", -1, true, kU32, 1, 4, nullptr, nullptr},
    {"U64", -1, true, kU64, 1, 8, nullptr, nullptr},
    {"F8_E4M3", -1, true, kF8E4M3, 1, 1, decode_each<Float8E4M3>, encode_each<Float8E4M3>},
    {"F8_E5M2", -1, true, kF8E5M2, 1, 1, decode_each<Float8E5M2>, encode_each<Float8E5M2>},
    {"F8_E8M0", -1, true, kVoid, 1, 1, decode_e8m0, nullptr},
    {"F8_E4M3FNUZ", -1, true, kVoid, 1, 1, decode_fnuz<3>, nullptr},
    {"F8_E5M2FNUZ", -1, true, kVoid, 1, 1, decode_fnuz<2>, nullptr},
    {"F4", -1, true, kVoid, 2, 1, decode_f4, nullptr},
    {"F6_E2M3", -1, true, kVoid, 4, 3, nullptr, nullptr},
    {"F6_E3M2", -1, true, kVoid, 4, 3, nullptr, nullptr},
    {"C64", -1, true, kVoid, 1, 8, nullptr, nullptr},

    {"Q4_0", 2, false, kVoid, 32, 18, decode_q4_0, encode_q4_0},
    {"Q4_1", 3, false, kVoid, 32, 20, decode_q4_1, nullptr},
    {"Q5_0", 6, false, kVoid, 32, 22, decode_q5_0, nullptr},
    {"Q5_1", 7, false, kVoid, 32, 24, decode_q5_1, nullptr},
    {"Q8_0", 8, false, kVoid, 32, 34, decode_q8_0, encode_q8_0},
    {"Q2_K", 10, false, kVoid, 256, 84, decode_q2_k, nullptr},
    {"Q3_K", 11, false, kVoid, 256, 110, decode_q3_k, nullptr},
    {"Q4_K", 12, false, kVoid, 256, 144, decode_q4_k, encode_q4_k},
    {"Q5_K", 13, false, kVoid, 256, 176, decode_q5_k, encode_q5_k},
    {"Q6_K", 14, false, kVoid, 256, 210, decode_q6_k, encode_q6_k},
    {"IQ4_NL", 20, false, kVoid, 32, 18, decode_iq4_nl, nullptr},
    {"IQ4_XS", 23, false, kVoid, 256, 136, decode_iq4_xs, nullptr},
    {"MXFP4", 39, false, kVoid, 32, 17, decode_mxfp4, nullptr},

    {"Q8_1", 9, false, kVoid, 32, 36, nullptr, nullptr},
    {"Q8_K", 15, false, kVoid, 256, 292, nullptr, nullptr},
    {"IQ2_XXS", 16, false, kVoid, 256, 66, nullptr, nullptr},
    {"IQ2_XS", 17, false, kVoid, 256, 74, nullptr, nullptr},
    {"IQ3_XXS", 18, false, kVoid, 256, 98, nullptr, nullptr},
    {"IQ1_S", 19, false, kVoid, 256, 50, nullptr, nullptr},
    {"IQ3_S", 21, false, kVoid, 256, 110, nullptr, nullptr},
    {"IQ2_S", 22, false, kVoid, 256, 82, nullptr, nullptr},
    {"IQ1_M", 29, false, kVoid, 256, 56, nullptr, nullptr},
    {"TQ1_0", 34, false, kVoid, 256, 54, nullptr, nullptr},
    {"TQ2_0", 35, false, kVoid, 256, 66, nullptr, nullptr},
    {"NVFP4", 40, false, kVoid, 64, 36, nullptr, nullptr},
};

template <class Is> const StoredType* find_row(Is is) {
  const auto* found = std::find_if(std::begin(kTypes), std::end(kTypes), is);
  return found == std::end(kTypes) ? nullptr : found;
}

}  // namespace

std::optional<int64_t> StoredType::bytes_of(Ints shape) const {
  constexpr int64_t kMax = int64_t{1} << 62;
  int64_t count = 1;
  bool fits = true;
  for (int64_t size : shape) fits = fits && !__builtin_mul_overflow(count, size, &count);
  const int64_t row = safetensors ? count : shape.empty() ? 1 : shape.back();
  int64_t result = 0;
  if (!fits || count < 0 || row % elements != 0) return {};
  if (__builtin_mul_overflow(count / elements, bytes, &result) || result > kMax) return {};
  return result;
}

const StoredType* find_stored_type(std::string_view name) {
  return find_row([&](const StoredType& row) { return row.name == name; });
}

const StoredType* find_stored_type(DType dtype) {
  return find_row([&](const StoredType& row) { return row.dtype == dtype && dtype != kVoid; });
}

const StoredType* find_gguf_type(uint32_t number) {
  return find_row([&](const StoredType& row) {
    return row.gguf >= 0 && static_cast<uint32_t>(row.gguf) == number;
  });
}

const StoredType& stored_type(std::string_view name) {
  const StoredType* found = find_stored_type(name);
  if (found != nullptr) return *found;
  std::string names;
  for (const StoredType& row : kTypes) names += cat(names.empty() ? "" : ", ", row.name);
  throw Error(cat("files have no type ", name, "; they have ", names));
}

}  // namespace tiny
