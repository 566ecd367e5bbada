// Where the intermediate values of a schedule lie: offsets in one arena for each device, so that
// values that are never alive at the same time share memory. Values that outlive the schedule, and
// its inputs, have memory of their own.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tiny {

struct Schedule;

struct MemoryPlan {
  std::vector<int64_t> offset;    // of each value, in its device's arena; -1: not there
  std::map<int, int64_t> arenas;  // bytes by device id
  std::map<int, int64_t> added;   // of each device besides the inputs: arena and results
  int64_t sum = 0;                // bytes if each value had memory of its own
  int64_t peak = 0;               // inputs, results and arenas
  int64_t live = 0;               // what the peak would be if blocks fitted without gaps
};

// Blocks begin at multiples of this many bytes, and take as many.
inline constexpr int64_t kBlockAlignment = 256;

MemoryPlan plan_memory(const Schedule& s);

// Follows the steps and watches that each reads what was last written to its inputs, and writes
// over nothing that is still needed. Shares no code with the planner. Throws Bug.
void check_memory(const Schedule& s, const MemoryPlan& plan);

// "peak 1.20 GB: 0.10 inputs and results, 1.10 arena; without sharing 3.00 GB"
std::string to_text(const MemoryPlan& plan);

// The largest of what the schedule has in memory when that is most, on one device, as lines for
// people: where that is, size, dtype, elements, and the operations that made each.
std::string largest_at_peak(const Schedule& s, int device);

// What orders of steps are made of: which must run before, and which values are made and needed.
struct Job {
  std::vector<int> before;  // jobs
  std::vector<int> reads, writes;
  int device = 0;
  bool is_copy = false;         // from one device to another
  int64_t beside_others = 0;    // bytes of a copy that GPUs make while others of their launches run
  bool repeats = false;         // may run again: it leaves the same values
  int64_t work = 0;             // elements that it adds up, most of them products
  std::vector<int> until = {};  // may run again before these jobs, which overwrite what it reads
};
struct JobValue {
  int64_t bytes = 0;
  bool stays = false;            // alive before the first job and after the last
  bool cheap = false;            // element-wise: may be computed again
  std::vector<int> recipe = {};  // from these
  std::vector<int> until = {};   // before these jobs, which overwrite something else it needs
};

// An order of the jobs that keeps the sum of what is alive low: the best of the given order and of
// greedy ones, of which one gives each reader of a value its share of it (`by_shares`).
std::vector<int> order_for_memory(const std::vector<Job>& jobs, const std::vector<JobValue>& values,
                                  bool by_shares = true);

// A job in its turn, all of it once more, or one of its values alone.
struct Turn {
  static constexpr int kFirst = -1, kAll = -2;
  int job = 0;
  int again = kFirst;  // or a value
  bool is_first() const { return again == kFirst; }
  bool operator==(const Turn&) const = default;
};

// How much memory the values of all jobs may take besides those that stay, and at what price.
struct MemoryBudget {
  int64_t enough = 0;  // a peak of so many bytes is left alone
  double share = 0;    // of the bytes that all jobs read and write: what may be spent on less
  int64_t limit = -1;  // more than so many bytes are lowered, whatever it costs; -1: none
};

// The order with cheap values that lie idle around the peak forgotten, and computed again before
// their next use, while that costs no more than the budget's share. Above the budget's limit also
// with jobs that run again, together with those that bring back what they read: as far as that
// helps. (Activations that are computed again for their gradients: T. Chen et al., "Training deep
// nets with sublinear memory cost", arXiv 1604.06174.)
std::vector<Turn> recompute_for_memory(const std::vector<Job>& jobs,
                                       const std::vector<JobValue>& values,
                                       const std::vector<int>& order, const MemoryBudget& budget);

// The most bytes alive during one turn, without values that stay.
int64_t peak_of_order(const std::vector<Job>& jobs, const std::vector<JobValue>& values,
                      const std::vector<Turn>& order);
int64_t peak_of_order(const std::vector<Job>& jobs, const std::vector<JobValue>& values,
                      const std::vector<int>& order);

}  // namespace tiny
