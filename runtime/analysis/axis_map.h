// Maps the axes of a value to those of the kernel that reads it, through movement.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>

#include "tiny/ir/node.h"

namespace tiny {

// Where the element that a node is asked for comes from, per axis: an axis of the kernel's output,
// nothing (size 1, or the same element for all), or something that is neither.
constexpr int kNone = -1, kOther = -2;
class AxisMap {
 public:
  explicit AxisMap(size_t axes, int to = 0) : size_(static_cast<uint8_t>(axes)) {
    std::fill_n(to_.begin(), axes, static_cast<int8_t>(to));
  }
  size_t size() const { return size_; }
  int8_t operator[](size_t axis) const { return to_[axis]; }
  int8_t& operator[](size_t axis) { return to_[axis]; }
  const int8_t* begin() const { return to_.data(); }
  const int8_t* end() const { return to_.data() + size_; }
  bool operator==(const AxisMap&) const = default;

 private:
  std::array<int8_t, kMaxRank> to_ = {};  // 0 behind the last
  uint8_t size_;
};

// Of the source of a movement, given those of the node itself.
AxisMap through_movement(Node n, const AxisMap& axes);

}  // namespace tiny
