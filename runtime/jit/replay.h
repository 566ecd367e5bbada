// Replay of a captured step: the schedules that ran as one list of launches, on fixed addresses but
// for arguments and results.
#pragma once
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "runtime/jit/prepared.h"
#include "runtime/kernels/kernel.h"
#include "runtime/launch/capture.h"
#include "runtime/launch/launch.h"
#include "runtime/launch/launch_order.h"
#include "tiny/tensor/tensor.h"

namespace tiny {

// A schedule's kernels, and their age when they were looked up.
struct FoundKernels {
  std::vector<std::shared_ptr<Kernel>> kernels;
  uint64_t age = 0;
};

class Replay {
 public:
  // `results`: what the captured step gave, computed in it.
  Replay(const Capture& capture, std::span<const Tensor> results);
  ~Replay();
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  // `inputs`: of the sizes of the capture's. Results that somebody still has keep their memory.
  std::vector<Tensor> run(std::span<const std::shared_ptr<Buffer>> inputs);

  // The launches of the last run, or of the capture, once more, into the same results.
  void repeat();

  // Whether the step assigns to this memory from outside.
  bool writes(const Buffer& b) const;
  // After a call of the function: whether memory from outside belongs to tensors still, and what
  // was assigned to, to others than `before`: in place.
  bool is_valid(const std::vector<const Buffer*>& before) const;
  std::vector<const Buffer*> owners() const;

  // Whether it has this node, of a length, for itself.
  bool keeps(Node n) const;

  // The tensors that the step assigns to, for a comparison.
  struct Saved {
    DType dtype;
    std::vector<std::byte> bytes;
  };
  std::vector<Saved> state() const;
  void set_state(const std::vector<Saved>& saved);

  const Schedule& schedule() const { return schedule_; }
  size_t kernels() const { return found_.kernels.size(); }
  int64_t arena_bytes() const;

  // Gives back the memory of intermediate values of all replays that are not running; the next run
  // gets new one. And how many there are.
  static void free_idle_arenas();
  static size_t count();

 private:
  class Merge;
  struct Segment;  // launches on one device, a copy between two, or a meeting
  struct Use {     // of an address that changes; by a sum where `argument` is negative: `item`
    int segment, item, argument;
  };
  struct Sum {  // steps by which devices add up together: items of segments
    std::vector<int> steps;
    std::vector<std::vector<std::pair<int, int>>> items;  // by device: segment and item
    bool changed = false;                                 // one of its addresses
  };
  struct Place {  // memory of an argument or a result
    int value = -1;
    void* address = nullptr;
    std::vector<Use> uses;
    std::shared_ptr<Buffer> buffer;  // of a result
  };
  struct State {  // memory from outside
    std::shared_ptr<Memory> memory;
    DType dtype;
    bool written = false;
  };
  struct Seeds {  // random states, one in each block of bytes
    std::shared_ptr<Buffer> buffer;
    std::vector<int64_t> blocks;  // of the random stream
    std::vector<std::byte> host;
  };

  void merge(const Capture& capture, std::span<const Tensor> results);
  void make_segments();
  void order_segments();
  std::vector<Touched> uses_of(const Step& step) const;
  int open_segment(int device);
  void note_uses(int step, Use use, bool by_argument);
  bool record_sum(const Sums& sums, const std::vector<int>& steps);
  void refresh(Sum& sum);
  void make_arenas();
  void refill();
  void* address_of(int value) const;
  std::vector<void*> addresses_of(const Step& step) const;
  int root_of(int value) const;
  void set_address(Place& place, void* address);
  void advance_seeds();
  void refresh_kernels();
  void launch();
  void launch_in_order(Watch watch);
  Tensor result(size_t i, std::span<const std::shared_ptr<Buffer>> inputs) const;

  Schedule schedule_;
  FoundKernels found_;
  PreparedSteps prepared_;
  std::vector<Segment> segments_;
  std::map<int, int> open_;  // while they are made: the segment that a device's launches go to
  std::vector<Sum> sums_;
  std::vector<Place> inputs_, outputs_;
  std::map<int, size_t> output_of_;  // by the value that the memory was made for
  std::vector<void*> fixed_;         // by value
  std::vector<State> states_;
  std::map<std::string, Seeds> seeds_;  // by device
  std::map<int, std::shared_ptr<Buffer>> arenas_;
  bool idle_ = false;                          // complete, and not running
  std::vector<const Buffer*> stand_ins_;       // of the arguments, at the capture
  std::vector<std::vector<NodeRef>> lengths_;  // per result and axis, made of stand-ins
};

}  // namespace tiny
