// A persistent thread pool for loops over a range of integers. The calling thread works too, so a
// pool of one thread has no workers. A chunk whose worker has not woken up yet is taken over by
// the caller: a late worker delays nobody, and a child process after fork() still works.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace tiny {

class CpuPool {
 public:
  // A loop body: does the elements begin..end-1. It must not throw.
  using Body = void (*)(void* context, int64_t begin, int64_t end);

  // Starts threads - 1 workers, fewer where the system does not give as many.
  explicit CpuPool(int threads);
  ~CpuPool();  // no parallel_for may be in progress
  CpuPool(const CpuPool&) = delete;
  CpuPool& operator=(const CpuPool&) = delete;

  // Threads that take part, the caller among them.
  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Cuts [0, n) into min(n, threads()) contiguous chunks, whose sizes differ by at most one, and
  // runs each by one call of `body`; returns when all are done. A call while another one is in
  // progress, from inside a body or from another thread, runs its whole range at once on the
  // calling thread.
  void parallel_for(int64_t n, Body body, void* context) noexcept;

 private:
  struct Worker;

  void serve(Worker& worker);
  void run_if_ready(Worker& worker);

  std::vector<std::unique_ptr<Worker>> workers_;
  int spins_ = 0;        // how often a waiting thread looks before it sleeps
  int64_t process_ = 0;  // the process that the workers belong to
  alignas(64) std::atomic<bool> busy_{false};
  alignas(64) std::atomic<uint32_t> unfinished_{0};  // chunks of the workers in this call
};

}  // namespace tiny
