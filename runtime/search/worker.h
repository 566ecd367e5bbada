// Compiles candidates on all cores and runs them in a process of their own (tiny/worker_process): a
// crash or a hang is given up, and the program goes on.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/search/bench.h"

namespace tiny {

// A bench in a process of its own, which is ended where a race takes longer than its limit; its
// successor is given the case, the reference and the baseline again.
std::unique_ptr<Bench> isolated_bench();

// Compiles sources on several threads, each with a worker process of its own where `isolated`.
class CompilePool {
 public:
  struct Result {
    Outcome outcome = Outcome::Good;
    std::string binary;  // empty where there is none
    std::string text;    // the fault
  };

  CompilePool(std::string device, bool isolated);
  ~CompilePool();

  size_t threads() const { return lanes_.size(); }
  // Compiles on that thread; from the cache on disk where it is there, and `kept` there. Given up
  // after `limit` seconds.
  Result compile(size_t thread, const Source& source, double limit, bool kept = false);

 private:
  struct Lane;
  const std::string device_;
  const bool isolated_;
  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace tiny
