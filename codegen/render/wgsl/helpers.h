// Functions in front of WGSL kernels: what the language lacks, or leaves open.
#pragma once
#include <string>

namespace tiny {

// Those that the text uses.
//   not_finite(bits)    an infinity or NaN: no constant expression may be one
//   is_nan(x)           by its bits: compilers may take x != x for false
//   max_of(a, b), min_of(a, b)   f32: NaN if either is
//   div_i32, mod_i32, div_u32, mod_u32   0 where the divisor is; lowest / -1 = lowest
//   f32_to_i32(x), f32_to_u32(x)         the nearest end of the range outside of it, NaN gives 0
//   half, half_of(bits), half_bits(x)    f16, or where an adapter has none its bits in a u32
//   f16_to_f32(x), f32_to_f16(x)         to the nearest
//   halves              two of them in a word: halves_of(a, b), low_half(x), high_half(x)
//   add_64, mul_64, lt_i64, div_u64, f32_to_i64, ...   the same of 64 bits, as pairs of words
std::string wgsl_helpers(const std::string& text);

}  // namespace tiny
