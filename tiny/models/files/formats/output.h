// Tensors on their way into a model file: converted to the type that the file is to have, piece by
// piece, when it is their turn.
#pragma once
#include <functional>
#include <span>
#include <string>

#include "tiny/models/files/formats/stored_type.h"
#include "tiny/tensor/tensor.h"
#include "tiny/train/safetensors.h"

namespace tiny {

struct OutputTensor {
  std::string name;
  const StoredType* type;
  Shape shape;
  std::function<void(const ByteSink&)> write;  // gives all bytes, row-major
};

// The tensor as `type`, or without one as the type of its dtype. Floats become any type that has an
// encoder, all others only their own. Throws Error for what cannot be converted and for rows that
// are not of whole blocks; when written, for values that are not finite and have to be quantised.
OutputTensor output_tensor(const std::string& name, const Tensor& tensor,
                           const StoredType* type = nullptr);

// Bytes that are already in the type's form; they live until they are written.
OutputTensor output_bytes(const std::string& name, const StoredType& type, const Shape& shape,
                          std::span<const std::byte> bytes);

}  // namespace tiny
