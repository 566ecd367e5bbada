// Measures candidates for a kernel's options on made-up data: times them interleaved, with caches
// cold, and compares their results with a reference. In this process, or in one that may crash or
// hang instead (runtime/search_worker).
#pragma once
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/kernels/choice_cache.h"
#include "tiny/ir/dtype.h"

namespace tiny {

// The contents of a buffer before a kernel runs.
struct Filling {
  // Length: the one value of a Variable, `top` where time is taken and `low` where results are
  // compared, so that what lies beyond it is looked at too.
  enum class Kind : uint8_t { Poison, Values, Indices, Length } kind = Kind::Values;
  bool written = false;   // compared afterwards
  bool distinct = false;  // of Indices: no two are the same, where there are as many values
  DType dtype = kF32;
  int64_t size = 0;  // elements
  int64_t top = 0;   // of Indices: they are 0 .. top
  int64_t low = 0;   // of Length
};

// A kernel's buffers, by slot.
struct KernelCase {
  std::string device;
  std::vector<Filling> buffers;
  bool exact = false;      // of eighths it makes numbers that need no rounding, in any order
  double longest_sum = 1;  // numbers that are added up for an element: how far orders may differ
  double fine = 0x1p-52;   // rounding of the coarsest of f64 and f32 that it computes in
  double coarse = 0;       // of f16 and bf16

  auto fields() { return std::tie(device, buffers, exact, longest_sum, fine, coarse); }
};

struct BenchJob {
  std::string binary, entry;
  LaunchSize size;

  auto fields() {
    return std::tie(binary, entry, size.grid, size.block, size.shared_bytes, size.chunk, size.maps);
  }
};

// Kernels that take turns, so that all see the same state of the machine.
struct Race {
  // Reference: computes what is right, perhaps only a part of it, and is not timed. Baseline:
  // trusted too; shows how far orders of addition differ in this kernel.
  enum class Role : uint8_t { Reference, Baseline, Candidates } role = Role::Candidates;
  bool part = false;  // of Reference: it computes only a part
  std::vector<BenchJob> jobs;
  double known = 0;    // seconds that the first one has taken at its best
  double verify = 0;   // candidates of at most so many seconds are compared
  double enough = 0;   // seconds of timing, of each
  bool all = false;    // none gives up before the end
  double limit = 1e9;  // of all of it, in seconds; kept from outside, by isolation

  auto fields() { return std::tie(role, part, jobs, known, verify, enough, all, limit); }
};

class Bench {
 public:
  virtual ~Bench() = default;
  // Forgets the case before. Throws DeviceError where there is no memory for it.
  virtual void prepare(const KernelCase& kernel) = 0;
  // One result for each job. Throws nothing.
  virtual std::vector<Measured> run(const Race& race) = 0;
};

std::unique_ptr<Bench> local_bench();  // in this process

// The clock of searches' budgets: that one, unless a test counts.
double budget_seconds();

// For tests: while it lives each look at the clock of budgets is `step` seconds later than the last
// one, so that a budget is so much work on any machine, and a process that works for a search is
// given `least` seconds before it counts as hung.
class CountedBudgets {
 public:
  explicit CountedBudgets(double step, double least = 600);
  ~CountedBudgets();
  CountedBudgets(const CountedBudgets&) = delete;
  CountedBudgets& operator=(const CountedBudgets&) = delete;

 private:
  double outer_step_, outer_least_;
};
double process_limit(double seconds);  // that, or `least` where it is more

}  // namespace tiny
