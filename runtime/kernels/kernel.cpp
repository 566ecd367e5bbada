#include "runtime/kernels/kernel.h"

#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <mutex>

#include "runtime/device/disk_cache.h"
#include "runtime/device/kept_memory.h"
#include "runtime/device/lru.h"
#include "runtime/device/trace.h"
#include "runtime/kernels/choice_cache.h"
#include "runtime/kernels/proof.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/base/parallel.h"

namespace tiny {

namespace {

struct KernelEntry {
  NodeRef node;  // keeps the key's address taken
  std::shared_ptr<Kernel> kernel;
};
struct Kernels {
  std::mutex mutex;
  uint64_t age = 1;  // goes up when entries are forgotten
  Lru<KernelEntry> entries;
};
Kernels& kernels() {
  static Kernels* k = new Kernels;
  return *k;
}

// Writes a whole text at a time: kernels are compiled in parallel.
void say(const std::string& text) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  std::cerr << text;
}

void show(const Lowered& low, int debug) {
  std::string text;
  if (debug >= 3) text = cat("options ", low.source.entry, ": ", to_text(low.options), '\n');
  if (debug >= 4) text += low.source.text + '\n';
  say(text);
}

// The options that a search has found before, else the heuristic's.
Lowered lower_step(const Step& step, const Target& target, const Choice* choice,
                   const StageViewer& viewer) {
  std::optional<Known> known;
  if (!choice && env_int("BEAM") > 0)
    known = find_known(step.kernel.get(), device_name(step.device));
  if (known && known->choice) choice = &*known->choice;
  return lower(step.kernel.get(), step.name, target, viewer, choice);
}

// Seconds of one kernel's way from its graph to a loaded program.
struct CompileTimes {
  std::string name;
  double lower = 0, compile = 0, prove = 0, load = 0;  // prove: what was left when it was compiled
  double sum() const { return lower + compile + prove + load; }
};

template <class Work> auto timed(const char* what, double& seconds, const Work& work) {
  const HostSpan span(what);
  const double begin = steady_seconds();
  auto out = work();
  seconds = steady_seconds() - begin;
  return out;
}

// A line for DEBUG=1. `seconds`: from the first to the last of them, on several threads.
std::string to_text(std::vector<CompileTimes> all, double seconds) {
  constexpr size_t kShown = 4;
  CompileTimes sum;
  for (const CompileTimes& t : all) {
    sum.lower += t.lower;
    sum.compile += t.compile;
    sum.prove += t.prove;
    sum.load += t.load;
  }
  std::string out = formatted(
      "compiled %zu kernels in %.2f s: lowered in %.2f s, compiled in %.2f s, proofs waited for "
      "%.2f s, loaded in %.2f s; longest",
      all.size(), seconds, sum.lower, sum.compile, sum.prove, sum.load);
  std::ranges::sort(all, std::greater(), &CompileTimes::sum);
  all.resize(std::min(all.size(), kShown));
  for (const CompileTimes& t : all) out += formatted(" %s %.2f s", t.name.c_str(), t.sum());
  return out + '\n';
}

std::shared_ptr<Kernel> compile(const Step& step, const Choice* choice, CompileTimes& times) {
  times.name = step.name;
  Device& device = find_device(device_name(step.device));
  const auto debug = static_cast<int>(env_int("DEBUG"));
  if (device.is_remote) {  // its owner compiles it
    auto kernel = std::make_shared<Kernel>();
    kernel->name = step.name;
    kernel->program = device.load({}, {});
    return kernel;
  }
  StageViewer viewer;
  if (debug >= 5)
    viewer = [&](const char* pass, const std::string& text) {
      const std::string wanted = env_text("DEBUG_PASS");
      if (wanted.empty() || wanted == pass) say(cat("--- ", pass, '\n', text));
    };
  const Lowered low = timed("lower", times.lower,
                            [&] { return lower_step(step, device.target(), choice, viewer); });
  show(low, debug);
  PendingProof proof(low, step, device.target());
  auto kernel = std::make_shared<Kernel>();
  kernel->name = step.name;
  kernel->launch = low.launch;
  kernel->bytes = low.work.bytes;
  kernel->flops = low.work.flops;
  kernel->unit = to_text(low.unit);
  const std::string binary =
      timed("compile", times.compile, [&] { return cached_compile(device, low.source); });
  const double compiled = steady_seconds();
  proof.finish();
  times.prove = steady_seconds() - compiled;
  kernel->program = timed("load", times.load, [&] {
    return with_kept_memory_freed([&] { return device.load(binary, low.source.entry); });
  });
  return kernel;
}

// A kernel that is to be compiled.
struct Compilation {
  const std::string* key;
  const Step* step;
  int64_t weight;
};

// How long a kernel takes to compile beside others, roughly: sums of products become the longest
// texts.
int64_t compile_weight(const Step& step) {
  int64_t weight = 0;
  for (Node n : topological(step.kernel.get()))
    weight += n->op == Op::ReduceAxis && n->src(0)->op == Op::Mul ? 100 : 1;
  return weight;
}

}  // namespace

std::string kernel_key(const Step& step) {
  return cat(step.kernel.get(), ' ', step.device, ' ', env_kernel_key());
}

void replace_kernel(const Step& step, const Choice& choice) {
  CompileTimes times;
  auto kernel = compile(step, &choice, times);
  Kernels& all = kernels();
  std::lock_guard lock(all.mutex);
  KernelEntry* known = all.entries.find(kernel_key(step));
  if (!known) return;
  known->kernel = std::move(kernel);
  ++all.age;
}

uint64_t kernels_age() {
  std::lock_guard lock(kernels().mutex);
  return kernels().age;
}

std::vector<Kernel*> compile_kernels(const Schedule& s) {
  const auto of_schedule = [&] {
    std::vector<Kernel*> out;
    out.reserve(s.kernels.size());
    for (const auto& k : s.kernels) out.push_back(k.get());
    return out;
  };
  std::vector<std::string> keys;
  std::map<std::string, const Step*> missing;
  std::map<std::string, std::shared_ptr<Kernel>> found;
  Kernels& all = kernels();
  {
    std::lock_guard lock(all.mutex);
    if (s.kernels_age == all.age) return of_schedule();
    for (const Step& step : s.steps) {
      keys.push_back(step.kernel ? kernel_key(step) : "");
      if (!step.kernel) continue;
      if (const KernelEntry* known = all.entries.find(keys.back()))
        found[keys.back()] = known->kernel;
      else
        missing[keys.back()] = &step;
    }
  }
  const auto most = static_cast<size_t>(4 * std::max<int64_t>(env_int("CACHE_SCHEDULES"), 1));
  std::vector<Compilation> jobs;
  for (const auto& [key, step] : missing) jobs.push_back({&key, step, compile_weight(*step)});
  std::ranges::stable_sort(jobs, std::greater(), &Compilation::weight);
  std::vector<CompileTimes> times(jobs.size());
  const double begin = steady_seconds();
  in_parallel(jobs.size(), core_count(), [&](size_t i, size_t) {
    auto kernel = compile(*jobs[i].step, nullptr, times[i]);
    std::lock_guard lock(all.mutex);
    KernelEntry entry{jobs[i].step->kernel, std::move(kernel)};
    found[*jobs[i].key] = all.entries.insert(*jobs[i].key, std::move(entry), most).kernel;
  });
  if (!jobs.empty() && env_int("DEBUG") >= 1) say(to_text(times, steady_seconds() - begin));
  std::lock_guard lock(all.mutex);
  s.kernels.clear();
  for (const std::string& key : keys) s.kernels.push_back(key.empty() ? nullptr : found.at(key));
  s.kernels_age = all.age;
  return of_schedule();
}

size_t kernel_count() {
  std::lock_guard lock(kernels().mutex);
  return kernels().entries.size();
}

void clear_kernel_cache() {
  std::lock_guard lock(kernels().mutex);
  kernels().entries.clear();
  ++kernels().age;
}

}  // namespace tiny
