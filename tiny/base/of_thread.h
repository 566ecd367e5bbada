// Objects that each thread has of its own, until the very end of the program.
#pragma once
#include <utility>

namespace tiny {

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
