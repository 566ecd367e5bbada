#include "test/conformance/compare.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "tiny/base/error.h"

namespace tiny::conformance {

namespace {

// What is known after all elements have been seen.
struct Differences {
  int64_t count = 0;
  int64_t first = -1;
  double greatest = 0;       // absolute
  double in_tolerances = 0;  // relative to what is allowed
  int64_t greatest_at = 0;

  void add(int64_t i, double error, double allowed) {
    if (first < 0) first = i;
    ++count;
    if (error > greatest) greatest = error, greatest_at = i;
    in_tolerances = std::max(in_tolerances, error / allowed);
  }
};

// How far apart two values are: 0 if they are the same, infinity if one of them is not finite.
double distance(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  if (!std::isfinite(a) || !std::isfinite(b)) return std::numeric_limits<double>::infinity();
  return std::abs(a - b);
}

Differences compare_floats(const HostTensor& actual, const HostTensor& expected, Tolerance t) {
  const std::vector<double> a = actual.numbers(), b = expected.numbers();
  Differences d;
  for (size_t i = 0; i < a.size(); ++i) {
    const double error = distance(a[i], b[i]);
    const double allowed = std::isfinite(b[i]) ? t.atol + t.rtol * std::abs(b[i]) : 0;
    if (error > allowed) d.add(static_cast<int64_t>(i), error, allowed);
  }
  return d;
}

// Not by way of doubles, which lack the last bits of large i64.
Differences compare_integers(const HostTensor& actual, const HostTensor& expected) {
  const std::vector<int64_t> a = actual.integers(), b = expected.integers();
  Differences d;
  for (size_t i = 0; i < a.size(); ++i) {
    const double error = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (a[i] != b[i]) d.add(static_cast<int64_t>(i), std::max(error, 1.0), 0);
  }
  return d;
}

// "[1,0,2]" of a row-major position.
std::string position(int64_t flat, const Shape& shape) {
  Shape at(shape.size());
  for (size_t axis = shape.size(); axis-- > 0;) {
    at[axis] = flat % shape[axis];
    flat /= shape[axis];
  }
  std::string text = to_text(at);
  text.front() = '[';
  text.back() = ']';
  return text;
}

std::string value_text(const HostTensor& t, int64_t i) {
  std::ostringstream out;
  out.precision(t.dtype == kF64 ? 17 : 9);
  if (t.dtype.is_float())
    out << t.numbers()[static_cast<size_t>(i)];
  else
    out << t.integers()[static_cast<size_t>(i)];
  return out.str();
}

}  // namespace

std::string difference(const HostTensor& actual, const HostTensor& expected, Tolerance tolerance) {
  if (actual.dtype != expected.dtype || actual.shape != expected.shape)
    return cat("is ", actual.dtype, " ", to_text(actual.shape), ", expected ", expected.dtype, " ",
               to_text(expected.shape));
  const Differences d = expected.dtype.is_float() ? compare_floats(actual, expected, tolerance)
                                                  : compare_integers(actual, expected);
  if (d.count == 0) return "";
  std::string text = cat(position(d.first, expected.shape), " is ", value_text(actual, d.first),
                         ", expected ", value_text(expected, d.first), "; ", d.count, " of ",
                         expected.size(), " differ, greatest error ", d.greatest);
  if (std::isfinite(d.in_tolerances)) text += cat(", ", d.in_tolerances, " x tolerance");
  return text + cat(" at ", position(d.greatest_at, expected.shape));
}

}  // namespace tiny::conformance
