// Element types. A DType is a scalar kind and a number of lanes: tensors have one lane, kernels
// use wider ones for vectors and keep them as vectors down to machine code.
#pragma once
#include <bit>
#include <cstdint>
#include <ostream>
#include <string>

namespace tiny {

// The order within floats and within integers is the order of promotion.
// `Index` is the type of index arithmetic in a kernel before a pass chooses 32 or 64 bits;
// `Void` is the type of statements.
enum class Scalar : uint8_t {
  Void,
  Bool,
  I8,
  I16,
  I32,
  I64,
  U8,
  U16,
  U32,
  U64,
  F8E4M3,
  F8E5M2,
  F16,
  BF16,
  F32,
  F64,
  Index
};

struct DType {
  Scalar scalar = Scalar::Void;
  uint16_t lanes = 1;

  constexpr DType() = default;
  constexpr DType(Scalar s, int n = 1) : scalar(s), lanes(static_cast<uint16_t>(n)) {}
  bool operator==(const DType&) const = default;

  bool is_float() const { return scalar >= Scalar::F8E4M3 && scalar <= Scalar::F64; }
  bool is_int() const {
    return (scalar >= Scalar::I8 && scalar <= Scalar::U64) || scalar == Scalar::Index;
  }
  bool is_signed() const {
    return (scalar >= Scalar::I8 && scalar <= Scalar::I64) || scalar == Scalar::Index || is_float();
  }
  bool is_unsigned() const { return scalar >= Scalar::U8 && scalar <= Scalar::U64; }
  bool is_bool() const { return scalar == Scalar::Bool; }
  bool is_half() const { return scalar == Scalar::F16 || scalar == Scalar::BF16; }
  bool is_f8() const { return scalar == Scalar::F8E4M3 || scalar == Scalar::F8E5M2; }
  bool is_narrow() const { return is_half() || is_f8(); }  // a float that is computed in f32
  int size() const;  // bytes of one lane in memory; 0 for Void and Index
  int bits() const { return size() * 8; }
  DType vec(int n) const { return {scalar, n}; }
  DType one() const { return {scalar, 1}; }
  std::string name() const;  // "f32", "i64x4"
};

inline constexpr DType kVoid{Scalar::Void}, kBool{Scalar::Bool}, kI8{Scalar::I8}, kI16{Scalar::I16},
    kI32{Scalar::I32}, kI64{Scalar::I64}, kU8{Scalar::U8}, kU16{Scalar::U16}, kU32{Scalar::U32},
    kU64{Scalar::U64}, kF8E4M3{Scalar::F8E4M3}, kF8E5M2{Scalar::F8E5M2}, kF16{Scalar::F16},
    kBF16{Scalar::BF16}, kF32{Scalar::F32}, kF64{Scalar::F64}, kIndex{Scalar::Index};

std::ostream& operator<<(std::ostream& out, DType t);

// The dtype that holds both, by PyTorch's rules for two tensors of at least one dimension:
// bool < integers < floats; u8 with a signed type gives the next larger signed type,
// f16 with bf16 and e4m3 with e5m2 give f32, an integer with a float gives that float.
DType promote(DType a, DType b);

// Smallest and largest value of a bool or integer dtype of at most 64 bits, clamped to i64.
int64_t int_min(DType t);
int64_t int_max(DType t);

// IEEE half and bfloat16 conversions, round to nearest even, NaN stays NaN.
uint16_t f32_to_f16(float x);
float f16_to_f32(uint16_t bits);
uint16_t f32_to_bf16(float x);
inline float bf16_to_f32(uint16_t b) {
  return std::bit_cast<float>(static_cast<uint32_t>(b) << 16);
}

// The two 8-bit floats (FP8 Formats for Deep Learning, arXiv 2209.05433), rounded to nearest even:
// e4m3 saturates at 448 and has no infinities, e5m2 overflows to infinity.
uint8_t f32_to_f8(float x, Scalar format);
float f8_to_f32(uint8_t bits, Scalar format);

// Storage types of the narrow floats, for host code: `std::vector<Half>`.
struct Half {
  uint16_t bits = 0;
  Half() = default;
  explicit Half(float x) : bits(f32_to_f16(x)) {}
  explicit operator float() const { return f16_to_f32(bits); }
};
struct BFloat16 {
  uint16_t bits = 0;
  BFloat16() = default;
  explicit BFloat16(float x) : bits(f32_to_bf16(x)) {}
  explicit operator float() const { return bf16_to_f32(bits); }
};
template <Scalar format> struct Float8Bits {
  uint8_t bits = 0;
  Float8Bits() = default;
  explicit Float8Bits(float x) : bits(f32_to_f8(x, format)) {}
  explicit operator float() const { return f8_to_f32(bits, format); }
};
using Float8E4M3 = Float8Bits<Scalar::F8E4M3>;
using Float8E5M2 = Float8Bits<Scalar::F8E5M2>;

// DType of a C++ element type: dtype_of<float>() is kF32.
template <class T> constexpr DType dtype_of();
template <> constexpr DType dtype_of<bool>() { return kBool; }
template <> constexpr DType dtype_of<int8_t>() { return kI8; }
template <> constexpr DType dtype_of<int16_t>() { return kI16; }
template <> constexpr DType dtype_of<int32_t>() { return kI32; }
template <> constexpr DType dtype_of<int64_t>() { return kI64; }
template <> constexpr DType dtype_of<uint8_t>() { return kU8; }
template <> constexpr DType dtype_of<uint16_t>() { return kU16; }
template <> constexpr DType dtype_of<uint32_t>() { return kU32; }
template <> constexpr DType dtype_of<uint64_t>() { return kU64; }
template <> constexpr DType dtype_of<Float8E4M3>() { return kF8E4M3; }
template <> constexpr DType dtype_of<Float8E5M2>() { return kF8E5M2; }
template <> constexpr DType dtype_of<Half>() { return kF16; }
template <> constexpr DType dtype_of<BFloat16>() { return kBF16; }
template <> constexpr DType dtype_of<float>() { return kF32; }
template <> constexpr DType dtype_of<double>() { return kF64; }

}  // namespace tiny
