#include "devices/emulator/shadow.h"

#include <algorithm>

#include "tiny/base/text.h"

namespace tiny {

void SharedShadow::begin_block() {
  std::ranges::fill(bytes_, Byte{});
  epoch_ = 1;
  unfenced_.assign(kSeveral, false);
  unfenced_before_ = unfenced_;
}

void SharedShadow::barrier() {
  ++epoch_;
  unfenced_before_ = unfenced_;
}

void SharedShadow::fence(int thread) { unfenced_[thread] = false; }

SharedShadow::Problem SharedShadow::touch_by_unit(size_t byte, int thread, int* other) {
  const uint32_t writer = bytes_[byte].writer;
  if (writer == 0) return Problem::None;
  const Problem problem = touch(byte, 1, thread, false, other);
  *other = problem == Problem::None ? static_cast<int>(writer & kSeveral) - 1 : *other;
  if (problem != Problem::None || !unfenced_before_[*other]) return problem;
  return Problem::NotFenced;
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
      unfenced_[thread] = true;
    } else {
      if (byte.writer == 0) return Problem::NeverWritten;
      byte.reader = meets(byte.reader) ? now | kSeveral : mine;
    }
  }
  return Problem::None;
}

std::string fault_text(SharedShadow::Problem problem, const std::string& who, bool several) {
  switch (problem) {
    case SharedShadow::Problem::NeverWritten: return "that no thread has written";
    case SharedShadow::Problem::RaceWithWrite:
      return cat("that ", who, " writes with no barrier between them");
    case SharedShadow::Problem::RaceWithRead:
      return cat("that ", who, several ? " read" : " reads", " with no barrier between them");
    case SharedShadow::Problem::NotFenced:
      return cat("that ", who, " wrote with no fence before the barrier");
    default: return "";
  }
}

}  // namespace tiny
