// Compiling candidates on all cores and running them in a process of their own
// (tiny/worker_process): what crashes or takes too long is given up, and the program goes on.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/search_bench.h"

namespace tiny {

struct CompileJob {
  Source source;
  std::string binary;  // the answer, empty where there is none
  Outcome outcome = Outcome::Good;
  std::string text;  // what is wrong
};

// Compiles sources, several at once, in worker processes where `isolated`.
class CompilePool {
 public:
  CompilePool(std::string device, bool isolated);
  ~CompilePool();
  CompilePool(const CompilePool&) = delete;
  CompilePool& operator=(const CompilePool&) = delete;

  // All of them, from the cache on disk where they are there. One that takes longer than `limit`
  // seconds is given up. Nothing is begun after `deadline` (seconds of the steady clock): such jobs
  // have the outcome Slow.
  void compile(std::vector<CompileJob>& jobs, double limit, double deadline);

 private:
  struct Lane;
  void one(Lane& lane, CompileJob& job, double limit);

  const std::string device_;
  const bool isolated_;
  std::vector<std::unique_ptr<Lane>> lanes_;
};

double steady_seconds();

// Process ids of the workers that exist now; for tests.
std::vector<int> search_workers();

}  // namespace tiny
