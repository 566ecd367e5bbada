// Executes grids in the emulator: loaded kernels, and the blocks of a launch run one after the
// other by each thread of the system that takes part, with fibers as threads of the block.
#pragma once
#include <atomic>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "devices/compilers/system_compiler.h"
#include "devices/emulator/prelude.h"
#include "runtime/device/device.h"

namespace tiny {

// Memory that a kernel may access: the buffer that one of its arguments points into.
struct EmulatedBuffer {
  char* begin;
  int64_t bytes;
  int argument;
};

class EmulatedProgram : public Program {
 public:
  static constexpr int64_t kGapBytes = 16;  // between arrays of shared memory
  static constexpr size_t kMaxArrays = 256;

  EmulatedProgram(const std::string& binary, const std::string& entry);

  const std::string& name() const { return name_; }
  int most_threads() const { return most_threads_; }
  void run(void** args) const { run_(args); }  // one thread of a block

  // Gives an array of shared memory its place unless it has one; -1 when more than `limit` bytes
  // are needed.
  int64_t place_shared(long long* place, int64_t bytes, int64_t limit);

  // The array of shared memory that a byte lies in: where it begins and its bytes; {0, 0} for none.
  std::pair<int64_t, int64_t> array_at(int64_t byte);

  // The line of the kernel's text that the code before an address was made from, 0 if unknown.
  int line_of(const void* code) const;

 private:
  std::string name_;
  SharedObject library_;
  void (*run_)(void**);
  int most_threads_;
  std::mutex mutex_;
  std::vector<std::pair<int64_t, int64_t>> arrays_;  // first byte and bytes, of shared memory
  std::string binary_;
};

// A grid in progress: its blocks are taken one by one until none is left or one has failed.
struct EmulatedLaunch {
  EmulatedProgram& program;
  LaunchSize size;
  void** args;
  const Target& target;
  std::vector<EmulatedBuffer> buffers;
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  std::string error;  // the first
};

void run_blocks(EmulatedLaunch& launch) noexcept;

}  // namespace tiny
