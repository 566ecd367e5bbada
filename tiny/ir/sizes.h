// Arithmetic on sizes that a caller may have chosen: a sum or product that no tensor can have is an
// Error, and never wraps around.
#pragma once
#include <concepts>
#include <cstdint>

namespace tiny {

inline constexpr int64_t kMaxElements = int64_t{1} << 62;  // of any tensor

// Throw Error with `what` and both numbers where the result lies beyond +-kMaxElements.
int64_t checked_add(const char* what, int64_t a, int64_t b);
int64_t checked_mul(const char* what, int64_t a, int64_t b);

// a / b rounded up, for a >= 0 and b > 0; never wraps around.
template <std::integral A, std::integral B> constexpr auto ceil_div(A a, B b) {
  return a / b + (a % b != 0);
}

// The smallest multiple of `unit` that is not less than n, for n >= 0 and unit > 0.
template <std::integral N, std::integral U> constexpr auto round_up(N n, U unit) {
  return ceil_div(n, unit) * unit;
}

// The largest divisor of n up to `most`, for n >= 1; 1 where there is no other.
constexpr int64_t largest_divisor(int64_t n, int64_t most) {
  for (int64_t d = n < most ? n : most; d > 1; --d)
    if (n % d == 0) return d;
  return 1;
}

// Whether the results of a matrix product whose rows are reduced, and read by nothing else, are
// reduced where they are computed instead of stored. `terms`: of each sum. What that saves is
// memory; what it costs is a product with smaller tiles, which takes longer where sums are long.
constexpr bool are_reduced_as_computed(int64_t results, int64_t terms) {
  constexpr int64_t kCached = 1 << 18, kLong = 256, kMany = 1 << 26;
  return results >= kCached && (terms <= kLong || results >= kMany);
}

}  // namespace tiny
