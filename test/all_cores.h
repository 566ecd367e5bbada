// Work of a test that is many runs of compilers.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

namespace tiny {

// Calls f(0) to f(count - 1) on all cores; f throws nothing and asserts nothing.
template <class F> void on_all_cores(size_t count, const F& f) {
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i)
    threads.emplace_back([&] {
      for (size_t j; (j = next++) < count;) f(j);
    });
  for (std::thread& t : threads) t.join();
}

}  // namespace tiny
