// Where blocks of memory lie in an arena, so that those that are never alive together share it.
#pragma once
#include <cstdint>
#include <limits>
#include <vector>

namespace tiny {

// Memory of the arena: of one value, or of several that take it over from one another.
struct Block {
  int64_t bytes = 0;
  int first = std::numeric_limits<int>::max(), last = -1;  // steps during which it is alive
  int64_t offset = -1;
};

// Offsets for blocks of one device, each in the smallest gap that has room among the blocks placed
// before that are alive at the same time. Gives the bytes of all together.
int64_t place_blocks(const std::vector<Block*>& order);

// The same for blocks in order of their first steps.
int64_t place_by_time(const std::vector<Block*>& order);

}  // namespace tiny
