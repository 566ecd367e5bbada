// Quantised weights as tensors: what their bytes mean, said by tensor operations, so that a kernel
// which reads a weight decodes it on the way and no other memory holds its values.
#pragma once
#include "tiny/models/files/formats/stored_type.h"
#include "tiny/tensor/tensor.h"

namespace tiny {

// Elements (code * scale * scales) - (min * mins), exactly the decoder's f32 where they are ggml's.
// Blocks follow each other along a row, groups of `size` elements along a block.
struct QuantizedBlocks {
  Tensor codes;         // i8 (..., blocks, groups, size), in the order of the elements
  Tensor scale, min;    // floats (..., blocks, 1, 1); no min: 0 for all
  Tensor scales, mins;  // integers of a byte (..., blocks, groups, 1); not defined: 1 for all
  int lowest = 0;       // code
  int bits = 0;         // codes are below lowest + 2^bits; 0: values of a table
};

// Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS and MXFP4.
bool has_quantized_blocks(const StoredType& type);

// Of u8 (..., bytes of whole blocks), as TensorFile::load_stored() gives them. Throws Error for
// other types, another dtype and a last axis that is not of whole blocks.
QuantizedBlocks quantized_blocks(const Tensor& bytes, const StoredType& type);

// Of integers with a scale, and perhaps a minimum, for each so many neighbours of a row: codes i8
// (out, in) from -2^(bits - 1) on, scale and min floats (out, groups). Error for other shapes.
QuantizedBlocks quantized_blocks(const Tensor& codes, int bits, const Tensor& scale,
                                 const Tensor& min = Tensor());

// Signed integers of 4 bits, i8 (..., 2 n), from u8 (..., n): the first in the low bits.
Tensor unpack_int4(const Tensor& bytes);

// The values, f32 (..., elements), not computed yet: x.linear(dequantize(bytes, type)) decodes as
// it multiplies.
Tensor dequantize(const QuantizedBlocks& blocks);
Tensor dequantize(const Tensor& bytes, const StoredType& type);

}  // namespace tiny
