// Shadow memory of a block's shared memory: per byte, who has written and read it since the last
// barrier, and whether anybody has written it at all.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tiny {

class SharedShadow {
 public:
  enum class Problem { None, NeverWritten, RaceWithWrite, RaceWithRead, NotFenced };

  // Makes room for so many bytes, not written; those that were there keep their state.
  void grow(size_t bytes) { bytes_.resize(bytes); }
  void begin_block();
  void barrier();

  // Notes an access of a thread (its number in the block) and returns its fault: two threads access
  // a byte between two barriers and one of them writes, or nobody has written a byte that is read.
  // Then `other` is the thread that it meets there, -1 where that is one of several.
  Problem touch(size_t begin, size_t bytes, int thread, bool writes, int* other);
  bool is_touched(size_t byte) const { return bytes_[byte].writer || bytes_[byte].reader; }

  // Of asynchronous units: they see what a thread wrote only behind its fence (PTX ISA,
  // "fence.proxy.async"), and before the barrier. What no thread has written, copies of theirs
  // have.
  void fence(int thread);
  Problem touch_by_unit(size_t byte, int thread, int* other);

 private:
  static constexpr uint32_t kThreadBits = 12, kSeveral = (1u << kThreadBits) - 1;

  // The epoch, which starts at 1, and below it the thread's number + 1.
  struct Byte {
    uint32_t writer = 0, reader = 0;
  };
  std::vector<Byte> bytes_;
  uint32_t epoch_ = 1;
  std::vector<bool> unfenced_, unfenced_before_;  // threads that wrote since their fence; at the
                                                  // last barrier
};

// What is wrong with bytes that `who` accesses as well.
std::string fault_text(SharedShadow::Problem problem, const std::string& who, bool several);

}  // namespace tiny
