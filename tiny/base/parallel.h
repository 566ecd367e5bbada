// Jobs on all cores.
#pragma once
#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "tiny/base/thread.h"

namespace tiny {

inline size_t core_count() { return std::max(1u, std::thread::hardware_concurrency()); }

// Runs job(i, thread) for i of 0 .. count-1, on at most so many threads, which have numbers: this
// one among them where its stack is deep. The first exception is thrown at the end.
template <class Job> void in_parallel(size_t count, size_t threads, const Job& job) {
  std::atomic<size_t> next{0};
  std::exception_ptr error;
  std::mutex mutex;
  const auto work = [&](size_t thread) {
    for (size_t i; (i = next++) < count;) {
      try {
        job(i, thread);
      } catch (...) {
        std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
      }
    }
  };
  std::vector<Thread> pool;  // fewer where the system makes no more
  for (size_t t = has_deep_stack() ? 1 : 0; t < std::min(count, threads); ++t)
    pool.push_back(Thread::start_if_possible([&work, t] { work(t); }));
  if (has_deep_stack() || pool.empty() || !pool[0].runs()) work(0);
  for (Thread& t : pool) t.join();
  if (error) std::rethrow_exception(error);
}

}  // namespace tiny
