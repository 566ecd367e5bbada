// Quantising to super-blocks of 256 elements. Codes of a group minimise a weighted error: a few
// steps are tried, each with the codes that it rounds to and the line that fits those best. Sums
// are those of ggml's description, in f32 and in its order, so that ties fall as they do there;
// a compiler that fuses products with sums may decide some in another way.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "tiny/ir/dtype.h"
#include "tiny/models/files/formats/blocks.h"

namespace tiny::blocks {

namespace {

constexpr int kElements = 256;

// The nearest integer, ties to even, where it has 22 bits: the low bits of a sum with 1.5 * 2^23.
// What has more, or is no number, is the same arbitrary one everywhere.
int nearest(float x) {
  const auto bits = std::bit_cast<uint32_t>(x + 12582912.0f);
  return static_cast<int>(bits & 0x7fffff) - 0x400000;
}

uint8_t* bytes_at(std::byte* at) { return reinterpret_cast<uint8_t*>(at); }

// What a reader finds of a number that is stored as f16.
float stored_f16(float value, uint8_t* at) {
  const uint16_t bits = f32_to_f16(value);
  std::memcpy(at, &bits, sizeof bits);
  return f16_to_f32(bits);
}

// --- Q4_K, Q5_K: codes times a step, less a minimum, for groups of 32 ----------------------------

constexpr int kGroup = 32, kGroups = kElements / kGroup;

// Codes 0 to `most`. Steps to try: `trials`, each from the best line's lowest value to the greatest
// in most + first + i / 10 steps.
struct LineCodes {
  int most;
  float first;
  int trials;
};

struct Line {
  float step = 0, low = 0;
};

// Sums of what is fitted to, each value counted by its weight.
class LineFit {
 public:
  explicit LineFit(const float* x) : x_(x) {
    float squares = 0;
    for (int i = 0; i < kGroup; ++i) squares += x[i] * x[i];
    const float typical = std::sqrt(squares / kGroup);
    for (int i = 0; i < kGroup; ++i) {
      weight_[i] = typical + std::abs(x[i]);
      weights_ += weight_[i];
      values_ += weight_[i] * x[i];
    }
  }

  Line best(const LineCodes& kind, uint8_t* codes) const {
    const auto [least, greatest] = std::minmax_element(x_, x_ + kGroup);
    const float low = std::min(*least, 0.0f), range = *greatest - low;
    std::fill_n(codes, kGroup, uint8_t{0});
    if (range == 0) return {0, low};
    const float most = static_cast<float>(kind.most), inverse = most / range;
    Line found{1 / inverse, low};
    round(inverse, low, kind.most, codes);
    float error = error_of(found, codes);
    for (int i = 0; i < kind.trials; ++i) {
      uint8_t tried[kGroup];
      const float levels = kind.first + 0.1f * static_cast<float>(i) + most;
      round(levels / (*greatest - found.low), found.low, kind.most, tried);
      Line line;
      if (!fit(tried, line)) continue;
      const float e = error_of(line, tried);
      if (!(e < error)) continue;
      error = e;
      found = line;
      std::copy_n(tried, kGroup, codes);
    }
    return found;
  }

 private:
  void round(float inverse, float low, int most, uint8_t* codes) const {
    for (int i = 0; i < kGroup; ++i)
      codes[i] = static_cast<uint8_t>(std::clamp(nearest(inverse * (x_[i] - low)), 0, most));
  }

  // By least squares; what all lie above is at most 0. False where all codes are the same.
  bool fit(const uint8_t* codes, Line& line) const {
    float sum = 0, squares = 0, products = 0;
    for (int i = 0; i < kGroup; ++i) {
      const auto code = static_cast<float>(codes[i]);
      sum += weight_[i] * code;
      squares += weight_[i] * code * code;
      products += weight_[i] * code * x_[i];
    }
    const float determinant = weights_ * squares - sum * sum;
    if (!(determinant > 0)) return false;
    line.step = (weights_ * products - values_ * sum) / determinant;
    line.low = (squares * values_ - sum * products) / determinant;
    if (line.low > 0) line = {products / squares, 0};
    return true;
  }

  float error_of(const Line& line, const uint8_t* codes) const {
    float sum = 0;
    for (int i = 0; i < kGroup; ++i) {
      const float off = line.step * static_cast<float>(codes[i]) + line.low - x_[i];
      sum += weight_[i] * (off * off);
    }
    return sum;
  }

  const float* x_;
  float weight_[kGroup], weights_ = 0, values_ = 0;
};

// d, the minima's scale, and a step and a minimum of 6 bits for each group in 12 bytes: the first
// four groups' in bytes of their own, the others' nibbles behind them and high bits on top.
struct Header {
  static constexpr int kBytes = 16;
  static constexpr int kMax = 63;
  float d, dmin;
  int step[kGroups], low[kGroups];

  Header(const Line* lines, uint8_t* to) {
    float steps = 0, lows = 0;
    for (int g = 0; g < kGroups; ++g) {
      steps = std::max(steps, lines[g].step);
      lows = std::max(lows, -lines[g].low);
    }
    const float by_step = steps > 0 ? kMax / steps : 0, by_low = lows > 0 ? kMax / lows : 0;
    uint8_t* packed = to + 4;
    std::fill_n(packed, 12, uint8_t{0});
    for (int g = 0; g < kGroups; ++g) {
      // Bytes as they are cut off: of a negative step, which no reader could tell from a large one.
      const int s = std::min(kMax, nearest(by_step * lines[g].step) & 255);
      const int m = std::min(kMax, nearest(by_low * -lines[g].low) & 255);
      if (g < 4) {
        packed[g] = static_cast<uint8_t>(s);
        packed[g + 4] = static_cast<uint8_t>(m);
      } else {
        packed[g + 4] = static_cast<uint8_t>((s & 15) | (m & 15) << 4);
        packed[g - 4] |= static_cast<uint8_t>(s >> 4 << 6);
        packed[g] |= static_cast<uint8_t>(m >> 4 << 6);
      }
      step[g] = s;
      low[g] = m;
    }
    d = stored_f16(steps / kMax, to);
    dmin = stored_f16(lows / kMax, to + 2);
  }
};

// Codes of a super-block and its header, of which the codes are what a reader's steps make best.
void encode_lines(const float* x, const LineCodes& kind, uint8_t* codes, uint8_t* header) {
  Line lines[kGroups];
  for (int g = 0; g < kGroups; ++g)
    lines[g] = LineFit(x + g * kGroup).best(kind, codes + g * kGroup);
  const Header h(lines, header);
  for (int g = 0; g < kGroups; ++g) {
    const float step = h.d * static_cast<float>(h.step[g]);
    const float low = h.dmin * static_cast<float>(h.low[g]);
    if (step == 0) continue;
    for (int i = g * kGroup; i < (g + 1) * kGroup; ++i)
      codes[i] = static_cast<uint8_t>(std::clamp(nearest((x[i] + low) / step), 0, kind.most));
  }
}

// Low nibbles of two groups to 32 bytes.
void put_nibbles(const uint8_t* codes, uint8_t* to) {
  for (int pair = 0; pair < kGroups / 2; ++pair)
    for (int i = 0; i < kGroup; ++i) {
      const uint8_t* two = codes + 2 * pair * kGroup + i;
      *to++ = static_cast<uint8_t>((two[0] & 15) | (two[kGroup] & 15) << 4);
    }
}

// --- Q6_K: signed codes times a step, for groups of 16 -------------------------------------------

// The step whose multiples, -32 to 31, come closest to the values, in squares counted by squares.
float best_step(const float* x, uint8_t* codes) {
  constexpr int kSize = 16, kMax = 32, kTrials = 9;
  constexpr float kNothing = 1e-15f;
  float largest = 0;
  for (int i = 0; i < kSize; ++i)
    if (std::abs(x[i]) > std::abs(largest)) largest = x[i];
  std::fill_n(codes, kSize, uint8_t{0});
  if (std::abs(largest) < kNothing) return 0;
  float step = 0, best = 0;
  const auto attempt = [&](float inverse, bool is_first) {
    int tried[kSize];
    float products = 0, squares = 0;
    for (int i = 0; i < kSize; ++i) {
      tried[i] = std::clamp(nearest(inverse * x[i]), -kMax, kMax - 1);
      const float w = x[i] * x[i], code = static_cast<float>(tried[i]);
      products += w * x[i] * code;
      squares += w * code * code;
    }
    if (!is_first && !(squares > 0 && products * products > best * squares)) return;
    step = squares != 0 ? products / squares : 0;
    best = step * products;
    for (int i = 0; i < kSize; ++i) codes[i] = static_cast<uint8_t>(tried[i] + kMax);
  };
  attempt(-kMax / largest, true);
  for (int t = -kTrials; t <= kTrials; ++t)
    if (t != 0) attempt(-(kMax + 0.1f * static_cast<float>(t)) / largest, false);
  return step;
}

}  // namespace

void encode_q4_k(const float* from, int64_t count, std::byte* to) {
  for (; count > 0; count -= kElements, from += kElements, to += 144) {
    uint8_t codes[kElements];
    encode_lines(from, {15, -1, 21}, codes, bytes_at(to));
    put_nibbles(codes, bytes_at(to) + Header::kBytes);
  }
}

void encode_q5_k(const float* from, int64_t count, std::byte* to) {
  for (; count > 0; count -= kElements, from += kElements, to += 176) {
    uint8_t codes[kElements];
    uint8_t* high = bytes_at(to) + Header::kBytes;
    encode_lines(from, {31, -0.5f, 16}, codes, bytes_at(to));
    put_nibbles(codes, high + kGroup);
    for (int i = 0; i < kGroup; ++i) {
      int bits = 0;
      for (int g = 0; g < kGroups; ++g) bits |= codes[g * kGroup + i] >> 4 << g;
      high[i] = static_cast<uint8_t>(bits);
    }
  }
}

void encode_q6_k(const float* from, int64_t count, std::byte* to) {
  constexpr int kSize = 16, kMany = kElements / kSize, kHalf = 128;
  for (; count > 0; count -= kElements, from += kElements, to += 210) {
    uint8_t codes[kElements];
    float steps[kMany], largest = 0;
    for (int g = 0; g < kMany; ++g) {
      steps[g] = best_step(from + g * kSize, codes + g * kSize);
      if (std::abs(steps[g]) > std::abs(largest)) largest = steps[g];
    }
    std::fill_n(to, 210, std::byte{0});
    if (std::abs(largest) < 1e-15f) continue;
    const float inverse = -128 / largest;
    const float d = stored_f16(1 / inverse, bytes_at(to) + 208);
    for (int g = 0; g < kMany; ++g) {
      const int scale = std::min(127, nearest(inverse * steps[g]));
      to[192 + g] = static_cast<std::byte>(scale);
      const float step = d * static_cast<float>(scale);
      if (step == 0) continue;
      for (int i = g * kSize; i < (g + 1) * kSize; ++i)
        codes[i] = static_cast<uint8_t>(std::clamp(nearest(from[i] / step), -32, 31) + 32);
    }
    for (int half = 0; half < 2; ++half) {
      const uint8_t* c = codes + half * kHalf;
      uint8_t *low = bytes_at(to) + half * 64, *high = bytes_at(to) + 128 + half * 32;
      for (int l = 0; l < 64; ++l)
        low[l] = static_cast<uint8_t>((c[l] & 15) | (c[l + 64] & 15) << 4);
      for (int l = 0; l < 32; ++l)
        high[l] = static_cast<uint8_t>(c[l] >> 4 | c[l + 32] >> 4 << 2 | c[l + 64] >> 4 << 4 |
                                       c[l + 96] >> 4 << 6);
    }
  }
}

}  // namespace tiny::blocks
