// Faults of code that runs in this process (an address that is not mapped, a division by zero) as
// calls of a function, which leaves the code by a switch of stacks.
#pragma once
#include <csignal>
#include <cstddef>

namespace tiny {

// Where a thread goes on after a fault: `function`, which must not return, is called on the stack
// that ends at `stack_end`. No function: the fault is none of its own, and the process's handler
// gets it.
struct FaultTarget {
  void (*function)(int signal, const void* address) = nullptr;
  char* stack_end = nullptr;
};
using FaultHandler = FaultTarget (*)();

// While one lives the faults of all threads go to `handler`; all that live at once have the same.
// On processors other than x86-64 and ARM64 this does nothing.
class FaultGuard {
 public:
  explicit FaultGuard(FaultHandler handler);
  ~FaultGuard();
  FaultGuard(const FaultGuard&) = delete;
  FaultGuard& operator=(const FaultGuard&) = delete;
};

// While one lives the calling thread handles signals on `stack`, as it must when its own stack may
// have overflowed. At least SIGSTKSZ bytes.
class SignalStack {
 public:
  SignalStack(char* stack, size_t bytes);
  ~SignalStack();
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  stack_t before_{};
};

}  // namespace tiny
