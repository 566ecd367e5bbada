#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tiny/base/error.h"
#include "tiny/ir/dtype.h"

using namespace tiny;

namespace {

constexpr DType kAll[] = {kBool, kI8,     kI16,    kI32, kI64,  kU8,  kU16, kU32,
                          kU64,  kF8E4M3, kF8E5M2, kF16, kBF16, kF32, kF64};
constexpr float kInf = std::numeric_limits<float>::infinity();

// For every two neighbouring finite values of a narrow format: what lies between them goes to the
// nearer, the middle goes to the even one. `infinity` is the pattern behind that of the largest.
template <class T> void check_rounding(uint16_t infinity, float (*widen)(T), T (*narrow)(float)) {
  constexpr int kSign = 1 << (8 * sizeof(T) - 1);
  int wrong = 0;
  for (uint32_t low = 0; low + 1 < infinity; low++) {
    const auto a = static_cast<T>(low), b = static_cast<T>(low + 1);
    const double exact_middle = (static_cast<double>(widen(a)) + widen(b)) / 2;
    const auto middle = static_cast<float>(exact_middle);
    wrong += narrow(widen(a)) != a;
    wrong += narrow(-widen(b)) != (b | kSign);
    if (middle != exact_middle) continue;  // below the smallest float
    wrong += narrow(middle) != (low % 2 ? b : a);
    wrong += narrow(std::nextafter(middle, 0.0f)) != a;
    wrong += narrow(std::nextafter(middle, kInf)) != b;
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("a dtype prints its name with the number of lanes where it is not one") {
  CHECK(kF32.name() == "f32");
  CHECK(kBool.name() == "bool");
  CHECK(kI64.vec(4).name() == "i64x4");
  CHECK(cat(kBF16, " ", kVoid, " ", kIndex, " ", kU64.vec(16).one()) == "bf16 void index u64");
}

TEST_CASE("a dtype knows the bytes of one lane") {
  const std::vector<int> sizes = {1, 1, 2, 4, 8, 1, 2, 4, 8, 1, 1, 2, 2, 4, 8};
  for (size_t i = 0; i < sizes.size(); i++) CHECK(kAll[i].size() == sizes[i]);
  CHECK(kF64.vec(4).bits() == 64);
  CHECK(kIndex.size() == 0);
  CHECK(kVoid.size() == 0);
}

TEST_CASE("promotion takes the higher kind, then the smallest dtype that holds both") {
  CHECK(promote(kBool, kBool) == kBool);
  CHECK(promote(kBool, kU8) == kU8);
  CHECK(promote(kI8, kI32) == kI32);
  CHECK(promote(kU8, kU32) == kU32);
  CHECK(promote(kU8, kI8) == kI16);
  CHECK(promote(kU8, kI16) == kI16);
  CHECK(promote(kU16, kI8) == kI32);
  CHECK(promote(kU32, kI32) == kI64);
  CHECK(promote(kI64, kF16) == kF16);
  CHECK(promote(kBool, kBF16) == kBF16);
  CHECK(promote(kF16, kBF16) == kF32);
  CHECK(promote(kBF16, kF32) == kF32);
  CHECK(promote(kF8E4M3, kF8E5M2) == kF32);
  CHECK(promote(kF8E5M2, kBF16) == kBF16);
  CHECK(promote(kF16, kF64) == kF64);
  CHECK(promote(kIndex, kI32) == kIndex);
  CHECK(promote(kU8.vec(4), kI8.vec(4)) == kI16.vec(4));
}

TEST_CASE("promotion is symmetric, keeps equal dtypes and never lowers the kind") {
  for (DType a : kAll)
    for (DType b : kAll) {
      if ((a == kU64 && b.is_int() && b.is_signed()) || (b == kU64 && a.is_int() && a.is_signed()))
        continue;
      const DType both = promote(a, b);
      CHECK(both == promote(b, a));
      CHECK(promote(both, a) == both);
      CHECK((a != b || both == a));
      CHECK(both.is_float() == (a.is_float() || b.is_float()));
      if (both.is_int() && a.is_int()) CHECK(int_min(both) <= int_min(a));
      if (both.is_int() && a.is_int()) CHECK(int_max(both) >= int_max(a));
    }
}

TEST_CASE("u64 with a signed dtype is an error, since no integer holds both") {
  CHECK_THROWS_WITH_AS(promote(kI8, kU64),
                       "promote: no integer dtype holds both i8 and u64; cast one of them", Error);
}

TEST_CASE("promoting different numbers of lanes or a statement is a bug") {
  CHECK_THROWS_WITH_AS(promote(kF32.vec(2), kF32.vec(4)),
                       "promote: f32x2 and f32x4 have different numbers of lanes", Bug);
  CHECK_THROWS_AS(promote(kVoid, kF32), Bug);
}

TEST_CASE("integer limits are those of the C++ types") {
  CHECK(int_min(kI8) == -128);
  CHECK(int_max(kI8) == 127);
  CHECK(int_min(kI64) == std::numeric_limits<int64_t>::min());
  CHECK(int_max(kI64) == std::numeric_limits<int64_t>::max());
  CHECK(int_max(kIndex) == std::numeric_limits<int64_t>::max());
  CHECK(int_min(kU32) == 0);
  CHECK(int_max(kU32) == 4294967295);
  CHECK(int_max(kU64) == std::numeric_limits<int64_t>::max());
  CHECK(int_min(kBool) == 0);
  CHECK(int_max(kBool) == 1);
  CHECK_THROWS_AS(int_min(kF32), Bug);
}

TEST_CASE("every f16 value survives f32, and what lies between rounds to nearest even") {
  check_rounding(0x7c00, f16_to_f32, f32_to_f16);
}

TEST_CASE("every bf16 value survives f32, and what lies between rounds to nearest even") {
  check_rounding(0x7f80, bf16_to_f32, f32_to_bf16);
}

TEST_CASE(
    "every f8 value survives f32, what lies between rounds to nearest even, and ends differ") {
  constexpr auto kE4M3 = Scalar::F8E4M3, kE5M2 = Scalar::F8E5M2;
  check_rounding<uint8_t>(
      0x7f, [](uint8_t b) { return f8_to_f32(b, Scalar::F8E4M3); },
      [](float x) { return f32_to_f8(x, Scalar::F8E4M3); });
  check_rounding<uint8_t>(
      0x7c, [](uint8_t b) { return f8_to_f32(b, Scalar::F8E5M2); },
      [](float x) { return f32_to_f8(x, Scalar::F8E5M2); });
  CHECK(f8_to_f32(0x01, kE4M3) == 0x1p-9f);
  CHECK(f8_to_f32(0x7e, kE4M3) == 448.0f);
  CHECK(f8_to_f32(0xfb, kE5M2) == -57344.0f);
  CHECK(f8_to_f32(0x7c, kE5M2) == kInf);
  CHECK(f32_to_f8(1e9f, kE4M3) == 0x7e);
  CHECK(f32_to_f8(-kInf, kE4M3) == 0xfe);
  CHECK(f32_to_f8(1e9f, kE5M2) == 0x7c);
  for (Scalar format : {kE4M3, kE5M2}) CHECK(std::isnan(f8_to_f32(f32_to_f8(NAN, format), format)));
}

TEST_CASE("f16 conversion knows its subnormals, largest value, infinities and signed zeros") {
  CHECK(f16_to_f32(0x0001) == 0x1p-24f);
  CHECK(f16_to_f32(0x83ff) == -0x1.ff8p-15f);
  CHECK(f16_to_f32(0x7bff) == 65504.0f);
  CHECK(f16_to_f32(0x7c00) == kInf);
  CHECK(std::signbit(f16_to_f32(0x8000)));
  CHECK(f32_to_f16(0x1p-25f) == 0x0000);
  CHECK(f32_to_f16(0x1.000002p-25f) == 0x0001);
  CHECK(f32_to_f16(65519.996f) == 0x7bff);
  CHECK(f32_to_f16(65520.0f) == 0x7c00);
  CHECK(f32_to_f16(-1e30f) == 0xfc00);
  CHECK(f32_to_f16(-0.0f) == 0x8000);
}

TEST_CASE("bf16 conversion overflows to infinity and keeps subnormals") {
  CHECK(f32_to_bf16(std::numeric_limits<float>::max()) == 0x7f80);
  CHECK(f32_to_bf16(-kInf) == 0xff80);
  CHECK(f32_to_bf16(bf16_to_f32(0x0001)) == 0x0001);
  CHECK(f32_to_bf16(-0.0f) == 0x8000);
}

TEST_CASE("NaN stays NaN in both 16-bit formats, whatever its payload") {
  for (uint32_t bits : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0x7fffffffu, 0xff801000u}) {
    const float nan = std::bit_cast<float>(bits);
    CHECK(std::isnan(f16_to_f32(f32_to_f16(nan))));
    CHECK(std::isnan(bf16_to_f32(f32_to_bf16(nan))));
  }
  CHECK(std::isnan(static_cast<float>(Half(std::nanf("")))));
  CHECK(std::isnan(static_cast<float>(BFloat16(std::nanf("")))));
}
