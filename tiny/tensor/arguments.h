// Small argument types of the Tensor API: numbers that know their kind, lists of axes, positions of
// an index expression, amounts of padding.
#pragma once
#include <concepts>
#include <initializer_list>
#include <optional>
#include <type_traits>
#include <vector>

#include "tiny/ir/dtype.h"
#include "tiny/ir/shape.h"

namespace tiny {

class Tensor;

// A host scalar. Its kind (bool, integer, float) takes part in promotion, its width does not.
class Number {
 public:
  template <class T>
  requires std::is_arithmetic_v<T> Number(T v)
      : kind_(kind_of<T>()), integer_(as_integer(v)), real_(static_cast<double>(v)) {}

  DType default_dtype() const { return kind_; }  // bool, i64 or f32
  bool is_float() const { return kind_ == kF32; }
  int64_t integer() const { return integer_; }  // 0 for floats
  double real() const { return real_; }

 private:
  template <class T> static DType kind_of() {
    return std::is_same_v<T, bool> ? kBool : std::is_integral_v<T> ? kI64 : kF32;
  }
  template <class T> static int64_t as_integer(T v) {
    if constexpr (std::is_integral_v<T>) return static_cast<int64_t>(v);
    return 0;
  }
  DType kind_;
  int64_t integer_;
  double real_;
};

// One side of a binary operation: a tensor or a number. Made implicitly, lives for one call.
class Operand {
 public:
  Operand(const Tensor& t) : tensor_(&t) {}
  template <class T>
  requires std::is_arithmetic_v<T> Operand(T v) : number_(v) {}
  Operand(Number v) : number_(v) {}

  bool is_number() const { return !tensor_; }
  const Tensor& tensor() const { return *tensor_; }
  Number number() const { return number_; }

 private:
  const Tensor* tensor_ = nullptr;
  Number number_ = 0;
};

// The axes that an operation works on: one, several, or (made from nothing) all of them.
class Dims {
 public:
  Dims() = default;
  template <std::integral T> Dims(T dim) : list_(Shape{static_cast<int64_t>(dim)}) {}
  Dims(std::initializer_list<int64_t> dims) : list_(dims) {}
  Dims(Shape dims) : list_(std::move(dims)) {}

  bool all() const { return !list_; }
  const Shape& list() const { return *list_; }  // only where not all()

 private:
  std::optional<Shape> list_;
};

using Bound = std::optional<int64_t>;  // nullopt: an open end

// start:stop:step of an index expression, with Python's meaning of negative and outlying bounds.
struct Slice {
  Bound start = {}, stop = {};
  int64_t step = 1;  // at least 1
};
struct NewAxis {};
struct Ellipsis {};
inline constexpr NewAxis kNewAxis;
inline constexpr Ellipsis kEllipsis;

enum class PadMode { Constant, Reflect, Replicate, Circular };

// Elements before and after an axis; negative amounts crop.
struct Padding {
  int64_t before = 0, after = 0;
};

// Formats of 8-bit floats that are kept as u8 bit patterns: kF8E4M3 and kF8E5M2 (tiny/ir/dtype.h).
enum class Float8 { E4M3FN, E5M2 };

}  // namespace tiny
