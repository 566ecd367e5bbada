// The operators of ONNX's default domain, by name and version.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tiny/onnx/call/call.h"

namespace tiny::onnx {

// Dtypes that an operator's first input may have, its type constraint T: bit i is Scalar i.
using TypeSet = uint32_t;
template <class... Types> constexpr TypeSet type_set(Types... types) {
  return ((TypeSet{1} << static_cast<int>(types.scalar)) | ...);
}
inline constexpr TypeSet kFloats = type_set(kF16, kBF16, kF32, kF64);
inline constexpr TypeSet kSigned = kFloats | type_set(kI8, kI16, kI32, kI64);
inline constexpr TypeSet kUnsigned = type_set(kU8, kU16, kU32, kU64);
inline constexpr TypeSet kIntegers = kUnsigned | type_set(kI8, kI16, kI32, kI64);
inline constexpr TypeSet kNumbers = kFloats | kIntegers;
inline constexpr TypeSet kBytes = type_set(kI8, kU8);
inline constexpr TypeSet kAll = kNumbers | type_set(kBool, kF8E4M3, kF8E5M2);
inline constexpr TypeSet kAnything = ~TypeSet{0};  // no first input, or any number of kinds

using OperatorFunction = Tensors (*)(Call&);

struct Operator {
  const char* name;
  int64_t since;  // the version of the default domain from which on it means this
  TypeSet types;
  OperatorFunction function;
};

// The rows of a group: one for each operator, several where versions differ by more than their
// types, which are the newest version's.
std::span<const Operator> elementwise_operators();
std::span<const Operator> reduce_operators();
std::span<const Operator> movement_operators();
std::span<const Operator> indexing_operators();
std::span<const Operator> product_operators();
std::span<const Operator> window_operators();
std::span<const Operator> normalization_operators();
std::span<const Operator> resample_operators();
std::span<const Operator> recurrent_operators();
std::span<const Operator> quantised_operators();
std::span<const Operator> generator_operators();
std::span<const Operator> control_operators();

struct OperatorGroup {
  const char* name;
  std::span<const Operator> operators;
};
const std::vector<OperatorGroup>& operator_groups();

// The newest row that is not newer than the version; nullptr where there is none.
const Operator* find_operator(const std::string& name, int64_t version);

// Why an operator of the default domain is refused; empty for others.
std::string refusal_of(const std::string& name);

// For docs/onnx.md: each group's operators with their oldest version here.
std::string operator_table_markdown();

}  // namespace tiny::onnx
