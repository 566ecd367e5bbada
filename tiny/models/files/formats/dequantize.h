// Blocks of quantised elements as tensors: what their bytes mean, said by tensor operations, so that
// a kernel which reads a weight decodes it on the way and no other memory holds it.
#pragma once
#include "tiny/models/files/formats/stored_type.h"
#include "tiny/tensor/tensor.h"

namespace tiny {

// Elements are codes * scale - min, exactly the decoder's f32. Elements of a group share both.
struct QuantizedParts {
  Tensor codes;  // i8 (..., groups, size), in the order of the elements
  Tensor scale;  // f32 (..., groups, 1)
  Tensor min;    // the same; not defined where it is 0 for all
};

// Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS and MXFP4.
bool has_quantized_parts(const StoredType& type);

// Of u8 (..., bytes of whole blocks), as TensorFile::load_stored() gives them. Throws Error for
// other types, another dtype and a last axis that is not of whole blocks.
QuantizedParts quantized_parts(const Tensor& bytes, const StoredType& type);

// The values, f32 (..., elements).
Tensor dequantize(const QuantizedParts& parts);
Tensor dequantize(const Tensor& bytes, const StoredType& type);

}  // namespace tiny
