// Beam search over a kernel's options: candidates one edit away from the best so far are ranked by
// a model, the promising ones compiled, timed on the device and compared with what the kernel
// computes without options. Ends within its budget, and with the heuristic's choice where nothing
// is better.
#pragma once
#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "codegen/lower.h"
#include "runtime/search_bench.h"
#include "runtime/search_worker.h"

namespace tiny {

struct SearchSettings {
  int width = 4;         // candidates that are kept at each round
  double seconds = 10;   // for all of it
  double budget = 0;     // of the program: what the record says was spent at most; 0: `seconds`
  bool isolated = true;  // in processes of its own; else nothing can be given up
  bool cached = true;    // uses and keeps what SearchCache knows
  bool again = false;    // times anew what is known
  double compile_limit = 10;  // seconds for one candidate
  double run_limit = 10;
  const Choice* only = nullptr;             // no search: tries this one
  const std::atomic<bool>* stop = nullptr;  // ends the search early when it becomes true
  std::function<void(double seconds, double speedup)> progress;  // after each candidate
  // For tests of what the search does with faulty kernels: changes a candidate before it is
  // compiled.
  std::function<void(const Choice& choice, Lowered& low)> tamper;
};

struct Candidate {
  Choice choice;
  Outcome outcome = Outcome::Good;
  double estimate = 0;           // seconds, of the model
  double least = 0, median = 0;  // seconds, 0 where it was not timed
  double at = 0;                 // seconds since the search began
  bool recalled = false;         // its time is of an earlier search
  std::string text;              // what is wrong
};

struct Searched {
  Choice best;
  double heuristic = 0, seconds = 0;  // of a run: with the heuristic's options, with the best
  bool exhausted = false;             // there was nothing left to try
  bool recalled = false;              // nothing was done: the answer was known
  int timed = 0;
  double spent = 0;                   // seconds
  std::string trouble;                // why it was not searched, where it was not
  std::vector<Candidate> candidates;  // the heuristic's first

  double speedup() const { return seconds > 0 ? heuristic / seconds : 1; }
};

// What compiles and runs candidates on a device; its processes are started when first used and
// serve any number of searches, one after the other.
struct SearchTools {
  SearchTools(std::string device, bool isolated);
  const std::string device;
  CompilePool compilers;
  std::unique_ptr<Bench> bench;
  CompileJob flush;  // the kernel that empties the caches
};

// `kernel` as for lower(). Throws nothing on account of a candidate.
Searched search_kernel(Node kernel, const std::string& name, SearchTools& tools,
                       const SearchSettings& settings);

// The choice that a search has found for the kernel, if the code generator still makes of it what
// was timed. Nothing else is done.
struct KnownChoice {
  Choice choice;
  int width = 0;      // of that search
  double budget = 0;  // that it had
  bool exhausted = false;
  double heuristic = 0, best = 0;
};
bool find_choice(Node kernel, const std::string& device, KnownChoice& out);

// Notes that the kernel keeps the heuristic's options in searches of that width and budget, which
// had no time for it: another run of the program then spends nothing either. What is known of it
// already stays.
void pass_over(Node kernel, const std::string& name, const std::string& device, int width,
               double budget);

}  // namespace tiny
