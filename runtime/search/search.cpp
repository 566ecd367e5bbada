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

class Search {
 public:
  Search(Node kernel, const std::string& name, SearchTools& tools, const SearchSettings& settings)
      : kernel_(kernel),
        name_(name),
        tools_(tools),
        settings_(settings),
        device_(find_device(tools.device)),
        target_(device_.target()),
        start_(budget_seconds()) {}

  Searched run() {
    try {
      all();
    } catch (const std::exception& e) {
      out_.trouble = e.what();
    }
    out_.spent = elapsed();
    out_.candidates = std::move(all_);
    return std::move(out_);
  }

 private:
  double elapsed() const { return budget_seconds() - start_; }
  bool stopped() const { return settings_.stop && settings_.stop->load(); }
  bool over() const { return elapsed() > kSearching * settings_.seconds || stopped(); }

  void all() {
    ArenaScope scope(arena_);
    loops_ = loops_of(kernel_, target_);
    key_ = key_of_kernel(loops_, device_, tools_.device);
    if (settings_.cached) known_ = SearchCache::current().find(key_.key);
    if (!known_ && settings_.cached && !settings_.only) SearchCache::current().add(key_, name_);
    add_baseline();
    if (settings_.only) {
      add({*settings_.only}, 1);
      if (all_.size() > 1) time({1});  // else the heuristic's, which is timed already
      return;
    }
    bool more = true;
    if (!compiled_.empty()) more = round();
    while (more && !over()) more = round();
    finish();
  }

  // --- What is right, and how long the heuristic's kernel takes ----------------------------------

  // The kernel without options, or its end where that would take too long, shows what is right.
  // Beside both the first candidates are compiled: a short search has no time for one after the
  // other.
  void add_baseline() {
    const double most = target_.kind == Target::Kind::Cpu ? 1e7 : 1e5;  // accesses
    Node end = reference_loops(loops_, most);
    const Choice none;
    const Lowered low = lower(loops_, kCandidateEntry, target_);
    const Lowered plain = lower(end ? end : loops_, kCandidateEntry, target_, nullptr, &none);
    most_text_ = std::max<size_t>(low.source.text.size(), 8 << 10);
    Candidate& heuristic = all_.emplace_back();
    heuristic.choice = low.choice;
    rate(heuristic, low, 1);
    sources_.insert(heuristic.source);
    seen_.insert(to_text(low.choice));
    const size_t plains = end ? 2 : 1;
    std::vector<size_t> ahead;
    size_t known = 1;  // and the heuristic's, which are as fast as the model says
    if (!settings_.only) {
      add_known();
      known = all_.size();
      ahead = first_candidates(plains);
    }
    CompilePool::Result compiled[2];
    std::vector<Compiled> results(ahead.size());
    in_parallel(plains + ahead.size(), tools_.compilers.threads(), [&](size_t i, size_t thread) {
      if (i >= plains)
        results[i - plains] = compile(ahead[i - plains], thread);
      else
        compiled[i] = tools_.compilers.compile(thread, i ? plain.source : low.source,
                                               settings_.compile_limit, true);
    });
    for (size_t k = 0; k < ahead.size(); ++k) compiled_[ahead[k]] = std::move(results[k]);
    check(compiled[0].outcome == Outcome::Good, "the heuristic's kernel: ", compiled[0].text);
    tools_.bench->prepare(case_of(loops_, tools_.device, target_));
    Race race;
    race.limit = settings_.run_limit;
    race.role = Race::Role::Reference;
    if (!compiled[1].binary.empty()) race.jobs = {job_of(plain, compiled[1])};
    race.part = end != loops_;
    if (!race.jobs.empty()) tools_.bench->run(race);
    race.role = Race::Role::Baseline;
    race.enough = 0.02;
    race.jobs = {jobs_[0] = job_of(low, compiled[0])};
    settle(0, tools_.bench->run(race)[0]);
    const Candidate& c = all_[0];
    check(c.outcome == Outcome::Good, "the heuristic's kernel is ", name_of(c.outcome), ": ",
          c.text);
    out_.best = c.choice;
    out_.heuristic = out_.seconds = c.least;
    for (size_t i = known; i < all_.size() && c.model > 0; ++i)
      all_[i].estimate = all_[i].model * c.least / c.model;
  }

  // Known choices and the most promising ones of the heuristic's neighbours, as many as there are
  // threads beside `taken`.
  std::vector<size_t> first_candidates(size_t taken) {
    std::vector<size_t> out, others;
    const auto waits = [&](const Candidate& c) {
      const bool was_timed = known_ && known_->tries.count(to_text(c.choice));
      return c.outcome == Outcome::Waiting && !was_timed;
    };
    const size_t most = std::max(tools_.compilers.threads(), taken) - taken;
    for (size_t i = 1; i < all_.size() && out.size() < most; ++i)
      if (waits(all_[i])) out.push_back(i);
    const size_t before = all_.size();
    all_[0].expanded = true;
    add(neighbours(loops_, all_[0].choice, target_), 1);
    for (size_t i = before; i < all_.size(); ++i)
      if (waits(all_[i]) && all_[i].model <= kMaxEstimate * all_[0].model) others.push_back(i);
    others = first(std::move(others), most - out.size(), &Candidate::estimate);
    out.insert(out.end(), others.begin(), others.end());
    return out;
  }

  static BenchJob job_of(const Lowered& low, CompilePool::Result& compiled) {
    return {std::move(compiled.binary), low.source.entry, low.launch};
  }

  // --- Candidates --------------------------------------------------------------------------------

  // The best of earlier searches, of this kernel and of its other sizes.
  void add_known() {
    if (!settings_.cached) return;
    std::vector<std::string> texts = SearchCache::current().family_choices(key_);
    if (texts.size() > 4) texts.resize(4);
    if (known_ && known_->done) texts.insert(texts.begin(), known_->done->choice);
    std::vector<Choice> choices;
    for (const std::string& text : texts) {
      try {
        choices.push_back(choice_from_text(text));
      } catch (const Error&) {  // of another version, or the heuristic's
      }
    }
    add(choices, 1);
  }

  void rate(Candidate& c, const Lowered& low, double factor) const {
    c.model = estimate_seconds(low, target_);
    c.estimate = c.model * factor;
    c.source = source_key(low.source, device_);
  }

  // Lowers those that are new and adds them to what waits. `factor`: how far off the model is.
  void add(const std::vector<Choice>& choices, double factor) {
    std::vector<Candidate> fresh;
    for (const Choice& choice : choices)
      if (seen_.insert(to_text(choice)).second) fresh.emplace_back().choice = choice;
    in_parallel(fresh.size(), core_count(), [&](size_t i, size_t) {
      Candidate& c = fresh[i];
      try {
        if (over()) return;
        const Lowered low = lowered(c.choice);
        check(low.source.text.size() < kMaxText * most_text_, "too long to be compiled");
        rate(c, low, factor);
      } catch (const std::exception& e) {
        c.outcome = Outcome::Rejected;
        c.text = e.what();
      }
    });
    for (Candidate& c : fresh) {
      c.at = elapsed();
      const bool is_new = c.outcome == Outcome::Rejected || sources_.insert(c.source).second;
      if (is_new && (c.model > 0 || c.outcome == Outcome::Rejected)) all_.push_back(std::move(c));
    }
  }

  Lowered lowered(const Choice& choice) const {
    Lowered low = lower(loops_, kCandidateEntry, target_, nullptr, &choice);
    if (settings_.tamper) settings_.tamper(choice, low);
    return low;
  }

  // Throws where the proof finds a fault.
  void prove_it(const Lowered& low) const {
    const int64_t mode = env_int("CHECK_OOB");
    if (mode == 0) return;
    ProofSettings s;
    read_kernel(kernel_, target_, s);
    for (Node store : loops_->srcs()) {  // of a kernel that was given as loops
      const int64_t slot = slot_of(store->src(0));
      const bool scatters =
          std::holds_alternative<OpArg>(store->payload) || !all_of(store->src(1), Op::Load).empty();
      if (scatters && slot < 64) s.scattered |= uint64_t{1} << slot;
    }
    const Proof p = prove(low.machine, s);
    check(p.verdict != Verdict::Wrong, "proof: wrong: ", p.text);
    check(p.verdict != Verdict::Unproved || mode != 2, "proof: unproved: ", p.text);
  }

  std::vector<size_t> best(size_t count) const {
    std::vector<size_t> out;
    for (size_t i = 0; i < all_.size(); ++i)
      if (all_[i].outcome == Outcome::Good) out.push_back(i);
    return first(std::move(out), count, &Candidate::least);
  }
  std::vector<size_t> first(std::vector<size_t> of, size_t count, double Candidate::*by) const {
    std::ranges::stable_sort(of, [&](size_t a, size_t b) { return all_[a].*by < all_[b].*by; });
    of.resize(std::min(of.size(), count));
    return of;
  }
  double best_seconds() const { return all_[best(1)[0]].least; }
  size_t width() const { return static_cast<size_t>(settings_.width); }

  // Expands those kept, then times the most promising ones that wait. False: there are none.
  bool round() {
    for (size_t i : best(width())) {
      if (all_[i].expanded || over()) continue;
      all_[i].expanded = true;
      const Candidate c = all_[i];  // adding moves them
      add(neighbours(loops_, c.choice, target_), c.model > 0 ? c.least / c.model : 1);
    }
    std::vector<size_t> waiting;
    for (size_t i = 0; i < all_.size(); ++i)
      if (all_[i].outcome == Outcome::Waiting && all_[i].estimate <= kMaxEstimate * best_seconds())
        waiting.push_back(i);
    const size_t count = std::max(4 + 2 * width(), tools_.compilers.threads());
    const std::vector<size_t> batch = first(std::move(waiting), count, &Candidate::estimate);
    time(batch);
    out_.exhausted = batch.empty() && !over();
    return !batch.empty();
  }

  // --- Timing ------------------------------------------------------------------------------------

  // Compiles all of them, then times one after the other.
  void time(const std::vector<size_t>& batch) {
    std::vector<size_t> rest;
    for (size_t i : batch)
      if (!recall(all_[i])) rest.push_back(i);
    std::vector<Compiled> results(rest.size());
    std::vector<size_t> to_compile;
    for (size_t k = 0; k < rest.size(); ++k) {
      const auto ahead = compiled_.find(rest[k]);
      if (ahead == compiled_.end()) {
        to_compile.push_back(k);
        continue;
      }
      results[k] = std::move(ahead->second);
      compiled_.erase(ahead);
    }
    in_parallel(to_compile.size(), tools_.compilers.threads(), [&](size_t i, size_t thread) {
      results[to_compile[i]] = compile(rest[to_compile[i]], thread);
    });
    // Compiled candidates are timed, if that takes a moment more.
    const double until = std::max(settings_.seconds, elapsed() + kMoment);
    for (size_t k = 0; k < rest.size(); ++k) {
      if (elapsed() > until || stopped()) break;
      auto& [unfit, job] = results[k];
      if (unfit.outcome == Outcome::Waiting) continue;  // there was no time to compile it
      if (unfit.outcome != Outcome::Good) {
        settle(rest[k], unfit);
        continue;
      }
      Race race;
      const size_t champion = best(1)[0];
      race.jobs = {job_of(champion), job};
      race.known = all_[champion].least;
      const auto kept = best(width());
      race.verify = kept.size() < width() || settings_.only ? 1e300 : all_[kept.back()].least;
      race.enough = 0.02;
      race.all = settings_.only;
      race.limit = std::min(settings_.run_limit, 2 + 200 * race.known);
      const std::vector<Measured> m = tools_.bench->run(race);
      if (m[0].least > 0) all_[champion].least = std::min(race.known, m[0].least);
      if (m[1].outcome == Outcome::Good) jobs_[rest[k]] = std::move(job);
      settle(rest[k], m[1]);
    }
  }

  struct Compiled {
    Measured unfit;  // or Good
    BenchJob job;
  };
  Compiled compile(size_t i, size_t thread) const {
    Compiled out;
    if (over()) return out;
    try {
      const Lowered low = lowered(all_[i].choice);
      prove_it(low);
      const double limit = std::min(settings_.compile_limit, std::max(1.0, settings_.seconds / 10));
      auto compiled = tools_.compilers.compile(thread, low.source, limit);
      if (compiled.outcome == Outcome::Hung) compiled.outcome = Outcome::Slow;  // for this budget
      out.unfit = {compiled.outcome, 0, 0, compiled.text};
      out.job = job_of(low, compiled);
    } catch (const std::exception& e) {
      out.unfit = {Outcome::Wrong, 0, 0, e.what()};
    }
    return out;
  }

  bool recall(Candidate& c) {
    if (!known_ || settings_.only) return false;
    const auto found = known_->tries.find(to_text(c.choice));
    if (found == known_->tries.end() || found->second.source != c.source) return false;
    c.recalled = true;
    static_cast<Measured&>(c) = found->second;
    return true;
  }

  void settle(size_t i, const Measured& m) {
    Candidate& c = all_[i];
    static_cast<Measured&>(c) = m;
    c.at = elapsed();
    out_.timed += m.least > 0;
    const bool is_final = m.outcome != Outcome::Slow || m.least > 0;
    if (settings_.cached && i > 0 && !settings_.only && is_final)
      SearchCache::current().add(key_.key, TryRecord{m, c.source, to_text(c.choice)});
    if (c.outcome == Outcome::Wrong) report_wrong(c);
    if (settings_.progress && i > 0) settings_.progress(out_.heuristic / best_seconds());
  }

  // The path; empty where nothing can be written there.
  static std::string written(const std::string& path, const std::string& text) {
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
  void report_wrong(const Candidate& c) const {
    const std::string text = cat("--- merge_ranges\n", to_text(loops_));
    std::string file = cache_folder();
    if (!file.empty()) {
      make_folders(file);
      file = written(cat(file, "/wrong-", key_.key.substr(0, 12), ".txt"), text);
    }
    std::cerr << "BEAM: kernel " << name_
              << " is wrong with other options, which are dropped: " << c.text
              << "\n  options: " << to_text(c.choice) << '\n'
              << (file.empty() ? text
                               : cat("  again: build/release/tune --choice '", to_text(c.choice),
                                     "' ", file, "\n"));
  }

  // --- The end -----------------------------------------------------------------------------------

  // The best has to win against the heuristic's kernel in many rounds, at its best and in the
  // median; else the second, or the third. An earlier search's result is compared again, too.
  void finish() {
    size_t winner = 0;
    for (size_t i : best(kFinalists)) {
      if (i == 0 || winner > 0) break;
      Race race;
      race.jobs = {jobs_.at(0), job_of(i)};
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
    out_.best = all_[winner].choice;
    // An interrupted search goes on in another run.
    double budget = settings_.budget > 0 ? settings_.budget : settings_.seconds;
    if (stopped()) budget = std::min(budget, elapsed());
    if (settings_.cached)
      SearchCache::current().add(
          key_.key,
          DoneRecord{settings_.width, budget, out_.exhausted, out_.heuristic, out_.seconds,
                     winner ? to_text(out_.best) : "", all_[winner].source});
  }

  // Compiled now where its time is of an earlier search; a job without a binary fails.
  BenchJob job_of(size_t i) {
    const auto known = jobs_.find(i);
    if (known != jobs_.end()) return known->second;
    const Lowered low = lowered(all_[i].choice);
    auto compiled = tools_.compilers.compile(0, low.source, settings_.compile_limit);
    return jobs_[i] = job_of(low, compiled);
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
  size_t most_text_ = 0;
  std::map<size_t, Compiled> compiled_;  // ahead of their turn
  std::map<size_t, BenchJob> jobs_;      // of those that were timed
  std::vector<Candidate> all_;           // the heuristic's first
  std::set<std::string> sources_, seen_;
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
