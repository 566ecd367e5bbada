// Threads with stacks of 8 MiB, whatever limit the system has for those of others (ulimit -s):
// compilers and proofs of kernels need them.
#pragma once
#include <pthread.h>

#include <functional>
#include <utility>

namespace tiny {

class Thread {
 public:
  Thread() = default;
  // Throws DeviceError where the system makes no more threads. `what`: for that, "to watch ranks".
  Thread(const char* what, std::function<void()> work);
  // None where the system makes no more.
  static Thread start_if_possible(std::function<void()> work);

  Thread(Thread&& other) noexcept
      : thread_(other.thread_), runs_(std::exchange(other.runs_, false)) {}
  Thread& operator=(Thread&& other) noexcept;
  ~Thread() { join(); }

  bool runs() const { return runs_; }  // it has to be waited for, or was left to itself
  void join();
  void detach();

 private:
  int start(std::function<void()> work);

  pthread_t thread_{};
  bool runs_ = false;
};

// Whether this thread's stack is as large as those; the first thread's is what the limit says.
bool has_deep_stack();

}  // namespace tiny
