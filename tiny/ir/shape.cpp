#include "tiny/ir/shape.h"

#include <algorithm>

#include "tiny/base/error.h"
#include "tiny/ir/sizes.h"

namespace tiny {

int64_t checked_add(const char* what, int64_t a, int64_t b) {
  int64_t sum;
  const bool fits = !__builtin_add_overflow(a, b, &sum);
  check(fits && sum >= -kMaxElements && sum <= kMaxElements, what, ": ", a, " + ", b,
        " is beyond 2^62, the most elements of a tensor");
  return sum;
}

int64_t checked_mul(const char* what, int64_t a, int64_t b) {
  int64_t product;
  const bool fits = !__builtin_mul_overflow(a, b, &product);
  check(fits && product >= -kMaxElements && product <= kMaxElements, what, ": ", a, " * ", b,
        " is beyond 2^62, the most elements of a tensor");
  return product;
}

// As in NumPy sizes of 0 are left out of the limit, so that strides stay within it too.
int64_t numel(Ints shape) {
  int64_t n = 1;
  bool fits = true, empty = false;
  for (int64_t s : shape) {
    empty |= s == 0;
    fits &= s >= 0 && (s == 0 || (!__builtin_mul_overflow(n, s, &n) && n <= kMaxElements));
  }
  check(fits, "shape ", to_text(shape), " has a negative size, or more than 2^62 elements");
  return empty ? 0 : n;
}

ShapeText::operator std::string() const {
  std::string out = "(";
  for (size_t i = 0; i < shape.size(); ++i) out += (i ? "," : "") + std::to_string(shape[i]);
  return out + ')';
}

std::ostream& operator<<(std::ostream& out, const ShapeText& text) {
  return out << std::string(text);
}

bool same(Ints a, Ints b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }

Shape to_shape(Ints s) { return {s.begin(), s.end()}; }

Shape strides_of(Ints shape) {
  Shape strides(shape.size());
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = step;
    if (shape[i]) step *= shape[i];
  }
  return strides;
}

Shape broadcast(const char* what, Ints a, Ints b) {
  Shape out(std::max(a.size(), b.size()));
  for (size_t i = 0; i < out.size(); ++i) {  // from the last axis
    const int64_t x = i < a.size() ? a[a.size() - 1 - i] : 1;
    const int64_t y = i < b.size() ? b[b.size() - 1 - i] : 1;
    check(x == y || x == 1 || y == 1, what, ": shapes ", to_text(a), " and ", to_text(b),
          " do not broadcast: sizes ", x, " and ", y, " of axis -", i + 1,
          " differ and neither is 1");
    out[out.size() - 1 - i] = x == 1 ? y : x;
  }
  return out;
}

int normalize_axis(const char* what, int64_t axis, int rank) {
  const int64_t span = std::max(rank, 1);
  check(axis >= -span && axis < span, what, ": axis ", axis, " is out of range for ", rank,
        " axes: it must lie in [", -span, ", ", span - 1, "]");
  return static_cast<int>(axis < 0 ? axis + span : axis);
}

Shape infer_reshape(Ints from, Ints shape) {
  const int64_t count = numel(from);
  Shape out = to_shape(shape);
  int64_t known = 1;
  int open = -1;
  for (size_t i = 0; i < out.size(); ++i) {
    check(out[i] >= -1, "reshape: size ", out[i], " of ", to_text(shape), " is negative");
    check(out[i] != -1 || open < 0, "reshape: more than one -1 in ", to_text(shape));
    if (out[i] == -1)
      open = static_cast<int>(i);
    else
      known = checked_mul("reshape", known, out[i]);
  }
  if (open >= 0) {
    check(known != 0 && count % known == 0, "reshape: cannot view ", to_text(from), " as ",
          to_text(shape), ": ", count, " elements are no multiple of ", known);
    out[open] = count / known;
    known *= out[open];
  }
  check(known == count, "reshape: cannot view ", to_text(from), " as ", to_text(shape), ": ", count,
        " elements against ", known);
  return out;
}

}  // namespace tiny
