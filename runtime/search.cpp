#include "runtime/search.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "codegen/access.h"
#include "codegen/prove.h"
#include "runtime/cache.h"
#include "runtime/search_cache.h"
#include "runtime/search_model.h"
#include "runtime/search_space.h"
#include "tiny/env.h"
#include "tiny/error.h"
#include "tiny/print.h"

namespace tiny {

namespace {

constexpr double kWorthIt = 0.98;    // of the heuristic's time: what gains less is noise
constexpr double kMostEstimate = 3;  // times the best: what the model expects to take longer waits

// Runs job(0) .. job(count-1) on all cores.
template <class F> void in_parallel(size_t count, const F& job) {
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i; (i = next++) < count;) job(i);
  };
  std::vector<std::thread> pool;
  const size_t threads = std::min<size_t>(count, std::max(1u, std::thread::hardware_concurrency()));
  for (size_t i = 1; i < threads; ++i) pool.emplace_back(work);
  work();
  for (std::thread& t : pool) t.join();
}

// Copies one array to another, larger than the caches.
Lowered flush_kernel(const Target& target, int64_t& elements) {
  Arena arena;
  ArenaScope scope(arena);
  const bool cpu = target.kind == Target::Kind::Cpu;
  elements = std::max<int64_t>(1 << 16, target.l2_bytes * (cpu ? target.cores : 1) / 4);
  const auto param = [&](int slot) {
    const int64_t dims[] = {slot, elements};
    return make(Op::Param, kF32, {}, Ints(dims));
  };
  Node store = make(Op::Store, kVoid, {param(0), param(1)});
  return lower(make(Op::Sink, kVoid, {store}), "k_flush", target);
}

// Candidates are lowered under one name, so that structurally equal kernels have equal texts.
constexpr const char* kEntry = "k_candidate";

struct Entry {
  Candidate candidate;
  std::string source;   // hash of its text
  double estimate = 0;  // the model's own, without what was learnt since
  bool expanded = false;
  bool waits = false;  // has not been timed
};

class Search {
 public:
  Search(Node kernel, const std::string& name, SearchTools& tools, const SearchSettings& settings)
      : kernel_(kernel),
        name_(name),
        tools_(tools),
        settings_(settings),
        device_(find_device(tools.device)),
        target_(device_.target()),
        start_(steady_seconds()) {}

  Searched run() {
    try {
      all();
    } catch (const std::exception& e) {
      out_.trouble = e.what();
    }
    out_.spent = elapsed();
    if (out_.candidates.empty())
      for (Entry& e : entries_) out_.candidates.push_back(std::move(e.candidate));
    return std::move(out_);
  }

 private:
  double elapsed() const { return steady_seconds() - start_; }
  bool over() const {
    return elapsed() > settings_.seconds || (settings_.stop && settings_.stop->load());
  }

  void all() {
    ArenaScope scope(arena_);
    loops_ = loops_of(kernel_, target_);
    key_ = key_of_kernel(loops_, device_, tools_.device);
    if (settings_.cached) known_ = SearchCache::current().find(key_.key);
    if (!add_baseline()) return;
    if (!known_ && settings_.cached) SearchCache::current().add(key_, name_);
    if (settings_.only) {
      add({*settings_.only}, 1);
      return time_waiting();
    }
    add_known();
    while (!over() && round()) continue;
    finish();
  }

  // --- What is right, and how long the heuristic's kernel takes ----------------------------------

  // Three kernels, compiled together: one that empties the caches; the kernel without options, or
  // its end where that would take too long, which shows what is right; the heuristic's.
  bool add_baseline() {
    int64_t elements;
    const double most = target_.kind == Target::Kind::Cpu ? 3e7 : 1e6;
    const Lowered flush = flush_kernel(target_, elements);
    Node end = reference_loops(loops_, most);
    const Lowered low = lower(kernel_, kEntry, target_);
    std::vector<CompileJob> jobs = {{low.source, {}, {}, {}}};
    Lowered plain;
    if (end) {
      plain = lower(end, kEntry, target_, Choice{});
      jobs.push_back({plain.source, {}, {}, {}});
    }
    const bool emulated = tools_.device.starts_with("EMULATOR");  // its times mean nothing
    if (tools_.flush.binary.empty() && !emulated) jobs.push_back({flush.source, {}, {}, {}});
    tools_.compilers.compile(jobs, settings_.compile_limit, 1e300);
    if (tools_.flush.binary.empty() && !emulated) tools_.flush = jobs.back();
    if (jobs[0].outcome != Outcome::Good) {
      out_.trouble = "the heuristic's kernel: " + jobs[0].text;
      return false;
    }
    tools_.bench->prepare(case_of(loops_, tools_.device, target_));
    BenchJob job;
    if (!tools_.flush.binary.empty()) {
      CompileJob copy = tools_.flush;
      fill(job, flush, copy);
      job.elements = elements;
      job.role = Role::Flush;
      tools_.bench->run(job);
    }
    if (end && jobs[1].outcome == Outcome::Good) {
      fill(job, plain, jobs[1]);
      job.role = Role::Reference;
      tools_.bench->run(job);
    }
    fill(job, low, jobs[0]);
    job.role = Role::Baseline;
    return add_baseline(low, tools_.bench->run(job));
  }

  bool add_baseline(const Lowered& low, const Measured& m) {
    Entry e;
    e.candidate.choice = out_.best = low.choice;
    e.candidate.estimate = e.estimate = estimate_seconds(loops_, low, target_);
    e.source = source_key(low.source, device_);
    e.candidate.least = out_.heuristic = out_.seconds = m.least;
    e.candidate.median = m.median;
    e.candidate.at = elapsed();
    e.candidate.outcome = m.outcome;
    e.candidate.text = m.text;
    if (m.outcome != Outcome::Good)
      out_.trouble = cat("the heuristic's kernel is ", name_of(m.outcome), ": ", m.text);
    entries_.push_back(std::move(e));
    sources_[entries_[0].source] = 0;
    seen_.insert(to_text(entries_[0].candidate.choice));
    ++out_.timed;
    return m.outcome == Outcome::Good;
  }

  bool compile(const Lowered& low, BenchJob& job) {
    std::vector<CompileJob> jobs = {{low.source, {}, {}, {}}};
    tools_.compilers.compile(jobs, settings_.compile_limit, 1e300);
    fill(job, low, jobs[0]);
    return jobs[0].outcome == Outcome::Good;
  }
  void fill(BenchJob& job, const Lowered& low, CompileJob& compiled) const {
    job.binary = std::move(compiled.binary);
    job.entry = low.source.entry;
    job.size = low.launch;
    job.limit = settings_.run_limit;
  }

  // --- Candidates --------------------------------------------------------------------------------

  void add_known() {
    if (!settings_.cached) return;
    std::vector<std::string> texts = SearchCache::current().family_choices(key_);
    if (texts.size() > 4) texts.resize(4);
    if (known_ && known_->done) texts.insert(texts.begin(), known_->done->choice);
    std::vector<Choice> choices;
    for (const std::string& text : texts) {
      try {
        choices.push_back(choice_from_text(text));
      } catch (const Error&) {  // of another version
      }
    }
    add(choices, 1);
  }

  // Lowers those that are new and adds them to what waits. `factor`: how far off the model is.
  void add(const std::vector<Choice>& choices, double factor) {
    std::vector<Entry> fresh;
    for (const Choice& c : choices) {
      if (!seen_.insert(to_text(c)).second) continue;
      Entry e;
      e.candidate.choice = c;
      e.candidate.text = launch_problem(loops_, c, target_);
      if (!e.candidate.text.empty()) e.candidate.outcome = Outcome::Rejected;
      fresh.push_back(std::move(e));
    }
    in_parallel(fresh.size(), [&](size_t i) { lower_one(fresh[i], factor); });
    for (Entry& e : fresh) {
      e.candidate.at = elapsed();
      if (e.candidate.outcome == Outcome::Good) {
        if (!sources_.try_emplace(e.source, entries_.size()).second) continue;
        e.waits = true;
      }
      entries_.push_back(std::move(e));
    }
  }

  void lower_one(Entry& e, double factor) {
    if (e.candidate.outcome != Outcome::Good || over()) {
      e.candidate.outcome = Outcome::Rejected;
      return;
    }
    try {
      Arena arena;
      ArenaScope scope(arena);
      const Lowered low = lowered(e.candidate.choice);
      e.candidate.text = launch_problem(low.launch, target_);
      if (!e.candidate.text.empty()) e.candidate.outcome = Outcome::Rejected;
      e.estimate = estimate_seconds(loops_, low, target_);
      e.candidate.estimate = e.estimate * factor;
      e.source = source_key(low.source, device_);
    } catch (const std::exception& error) {
      e.candidate.outcome = Outcome::Rejected;
      e.candidate.text = error.what();
    }
  }

  Lowered lowered(const Choice& choice) const {
    Lowered low = lower(kernel_, kEntry, target_, choice);
    if (settings_.tamper) settings_.tamper(choice, low);
    return low;
  }

  std::string proof_problem(const Lowered& low) const {
    const int64_t mode = env_int("CHECK_OOB");
    if (mode == 0) return "";
    ProofSettings s;
    read_kernel(kernel_, target_, s);
    for (Node store : loops_->srcs()) {  // of a kernel that was given as loops
      const int64_t slot = store->src(0)->ints()[0];
      const bool scatters =
          std::holds_alternative<OpArg>(store->payload) || !all_of(store->src(1), Op::Load).empty();
      if (scatters && slot < 64) s.scattered |= uint64_t{1} << slot;
    }
    const Proof p = prove(low.machine, s);
    if (p.verdict == Verdict::Wrong) return "wrong: " + p.text;
    return p.verdict == Verdict::Unproved && mode == 2 ? "unproved: " + p.text : "";
  }

  std::vector<size_t> best(size_t count) const {
    std::vector<size_t> out;
    for (size_t i = 0; i < entries_.size(); ++i) {
      const Entry& e = entries_[i];
      if (!e.waits && e.candidate.outcome == Outcome::Good) out.push_back(i);
    }
    std::sort(out.begin(), out.end(), [&](size_t a, size_t b) {
      return entries_[a].candidate.least < entries_[b].candidate.least;
    });
    out.resize(std::min(out.size(), count));
    return out;
  }
  // What a candidate must not take longer than to be among those kept.
  double worst_kept() const {
    const auto width = static_cast<size_t>(settings_.width);
    const auto kept = best(width);
    return kept.size() < width ? 1e300 : entries_[kept.back()].candidate.least;
  }

  // Expands those kept, then times the most promising ones that wait. False: there are none.
  bool round() {
    for (size_t i : best(static_cast<size_t>(settings_.width))) {
      if (entries_[i].expanded || over()) continue;
      entries_[i].expanded = true;
      const Candidate c = entries_[i].candidate;  // adding moves them
      const double estimate = entries_[i].estimate;
      add(neighbours(loops_, c.choice, target_), estimate > 0 ? c.least / estimate : 1);
    }
    std::vector<size_t> batch = promising(static_cast<size_t>(4 + 2 * settings_.width));
    if (batch.empty()) {
      out_.exhausted = !over();
      return false;
    }
    time(batch);
    return true;
  }

  std::vector<size_t> promising(size_t count) const {
    std::vector<size_t> out;
    const double limit = kMostEstimate * entries_[best(1)[0]].candidate.least;
    for (size_t i = 0; i < entries_.size(); ++i)
      if (entries_[i].waits && entries_[i].candidate.estimate <= limit) out.push_back(i);
    std::sort(out.begin(), out.end(), [&](size_t a, size_t b) {
      return entries_[a].candidate.estimate < entries_[b].candidate.estimate;
    });
    out.resize(std::min(out.size(), count));
    return out;
  }

  // --- Timing ------------------------------------------------------------------------------------

  void time(const std::vector<size_t>& batch) {
    std::vector<size_t> rest;
    for (size_t i : batch)
      if (!recall(entries_[i])) rest.push_back(i);
    std::vector<Lowered> low(rest.size());
    std::vector<std::string> unfit(rest.size());
    in_parallel(rest.size(), [&](size_t k) {
      Arena arena;
      ArenaScope scope(arena);
      try {
        low[k] = lowered(entries_[rest[k]].candidate.choice);
        unfit[k] = proof_problem(low[k]);
      } catch (const std::exception& e) {
        unfit[k] = e.what();
      }
    });
    std::vector<CompileJob> jobs;
    std::vector<size_t> compiled;  // by job: which of `rest`
    for (size_t k = 0; k < rest.size(); ++k) {
      if (!unfit[k].empty()) {
        settle(entries_[rest[k]], {Outcome::Wrong, 0, 0, 0, "proof: " + unfit[k]});
        continue;
      }
      compiled.push_back(k);
      jobs.push_back({low[k].source, {}, {}, {}});
    }
    tools_.compilers.compile(jobs, settings_.compile_limit, start_ + settings_.seconds);
    for (size_t j = 0; j < jobs.size() && !over(); ++j)
      time_one(entries_[rest[compiled[j]]], low[compiled[j]], jobs[j]);
  }

  void time_waiting() {
    std::vector<size_t> batch;
    for (size_t i = 0; i < entries_.size(); ++i)
      if (entries_[i].waits) batch.push_back(i);
    time(batch);
  }

  bool recall(Entry& e) {
    if (!known_ || settings_.again) return false;
    const auto found = known_->tries.find(to_text(e.candidate.choice));
    if (found == known_->tries.end() || found->second.source != e.source) return false;
    if (found->second.outcome == Outcome::Good && found->second.least == 0) return false;
    const TryRecord& t = found->second;
    e.candidate.recalled = true;
    e.waits = false;
    e.candidate.outcome = t.outcome;
    e.candidate.least = t.least;
    e.candidate.median = t.median;
    return true;
  }

  void time_one(Entry& e, const Lowered& low, CompileJob& compiled) {
    if (compiled.outcome == Outcome::Slow) return;  // the deadline came first
    if (compiled.outcome != Outcome::Good)
      return settle(e, {compiled.outcome, 0, 0, 0, compiled.text});
    BenchJob job;
    fill(job, low, compiled);
    job.best = entries_[best(1)[0]].candidate.least;
    job.verify = worst_kept();
    job.limit = std::min(settings_.run_limit, 5 + 50 * job.best);
    settle(e, tools_.bench->run(job));
  }

  void settle(Entry& e, const Measured& m) {
    Candidate& c = e.candidate;
    e.waits = false;
    c.outcome = m.outcome;
    c.least = m.least;
    c.median = m.median;
    c.text = m.text;
    c.at = elapsed();
    out_.timed += m.runs > 0;
    if (settings_.cached)
      SearchCache::current().add(
          key_.key, TryRecord{e.source, c.outcome, c.least, c.median, to_text(c.choice)});
    if (c.outcome == Outcome::Wrong) report_wrong(e);
    if (settings_.progress)
      settings_.progress(c.at, out_.heuristic / entries_[best(1)[0]].candidate.least);
  }

  // With what it takes to see it again: the kernel's loops in a file, and the options.
  void report_wrong(const Entry& e) const {
    const std::string text = cat("--- merge_ranges\n", to_text(loops_));
    std::string file = cache_folder();
    if (!file.empty()) {
      std::error_code status;
      std::filesystem::create_directories(file, status);
      file += cat("/wrong-", key_.key.substr(0, 12), ".txt");
      std::ofstream(file) << text;
    }
    std::cerr << "BEAM: kernel " << name_
              << " is wrong with other options, which are dropped: " << e.candidate.text
              << "\n  options: " << to_text(e.candidate.choice) << '\n'
              << (file.empty() ? text
                               : cat("  again: build/release/tune --choice '",
                                     to_text(e.candidate.choice), "' ", file, "\n"));
  }

  // --- The end -----------------------------------------------------------------------------------

  // The best ones and the heuristic's take turns, so that all see the same state of the machine.
  void finish() {
    std::vector<size_t> finalists = best(4);
    std::erase(finalists, 0);
    if (finalists.size() > 3) finalists.resize(3);
    finalists.insert(finalists.begin(), 0);
    Final result;
    if (finalists.size() > 1) result = duel(finalists);
    out_.best = entries_[result.winner].candidate.choice;
    if (result.heuristic > 0) out_.heuristic = result.heuristic;
    out_.seconds = result.seconds > 0 ? result.seconds : out_.heuristic;
    if (settings_.cached)
      SearchCache::current().add(
          key_.key, DoneRecord{settings_.width, budget(), out_.exhausted, out_.heuristic,
                               out_.seconds, to_text(out_.best)});
    // The winner's record says which text was timed.
    Entry& w = entries_[result.winner];
    if (settings_.cached)
      SearchCache::current().add(key_.key, TryRecord{w.source, Outcome::Good, w.candidate.least,
                                                     w.candidate.median, to_text(out_.best)});
  }
  double budget() const { return settings_.budget > 0 ? settings_.budget : settings_.seconds; }

  struct Final {
    size_t winner = 0;
    double heuristic = 0, seconds = 0;
  };

  // Many short turns: on a machine that does other work too, each has its quiet moments. Who wins
  // must be faster at its best, in the median, and in most of the turns.
  Final duel(const std::vector<size_t>& finalists) {
    constexpr size_t kTurns = 9, kMostTurns = 40;
    const double begin = elapsed();
    std::vector<BenchJob> jobs(finalists.size());
    std::vector<double> least;
    std::vector<std::vector<double>> turns(finalists.size());
    for (size_t i = 0; i < finalists.size(); ++i) {
      const Candidate& c = entries_[finalists[i]].candidate;
      const bool fit = compile(lowered(c.choice), jobs[i]);
      least.push_back(fit ? c.least : 1e300);
      jobs[i].enough = 0.004;
    }
    const auto goes_on = [&](size_t turn) {
      if (turn < kTurns) return turn < 3 || elapsed() - begin < 0.5 * settings_.seconds;
      return turn < kMostTurns && elapsed() - begin < 0.1 * settings_.seconds;
    };
    for (size_t turn = 0; goes_on(turn); ++turn)
      for (size_t i = 0; i < finalists.size(); ++i) {
        if (least[i] == 1e300) continue;
        jobs[i].verify = turn == 0 ? 1e300 : 0;  // a recalled one was compared in another search
        const Measured m = tools_.bench->run(jobs[i]);
        if (m.outcome != Outcome::Good && m.outcome != Outcome::Slow) {
          least[i] = 1e300;
          settle(entries_[finalists[i]], m);
          continue;
        }
        least[i] = std::min(least[i], m.least);
        turns[i].push_back(m.least);
      }
    Final out{0, least[0], least[0]};
    for (size_t i = 1; i < finalists.size(); ++i) {
      if (least[0] == 1e300 || least[i] > kWorthIt * least[0] || least[i] > out.seconds) continue;
      const size_t count = std::min(turns[0].size(), turns[i].size());
      size_t won = 0;
      for (size_t t = 0; t < count; ++t) won += turns[i][t] < turns[0][t];
      if (3 * won >= 2 * count && middle(turns[i]) < kWorthIt * middle(turns[0]))
        out = {finalists[i], least[0], least[i]};
    }
    return out;
  }
  static double middle(std::vector<double> times) {
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  const Node kernel_;
  const std::string name_;
  SearchTools& tools_;
  const SearchSettings& settings_;
  Device& device_;
  const Target& target_;
  const double start_;
  Arena arena_;
  Node loops_ = nullptr;
  KernelKey key_;
  std::optional<KernelRecord> known_;
  std::vector<Entry> entries_;
  std::map<std::string, size_t> sources_;
  std::set<std::string> seen_;
  Searched out_;
};

}  // namespace

SearchTools::SearchTools(std::string name, bool isolated)
    : device(std::move(name)),
      compilers(device, isolated),
      bench(isolated ? isolated_bench() : local_bench()) {}

Searched search_kernel(Node kernel, const std::string& name, SearchTools& tools,
                       const SearchSettings& settings) {
  check(settings.width > 0, "search: a beam of width ", settings.width);
  return Search(kernel, name, tools, settings).run();
}

bool find_choice(Node kernel, const std::string& device_name, KnownChoice& out) {
  Device& device = find_device(device_name);
  Arena arena;
  ArenaScope scope(arena);
  const KernelKey key = key_of_kernel(loops_of(kernel, device.target()), device, device_name);
  const auto known = SearchCache::current().find(key.key);
  if (!known || !known->done) return false;
  const DoneRecord& d = *known->done;
  const auto tried = known->tries.find(d.choice);
  try {
    if (tried == known->tries.end()) return false;
    const Choice choice = choice_from_text(d.choice);
    const Lowered low = lower(kernel, kEntry, device.target(), choice);
    if (source_key(low.source, device) != tried->second.source) return false;
    out = {choice, d.width, d.budget, d.exhausted, d.heuristic, d.best};
    return true;
  } catch (const std::exception&) {  // of another version of the code generator
    return false;
  }
}

void pass_over(Node kernel, const std::string& name, const std::string& device_name, int width,
               double budget) {
  KnownChoice known;
  const bool is_known = find_choice(kernel, device_name, known);
  if (is_known && known.width >= width && known.budget >= budget) return;
  Device& device = find_device(device_name);
  Arena arena;
  ArenaScope scope(arena);
  SearchCache& cache = SearchCache::current();
  const KernelKey key = key_of_kernel(loops_of(kernel, device.target()), device, device_name);
  if (is_known) {
    cache.add(key.key,
              DoneRecord{width, budget, false, known.heuristic, known.best, to_text(known.choice)});
    return;
  }
  const Lowered low = lower(kernel, kEntry, device.target());
  const std::string choice = to_text(low.choice);
  cache.add(key, name);
  cache.add(key.key, TryRecord{source_key(low.source, device), Outcome::Good, 0, 0, choice});
  cache.add(key.key, DoneRecord{width, budget, false, 0, 0, choice});
}

}  // namespace tiny
