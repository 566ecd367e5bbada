#include "tiny/base/thread.h"

#include <cstring>
#include <memory>

#include "tiny/base/error.h"

namespace tiny {

namespace {

constexpr size_t kStack = size_t{8} << 20;  // bytes

void* run(void* work) {
  (*std::unique_ptr<std::function<void()>>(static_cast<std::function<void()>*>(work)))();
  return nullptr;
}

}  // namespace

Thread::Thread(const char* what, std::function<void()> work) {
  if (const int error = start(std::move(work)))
    throw DeviceError(cat("the system makes no thread ", what, ": ", std::strerror(error),
                          " (see ulimit -u, and pids.max of a container)"));
}

Thread Thread::start_if_possible(std::function<void()> work) {
  Thread out;
  out.start(std::move(work));
  return out;
}

Thread& Thread::operator=(Thread&& other) noexcept {
  join();
  thread_ = other.thread_;
  runs_ = std::exchange(other.runs_, false);
  return *this;
}

int Thread::start(std::function<void()> work) {
  auto given = std::make_unique<std::function<void()>>(std::move(work));
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStack);
  const int error = pthread_create(&thread_, &attributes, run, given.get());
  pthread_attr_destroy(&attributes);
  runs_ = error == 0;
  if (runs_) static_cast<void>(given.release());  // the thread's
  return error;
}

void Thread::join() {
  if (std::exchange(runs_, false)) pthread_join(thread_, nullptr);
}

void Thread::detach() {
  if (std::exchange(runs_, false)) pthread_detach(thread_);
}

bool has_deep_stack() {
  thread_local const bool is_deep = [] {
    pthread_attr_t attributes;
    size_t bytes = kStack;
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
      pthread_attr_getstacksize(&attributes, &bytes);
      pthread_attr_destroy(&attributes);
    }
    return bytes >= kStack / 2;
  }();
  return is_deep;
}

}  // namespace tiny
