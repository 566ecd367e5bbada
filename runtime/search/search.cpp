#include "runtime/search/search.h"

#include <algorithm>
#include <iostream>
#include <map>
#include <set>

#include "codegen/kernel/access.h"
#include "codegen/kernel/facts.h"
#include "codegen/proof/prove.h"
#include "runtime/device/disk_cache.h"
#include "runtime/search/model.h"
#include "runtime/search/space.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/base/parallel.h"
#include "tiny/ir/print.h"

namespace tiny {

namespace {

constexpr double kWorthIt = 0.98;    // of the heuristic's time: what gains less is noise
constexpr double kMaxEstimate = 3;   // times the best: what the model expects to take longer waits
constexpr double kSearching = 0.85;  // of the time; the rest is for the end
constexpr double kMoment = 0.3;      // seconds
constexpr size_t kFinalists = 3;
constexpr size_t kMaxText = 2;  // times the heuristic's: compilers take seconds for longer ones

// A kernel whose options are searched: `loops` before any option.
struct SearchedKernel {
  SearchedKernel(Node given, std::string name_of, const std::string& device_of)
      : kernel(given),
        name(std::move(name_of)),
        device_name(device_of),
        device(find_device(device_of)),
        target(device.target()),
        loops(loops_of(given, target)) {}

  const Node kernel;
  const std::string name, device_name;
  Device& device;
  const Target& target;
  const Node loops;
};

class SearchClock {
 public:
  explicit SearchClock(const SearchSettings& settings)
      : settings_(settings), start_(budget_seconds()) {}
  double elapsed() const { return budget_seconds() - start_; }
  bool stopped() const { return settings_.stop && settings_.stop->load(); }
  bool over() const { return elapsed() > kSearching * settings_.seconds || stopped(); }

 private:
  const SearchSettings& settings_;
  const double start_;
};

// What earlier searches found out about a kernel, and what this one adds.
class EarlierSearches {
 public:
  EarlierSearches(const SearchedKernel& kernel, const SearchSettings& settings)
      : settings_(settings), key_(key_of_kernel(kernel.loops, kernel.device, kernel.device_name)) {
    if (!settings.cached) return;
    known_ = SearchCache::current().find(key_.key);
    if (!known_ && !settings.only) SearchCache::current().add(key_, kernel.name);
  }

  const std::string& key() const { return key_.key; }

  // The best ones, of this kernel and of its other sizes.
  std::vector<Choice> choices() const {
    if (!settings_.cached) return {};
    std::vector<std::string> texts = SearchCache::current().family_choices(key_);
    if (texts.size() > 4) texts.resize(4);
    if (known_ && known_->done) texts.insert(texts.begin(), known_->done->choice);
    std::vector<Choice> out;
    for (const std::string& text : texts) {
      try {
        out.push_back(choice_from_text(text));
      } catch (const Error&) {  // of another version, or the heuristic's
      }
    }
    return out;
  }

  bool has_timed(const Candidate& c) const {
    return known_ && known_->tries.count(to_text(c.choice));
  }

  // Whether it was timed as the same source: then it has that time.
  bool recall(Candidate& c) const {
    if (settings_.only || !has_timed(c)) return false;
    const TryRecord& record = known_->tries.at(to_text(c.choice));
    if (record.source != c.source) return false;
    c.recalled = true;
    static_cast<Measured&>(c) = record;
    return true;
  }

  void note(const Candidate& c) const {
    const bool is_final = c.outcome != Outcome::Slow || c.least > 0;
    if (settings_.cached && !settings_.only && is_final)
      SearchCache::current().add(key_.key, TryRecord{c, c.source, to_text(c.choice)});
  }
  void note(const DoneRecord& record) const {
    if (settings_.cached) SearchCache::current().add(key_.key, record);
  }

 private:
  const SearchSettings& settings_;
  const KernelKey key_;
  std::optional<KernelRecord> known_;
};

// All choices that were tried or wait for it, the heuristic's first.
class Candidates {
 public:
  Candidates(const SearchedKernel& kernel, const SearchSettings& settings, const SearchClock& clock,
             std::vector<Candidate>& all)
      : kernel_(kernel), settings_(settings), clock_(clock), all_(all) {}

  size_t size() const { return all_.size(); }
  Candidate& operator[](size_t i) { return all_[i]; }
  const Candidate& operator[](size_t i) const { return all_[i]; }

  void add_heuristic(const Lowered& low) {
    most_text_ = kMaxText * std::max<size_t>(low.source.text.size(), 8 << 10);
    Candidate& heuristic = all_.emplace_back();
    heuristic.choice = low.choice;
    rate(heuristic, low, 1);
    sources_.insert(heuristic.source);
    seen_.insert(to_text(low.choice));
  }

  // Lowers those that are new and adds them to what waits. `factor`: how far off the model is.
  void add(const std::vector<Choice>& choices, double factor) {
    std::vector<Candidate> fresh;
    for (const Choice& choice : choices)
      if (seen_.insert(to_text(choice)).second) fresh.emplace_back().choice = choice;
    in_parallel(fresh.size(), core_count(), [&](size_t i, size_t) {
      Candidate& c = fresh[i];
      try {
        if (clock_.over()) return;
        const Lowered low = lowered(c.choice);
        check(low.source.text.size() < most_text_, "too long to be compiled");
        rate(c, low, factor);
      } catch (const std::exception& e) {
        c.outcome = Outcome::Rejected;
        c.text = e.what();
      }
    });
    for (Candidate& c : fresh) {
      c.at = clock_.elapsed();
      const bool is_new = c.outcome == Outcome::Rejected || sources_.insert(c.source).second;
      if (is_new && (c.model > 0 || c.outcome == Outcome::Rejected)) all_.push_back(std::move(c));
    }
  }

  // Adds the neighbours of one.
  void expand(size_t i, double factor) {
    all_[i].expanded = true;
    const Choice choice = all_[i].choice;  // adding moves it
    add(neighbours(kernel_.loops, choice, kernel_.target), factor);
  }

  Lowered lowered(const Choice& choice) const {
    Lowered low = lower(kernel_.loops, kCandidateEntry, kernel_.target, nullptr, &choice);
    if (settings_.tamper) settings_.tamper(choice, low);
    return low;
  }

  std::vector<size_t> best(size_t count) const {
    std::vector<size_t> out;
    for (size_t i = 0; i < all_.size(); ++i)
      if (all_[i].outcome == Outcome::Good) out.push_back(i);
    return first(std::move(out), count, &Candidate::least);
  }
  std::vector<size_t> first(std::vector<size_t> of, size_t count, double Candidate::*by) const {
    std::ranges::stable_sort(of, {}, [&](size_t i) { return all_[i].*by; });
    of.resize(std::min(of.size(), count));
    return of;
  }
  double best_seconds() const { return all_[best(1)[0]].least; }

 private:
  void rate(Candidate& c, const Lowered& low, double factor) const {
    c.model = estimate_seconds(low, kernel_.target);
    c.estimate = c.model * factor;
    c.source = source_key(low.source, kernel_.device);
  }

  const SearchedKernel& kernel_;
  const SearchSettings& settings_;
  const SearchClock& clock_;
  std::vector<Candidate>& all_;
  size_t most_text_ = 0;
  std::set<std::string> sources_, seen_;
};

struct Compiled {
  Measured unfit;  // or Good
  BenchJob job;
};

BenchJob job_of(const Lowered& low, CompilePool::Result& compiled) {
  return {std::move(compiled.binary), low.source.entry, low.launch};
}

// Candidates proved and compiled, on several threads.
class CandidateJobs {
 public:
  CandidateJobs(const SearchedKernel& kernel, const Candidates& candidates, CompilePool& compilers,
                const SearchSettings& settings, const SearchClock& clock)
      : kernel_(kernel),
        candidates_(candidates),
        compilers_(compilers),
        settings_(settings),
        clock_(clock) {}

  Compiled compile(size_t i, size_t thread) const {
    Compiled out;
    if (clock_.over()) return out;
    try {
      const Lowered low = candidates_.lowered(candidates_[i].choice);
      prove_it(low);
      const double limit = std::min(settings_.compile_limit, std::max(1.0, settings_.seconds / 10));
      auto compiled = compilers_.compile(thread, low.source, limit);
      if (compiled.outcome == Outcome::Hung) compiled.outcome = Outcome::Slow;  // for this budget
      out.unfit = {compiled.outcome, 0, 0, compiled.text};
      out.job = job_of(low, compiled);
    } catch (const std::exception& e) {
      out.unfit = {Outcome::Wrong, 0, 0, e.what()};
    }
    return out;
  }

  // Of compile(), until it is the candidate's turn.
  void hold(size_t i, Compiled compiled) { ahead_[i] = std::move(compiled); }
  bool holds_some() const { return !ahead_.empty(); }

  // Those that are held, the others compiled now.
  std::vector<Compiled> take(const std::vector<size_t>& batch) {
    std::vector<Compiled> out(batch.size());
    std::vector<size_t> missing;
    for (size_t k = 0; k < batch.size(); ++k) {
      if (auto held = ahead_.extract(batch[k]))
        out[k] = std::move(held.mapped());
      else
        missing.push_back(k);
    }
    in_parallel(missing.size(), compilers_.threads(), [&](size_t i, size_t thread) {
      out[missing[i]] = compile(batch[missing[i]], thread);
    });
    return out;
  }

  // The job of a candidate that was timed.
  void keep(size_t i, BenchJob job) { timed_[i] = std::move(job); }
  // Compiled now where its time is of an earlier search; a job without a binary fails.
  const BenchJob& timed(size_t i) {
    const auto known = timed_.find(i);
    if (known != timed_.end()) return known->second;
    const Lowered low = candidates_.lowered(candidates_[i].choice);
    auto compiled = compilers_.compile(0, low.source, settings_.compile_limit);
    return timed_[i] = job_of(low, compiled);
  }

 private:
  // Throws where the proof finds a fault.
  void prove_it(const Lowered& low) const {
    const int64_t mode = env_int("CHECK_OOB");
    if (mode == 0) return;
    ProofSettings s;
    read_kernel(kernel_.kernel, kernel_.target, s);
    for (Node store : kernel_.loops->srcs()) {  // of a kernel that was given as loops
      const int64_t slot = slot_of(store->src(0));
      const bool scatters =
          std::holds_alternative<OpArg>(store->payload) || !all_of(store->src(1), Op::Load).empty();
      if (scatters && slot < 64) s.scattered |= uint64_t{1} << slot;
    }
    const Proof p = prove(low.machine, s);
    check(p.verdict != Verdict::Wrong, "proof: wrong: ", p.text);
    check(p.verdict != Verdict::Unproved || mode != 2, "proof: unproved: ", p.text);
  }

  const SearchedKernel& kernel_;
  const Candidates& candidates_;
  CompilePool& compilers_;
  const SearchSettings& settings_;
  const SearchClock& clock_;
  std::map<size_t, Compiled> ahead_;
  std::map<size_t, BenchJob> timed_;
};

// The path; empty where nothing can be written there.
std::string written(const std::string& path, const std::string& text) {
  try {
    FileAside file("BEAM", path);
    file.write(text);
    file.commit();
    return path;
  } catch (const Error&) {
    return "";
  }
}

// With what it takes to see it again: the kernel's loops in a file, and the options.
void report_wrong(const SearchedKernel& kernel, const std::string& key, const Candidate& c) {
  const std::string text = cat("--- merge_ranges\n", to_text(kernel.loops));
  std::string file = cache_folder();
  if (!file.empty()) {
    make_folders(file);
    file = written(cat(file, "/wrong-", key.substr(0, 12), ".txt"), text);
  }
  std::cerr << "BEAM: kernel " << kernel.name
            << " is wrong with other options, which are dropped: " << c.text
            << "\n  options: " << to_text(c.choice) << '\n'
            << (file.empty() ? text
                             : cat("  again: build/release/tune --choice '", to_text(c.choice),
                                   "' ", file, "\n"));
}

class Search {
 public:
  Search(const SearchedKernel& kernel, SearchTools& tools, const SearchSettings& settings,
         const SearchClock& clock, Searched& out)
      : kernel_(kernel),
        tools_(tools),
        settings_(settings),
        clock_(clock),
        earlier_(kernel, settings),
        candidates_(kernel, settings, clock, out.candidates),
        jobs_(kernel, candidates_, tools.compilers, settings, clock),
        out_(out) {}

  void run() {
    add_baseline();
    if (settings_.only) {
      candidates_.add({*settings_.only}, 1);
      if (candidates_.size() > 1) time({1});  // else the heuristic's, which is timed already
      return;
    }
    bool more = !jobs_.holds_some() || round();
    while (more && !clock_.over()) more = round();
    finish();
  }

 private:
  size_t width() const { return static_cast<size_t>(settings_.width); }

  // The kernel without options, or its end where that would take too long, shows what is right.
  // Beside both the first candidates are compiled: a short search has no time for one after the
  // other.
  void add_baseline() {
    const double most = kernel_.target.kind == Target::Kind::Cpu ? 1e7 : 1e5;  // accesses
    Node end = reference_loops(kernel_.loops, most);
    const Choice none;
    const Lowered low = lower(kernel_.loops, kCandidateEntry, kernel_.target);
    const Lowered plain =
        lower(end ? end : kernel_.loops, kCandidateEntry, kernel_.target, nullptr, &none);
    candidates_.add_heuristic(low);
    const size_t plains = end ? 2 : 1;
    std::vector<size_t> ahead;
    size_t known = 1;  // and the heuristic's, which are as fast as the model says
    if (!settings_.only) {
      candidates_.add(earlier_.choices(), 1);
      known = candidates_.size();
      ahead = first_candidates(plains);
    }
    CompilePool::Result compiled[2];
    std::vector<Compiled> results(ahead.size());
    in_parallel(plains + ahead.size(), tools_.compilers.threads(), [&](size_t i, size_t thread) {
      if (i >= plains)
        results[i - plains] = jobs_.compile(ahead[i - plains], thread);
      else
        compiled[i] = tools_.compilers.compile(thread, i ? plain.source : low.source,
                                               settings_.compile_limit, true);
    });
    for (size_t k = 0; k < ahead.size(); ++k) jobs_.hold(ahead[k], std::move(results[k]));
    check(compiled[0].outcome == Outcome::Good, "the heuristic's kernel: ", compiled[0].text);
    tools_.bench->prepare(case_of(kernel_.loops, tools_.device, kernel_.target));
    Race race;
    race.limit = settings_.run_limit;
    race.role = Race::Role::Reference;
    if (!compiled[1].binary.empty()) race.jobs = {job_of(plain, compiled[1])};
    race.part = end != kernel_.loops;
    if (!race.jobs.empty()) tools_.bench->run(race);
    jobs_.keep(0, job_of(low, compiled[0]));
    race.role = Race::Role::Baseline;
    race.enough = 0.02;
    race.jobs = {jobs_.timed(0)};
    settle(0, tools_.bench->run(race)[0]);
    const Candidate& c = candidates_[0];
    check(c.outcome == Outcome::Good, "the heuristic's kernel is ", name_of(c.outcome), ": ",
          c.text);
    out_.best = c.choice;
    out_.heuristic = out_.seconds = c.least;
    for (size_t i = known; i < candidates_.size() && c.model > 0; ++i)
      candidates_[i].estimate = candidates_[i].model * c.least / c.model;
  }

  // Known choices and the most promising ones of the heuristic's neighbours, as many as there are
  // threads beside `taken`.
  std::vector<size_t> first_candidates(size_t taken) {
    std::vector<size_t> out, others;
    const auto waits = [&](const Candidate& c) {
      return c.outcome == Outcome::Waiting && !earlier_.has_timed(c);
    };
    const size_t most = std::max(tools_.compilers.threads(), taken) - taken;
    for (size_t i = 1; i < candidates_.size() && out.size() < most; ++i)
      if (waits(candidates_[i])) out.push_back(i);
    const size_t before = candidates_.size();
    candidates_.expand(0, 1);
    for (size_t i = before; i < candidates_.size(); ++i)
      if (waits(candidates_[i]) && candidates_[i].model <= kMaxEstimate * candidates_[0].model)
        others.push_back(i);
    others = candidates_.first(std::move(others), most - out.size(), &Candidate::estimate);
    out.insert(out.end(), others.begin(), others.end());
    return out;
  }

  // Expands those kept, then times the most promising ones that wait. False: there are none.
  bool round() {
    for (size_t i : candidates_.best(width())) {
      const Candidate& c = candidates_[i];
      if (c.expanded || clock_.over()) continue;
      candidates_.expand(i, c.model > 0 ? c.least / c.model : 1);
    }
    std::vector<size_t> waiting;
    for (size_t i = 0; i < candidates_.size(); ++i)
      if (candidates_[i].outcome == Outcome::Waiting &&
          candidates_[i].estimate <= kMaxEstimate * candidates_.best_seconds())
        waiting.push_back(i);
    const size_t count = std::max(4 + 2 * width(), tools_.compilers.threads());
    const auto batch = candidates_.first(std::move(waiting), count, &Candidate::estimate);
    time(batch);
    out_.exhausted = batch.empty() && !clock_.over();
    return !batch.empty();
  }

  // Compiles all of them, then times one after the other.
  void time(const std::vector<size_t>& batch) {
    std::vector<size_t> rest;
    for (size_t i : batch)
      if (!earlier_.recall(candidates_[i])) rest.push_back(i);
    std::vector<Compiled> results = jobs_.take(rest);
    // Compiled candidates are timed, if that takes a moment more.
    const double until = std::max(settings_.seconds, clock_.elapsed() + kMoment);
    for (size_t k = 0; k < rest.size(); ++k) {
      if (clock_.elapsed() > until || clock_.stopped()) break;
      auto& [unfit, job] = results[k];
      if (unfit.outcome == Outcome::Waiting) continue;  // there was no time to compile it
      if (unfit.outcome != Outcome::Good) {
        settle(rest[k], unfit);
        continue;
      }
      Race race;
      const size_t champion = candidates_.best(1)[0];
      race.jobs = {jobs_.timed(champion), job};
      race.known = candidates_[champion].least;
      const auto kept = candidates_.best(width());
      race.verify =
          kept.size() < width() || settings_.only ? 1e300 : candidates_[kept.back()].least;
      race.enough = 0.02;
      race.all = settings_.only;
      race.limit = std::min(settings_.run_limit, 2 + 200 * race.known);
      const std::vector<Measured> m = tools_.bench->run(race);
      if (m[0].least > 0) candidates_[champion].least = std::min(race.known, m[0].least);
      if (m[1].outcome == Outcome::Good) jobs_.keep(rest[k], std::move(job));
      settle(rest[k], m[1]);
    }
  }

  void settle(size_t i, const Measured& m) {
    Candidate& c = candidates_[i];
    static_cast<Measured&>(c) = m;
    c.at = clock_.elapsed();
    out_.timed += m.least > 0;
    if (i > 0) earlier_.note(c);
    if (c.outcome == Outcome::Wrong) report_wrong(kernel_, earlier_.key(), c);
    if (settings_.progress && i > 0)
      settings_.progress(out_.heuristic / candidates_.best_seconds());
  }

  // The best has to win against the heuristic's kernel in many rounds, at its best and in the
  // median; else the second, or the third. An earlier search's result is compared again, too.
  void finish() {
    size_t winner = 0;
    for (size_t i : candidates_.best(kFinalists)) {
      if (i == 0 || winner > 0) break;
      Race race;
      race.jobs = {jobs_.timed(0), jobs_.timed(i)};
      race.verify = 1e300;
      race.enough = std::clamp(0.02 * settings_.seconds, 0.02, 0.5);
      race.limit = settings_.run_limit;
      race.all = true;
      const std::vector<Measured> m = tools_.bench->run(race);
      if (m[1].outcome != Outcome::Good) {
        settle(i, m[1]);
      } else if (m[1].least < kWorthIt * m[0].least && m[1].median < kWorthIt * m[0].median) {
        winner = i;
        out_.heuristic = m[0].least;
        out_.seconds = m[1].least;
      }
    }
    out_.best = candidates_[winner].choice;
    // An interrupted search goes on in another run.
    double budget = settings_.budget > 0 ? settings_.budget : settings_.seconds;
    if (clock_.stopped()) budget = std::min(budget, clock_.elapsed());
    earlier_.note(DoneRecord{settings_.width, budget, out_.exhausted, out_.heuristic, out_.seconds,
                             winner ? to_text(out_.best) : "", candidates_[winner].source});
  }

  const SearchedKernel& kernel_;
  SearchTools& tools_;
  const SearchSettings& settings_;
  const SearchClock& clock_;
  const EarlierSearches earlier_;
  Candidates candidates_;
  CandidateJobs jobs_;
  Searched& out_;
};

}  // namespace

SearchTools::SearchTools(std::string name, bool isolated)
    : device(std::move(name)),
      compilers(device, isolated),
      bench(isolated ? isolated_bench() : local_bench()) {}

Searched search_kernel(Node kernel, const std::string& name, SearchTools& tools,
                       const SearchSettings& settings) {
  check(settings.width > 0, "search: a beam of width ", settings.width);
  Searched out;
  const SearchClock clock(settings);
  try {
    Arena arena;
    ArenaScope scope(arena);
    const SearchedKernel searched(kernel, name, tools.device);
    Search(searched, tools, settings, clock, out).run();
  } catch (const std::exception& e) {
    out.trouble = e.what();
  }
  out.spent = clock.elapsed();
  return out;
}

void pass_over(Node kernel, const std::string& name, const std::string& device_name, int width,
               double budget) {
  const auto known = find_known(kernel, device_name);
  if (known && known->done.width >= width && known->done.budget >= budget) return;
  Device& device = find_device(device_name);
  Arena arena;
  ArenaScope scope(arena);
  Node loops = loops_of(kernel, device.target());
  const KernelKey key = key_of_kernel(loops, device, device_name);
  DoneRecord done = known ? known->done : DoneRecord{};
  if (!known) {
    done.source = source_key(lower(loops, kCandidateEntry, device.target()).source, device);
    SearchCache::current().add(key, name);
  }
  done.width = width;
  done.budget = budget;
  done.exhausted = false;
  SearchCache::current().add(key.key, done);
}

}  // namespace tiny
