// Faults of code that runs in this process (an address that is not mapped, a division by zero) as
// calls of a function, which may leave the code by a switch of stacks.
#pragma once
#include <csignal>

namespace tiny {

// What a thread does with its faults: called with the signal and the address that was accessed.
// It returns where the fault is none of its own; then the process's handler gets it.
using FaultHandler = void (*)(int signal, const void* address);

// While one lives the faults of all threads go to `handler`; all that live at once have the same.
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
