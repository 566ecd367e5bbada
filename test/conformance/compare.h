// Comparison of a result with its stored expectation, by the rules of the suites' README.md.
#pragma once
#include <string>

#include "test/reference.h"

namespace tiny::conformance {

struct Tolerance {
  double rtol = 0, atol = 0;
};

// "" where shape and dtype are the expected ones and every element satisfies
// |actual - expected| <= atol + rtol |expected| (NaN equals NaN, infinities and integers exactly).
// Otherwise a text with the first differing element, both values and the greatest error.
std::string difference(const HostTensor& actual, const HostTensor& expected, Tolerance tolerance);

}  // namespace tiny::conformance
