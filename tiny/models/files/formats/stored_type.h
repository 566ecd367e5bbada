// How elements lie in model files: one table of the types of safetensors and GGUF, with the sizes
// of their blocks and what decodes and encodes them. Layouts: github.com/huggingface/safetensors
// and github.com/ggml-org/ggml (docs/gguf.md, the type enumeration and block structures of ggml).
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tiny/ir/dtype.h"
#include "tiny/ir/shape.h"

namespace tiny {

// Elements `count` (whole blocks) from and to f32.
using DecodeBlocks = void (*)(const std::byte* from, int64_t count, float* to);
using EncodeBlocks = void (*)(const float* from, int64_t count, std::byte* to);

struct StoredType {
  const char* name;  // "F32", "Q4_K"; safetensors' name where the format has the type
  int gguf;          // ggml's number; -1: no type of GGUF
  bool safetensors;
  DType dtype;          // the same in tensors; kVoid where they have none
  int elements;         // of a block, which lie along the last axis
  int bytes;            // of a block
  DecodeBlocks decode;  // nullptr: only its bytes can be had
  EncodeBlocks encode;  // nullptr: values cannot be written as this type

  // Bytes of a tensor of this shape. No value where its last axis is not of whole blocks (in
  // safetensors: where all of it is not) or where they are more than 2^62.
  std::optional<int64_t> bytes_of(Ints shape) const;
};

// nullptr where there is none.
const StoredType* find_stored_type(std::string_view name);
const StoredType* find_stored_type(DType dtype);
const StoredType* find_gguf_type(uint32_t number);

// Throws Error that lists the names.
const StoredType& stored_type(std::string_view name);

}  // namespace tiny
