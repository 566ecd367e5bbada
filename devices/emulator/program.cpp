// Placement of a kernel's arrays in shared memory, and the line of its text of an address.
#include <dlfcn.h>

#include "devices/emulator/grid.h"

namespace tiny {

int64_t EmulatedProgram::place_shared(long long* place, int64_t bytes, int64_t limit) {
  std::lock_guard lock(mutex_);
  if (*place >= 0) return *place;
  int64_t used = bytes, at = 0;
  for (const auto& [begin, size] : arrays_) {
    used += (size + 15) / 16 * 16;
    at = (begin + size + 15) / 16 * 16 + kGapBytes;
  }
  if (used > limit || arrays_.size() == kMaxArrays) return -1;
  arrays_.emplace_back(at, bytes);
  __atomic_store_n(place, at, __ATOMIC_RELAXED);
  return at;
}

std::pair<int64_t, int64_t> EmulatedProgram::array_at(int64_t byte) {
  std::lock_guard lock(mutex_);
  for (const auto& [begin, size] : arrays_)
    if (byte >= begin && byte < begin + size) return {begin, size};
  return {0, 0};
}

// The address that a call returns to lies behind the call. A function that was inlined is followed
// by those around it, the kernel last.
int EmulatedProgram::line_of(const void* code) const {
  Dl_info info;
  if (dladdr(code, &info) == 0) return 0;
  const auto offset = static_cast<const char*>(code) - static_cast<char*>(info.dli_fbase) - 1;
  int line = 0;
  for (const int l : lines_of_code(binary_, static_cast<uint64_t>(offset)))
    if (l < kEmulatorPreludeLine) line = l;
  return line;
}

}  // namespace tiny
