#include "runtime/search/program.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>

#include "runtime/launch/capture.h"
#include "runtime/search/search.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/base/text.h"
#include "tiny/base/thread.h"
#include "tiny/train/progress.h"

namespace tiny {

// Of a schedule, by the program's searches.
struct Visit {
  int generation = 0;  // of the searches: older ones count for nothing
  int runs = 0;
  double earned = 0;
  bool finished = false;
};

namespace {

constexpr double kEarned = 1000;    // seconds of search for one that a schedule runs again
constexpr double kFirst = 2;        // seconds that its first run gives
constexpr double kFirsts = 0.125;   // of the budget, for the first runs of all schedules
constexpr double kReplayed = 0.75;  // of what is left, for one that a Jit will replay
constexpr double kSmallest = 0.5;   // seconds that are worth beginning a kernel's search
constexpr double kOfGpu = 1;        // and on a GPU, whose compilers take most of that
constexpr double kMinShare = 0.005;

// A kernel of a schedule, with all of its steps.
struct Task {
  Step step;
  std::string key;     // of the kernel in memory
  double seconds = 0;  // of one run of the schedule
};

std::atomic<bool> interrupted{false};
struct sigaction before_interrupt {};

void on_interrupt(int) {
  interrupted = true;
  sigaction(SIGINT, &before_interrupt, nullptr);  // the next one is the program's
}

class InterruptGuard {
 public:
  InterruptGuard() {
    struct sigaction action {};
    action.sa_handler = on_interrupt;
    action.sa_flags = SA_RESTART;
    sigaction(SIGINT, &action, &before_interrupt);
  }
  ~InterruptGuard() {
    if (!interrupted) sigaction(SIGINT, &before_interrupt, nullptr);
  }
};

int width() { return static_cast<int>(env_int("BEAM")); }
double budget() { return static_cast<double>(env_int("BEAM_BUDGET")); }

// Longest first.
std::vector<Task> tasks_of(const Schedule& s, const std::vector<double>& seconds) {
  std::map<std::string, Task> found;
  for (size_t i = 0; i < s.steps.size(); ++i) {
    if (!s.steps[i].kernel) continue;
    const std::string key = kernel_key(s.steps[i]);
    Task& t = found.try_emplace(key, Task{s.steps[i], key, 0}).first->second;
    t.seconds += seconds[i];
  }
  std::vector<Task> out;
  for (auto& [key, task] : found) out.push_back(std::move(task));
  std::ranges::sort(out, [](const Task& a, const Task& b) { return a.seconds > b.seconds; });
  return out;
}

void pass(const Task& t) {
  pass_over(t.step.kernel.get(), t.step.name, device_name(t.step.device), width(), budget());
}

struct Order {  // to search a schedule's kernels
  std::shared_ptr<Visit> visit;
  std::vector<Task> tasks;
  double seconds;  // to search
  double run;      // of the schedule
  bool is_first;   // of its runs
};

// What the program's searches have spent and found, for all threads.
class SearchTally {
 public:
  SearchCounts counts() const {
    std::lock_guard lock(mutex_);
    return counts_;
  }
  double left() const { return budget() - counts().seconds; }
  double of_firsts() const {  // seconds of what was spent: on the first runs of schedules
    std::lock_guard lock(mutex_);
    return of_firsts_;
  }
  std::string trouble() const {  // the last one
    std::lock_guard lock(mutex_);
    return trouble_;
  }

  // Takes what an earlier program has found with as much effort as this one may spend.
  bool is_finished(const Task& t) {
    {
      std::lock_guard lock(mutex_);
      const auto seen = kernels_.find(t.key);  // its results were found in this program
      if (seen != kernels_.end()) return seen->second.finished;
    }
    const auto known = find_known(t.step.kernel.get(), device_name(t.step.device));
    const bool found = known && known->done.width >= width() &&
                       (known->done.exhausted || known->done.budget >= budget());
    std::lock_guard lock(mutex_);
    kernels_[t.key] = {t.step.kernel, found};
    counts_.recalled += found;
    return found;
  }

  void spend(double seconds, bool is_first) {
    std::lock_guard lock(mutex_);
    counts_.seconds += seconds;
    if (is_first) of_firsts_ += seconds;
  }

  void note(const Task& task, const Searched& found) {
    std::lock_guard lock(mutex_);
    ++counts_.kernels;
    counts_.timed += found.timed;
    counts_.better += found.speedup() > 1;
    counts_.troubled += !found.trouble.empty();
    if (!found.trouble.empty()) trouble_ = found.trouble;
    counts_.before += task.seconds;
    counts_.after += task.seconds / found.speedup();
    kernels_[task.key].finished = found.exhausted || !found.trouble.empty();
  }

  void reset() {
    std::lock_guard lock(mutex_);
    counts_ = {};
    of_firsts_ = 0;
    kernels_.clear();
  }

 private:
  // A kernel that was looked up. Its node is held: the key has its address.
  struct Seen {
    NodeRef kernel;
    bool finished = false;  // nothing is left to try
  };

  mutable std::mutex mutex_;
  SearchCounts counts_;
  double of_firsts_ = 0;
  std::string trouble_;
  std::map<std::string, Seen> kernels_;  // by kernel_key
};

bool is_shown() { return isatty(STDERR_FILENO) == 1 || env_int("DEBUG") >= 1; }

// Searches the kernels of one schedule after the other, on one thread at a time.
class OrderSearch {
 public:
  explicit OrderSearch(SearchTally& tally) : tally_(tally) {}

  void forget_tools() { tools_.clear(); }

  // Whether nothing is left to try of any kernel.
  bool work(const Order& order) {
    const double start = budget_seconds();
    const auto rest = [&] { return order.seconds - (budget_seconds() - start); };
    std::vector<const Task*> open;
    double shares = 0;
    for (const Task& t : order.tasks) {
      if (tally_.is_finished(t)) continue;
      if (t.seconds < kMinShare * order.run || order.seconds < kSmallest) {
        pass(t);
        continue;
      }
      open.push_back(&t);
      shares += t.seconds;
    }
    const SearchCounts before = tally_.counts();
    const bool all_done = search_open(open, shares, rest);
    const double spent = budget_seconds() - start;
    tally_.spend(spent, order.is_first);
    const bool shown =
        order.is_first ? env_int("DEBUG") >= 1 : is_shown();  // short ones have a bar
    if (shown && tally_.counts().kernels > before.kernels) report(before, order.run, spent);
    return all_done && order.seconds >= kSmallest;
  }

 private:
  // Each gets its share of the time; whether nothing is left to try of any.
  bool search_open(const std::vector<const Task*>& open, double shares,
                   const std::function<double()>& rest) {
    if (open.empty()) return true;
    std::unique_ptr<Progress> bar;
    ProgressSink sink = standard_sink();
    sink.out = &std::cerr;
    sink.terminal = isatty(STDERR_FILENO) == 1;
    const auto count = static_cast<int64_t>(open.size());
    const bool beside = env_int("BEAM_ASYNC") != 0;  // the line may be the program's
    if (is_shown() && !beside) bar = std::make_unique<Progress>(count, "kernels", 0, sink);
    double best = 1;  // of those that are done and the present one
    const auto show = [&](int64_t done) {
      if (!bar) return;
      const std::string text =
          cat("BEAM: ", done, " of ", count, " kernels, best ", formatted("%.2fx", best));
      bar->update(done, text, std::max(0.0, rest()));
    };
    bool all_done = true;
    for (size_t i = 0; i < open.size(); ++i) {
      // Better some of the longest with candidates that are timed than all of them with none.
      const bool gpu =
          find_device(device_name(open[i]->step.device)).target().kind == Target::Kind::Gpu;
      const double slice =
          std::max(rest() * open[i]->seconds / shares, gpu ? std::min(rest(), kOfGpu) : 0);
      shares -= open[i]->seconds;
      // The first one gets a chance; what has too small a share leaves its time to the others.
      if ((slice >= kSmallest || i == 0) && !interrupted)
        search_one(*open[i], slice, [&](double speedup) {
          best = std::max(best, speedup);
          show(static_cast<int64_t>(i));
        });
      else if (!interrupted)
        pass(*open[i]);
      all_done = all_done && tally_.is_finished(*open[i]);
    }
    show(count);
    return all_done;
  }

  // The gains of a schedule's searches since `before`, and the rest of the budget.
  void report(const SearchCounts& before, double run, double spent) const {
    const SearchCounts now = tally_.counts();
    const double gained = (now.before - now.after) - (before.before - before.after);
    const int troubled = now.troubled - before.troubled;
    std::cerr << formatted(
        "BEAM: %d kernels searched in %.1f s, %d candidates timed, %d better: a run's "
        "kernels take %.3f ms instead of %.3f, %.4f ms less for each second; %.0f s left\n",
        now.kernels - before.kernels, spent, now.timed - before.timed, now.better - before.better,
        (run - gained) * 1e3, run * 1e3, gained * 1e3 / spent, std::max(0.0, tally_.left()));
    if (troubled > 0)
      std::cerr << cat("BEAM: ", troubled, " of them could not be searched, the last one because ",
                       tally_.trouble(), "\n");
  }

  SearchTools& tools(const std::string& device) {
    auto& slot = tools_[device];
    if (!slot) slot = std::make_unique<SearchTools>(device, env_int("BEAM_ISOLATE") != 0);
    return *slot;
  }

  void search_one(const Task& task, double seconds, const std::function<void(double)>& progress) {
    SearchSettings settings;
    settings.width = width();
    settings.seconds = seconds;
    settings.budget = budget();
    settings.stop = &interrupted;
    settings.progress = progress;
    progress(1);
    const Searched found = search_kernel(task.step.kernel.get(), task.step.name,
                                         tools(device_name(task.step.device)), settings);
    try {
      if (found.speedup() > 1) replace_kernel(task.step, found.best);
    } catch (const std::exception& e) {
      std::cerr << "BEAM: " << task.step.name << ": " << e.what() << '\n';
    }
    tally_.note(task, found);
    if (env_int("DEBUG") < 1) return;
    const double gained = task.seconds - task.seconds / found.speedup();
    std::cerr << formatted(
        "BEAM: %-48s %6.1f s, %3d timed of %4zu: %10.1f us -> %10.1f us, %.2fx, "
        "%.1f us of %.1f us a run for each second of it %s\n",
        task.step.name.c_str(), found.spent, found.timed, found.candidates.size(),
        found.heuristic * 1e6, found.seconds * 1e6, found.speedup(),
        gained * 1e6 / std::max(found.spent, 1e-3), task.seconds * 1e6, found.trouble.c_str());
  }

  SearchTally& tally_;
  std::map<std::string, std::unique_ptr<SearchTools>> tools_;
};

class Searches {
 public:
  static Searches& all() {
    static Searches* instance = new Searches;  // never destroyed: its thread may still run
    return *instance;
  }

  bool wanted(const Schedule& s) {
    if (interrupted || width() <= 0) return false;
    std::lock_guard lock(mutex_);
    const Visit& v = visit(s);
    if (v.finished || (tally_.left() < kSmallest && v.runs > 0)) return false;  // once, to note it
    return std::ranges::any_of(s.steps, [](const Step& t) { return t.kernel.get() != nullptr; });
  }

  void search(const Schedule& s, const std::vector<double>& seconds) {
    Order order{s.visit, {}, 0, 0, false};
    for (size_t i = 0; i < seconds.size(); ++i) order.run += s.steps[i].kernel ? seconds[i] : 0;
    const bool beside = env_int("BEAM_ASYNC") != 0;
    {
      std::lock_guard lock(mutex_);
      Visit& v = visit(s);
      v.earned += v.runs == 0 ? kFirst : kEarned * order.run;  // one run is worth little
      if (Capture::current()) v.earned = std::max(v.earned, kReplayed * tally_.left());
      // The first runs leave most of the budget to what may come: a program's weights are made by
      // schedules that run once.
      order.is_first = v.runs++ == 0;
      double most = order.is_first ? tally_.left() / 4 : tally_.left();
      if (order.is_first && !Capture::current())
        most = std::min(most, std::max(kFirsts * budget(), kSmallest) - tally_.of_firsts());
      order.seconds = std::min(v.earned, most);
      // Each search of a kernel begins with compiling: not for less than at first.
      const double worth = v.runs > 1 ? std::min(kFirst, most) : kSmallest;
      if (most >= kSmallest && (order.seconds < worth || (beside && busy_))) return;
      v.earned = 0;
      order.tasks = tasks_of(s, seconds);
      if (beside && most >= kSmallest) {
        next_ = std::move(order);
        busy_ = true;
        if (!thread_.runs()) start();
        woken_.notify_all();
        return;
      }
    }
    const InterruptGuard guard;
    work(order);
  }

  void finish() {
    std::unique_lock lock(mutex_);
    woken_.wait(lock, [&] { return !busy_ || interrupted; });
  }

  SearchCounts counts() const { return tally_.counts(); }

  void reset() {
    finish();
    if (interrupted && thread_.runs()) thread_.join();
    std::lock_guard lock(mutex_);
    ++generation_;
    tally_.reset();
    search_.forget_tools();
    interrupted = false;
  }

 private:
  // Lies in the schedule: an address would be another schedule's some time.
  Visit& visit(const Schedule& s) const {
    if (!s.visit || s.visit->generation != generation_)
      s.visit = std::make_shared<Visit>(Visit{.generation = generation_});
    return *s.visit;
  }

  void work(const Order& order) {
    const bool finished = search_.work(order);
    std::lock_guard lock(mutex_);
    order.visit->finished = finished;
  }

  // The thread of BEAM_ASYNC: it has one order at a time.
  void start() {
    std::atexit([] { all().stop(); });
    thread_ = Thread("to search beside the program (BEAM_ASYNC=1)", [this] {
      std::unique_lock lock(mutex_);
      while (!interrupted) {
        woken_.wait(lock, [&] { return busy_ || interrupted; });
        if (interrupted) break;
        const Order order = std::move(next_);
        lock.unlock();
        work(order);
        lock.lock();
        busy_ = false;
        woken_.notify_all();
      }
      busy_ = false;
    });
  }

  void stop() {
    interrupted = true;
    woken_.notify_all();
    if (thread_.runs()) thread_.join();
    search_.forget_tools();
  }

  std::mutex mutex_;
  std::condition_variable woken_;  // an order came, or one is done
  Order next_;                     // the thread's
  bool busy_ = false;              // it has one
  Thread thread_;
  int generation_ = 1;
  SearchTally tally_;
  OrderSearch search_{tally_};
};

}  // namespace

bool wants_search(const Schedule& s) { return Searches::all().wanted(s); }

void search_schedule(const Schedule& s, const std::vector<double>& seconds) {
  Searches::all().search(s, seconds);
}

SearchCounts search_counts() { return Searches::all().counts(); }

std::string to_text(const SearchCounts& c) {
  return formatted(
      "BEAM: %d kernels searched in %.1f s, %d candidates timed, %d better, %d known: "
      "their steps take %.2f of the time",
      c.kernels, c.seconds, c.timed, c.better, c.recalled, c.before > 0 ? c.after / c.before : 1);
}

void finish_searches() { Searches::all().finish(); }
void reset_searches() { Searches::all().reset(); }

}  // namespace tiny
