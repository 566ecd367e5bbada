// Record of a Jit's capture: the schedules that ran and on which buffers, and the values that came
// from outside.
#pragma once
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "runtime/device/buffer.h"
#include "runtime/schedule/schedule.h"
#include "tiny/ir/build.h"

namespace tiny {

struct CapturedRun {
  std::shared_ptr<const Schedule> schedule;
  std::vector<std::shared_ptr<Buffer>> inputs, results;
  size_t wanted = 0;  // the first ones of the results; the others are old values that were saved
};

struct CapturedSeed {
  std::shared_ptr<Buffer> words;  // u32
  int64_t blocks = 0;             // of the random stream that it stands for
};

class Capture {
 public:
  // Current on this thread until it goes. `inputs`: the buffers that stand for the arguments.
  explicit Capture(std::vector<std::shared_ptr<Buffer>> inputs);
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  static Capture* current();

  // Throws Error for a schedule that writes to an argument.
  void check_run(const Schedule& s, std::span<const std::shared_ptr<Buffer>> inputs) const;
  void add_run(std::span<const Node> roots, CapturedRun run);
  void add_seed(CapturedSeed seed) { seeds.push_back(std::move(seed)); }

  // Results that were computed into memory of their own: not views of what lies outside, nor where
  // a tensor from outside has moved to because it could not be assigned in place.
  std::set<const Buffer*> fresh() const;

  std::vector<std::shared_ptr<Buffer>> inputs;
  std::vector<CapturedRun> runs;
  std::vector<CapturedSeed> seeds;
  std::vector<Node> outside;  // that tensors held before, watched

  // Whether tensors that had one memory end with different values: one from outside keeps the old
  // value, which the step reads and a copy has replaced, or a tensor and its copy have both
  // replaced it. Which of them has the memory next is not known, and a replay might take one for
  // the other.
  bool separates_copies() const;

  bool is_new(Node n) const { return begin_.precedes(n); }

 private:
  const NodeMark begin_{Arena::global()};
  const build::KeptViews kept_{begin_};
  const ComputedAnew anew_{begin_};
};

// Pauses the capture of this thread while it lives.
class CapturePause {
 public:
  CapturePause();
  ~CapturePause();
  CapturePause(const CapturePause&) = delete;
  CapturePause& operator=(const CapturePause&) = delete;

 private:
  Capture* paused_;
};

// Throws Error while this thread captures: why it cannot, and what would work.
void forbid_in_capture(const char* why, const char* remedy);

}  // namespace tiny
