// The generator behind drawn data: SplitMix64 (G. Steele, D. Lea, C. Flood, "Fast splittable
// pseudorandom number generators", 2014). Runs on the host and gives the same numbers everywhere.
#pragma once
#include <cstdint>
#include <numbers>

namespace tiny {

class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t seed) : state_(seed) {}

  uint64_t bits() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  float between(float low, float high) {
    return low + (high - low) * static_cast<float>(bits() >> 40) * 0x1p-24f;
  }
  int below(int count) { return static_cast<int>(bits() % static_cast<uint64_t>(count)); }
  // A bell of deviation 1, cut off at 2.8: the sum of four 16-bit numbers.
  float bell() {
    const uint64_t b = bits();
    const auto sum =
        static_cast<float>((b & 0xffff) + (b >> 16 & 0xffff) + (b >> 32 & 0xffff) + (b >> 48));
    return (sum * 0x1p-16f - 2) * std::numbers::sqrt3_v<float>;
  }

 private:
  uint64_t state_;
};

}  // namespace tiny
