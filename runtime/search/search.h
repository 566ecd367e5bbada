// Beam search over a kernel's options: candidates one edit away from the best so far are ranked by
// a model, the promising ones compiled, timed on the device and compared with what the kernel
// computes without options. Ends within its budget, and with the heuristic's choice where nothing
// is better.
#pragma once
#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "codegen/lower.h"
#include "runtime/kernels/choice_cache.h"
#include "runtime/search/bench.h"
#include "runtime/search/worker.h"

namespace tiny {

struct SearchSettings {
  int width = 4;        // candidates that are kept at each round
  double seconds = 10;  // for all of it
  double budget = 0;    // of the program: what the record says was spent at most; 0: `seconds`
  bool cached = true;   // uses and keeps what SearchCache knows
  double compile_limit = 10;  // seconds for one candidate
  double run_limit = 10;
  const Choice* only = nullptr;             // no search: tries this one
  const std::atomic<bool>* stop = nullptr;  // ends the search early when it becomes true
  std::function<void(double speedup)> progress = nullptr;  // after each candidate
  // For tests of what the search does with faulty kernels: changes a candidate before it is
  // compiled.
  std::function<void(const Choice& choice, Lowered& low)> tamper = nullptr;
};

struct Candidate : Measured {
  Choice choice;
  double estimate = 0;    // seconds, of the model, corrected by what it was found to miss
  double model = 0;       // the model's own
  double at = 0;          // seconds since the search began
  std::string source;     // hash of its text
  bool recalled = false;  // its time is of an earlier search
  bool expanded = false;  // its neighbours are candidates too
};

struct Searched {
  Choice best;
  double heuristic = 0, seconds = 0;  // of a run: with the heuristic's options, with the best
  bool exhausted = false;             // there was nothing left to try
  int timed = 0;
  double spent = 0;                   // seconds
  std::string trouble;                // why it was not searched, where it was not
  std::vector<Candidate> candidates;  // the heuristic's first

  double speedup() const { return seconds > 0 ? heuristic / seconds : 1; }
};

// Compiles and runs candidates on a device; its processes are started when first used and serve any
// number of searches, one after the other.
struct SearchTools {
  SearchTools(std::string device, bool isolated);
  const std::string device;
  CompilePool compilers;
  std::unique_ptr<Bench> bench;
};

// `kernel` as for lower(). Throws nothing on account of a candidate.
Searched search_kernel(Node kernel, const std::string& name, SearchTools& tools,
                       const SearchSettings& settings);

// Notes that searches of that width and budget had no time for the kernel: another run of the
// program then spends nothing either. Earlier results stay.
void pass_over(Node kernel, const std::string& name, const std::string& device, int width,
               double budget);

}  // namespace tiny
