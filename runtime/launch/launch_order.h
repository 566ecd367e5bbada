// Which launches of a list wait for which, so that a device may run others side by side.
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

// Of one launch. `alone`: after all earlier ones and before all later ones, whatever they use.
// `fills`: it has work for all of the device. Such launches stay in order: on an H200 a training
// step of MNIST takes 10 % more where they run side by side.
struct LaunchUses {
  std::vector<Touched> uses;
  bool alone = false, fills = false;
};

// Whether a launch has a block for each multiprocessor.
bool fills(const LaunchSize& size, const Target& target);

// For each launch the earlier ones that it waits for: those that write what it reads or writes, and
// those that read what it writes, and if it fills the device the one before it that does. Those
// that another one of these waits for are left out.
std::vector<std::vector<int>> order_launches(const std::vector<LaunchUses>& launches);

}  // namespace tiny
