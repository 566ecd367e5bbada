// From tensors to a list of kernels and copies. A graph is first brought into a form without its
// buffers, in which the graphs of two training steps are the same node; its schedule is kept under
// that node and every setting that matters, so that a step is scheduled once.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/schedule/memory_plan.h"
#include "runtime/schedule/normalize.h"
#include "tiny/ir/node.h"

namespace tiny {

// The same values without Limit and Whole, which compute nothing (facts.h: infer_lengths).
std::vector<Node> without_lengths(std::span<const Node> roots);

// Memory that a schedule works on. The first ones are the graph's inputs, in slot order.
struct Value {
  DType dtype;
  int64_t size = 0;  // elements
  int device = 0;
  int in_place = -1;   // takes over the memory of this value, an earlier one
  bool again = false;  // an earlier value computed once more
  int replaces = -1;   // the input that it is assigned to, whether in place or not
};

struct Step {
  NodeRef kernel;           // Sink(Store(Param, value)...); none for a copy between devices
  std::vector<int> values;  // arguments in slot order; of a copy: to, from
  std::string name;         // of the user's operations, a C identifier
  int device = 0;
  std::string operations = {};        // all of the user's, "conv2d, relu"
  bool reads_peers = false;           // some of the values that it reads are on other devices
  SumBy sum_by = SumBy::Kernel;       // who adds up, where there is no kernel
  bool gathers = false;               // and does not add: puts one after the other
  std::vector<int64_t> offsets = {};  // bytes into each value's memory; none: all 0

  int64_t offset(size_t slot) const { return slot < offsets.size() ? offsets[slot] : 0; }
  // The kernel's argument where the value's memory is.
  void* argument(size_t slot, void* memory) const {
    return static_cast<std::byte*>(memory) + offset(slot);
  }
};

struct Result {
  int value = -1;  // -1: the root is no more than a view of constants or inputs
  NodeRef nodes;   // both in a Sink, as a NodeRef of their own would count as a tensor

  void set_root(Node root);
  Node root() const { return nodes->src(0); }  // as it was scheduled
  Node base() const { return nodes->src(1); }  // below all movement
};

struct Kernel;  // runtime/kernels/kernel.h
struct Visit;   // runtime/search/program.cpp

struct Schedule {
  std::vector<Value> values;
  int inputs = 0;
  std::vector<Step> steps;
  std::vector<Result> results;  // one per root
  MemoryPlan memory;
  // The steps' kernels once they have been looked up, and when that was
  // (runtime/kernels/kernel.cpp).
  mutable std::vector<std::shared_ptr<Kernel>> kernels;
  mutable uint64_t kernels_age = 0;
  mutable bool agreed = false;           // by all ranks (runtime/launch/launch.h)
  mutable std::shared_ptr<Visit> visit;  // what searching has done for it
};

// The schedule of a normalized graph, from the cache where it has been made before. `devices`:
// the device id of each input; `fallback`: of a graph without inputs.
std::shared_ptr<const Schedule> schedule(const Normalized& graph, const std::vector<int>& devices,
                                         int fallback);

// One line per step with its shapes, for DEBUG=1 and tests.
std::string to_text(const Schedule& s);

void clear_schedule_cache();
size_t schedules_kept();

}  // namespace tiny
