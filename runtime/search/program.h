// Online autotuning (BEAM=n): each run of a schedule earns time to search its kernels' options,
// within BEAM_BUDGET seconds for the program, and better kernels replace the heuristic's.
#pragma once
#include <string>
#include <vector>

#include "runtime/kernels/kernel.h"
#include "runtime/schedule/schedule.h"

namespace tiny {

// Whether the kernels of a schedule are to be timed as it runs: BEAM is set, there is time left,
// and some of them may become better.
bool wants_search(const Schedule& s);

// Searches the schedule's kernels. `seconds`: how long each step took on the device. With
// BEAM_ASYNC=1 on a thread of its own; else returns when the time that was earned is spent. An
// interrupt (SIGINT) ends all searching of the program and keeps what was found; a second one is
// the program's.
void search_schedule(const Schedule& s, const std::vector<double>& seconds);

// Counts of the program's searches so far.
struct SearchCounts {
  int kernels = 0;   // searched
  int recalled = 0;  // known from the disk: nothing was done
  int timed = 0;     // candidates
  int better = 0;    // kernels that became better
  int troubled = 0;  // kernels that could not be searched
  double seconds = 0;
  double before = 0, after = 0;  // seconds of all searched steps, each once a run of its schedule
};
SearchCounts search_counts();
std::string to_text(const SearchCounts& counts);

// Waits until the thread of BEAM_ASYNC has nothing to do.
void finish_searches();

// Forgets the budget that was spent and which kernels were searched; for tests.
void reset_searches();

}  // namespace tiny
