// Where tests run: the devices of this machine, and the part of a long list that is today's turn.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/device/device.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"

namespace tiny {

// The devices that this machine can compute on, CPU first; with DEVICE set the CPU and that one.
inline std::vector<std::string> test_devices() {
  std::vector<std::string> out = {"CPU"};
  std::vector<std::string> wanted = {
      "CUDA",           "HIP", "EMULATOR", "EMU:CUDA:sm_80", "EMU:HIP:gfx942", "EMU:HIP:gfx1201",
      "EMU:LLVM:gfx942"};
  if (const std::string chosen = env_text("DEVICE"); !chosen.empty()) wanted = {chosen};
  for (const std::string& name : wanted) {
    try {
      find_device(name).compiler_id();  // the emulator needs a compiler
      if (canonical_device(name) != "CPU") out.push_back(canonical_device(name));
    } catch (const std::exception&) {  // this machine has none
    }
  }
  return out;
}

// On one in how many cases of a list tests run on a device in a day: all on hardware, fewer on
// emulators, and on those beside EMULATOR, which share most of its kernels, fewest.
inline int64_t parts_on(std::string_view device) {
  const int64_t parts = std::max<int64_t>(1, env_int("EMULATOR_PARTS"));
  if (device == "EMULATOR") return parts;
  if (!device.starts_with("EMU:")) return 1;
  return env_text("DEVICE").empty() ? parts * 4 : parts;
}

// Days since 1970.
inline int64_t today() {
  const auto now = std::chrono::system_clock::now();
  return std::chrono::floor<std::chrono::days>(now).time_since_epoch().count();
}

// Whether a thing of that name is among the one in `parts` that a day is for: in `parts` days each
// has its turn once. (FNV-1a by G. Fowler, L. Noll, K.-P. Vo with the last step of splitmix64.)
inline bool is_in_turn(std::string_view name, int64_t parts, int64_t day = today()) {
  if (parts <= 1) return true;
  uint64_t hash = 0xcbf29ce484222325ull;
  for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9ull;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebull;
  return ((hash >> 32) + static_cast<uint64_t>(day)) % static_cast<uint64_t>(parts) == 0;
}

// Which of how many parts of a list run in this process: TEST_PART. Throws Error for a text that is
// no such pair.
struct TestPart {
  int64_t index = 0, count = 1;
  bool has(std::string_view name) const { return is_in_turn(name, count, index); }
};
inline TestPart test_part() {
  const std::string text = env_text("TEST_PART");
  if (text.empty()) return {};
  TestPart part;
  char slash = 0;
  std::istringstream in(text);
  check(in >> part.index >> slash >> part.count && slash == '/' && in.peek() == EOF &&
            part.index >= 0 && part.index < part.count,
        "TEST_PART: '", text, "' is no part such as 3/16");
  return part;
}

}  // namespace tiny
