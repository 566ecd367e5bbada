// Blocks of quantised elements, as ggml lays them out, to and from f32. Decoding gives the bits
// that llama.cpp's dequantize_row_* give; encoding rounds as its quantize_row_*_ref do.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tiny::blocks {

// `count` elements, in whole blocks.
void decode_q4_0(const std::byte* from, int64_t count, float* to);
void decode_q4_1(const std::byte* from, int64_t count, float* to);
void decode_q5_0(const std::byte* from, int64_t count, float* to);
void decode_q5_1(const std::byte* from, int64_t count, float* to);
void decode_q8_0(const std::byte* from, int64_t count, float* to);
void decode_q2_k(const std::byte* from, int64_t count, float* to);
void decode_q3_k(const std::byte* from, int64_t count, float* to);
void decode_q4_k(const std::byte* from, int64_t count, float* to);
void decode_q5_k(const std::byte* from, int64_t count, float* to);
void decode_q6_k(const std::byte* from, int64_t count, float* to);
void decode_iq4_nl(const std::byte* from, int64_t count, float* to);
void decode_iq4_xs(const std::byte* from, int64_t count, float* to);
void decode_mxfp4(const std::byte* from, int64_t count, float* to);
// Pairs of 4-bit floats (e2m1) without a scale, the first in the low bits.
void decode_f4(const std::byte* from, int64_t count, float* to);

// Values have to be finite.
void encode_q4_0(const float* from, int64_t count, std::byte* to);
void encode_q8_0(const float* from, int64_t count, std::byte* to);
void encode_q4_k(const float* from, int64_t count, std::byte* to);
void encode_q5_k(const float* from, int64_t count, std::byte* to);
void encode_q6_k(const float* from, int64_t count, std::byte* to);

}  // namespace tiny::blocks
