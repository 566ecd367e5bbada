// Dependences between the launches of a list, so that a device may run others concurrently.
#pragma once
#include <cstdint>
#include <vector>

#include "codegen/target/source.h"
#include "codegen/target/target.h"

namespace tiny {

// Bytes of a piece of memory that a launch reads or writes. Pieces with different numbers are
// apart.
struct Touched {
  int memory;
  int64_t begin, end;
  bool written;
};

// The memory that a launch uses. `fills`: it has work for all of the device. Such launches stay in
// order (measurements.md: LaunchUses).
struct LaunchUses {
  std::vector<Touched> uses;
  bool fills = false;
};

// Whether a launch has a block for each multiprocessor.
bool fills(const LaunchSize& size, const Target& target);

// For each launch the earlier ones that it waits for: writers of its inputs and outputs, readers of
// its outputs, and if it fills the device the previous one that does. Without launches that another
// one of these waits for.
std::vector<std::vector<int>> order_launches(const std::vector<LaunchUses>& launches);

}  // namespace tiny
