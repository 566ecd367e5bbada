// CHECK_NAN=1: finds the kernel, and the user's operation in it, that first made a NaN or an
// infinity from finite values, by reading its inputs and outputs on the host.
#pragma once
#include <string>
#include <vector>

#include "runtime/kernels/kernel.h"

namespace tiny {

bool checks_nan();  // on this thread

class NanCheck {
 public:
  // Before the launch: keeps what the kernel reads.
  NanCheck(const Schedule& s, const Step& step, const Kernel& kernel,
           const std::vector<void*>& args);
  // After it: notes the finding, unless this thread has one already.
  void look_at_results();

 private:
  std::vector<std::byte> read(size_t slot) const;
  bool leaves_out(size_t slot) const;
  std::string locate() const;

  const Schedule& schedule_;
  const Step& step_;
  const Kernel& kernel_;
  const std::vector<void*>& args_;
  std::vector<std::vector<std::byte>> before_;  // by slot; empty where nothing is read
  bool is_finite_ = true;
};

// Throws the finding of this thread as an Error, once everything else of the step is done: tensors
// have the values that they would have had without the check.
void throw_found_nan();

}  // namespace tiny
