// Shapes: sizes of the axes of a tensor, and the rules that combine them.
#pragma once
#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <vector>

namespace tiny {

using Shape = std::vector<int64_t>;
using Ints = std::span<const int64_t>;

inline constexpr int kMaxRank = 32;  // axes of any tensor

int64_t numel(Ints shape);  // 1 for rank 0; throws Error when it exceeds 2^62

// A shape as text, "(2,3)", made when it is printed: arguments of a check that holds cost nothing.
// It refers to the shape and lives no longer.
struct ShapeText {
  Ints shape;
  operator std::string() const;
};
inline ShapeText to_text(Ints shape) { return {shape}; }
std::ostream& operator<<(std::ostream& out, const ShapeText& text);
inline bool operator==(const ShapeText& text, const std::string& other) {
  return std::string(text) == other;
}

bool same(Ints a, Ints b);
Shape to_shape(Ints s);

// Row-major strides in elements.
Shape strides_of(Ints shape);

// NumPy's rule. Throws Error naming `what` and both shapes.
Shape broadcast(const char* what, Ints a, Ints b);

// An axis in [-rank, rank) as one in [0, rank); rank 0 accepts -1 and 0. Throws Error.
int normalize_axis(const char* what, int64_t axis, int rank);

// `shape` with one -1 replaced by what is left of `count` elements. Throws Error.
Shape infer_reshape(Ints from, Ints shape);

}  // namespace tiny
