// Threads with stacks of 8 MiB, whatever limit the system has for other stacks (ulimit -s), as
// compilers and proofs of kernels need them; and objects that each thread has of its own.
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

// The T of this thread, made when it is first asked for, and gone with the thread. The first
// thread's go before the static objects of a program: what these ask for in their destructors is
// made once more. It takes no memory of the threads' stacks, as a thread_local T does.
template <class T> T& of_thread() {
  thread_local T* object = nullptr;
  struct Owner {
    ~Owner() { delete std::exchange(object, nullptr); }
  };
  if (!object) {
    object = new T;
    thread_local const Owner owner;
    static_cast<void>(&owner);
  }
  return *object;
}

}  // namespace tiny
