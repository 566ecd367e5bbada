#include "devices/emulator/shadow.h"

#include <algorithm>

namespace tiny {

void SharedShadow::begin_block() {
  std::fill(bytes_.begin(), bytes_.end(), Byte{});
  epoch_ = 1;
}

SharedShadow::Problem SharedShadow::touch(size_t begin, size_t bytes, int thread, bool writes,
                                          int* other) {
  const uint32_t now = epoch_ << kThreadBits, mine = now | static_cast<uint32_t>(thread + 1);
  const auto meets = [&](uint32_t who) {
    if (who >> kThreadBits != epoch_ || who == mine) return false;
    *other = (who & kSeveral) == kSeveral ? -1 : static_cast<int>(who & kSeveral) - 1;
    return true;
  };
  for (size_t i = begin; i < begin + bytes; ++i) {
    Byte& byte = bytes_[i];
    if (meets(byte.writer)) return Problem::RaceWithWrite;
    if (writes) {
      if (meets(byte.reader)) return Problem::RaceWithRead;
      byte.writer = mine;
    } else {
      if (byte.writer == 0) return Problem::NeverWritten;
      byte.reader = meets(byte.reader) ? now | kSeveral : mine;
    }
  }
  return Problem::None;
}

}  // namespace tiny
