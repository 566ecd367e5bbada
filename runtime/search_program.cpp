#include "runtime/search_program.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "codegen/lower.h"
#include "runtime/search.h"
#include "tiny/env.h"
#include "tiny/error.h"
#include "tiny/progress.h"

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
constexpr double kSmallest = 0.25;  // seconds that are worth beginning a kernel's search
constexpr double kLeastShare = 0.005;

// A kernel of a schedule, with all of its steps.
struct Task {
  Step step;
  std::string key;     // of the kernel in memory
  double seconds = 0;  // of one run of the schedule
  int steps = 0;
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

ProgressSink error_sink() {
  ProgressSink sink = standard_sink();
  sink.out = &std::cerr;
  sink.terminal = isatty(STDERR_FILENO) == 1;
  return sink;
}

class Searches {
 public:
  static Searches& all() {
    static Searches* instance = new Searches;  // never destroyed: its thread may still run
    return *instance;
  }

  bool wanted(const Schedule& s) {
    if (interrupted || env_int("BEAM") <= 0) return false;
    std::lock_guard lock(mutex_);
    const Visit& v = visit(s);
    if (v.finished || (left() < kSmallest && v.runs > 0)) return false;  // once, to note it
    return std::any_of(s.steps.begin(), s.steps.end(), [](const Step& t) { return t.kernel; });
  }

  void search(const Schedule& s, const std::vector<double>& seconds) {
    std::vector<Task> tasks = tasks_of(s, seconds);
    double run = 0;
    for (const Task& t : tasks) run += t.seconds;
    {
      std::lock_guard lock(mutex_);
      Visit& v = visit(s);
      v.earned += v.runs == 0 ? kFirst : kEarned * run;  // what runs once is worth little
      // The first run leaves most of the budget to what may come.
      const double most = v.runs++ == 0 ? left() / 4 : left();
      const double given = std::min(v.earned, most);
      if (most < kSmallest) {
        for (const Task& t : tasks)
          if (!finished_.count(t.key)) pass(t);
        return;
      }
      const bool beside = env_int("BEAM_ASYNC") != 0;
      if (given < kSmallest || (beside && (busy_ || !queue_.empty()))) return;
      v.earned = 0;
      queue_.push_back({s.visit, std::move(tasks), given, run});
      if (beside) return wake();
    }
    InterruptGuard guard;
    work_all();
  }

  void finish() {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [&] { return (queue_.empty() && !busy_) || interrupted; });
  }

  SearchCounts counts() {
    std::lock_guard lock(mutex_);
    return counts_;
  }

  void reset() {
    finish();
    std::lock_guard lock(mutex_);
    counts_ = {};
    ++generation_;
    finished_.clear();
    tools_.clear();
    interrupted = false;
  }

 private:
  // Lies in the schedule: an address would be another schedule's some time.
  Visit& visit(const Schedule& s) const {
    if (!s.visit || s.visit->generation != generation_)
      s.visit = std::make_shared<Visit>(Visit{.generation = generation_});
    return *s.visit;
  }

  struct Order {
    std::shared_ptr<Visit> visit;
    std::vector<Task> tasks;
    double seconds;  // to search
    double run;      // of the schedule
  };

  static double budget() { return static_cast<double>(env_int("BEAM_BUDGET")); }
  double left() const { return budget() - counts_.seconds; }

  static std::vector<Task> tasks_of(const Schedule& s, const std::vector<double>& seconds) {
    std::map<std::string, Task> found;
    for (size_t i = 0; i < s.steps.size(); ++i) {
      if (!s.steps[i].kernel) continue;
      Task& t = found[kernel_key(s.steps[i])];
      if (t.steps++ == 0) t.step = s.steps[i];
      t.seconds += seconds[i];
    }
    std::vector<Task> out;
    for (auto& [key, task] : found) {
      task.key = key;
      out.push_back(std::move(task));
    }
    std::sort(out.begin(), out.end(),
              [](const Task& a, const Task& b) { return a.seconds > b.seconds; });
    return out;
  }

  // --- the thread of BEAM_ASYNC ------------------------------------------------------------------

  void wake() {
    if (!started_) {
      started_ = true;
      std::atexit([] { all().stop(); });
      thread_ = std::thread([this] {
        for (;;) {
          {
            std::unique_lock lock(mutex_);
            woken_.wait(lock, [&] { return !queue_.empty() || stop_; });
            if (stop_) return;
          }
          work_all();
        }
      });
    }
    woken_.notify_all();
  }

  void stop() {
    {
      std::lock_guard lock(mutex_);
      stop_ = interrupted = true;
    }
    woken_.notify_all();
    if (thread_.joinable()) thread_.join();
    tools_.clear();
  }

  void work_all() {
    for (;;) {
      Order order;
      {
        std::lock_guard lock(mutex_);
        busy_ = false;
        idle_.notify_all();
        if (queue_.empty() || stop_) return;
        order = std::move(queue_.front());
        queue_.erase(queue_.begin());
        busy_ = true;
      }
      try {
        work(order);
      } catch (const std::exception& e) {
        std::cerr << "BEAM: " << e.what() << '\n';
      }
    }
  }

  // --- one schedule ------------------------------------------------------------------------------

  void work(const Order& order) {
    const double start = steady_seconds();
    const SearchCounts before = counts();
    std::vector<const Task*> open;
    double shares = 0;
    for (const Task& t : order.tasks) {
      recall(t);
      if (is_finished(t.key)) continue;
      if (t.seconds < kLeastShare * order.run) {
        pass(t);
        continue;
      }
      open.push_back(&t);
      shares += t.seconds;
    }
    std::unique_ptr<Progress> bar;
    const bool shown = isatty(STDERR_FILENO) == 1 || env_int("DEBUG") >= 1;
    if (shown && !open.empty())
      bar = std::make_unique<Progress>(static_cast<int64_t>(open.size()), "kernels", error_sink());
    bool all_done = true;
    for (size_t i = 0; i < open.size(); ++i) {
      const double rest = order.seconds - (steady_seconds() - start);
      const double slice = std::max(kSmallest, rest * open[i]->seconds / shares);
      shares -= open[i]->seconds;
      if (rest < kSmallest || interrupted) {
        all_done = false;
        if (!interrupted) pass(*open[i]);
        continue;
      }
      search_one(*open[i], std::min(slice, rest), [&](double best) {
        if (!bar) return;
        char text[96];
        std::snprintf(text, sizeof text, "best %.2fx, %.0f s left", best,
                      std::max(0.0, order.seconds - (steady_seconds() - start)));
        bar->update(static_cast<int64_t>(i), text);
      });
      all_done = all_done && is_finished(open[i]->key);
    }
    if (bar) bar->update(static_cast<int64_t>(open.size()));
    bar.reset();
    std::lock_guard lock(mutex_);
    order.visit->finished = all_done;
    counts_.seconds += steady_seconds() - start;
    if (shown && counts_.kernels > before.kernels) std::cerr << to_text(counts_) << '\n';
  }

  // A kernel that was looked up. Its node is held: the key has its address.
  struct Known {
    NodeRef kernel;
    bool finished = false;  // nothing is left to try
  };

  bool is_finished(const std::string& key) {
    std::lock_guard lock(mutex_);
    const auto found = finished_.find(key);
    return found != finished_.end() && found->second.finished;
  }

  // Takes what an earlier program has found with as much effort as this one may spend.
  void recall(const Task& task) {
    {
      std::lock_guard lock(mutex_);
      if (finished_.count(task.key)) return;  // what is known was found in this program
    }
    KnownChoice known;
    const bool found = find_choice(task.step.kernel.get(), device_name(task.step.device), known) &&
                       known.width >= env_int("BEAM") &&
                       (known.exhausted || known.budget >= budget());
    std::lock_guard lock(mutex_);
    finished_[task.key] = {task.step.kernel, found};
    counts_.recalled += found;
  }

  static void pass(const Task& task) {
    pass_over(task.step.kernel.get(), task.step.name, device_name(task.step.device),
              static_cast<int>(env_int("BEAM")), budget());
  }

  SearchTools& tools(const std::string& device) {
    auto& slot = tools_[device];
    if (!slot) slot = std::make_unique<SearchTools>(device, env_int("BEAM_ISOLATE") != 0);
    return *slot;
  }

  void search_one(const Task& task, double seconds, const std::function<void(double)>& progress) {
    const std::string device = device_name(task.step.device);
    SearchSettings settings;
    settings.width = static_cast<int>(env_int("BEAM"));
    settings.seconds = seconds;
    settings.budget = budget();
    settings.isolated = env_int("BEAM_ISOLATE") != 0;
    settings.stop = &interrupted;
    settings.progress = [&](double, double best) { progress(best); };
    progress(1);
    const Searched found =
        search_kernel(task.step.kernel.get(), task.step.name, tools(device), settings);
    if (found.trouble.empty() && found.speedup() > 1) replace_kernel(task.step, found.best);
    std::lock_guard lock(mutex_);
    ++counts_.kernels;
    counts_.timed += found.timed;
    counts_.better += found.speedup() > 1;
    counts_.troubled += !found.trouble.empty();
    counts_.before += task.seconds;
    counts_.after += task.seconds / found.speedup();
    finished_[task.key].finished = found.exhausted || !found.trouble.empty();
    if (env_int("DEBUG") >= 1) {
      std::fprintf(stderr, "BEAM: %-48s %6.1f s, %3d timed: %10.1f us -> %10.1f us, %.2fx %s\n",
                   task.step.name.c_str(), found.spent, found.timed, found.heuristic * 1e6,
                   found.seconds * 1e6, found.speedup(), found.trouble.c_str());
      const double gained = task.seconds - task.seconds / found.speedup();
      std::fprintf(stderr, "      each second of it gained %.1f us of %.1f us a run\n",
                   gained * 1e6 / std::max(found.spent, 1e-3), task.seconds * 1e6);
    }
  }

  std::mutex mutex_;
  std::condition_variable woken_, idle_;
  std::vector<Order> queue_;
  int generation_ = 1;
  std::map<std::string, Known> finished_;  // by kernel_key
  std::map<std::string, std::unique_ptr<SearchTools>> tools_;
  SearchCounts counts_;
  bool busy_ = false, started_ = false;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace

bool wants_search(const Schedule& s) { return Searches::all().wanted(s); }

void search_schedule(const Schedule& s, const std::vector<double>& seconds) {
  Searches::all().search(s, seconds);
}

SearchCounts search_counts() { return Searches::all().counts(); }

std::string to_text(const SearchCounts& c) {
  char text[200];
  std::snprintf(text, sizeof text,
                "BEAM: %d kernels searched in %.1f s, %d candidates timed, %d better, %d known: "
                "their steps take %.2f of the time",
                c.kernels, c.seconds, c.timed, c.better, c.recalled,
                c.before > 0 ? c.after / c.before : 1);
  return text;
}

void finish_searches() { Searches::all().finish(); }
void reset_searches() { Searches::all().reset(); }

}  // namespace tiny
