// A persistent thread pool for loops over a range of integers. The calling thread works too, so a
// pool of one thread has no workers. What a worker has not begun is done by the others when they
// have done theirs: a late or slow one delays nobody for long, and a child process after fork()
// still works.
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

  // Cuts [0, n) into min(n, threads()) contiguous parts, whose sizes differ by at most one, and
  // each into a few pieces, and runs each piece by one call of `body`; returns when all are done. A
  // call while another one is in progress, from inside a body or from another thread, runs its
  // whole range at once on the calling thread.
  void parallel_for(int64_t n, Body body, void* context) noexcept;

 private:
  struct Share;
  struct Worker;
  struct Loop {
    Body body = nullptr;
    void* context = nullptr;
    int64_t parts = 0;
    int processor = -1;  // of the caller
  };

  void serve(Worker& worker, int64_t part);
  void work(int64_t part);
  void finish(Worker& worker);
  Share& share_of(int64_t part) const;

  std::vector<std::unique_ptr<Worker>> workers_;
  std::unique_ptr<Share> own_;  // the caller's
  Loop loop_;                   // in progress
  int spins_ = 0;               // how often a waiting thread looks before it sleeps
  int64_t process_ = 0;         // the process that the workers belong to
  alignas(64) std::atomic<bool> busy_{false};
  alignas(64) std::atomic<uint32_t> unfinished_{0};  // workers in this call
};

}  // namespace tiny
