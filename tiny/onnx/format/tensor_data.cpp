#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>

#include "tiny/base/error.h"
#include "tiny/onnx/format/model.h"

namespace tiny::onnx {

namespace {

struct TypeRow {
  int64_t number;
  const char* name;
  DType dtype;  // kVoid: no tensor has it
};

constexpr TypeRow kTypes[] = {
    {1, "FLOAT", kF32},
    {2, "UINT8", kU8},
    {3, "INT8", kI8},
    {4, "UINT16", kU16},
    {5, "INT16", kI16},
    {6, "INT32", kI32},
    {7, "INT64", kI64},
    {8, "STRING", kVoid},
    {9, "BOOL", kBool},
    {10, "FLOAT16", kF16},
    {11, "DOUBLE", kF64},
    {12, "UINT32", kU32},
    {13, "UINT64", kU64},
    {14, "COMPLEX64", kVoid},
    {15, "COMPLEX128", kVoid},
    {16, "BFLOAT16", kBF16},
    {17, "FLOAT8E4M3FN", kF8E4M3},
    {18, "FLOAT8E4M3FNUZ", kVoid},
    {19, "FLOAT8E5M2", kF8E5M2},
    {20, "FLOAT8E5M2FNUZ", kVoid},
    // In dtypes of eight bits, which other rows stand for.
    {kUint4Type, "UINT4", kU8},
    {kInt4Type, "INT4", kI8},
};

const TypeRow* find_type(int64_t number) {
  for (const TypeRow& row : kTypes)
    if (row.number == number) return &row;
  return nullptr;
}

// How an error calls a tensor.
std::string shown(const TensorData& data) {
  return cat("tensor \"", data.name, "\" of ", name_of_type(data.type), ' ', to_text(data.dims));
}

template <class T, class From> std::vector<std::byte> converted(const std::vector<From>& from) {
  std::vector<std::byte> out(from.size() * sizeof(T));
  for (size_t i = 0; i < from.size(); ++i) {
    const T value = static_cast<T>(from[i]);
    std::memcpy(out.data() + i * sizeof(T), &value, sizeof(T));
  }
  return out;
}

// Of the list that goes with the dtype: int32_data also holds narrow integers and bits of f16.
std::vector<std::byte> listed_bytes(const TensorData& data, DType dtype) {
  if (dtype == kF32) return converted<float>(data.floats);
  if (dtype == kF64) return converted<double>(data.doubles);
  switch (dtype.size()) {
    case 1: return converted<uint8_t>(data.integers);
    case 2: return converted<uint16_t>(data.integers);
    case 4: return converted<uint32_t>(data.integers);
    default: return converted<uint64_t>(data.integers);
  }
}

// A number of an entry of external data.
int64_t external_number(const TensorData& data, const char* key, int64_t otherwise) {
  const auto at = data.external.find(key);
  if (at == data.external.end()) return otherwise;
  const std::string& text = at->second;
  int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check(error == std::errc() && end == text.data() + text.size() && value >= 0,
        "onnx: ", shown(data), ": the ", key, " of its external data is \"", text, "\"");
  return value;
}

// The file named by `location`, relative to the model's folder, from which it must not lead out.
std::string external_path(const TensorData& data, const std::string& folder) {
  namespace fs = std::filesystem;
  const auto at = data.external.find("location");
  check(at != data.external.end() && !at->second.empty(), "onnx: ", shown(data),
        " has external data without a location");
  const fs::path place(at->second);
  const bool leaves = std::ranges::any_of(place, [](const fs::path& part) { return part == ".."; });
  check(place.is_relative() && !leaves, "onnx: ", shown(data), ": external data in \"", at->second,
        "\", which is not inside of the model's folder");
  return (fs::path(folder) / place).string();
}

std::vector<std::byte> external_bytes(const TensorData& data, const std::string& folder,
                                      int64_t expected) {
  const InputFile file("onnx", external_path(data, folder));
  const int64_t begin = external_number(data, "offset", 0);
  check(begin <= file.size(), "onnx: ", shown(data), ": external data begin at byte ", begin,
        " of a file of ", file.size());
  const int64_t length = external_number(data, "length", file.size() - begin);
  check(length == expected && length <= file.size() - begin, "onnx: ", shown(data), ": expected ",
        expected, " bytes of external data at byte ", begin, ", found ",
        std::min(length, file.size() - begin));
  std::vector<std::byte> out(static_cast<size_t>(length));
  file.read_at(begin, out.data(), length);
  return out;
}

// Two elements of four bits to a byte, the first one low.
std::vector<std::byte> unpacked_nibbles(std::span<const std::byte> packed, size_t count,
                                        bool is_signed) {
  std::vector<std::byte> out(count);
  for (size_t i = 0; i < count; ++i) {
    const int bits = std::to_integer<int>(packed[i / 2]) >> (i % 2 * 4) & 15;
    out[i] = static_cast<std::byte>(is_signed && bits > 7 ? bits - 16 : bits);
  }
  return out;
}

std::vector<std::byte> stored_bytes(const TensorData& data, const std::string& folder, DType dtype,
                                    int64_t expected) {
  if (data.is_external) return external_bytes(data, folder, expected);
  if (data.has_raw) return {data.raw.begin(), data.raw.end()};
  return listed_bytes(data, dtype);
}

}  // namespace

std::optional<DType> dtype_of_type(int64_t type) {
  const TypeRow* row = find_type(type);
  if (row == nullptr || row->dtype == kVoid) return std::nullopt;
  return row->dtype;
}

int64_t type_of_dtype(DType dtype) {
  for (const TypeRow& row : kTypes)
    if (row.dtype == dtype) return row.number;
  throw Error(cat("onnx: no type of ONNX is ", dtype));
}

std::string name_of_type(int64_t type) {
  const TypeRow* row = find_type(type);
  return row != nullptr ? row->name : cat("type ", type);
}

std::vector<std::byte> element_bytes(const TensorData& data, const std::string& folder) {
  const auto dtype = dtype_of_type(data.type);
  check(dtype.has_value(), "onnx: ", shown(data), ": no tensor has elements of this type here");
  const auto count = static_cast<size_t>(numel(data.dims));
  const bool is_packed = data.type == kUint4Type || data.type == kInt4Type;
  const size_t size = static_cast<size_t>(dtype->size());
  const size_t expected = is_packed ? (count + 1) / 2 : count * size;
  check(count <= SIZE_MAX / 16, "onnx: ", shown(data), " has more bytes than there are");
  std::vector<std::byte> bytes = stored_bytes(data, folder, *dtype, static_cast<int64_t>(expected));
  check(bytes.size() == expected, "onnx: ", shown(data), ": expected ", expected,
        " bytes of elements, found ", bytes.size());
  return is_packed ? unpacked_nibbles(bytes, count, data.type == kInt4Type) : bytes;
}

}  // namespace tiny::onnx
