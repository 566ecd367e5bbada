// Runs candidates for a kernel's options on made-up data: times them with caches cold and compares
// what they compute with a reference. In this process, or in one that may crash or hang instead.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/device.h"
#include "tiny/dtype.h"

namespace tiny {

// What lies in a buffer before a kernel runs.
struct Filling {
  // Length: the one value of a Variable, `top` where time is taken and `low` where results are
  // compared, so that what lies beyond it is looked at too.
  enum class Kind : uint8_t { Poison, Values, Indices, Length } kind = Kind::Values;
  bool written = false;   // compared afterwards
  bool distinct = false;  // of Indices: no two are the same, where there are as many values
  DType dtype;
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
};

enum class Role : uint8_t {
  Flush,      // goes through memory to empty the caches; its buffers are its own
  Reference,  // computes what is right, perhaps only a part of it
  Baseline,   // trusted too: shows how far orders of addition differ in this kernel
  Candidate,
};

enum class Outcome : uint8_t { Good, Slow, Wrong, Failed, Crashed, Hung, Rejected };
const char* name_of(Outcome outcome);

struct BenchJob {
  Role role = Role::Candidate;
  std::string binary, entry;
  LaunchSize size;
  int64_t elements = 0;  // of each of Flush's two buffers of f32
  double best = 0;       // seconds of the best so far: what is clearly slower ends early; 0: none
  double verify = 0;     // candidates of at most so many seconds are compared
  double enough = 0.02;  // seconds of timing
  double limit = 10;     // of the whole job, in seconds; kept from outside, by isolation
};

struct Measured {
  Outcome outcome = Outcome::Good;
  double least = 0, median = 0;  // seconds
  int runs = 0;
  std::string text;  // what is wrong
};

class Bench {
 public:
  virtual ~Bench() = default;
  // Forgets the case before. Throws DeviceError where there is no memory for it.
  virtual void prepare(const KernelCase& kernel) = 0;
  virtual Measured run(const BenchJob& job) = 0;  // throws nothing
};

// In this process.
std::unique_ptr<Bench> local_bench();

// In a process of its own, which is ended where a job takes longer than its limit; its successor is
// given the case, the reference and the baseline again.
std::unique_ptr<Bench> isolated_bench();

}  // namespace tiny
