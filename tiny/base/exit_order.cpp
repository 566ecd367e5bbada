#include "tiny/base/exit_order.h"

#include <atomic>
#include <mutex>

// Itanium C++ ABI, section 3.3.6.3: what is to be done at the end, in the reverse of this order;
// and doing all that was registered with a handle, which then does not come again.
extern "C" {
int __cxa_atexit(void (*function)(void*), void* argument, void* handle);
void __cxa_finalize(void* handle);
extern void* __dso_handle;
}

namespace tiny {

namespace {

std::atomic<bool> ending{false};
std::atomic<bool> moving{false};  // the call below goes from its place to the end of the list
char own_handle;

void end_objects(void*) {
  if (moving) return;
  // In a program with a fixed address atexit's functions have another handle than objects, and
  // would come too late: there all stays in its order.
  if (__dso_handle == &__dso_handle) __cxa_finalize(&__dso_handle);
  ending = true;
}

}  // namespace

void end_objects_before_libraries() {
  static std::mutex& mutex = *new std::mutex;
  const std::lock_guard lock(mutex);
  moving = true;
  __cxa_finalize(&own_handle);
  moving = false;
  __cxa_atexit(end_objects, nullptr, &own_handle);
}

bool are_libraries_ending() { return ending; }

}  // namespace tiny
