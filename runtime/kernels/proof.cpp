#include "runtime/kernels/proof.h"

#include <iostream>
#include <memory>
#include <mutex>

#include "codegen/proof/solver/smt.h"
#include "runtime/device/disk_cache.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/base/text.h"

namespace tiny {

namespace {

constexpr const char* kProofVersion = "proof 4";  // a new version discards older proofs

struct Counts {
  std::mutex mutex;
  ProofCounts counts;
};
Counts& counted() {
  static Counts* instance = new Counts;
  return *instance;
}

void count(const Proof& p) {
  Counts& all = counted();
  std::lock_guard lock(all.mutex);
  ProofCounts& c = all.counts;
  ++c.kernels;
  ++c.verdicts[static_cast<int>(p.verdict)];
  c.claims += p.claims;
  for (int i = 0; i < 4; ++i) c.settled[i] += p.settled[i];
  c.declared += p.declared;
  c.seconds += p.seconds;
}

void count_recalled() {
  std::lock_guard lock(counted().mutex);
  ++counted().counts.kernels;
  ++counted().counts.recalled;
}

void say_once_without_solver() {
  static std::once_flag once;
  if (env_int("DEBUG") >= 1 && !has_solver())
    std::call_once(once, [] {
      std::cerr << "CHECK_OOB: " << why_no_solver()
                << ": what intervals do not settle stays unproved\n";
    });
}

// The text of the kernel leaves open how large its buffers are, and what was promised of them.
std::string key_of(const Lowered& low, const ProofSettings& s) {
  std::string about = cat(kProofVersion, ' ', s.warp, ' ', s.scattered, ' ', s.declared, " sizes");
  for (const auto& [slot, size] : s.sizes) about += cat(' ', slot, ':', size);
  return cache_key(low.source, about);
}

// --- the solver's answers on disk ----------------------------------------------------------------

std::string key_of(const std::string& question) {
  return cache_key({"", question}, cat(kProofVersion, " answer"));
}

// "never" or "sometimes", the steps, and the values.
std::optional<SmtAnswer> recall_answer(const std::string& question) {
  const std::string folder = cache_folder();
  const auto entry = folder.empty() ? std::nullopt : cache_get(folder, key_of(question));
  if (!entry) return {};
  TextReader in(*entry);
  std::string decision;
  in >> decision;
  SmtAnswer answer{decision == "never" ? Decision::Never : Decision::Sometimes, {}};
  in >> answer.steps;
  for (int64_t v; in >> v;) answer.values.push_back(v);
  return answer;
}

void keep_answer(const std::string& question, const SmtAnswer& answer) {
  const std::string folder = cache_folder();
  if (folder.empty()) return;
  std::string entry =
      cat(answer.decision == Decision::Never ? "never " : "sometimes ", answer.steps);
  for (int64_t v : answer.values) entry += cat(' ', v);
  cache_put(folder, key_of(question), entry);
}

constexpr int64_t kPatience = 50 * kSolverSteps;  // for a kernel with CHECK_OOB=2

}  // namespace

PendingProof::PendingProof(const Lowered& low, const Step& step, const Target& target)
    : name_(step.name), mode_(env_int("CHECK_OOB")) {
  if (mode_ == 0) return;
  say_once_without_solver();
  set_memory({recall_answer, keep_answer});
  ProofSettings settings;
  read_kernel(step.kernel.get(), target, settings);
  if (mode_ == 2) {
    settings.steps = kPatience;
    settings.iterations = int64_t{1} << 24;
  }
  folder_ = cache_folder();
  if (!folder_.empty()) key_ = key_of(low, settings);
  const auto known = folder_.empty() ? std::nullopt : cache_get(folder_, key_);
  if (known && (*known == "proved" || mode_ == 1)) {
    count_recalled();
    return;
  }
  const auto task = std::make_shared<std::packaged_task<Proof()>>(
      [sink = low.machine, settings] { return prove(sink, settings); });
  proof_ = task->get_future();
  thread_ = Thread::start_if_possible([task] { (*task)(); });
  if (!thread_.runs()) (*task)();
}

PendingProof::~PendingProof() = default;

void PendingProof::finish() {
  if (!proof_.valid()) return;
  const Proof p = proof_.get();
  count(p);
  const std::string text = cat("kernel ", name_, " is ", name_of(p.verdict), ":\n", p.text);
  const bool fails = p.verdict == Verdict::Wrong || mode_ == 2;
  if (fails && p.verdict != Verdict::Proved) throw Bug(text);
  if (p.verdict == Verdict::Unproved && env_int("DEBUG") >= 2) std::cerr << text << '\n';
  const bool lasts = p.verdict == Verdict::Proved || has_solver();
  if (lasts && !folder_.empty()) cache_put(folder_, key_, name_of(p.verdict));
}

ProofCounts proof_counts() {
  std::lock_guard lock(counted().mutex);
  return counted().counts;
}

std::string to_text(const ProofCounts& c) {
  return cat("proofs: ", c.kernels, " kernels, ", c.verdicts[0], " proved, ", c.verdicts[1],
             " unproved, ", c.verdicts[2], " wrong, ", c.recalled, " known from the cache; ",
             c.claims, " claims, ", c.settled[0], " settled by intervals, ", c.settled[1],
             " by walking all iterations, ", c.settled[2], " by z3, ", c.settled[3], " open, ",
             c.declared, " declared; ", c.seconds, " s");
}

}  // namespace tiny
