// Runs many random programs in child processes, so that one that crashes or hangs is no more than a
// failure among others.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace tiny::programs {

struct Campaign {
  uint64_t first = 1;  // seed of the first program
  int64_t count = 1000;
  double seconds = 0;  // no new batch after that; 0: no limit
  int64_t jobs = 1, batch = 50;
  double silence = 60;  // seconds after which a program is run again alone, with ten times as many
  std::string device = "CPU";
  std::vector<int> rows = {};              // of the table, that steps are drawn from; {}: of all
  std::vector<std::string> settings = {};  // beside the default, one for each batch in turn
  std::string folder = {};                 // where the C++ of failures goes; "": nowhere
  int64_t most_failures = 20;
};

struct Tally {
  int64_t programs = 0, runs = 0, ties = 0, failures = 0;
  int64_t kernels = 0, unproved = 0, wrong = 0;
  double seconds = 0;
  std::vector<std::string> reports;  // of failures: what, seed, setting, C++
  std::vector<std::pair<std::string, int64_t>> by_setting;
};
std::string to_text(const Tally& tally);

// Must be called before this process has a thread or a device.
Tally run(const Campaign& campaign);

}  // namespace tiny::programs
