// Compiled kernels, interned by their graph: each is lowered and compiled once per device, many of
// them in parallel.
#pragma once
#include <atomic>
#include <memory>
#include <span>

#include "codegen/lower.h"
#include "runtime/device/device.h"
#include "runtime/schedule/schedule.h"

namespace tiny {

struct Kernel : std::enable_shared_from_this<Kernel> {
  Kernel() { ++live; }
  ~Kernel() { --live; }

  static inline std::atomic<int64_t> live = 0;  // how many there are

  std::string name;
  std::unique_ptr<Program> program;
  LaunchSize launch;
  double bytes = 0, flops = 0;
  std::string unit;  // what multiplies in it: codegen/product_unit.h
};

// The kernel of each step (nullptr for copies), from memory, the disk cache, or the compiler. They
// live as long as the schedule, unless the kernel cache is cleared.
// The first error of a compilation is thrown after the others have ended.
std::vector<Kernel*> compile_kernels(const Schedule& s);

size_t kernel_count();  // in memory

// The key of a step's kernel in memory.
std::string kernel_key(const Step& step);

// The step's kernel with other options from now on: compile_kernels gives the new one, who has the
// old one may go on with it. Any thread.
void replace_kernel(const Step& step, const Choice& choice);

// Changes when kernels are replaced or forgotten.
uint64_t kernels_age();

void clear_kernel_cache();  // forgets what is in memory; for tests and benchmarks

}  // namespace tiny
