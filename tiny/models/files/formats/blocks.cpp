#include "tiny/models/files/formats/blocks.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tiny/ir/dtype.h"

namespace tiny::blocks {

namespace {

// A block is a row of fields without gaps. Scales d and minima m are f16. In super-blocks, of 256
// elements, each group of 16 or 32 has an integer scale of its own. Where a product is exact in f32
// (it always is: 11 bits of an f16 times at most 13 of integers), fusing it with a sum changes
// nothing, so that the results do not depend on the compiler.
constexpr int kSmall = 32, kSuper = 256;

const uint8_t* bytes(const std::byte* at) { return reinterpret_cast<const uint8_t*>(at); }

float f16_at(const uint8_t* at) {
  uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  return f16_to_f32(bits);
}

void put_f16(float value, std::byte* at) {
  const uint16_t bits = f32_to_f16(value);
  std::memcpy(at, &bits, sizeof bits);
}

uint32_t u32_at(const uint8_t* at) {
  uint32_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  return bits;
}

// Calls decode(block, values) for each block of `bytes_each` bytes.
template <int elements, int bytes_each, class Decode>
void each_block(const std::byte* from, int64_t count, float* to, Decode decode) {
  const uint8_t* block = bytes(from);
  for (int64_t i = 0; i < count; i += elements, block += bytes_each) decode(block, to + i);
}

// Blocks of 32 with a nibble for each element, in `nibbles`: byte j holds elements j (its low bits)
// and j + 16.
template <class Value> void each_nibble(const uint8_t* nibbles, float* to, Value value) {
  for (int j = 0; j < kSmall / 2; ++j) {
    to[j] = value(nibbles[j] & 15, j);
    to[j + kSmall / 2] = value(nibbles[j] >> 4, j + kSmall / 2);
  }
}

// Where element i has its bits: byte l of `lanes` bytes holds, from the low bits on, `bits` each of
// elements l, l + lanes, l + 2 lanes, ... of a run. The next elements of its group follow.
struct Plane {
  const uint8_t* at;
  int shift;
};
Plane plane(const uint8_t* from, int i, int lanes, int bits) {
  const int run = lanes * (8 / bits);
  return {from + i / run * lanes + i % lanes, i % run / lanes * bits};
}

// The scale and the minimum of group j of Q4_K and Q5_K, 6 bits each, packed into 12 bytes.
struct ScaleAndMin {
  int scale, min;
};
ScaleAndMin scale_and_min(const uint8_t* packed, int j) {
  if (j < 4) return {packed[j] & 63, packed[j + 4] & 63};
  return {(packed[j + 4] & 15) | (packed[j - 4] >> 6 << 4),
          (packed[j + 4] >> 4) | (packed[j] >> 6 << 4)};
}

// The scale of group j of Q3_K, 6 bits with an offset of 32: 16 low nibbles in 8 bytes, then the
// high bits of groups j, j + 4, j + 8, j + 12 in one byte.
int scale_of_q3(const uint8_t* packed, int j) {
  const int low = j < 8 ? packed[j] & 15 : packed[j - 8] >> 4;
  return (low | (packed[8 + j % 4] >> (2 * (j / 4)) & 3) << 4) - 32;
}

// 4-bit values of IQ4_NL and IQ4_XS (ggml: kvalues_iq4nl), and twice those of e2m1.
constexpr int kNonLinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                1,    13,   25,  38,  53,  69,  89,  113};
constexpr int kTwiceE2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

}  // namespace

void decode_q4_0(const std::byte* from, int64_t count, float* to) {
  each_block<kSmall, 18>(from, count, to, [](const uint8_t* block, float* out) {
    const float d = f16_at(block);
    each_nibble(block + 2, out, [&](int q, int) { return static_cast<float>(q - 8) * d; });
  });
}

void decode_q4_1(const std::byte* from, int64_t count, float* to) {
  each_block<kSmall, 20>(from, count, to, [](const uint8_t* block, float* out) {
    const float d = f16_at(block), m = f16_at(block + 2);
    each_nibble(block + 4, out, [&](int q, int) { return static_cast<float>(q) * d + m; });
  });
}

// The fifth bits of the 32 elements are in a word before the nibbles.
void decode_q5_0(const std::byte* from, int64_t count, float* to) {
  each_block<kSmall, 22>(from, count, to, [](const uint8_t* block, float* out) {
    const float d = f16_at(block);
    const uint32_t high = u32_at(block + 2);
    each_nibble(block + 6, out, [&](int q, int j) {
      return static_cast<float>((q | static_cast<int>(high >> j & 1) << 4) - 16) * d;
    });
  });
}

void decode_q5_1(const std::byte* from, int64_t count, float* to) {
  each_block<kSmall, 24>(from, count, to, [](const uint8_t* block, float* out) {
    const float d = f16_at(block), m = f16_at(block + 2);
    const uint32_t high = u32_at(block + 4);
    each_nibble(block + 8, out, [&](int q, int j) {
      return static_cast<float>(q | static_cast<int>(high >> j & 1) << 4) * d + m;
    });
  });
}

void decode_q8_0(const std::byte* from, int64_t count, float* to) {
  each_block<kSmall, 34>(from, count, to, [](const uint8_t* block, float* out) {
    const float d = f16_at(block);
    for (int j = 0; j < kSmall; ++j)
      out[j] = static_cast<float>(static_cast<int8_t>(block[2 + j])) * d;
  });
}

// 16 bytes of a scale (low bits) and a minimum for each 16 elements, 64 bytes of 2-bit elements, d,
// the minima's scale. Byte l of a half's 32 holds elements l, l + 32, l + 64 and l + 96 of it.
void decode_q2_k(const std::byte* from, int64_t count, float* to) {
  each_block<kSuper, 84>(from, count, to, [](const uint8_t* block, float* out) {
    const float d = f16_at(block + 80), dmin = f16_at(block + 82);
    for (int group = 0; group < 16; ++group) {
      const float dl = d * static_cast<float>(block[group] & 15);
      const float ml = dmin * static_cast<float>(block[group] >> 4);
      const Plane low = plane(block + 16, 16 * group, 32, 2);
      for (int l = 0; l < 16; ++l)
        out[16 * group + l] = dl * static_cast<float>(low.at[l] >> low.shift & 3) - ml;
    }
  });
}

// 32 bytes of high bits (bit k of byte l: element 32 k + l), 64 bytes of low bits as in Q2_K, the
// packed scales, d.
void decode_q3_k(const std::byte* from, int64_t count, float* to) {
  each_block<kSuper, 110>(from, count, to, [](const uint8_t* block, float* out) {
    const float d = f16_at(block + 108);
    for (int group = 0; group < 16; ++group) {
      const float dl = d * static_cast<float>(scale_of_q3(block + 96, group));
      const Plane low = plane(block + 32, 16 * group, 32, 2),
                  high = plane(block, 16 * group, 32, 1);
      for (int l = 0; l < 16; ++l) {
        const int q = (low.at[l] >> low.shift & 3) | (high.at[l] >> high.shift & 1) << 2;
        out[16 * group + l] = dl * static_cast<float>(q - 4);
      }
    }
  });
}

// d, the minima's scale, the packed scales, 128 bytes of nibbles: byte l of a quarter's 32 holds
// elements l (its low bits) and l + 32 of it.
void decode_q4_k(const std::byte* from, int64_t count, float* to) {
  each_block<kSuper, 144>(from, count, to, [](const uint8_t* block, float* out) {
    const float d = f16_at(block), dmin = f16_at(block + 2);
    for (int group = 0; group < 8; ++group) {
      const ScaleAndMin s = scale_and_min(block + 4, group);
      const float dl = d * static_cast<float>(s.scale), ml = dmin * static_cast<float>(s.min);
      const uint8_t* nibbles = block + 16 + 32 * (group / 2);
      for (int l = 0; l < 32; ++l)
        out[32 * group + l] = dl * static_cast<float>(nibbles[l] >> (4 * (group % 2)) & 15) - ml;
    }
  });
}

// As Q4_K, with 32 bytes of fifth bits before the nibbles: bit k of byte l is of element 32 k + l.
void decode_q5_k(const std::byte* from, int64_t count, float* to) {
  each_block<kSuper, 176>(from, count, to, [](const uint8_t* block, float* out) {
    const float d = f16_at(block), dmin = f16_at(block + 2);
    const uint8_t* high = block + 16;
    for (int group = 0; group < 8; ++group) {
      const ScaleAndMin s = scale_and_min(block + 4, group);
      const float dl = d * static_cast<float>(s.scale), ml = dmin * static_cast<float>(s.min);
      const uint8_t* nibbles = block + 48 + 32 * (group / 2);
      for (int l = 0; l < 32; ++l) {
        const int q = (nibbles[l] >> (4 * (group % 2)) & 15) | (high[l] >> group & 1) << 4;
        out[32 * group + l] = dl * static_cast<float>(q) - ml;
      }
    }
  });
}

// 128 bytes of low nibbles, 64 of high pairs of bits, 16 signed scales, d. Of each half, byte l of
// 64 holds the nibbles of elements l (its low bits) and l + 64, and byte l of 32 the high bits of
// elements l, l + 32, l + 64 and l + 96.
void decode_q6_k(const std::byte* from, int64_t count, float* to) {
  each_block<kSuper, 210>(from, count, to, [](const uint8_t* block, float* out) {
    const float d = f16_at(block + 208);
    for (int group = 0; group < 16; ++group) {
      const float dl = d * static_cast<float>(static_cast<int8_t>(block[192 + group]));
      const Plane low = plane(block, 16 * group, 64, 4);
      const Plane high = plane(block + 128, 16 * group, 32, 2);
      for (int l = 0; l < 16; ++l) {
        const int q = (low.at[l] >> low.shift & 15) | (high.at[l] >> high.shift & 3) << 4;
        out[16 * group + l] = dl * static_cast<float>(q - 32);
      }
    }
  });
}

void decode_iq4_nl(const std::byte* from, int64_t count, float* to) {
  each_block<kSmall, 18>(from, count, to, [](const uint8_t* block, float* out) {
    const float d = f16_at(block);
    each_nibble(block + 2, out, [&](int q, int) { return d * static_cast<float>(kNonLinear[q]); });
  });
}

// d, 2 bytes of the scales' high pairs of bits, 4 of their low nibbles, 128 of nibbles.
void decode_iq4_xs(const std::byte* from, int64_t count, float* to) {
  each_block<kSuper, 136>(from, count, to, [](const uint8_t* block, float* out) {
    const float d = f16_at(block);
    const int high = block[2] | block[3] << 8;
    for (int group = 0; group < 8; ++group) {
      const int low = block[4 + group / 2] >> (4 * (group % 2)) & 15;
      const float dl = d * static_cast<float>((low | (high >> (2 * group) & 3) << 4) - 32);
      each_nibble(block + 8 + 16 * group, out + 32 * group,
                  [&](int q, int) { return dl * static_cast<float>(kNonLinear[q]); });
    }
  });
}

// The scale is 2^(e - 127); half of it goes with twice the values, and is 2^-128 for e = 0.
void decode_mxfp4(const std::byte* from, int64_t count, float* to) {
  each_block<kSmall, 17>(from, count, to, [](const uint8_t* block, float* out) {
    const float half = std::ldexp(1.0f, block[0] - 128);
    each_nibble(block + 1, out,
                [&](int q, int) { return static_cast<float>(kTwiceE2M1[q]) * half; });
  });
}

void decode_f4(const std::byte* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    const int q = bytes(from)[i / 2] >> (4 * (i % 2)) & 15;
    to[i] = std::copysign(0.5f * static_cast<float>(kTwiceE2M1[q]), q < 8 ? 1.0f : -1.0f);
  }
}

namespace {

// A float as an integer of 8 bits as x86 converts it, by way of one of 32: what does not fit those
// (where 1 / d overflows) gives 0.
int low_byte(float x) {
  return std::abs(x) < 0x1p31f ? static_cast<int8_t>(static_cast<int32_t>(x)) : 0;
}

// The same of the nearest integer, ties away from zero.
int nearest_low_byte(float x) {
  if (!(std::abs(x) < 0x1p31f)) return 0;
  const auto whole = static_cast<int32_t>(x);
  const float rest = x - static_cast<float>(whole);
  return static_cast<int8_t>(whole + (rest >= 0.5f) - (rest <= -0.5f));
}

}  // namespace

// The element of largest magnitude becomes -8; ties go up.
void encode_q4_0(const float* from, int64_t count, std::byte* to) {
  for (; count > 0; count -= kSmall, from += kSmall, to += 18) {
    float largest = 0;
    for (int j = 0; j < kSmall; ++j)
      if (std::abs(from[j]) > std::abs(largest)) largest = from[j];
    const float d = largest / -8, inverse = d != 0 ? 1 / d : 0;
    put_f16(d, to);
    const auto quantised = [&](int j) {
      const float scaled = from[j] * inverse;
      return std::min(15, low_byte(scaled + 8.5f));
    };
    for (int j = 0; j < kSmall / 2; ++j)
      to[2 + j] = static_cast<std::byte>(quantised(j) | quantised(j + kSmall / 2) << 4);
  }
}

// The largest magnitude becomes 127; ties go away from zero.
void encode_q8_0(const float* from, int64_t count, std::byte* to) {
  for (; count > 0; count -= kSmall, from += kSmall, to += 34) {
    float largest = 0;
    for (int j = 0; j < kSmall; ++j) largest = std::max(largest, std::abs(from[j]));
    const float d = largest / 127, inverse = d != 0 ? 1 / d : 0;
    put_f16(d, to);
    for (int j = 0; j < kSmall; ++j)
      to[2 + j] = static_cast<std::byte>(nearest_low_byte(from[j] * inverse));
  }
}

}  // namespace tiny::blocks
