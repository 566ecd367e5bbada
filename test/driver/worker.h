// What a child process of the driver does: runs programs and sends what it finds.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace tiny::programs {

struct Batch {
  uint64_t first = 0;  // seed
  int64_t count = 0;
  std::string setting = {};
  std::string crash = {};  // where the one program is known to end its process: how
};

// Messages are lines: a letter and what belongs to it, ends of lines in that as \1.
//   S seed of a program that begins        R a setting that it was run with
//   T a difference was a tie of rounding   B a failure, before it is made smaller
//   F a failure, as a report               P kernels, of them unproved and wrong: the end
void work(const Batch& batch, const std::vector<int>& rows, int to);

// Runs one program (to_line) and prints what is wrong; 0 where nothing is, 1 where
// something is, 2 for a program that is_sound() refuses.
int run_line(const std::string& line, const std::string& setting);

}  // namespace tiny::programs
