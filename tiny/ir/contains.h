// Whether one of a few values is the one.
#pragma once
#include <algorithm>

namespace tiny {

template <class Range, class T> bool contains(const Range& all, const T& one) {
  return std::ranges::find(all, one) != std::ranges::end(all);
}

}  // namespace tiny
