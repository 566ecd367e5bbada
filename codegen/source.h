// What code generation hands over: the text of one kernel in some language, and its launch sizes.
#pragma once
#include <cstdint>
#include <string>

namespace tiny {

// Source of one kernel, ready for a compiler. `entry` is the exported symbol.
struct Source {
  std::string entry;
  std::string text;
  enum class Language { LlvmIr, C, Cuda, Hip } language = Language::C;
  bool heavy = false;  // matrix products and convolutions: worth the compiler's slower pipeline
};

// How a kernel is launched. On the CPU grid[0] is the extent of the parallel range, cut into
// calls `entry(void** args, int64_t begin, int64_t end)` of at least `chunk` iterations;
// on a GPU grid and block are launch sizes.
struct LaunchSize {
  int64_t grid[3] = {1, 1, 1};
  int64_t block[3] = {1, 1, 1};
  int64_t shared_bytes = 0;
  int64_t chunk = 1;
};

}  // namespace tiny
