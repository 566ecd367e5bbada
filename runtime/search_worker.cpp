#include "runtime/search_worker.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>

#include "runtime/cache.h"
#include "tiny/env.h"
#include "tiny/error.h"
#include "tiny/worker_process.h"

namespace tiny {

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

namespace {

constexpr const char* kService = "search";
enum class Request : char { Prepare, Run, Compile };

// --- messages ------------------------------------------------------------------------------------

std::string packed(const KernelCase& k) {
  Packer p;
  p.add(Request::Prepare).add(k.device).add(k.exact).add(k.longest_sum).add(k.buffers.size());
  for (const Filling& f : k.buffers) p.add(f);
  return p.take();
}

KernelCase unpack_case(Unpacker& u) {
  KernelCase k;
  k.device = u.text();
  k.exact = u.get<bool>();
  k.longest_sum = u.get<double>();
  for (size_t n = u.get<size_t>(); n > 0; --n) k.buffers.push_back(u.get<Filling>());
  return k;
}

std::string packed(const BenchJob& j) {
  Packer p;
  p.add(Request::Run).add(j.role).add(j.binary).add(j.entry).add(j.elements);
  p.add(j.best).add(j.verify).add(j.enough).add(j.limit);
  for (int i = 0; i < 3; ++i) p.add(j.size.grid[i]).add(j.size.block[i]);
  p.add(j.size.shared_bytes).add(j.size.chunk).add(j.size.maps.size());
  for (const TensorMap& m : j.size.maps) p.add(m);
  return p.take();
}

BenchJob unpack_job(Unpacker& u) {
  BenchJob j;
  j.role = u.get<Role>();
  j.binary = u.text();
  j.entry = u.text();
  j.elements = u.get<int64_t>();
  j.best = u.get<double>();
  j.verify = u.get<double>();
  j.enough = u.get<double>();
  j.limit = u.get<double>();
  for (int i = 0; i < 3; ++i) {
    j.size.grid[i] = u.get<int64_t>();
    j.size.block[i] = u.get<int64_t>();
  }
  j.size.shared_bytes = u.get<int64_t>();
  j.size.chunk = u.get<int64_t>();
  for (size_t n = u.get<size_t>(); n > 0; --n) j.size.maps.push_back(u.get<TensorMap>());
  return j;
}

std::string packed(const Measured& m) {
  return Packer().add(m.outcome).add(m.least).add(m.median).add(m.runs).add(m.text).take();
}

Measured unpack_measured(Unpacker& u) {
  Measured m;
  m.outcome = u.get<Outcome>();
  m.least = u.get<double>();
  m.median = u.get<double>();
  m.runs = u.get<int>();
  m.text = u.text();
  return m;
}

std::string packed_compile(const std::string& device, const Source& s) {
  Packer p;
  p.add(Request::Compile).add(device).add(s.entry).add(s.text).add(s.language).add(s.heavy);
  return p.take();
}

// --- in the worker -------------------------------------------------------------------------------

std::string compile_here(Unpacker& u) {
  const std::string device = u.text();
  Source s;
  s.entry = u.text();
  s.text = u.text();
  s.language = u.get<Source::Language>();
  s.heavy = u.get<bool>();
  return find_device(device).compile(s);
}

std::string serve(const std::string& request) {
  static Bench& bench = *local_bench().release();
  Unpacker u(request);
  try {
    switch (u.get<Request>()) {
      case Request::Run: return packed(bench.run(unpack_job(u)));
      case Request::Compile: return Packer().add(true).add(compile_here(u)).take();
      case Request::Prepare: bench.prepare(unpack_case(u));
    }
    return Packer().add(true).take();
  } catch (const std::exception& e) {
    return Packer().add(false).add(std::string(e.what())).take();
  }
}

__attribute__((constructor)) void serve_searches() { serve_if_worker(kService, serve); }

// --- in the parent -------------------------------------------------------------------------------

struct Known {
  std::mutex mutex;
  std::set<int> processes;
};
Known& known() {
  static Known* instance = new Known;
  return *instance;
}

// A worker, started when it is first asked.
class Worker {
 public:
  ~Worker() { end(); }

  WorkerProcess::Answer ask(const std::string& request, double seconds, std::string& answer) {
    if (!process_) start();
    const auto result = process_->ask(request, seconds, answer);
    if (result != WorkerProcess::Answer::Good) {
      ended_ = process_->end();
      end();
    }
    return result;
  }
  bool running() const { return process_ != nullptr; }
  const std::string& ended() const { return ended_; }

 private:
  void start() {
    auto settings = env_settings();
    settings.push_back({"BEAM", "0"});
    process_ = std::make_unique<WorkerProcess>(kService, std::move(settings));
    check(process_->alive(), "BEAM: a copy of this program cannot be started as a worker, ",
          process_->end(), "; BEAM_ISOLATE=0 searches without one");
    std::lock_guard lock(known().mutex);
    known().processes.insert(number_ = process_->process());
  }
  void end() {
    process_.reset();
    std::lock_guard lock(known().mutex);
    known().processes.erase(number_);
  }

  std::unique_ptr<WorkerProcess> process_;
  int number_ = 0;
  std::string ended_;
};

class IsolatedBench : public Bench {
 public:
  void prepare(const KernelCase& kernel) override {
    setup_ = {packed(kernel)};
    std::string answer;
    if (worker_.ask(setup_[0], kPrepareSeconds, answer) != WorkerProcess::Answer::Good)
      throw DeviceError(
          cat("BEAM: the worker could not prepare a kernel's buffers: ", worker_.ended()));
    Unpacker u(answer);
    if (!u.get<bool>()) throw DeviceError(u.text());
  }

  Measured run(const BenchJob& job) override {
    if (!worker_.running()) repeat_setup();
    std::string answer;
    const std::string request = packed(job);
    switch (worker_.ask(request, job.limit, answer)) {
      case WorkerProcess::Answer::Died: return {Outcome::Crashed, 0, 0, 0, worker_.ended()};
      case WorkerProcess::Answer::Late:
        return {Outcome::Hung, 0, 0, 0, cat("not done within ", job.limit, " s")};
      default: break;
    }
    if (job.role != Role::Candidate) setup_.push_back(request);
    Unpacker u(answer);
    return unpack_measured(u);
  }

 private:
  static constexpr double kPrepareSeconds = 60;

  void repeat_setup() {
    std::string answer;
    for (const std::string& request : setup_) worker_.ask(request, kPrepareSeconds, answer);
  }

  Worker worker_;
  std::vector<std::string> setup_;  // what a successor is told
};

}  // namespace

std::unique_ptr<Bench> isolated_bench() { return std::make_unique<IsolatedBench>(); }

std::vector<int> search_workers() {
  std::lock_guard lock(known().mutex);
  return {known().processes.begin(), known().processes.end()};
}

struct CompilePool::Lane {
  Worker worker;
};

CompilePool::CompilePool(std::string device, bool isolated)
    : device_(std::move(device)), isolated_(isolated) {
  const unsigned cores = std::clamp(std::thread::hardware_concurrency(), 1u, 16u);
  for (unsigned i = 0; i < cores; ++i) lanes_.push_back(std::make_unique<Lane>());
}

CompilePool::~CompilePool() = default;

void CompilePool::one(Lane& lane, CompileJob& job, double limit) {
  Device& device = find_device(device_);
  const std::string folder = cache_folder();
  const std::string key = folder.empty() ? "" : cache_key(job.source, device.compiler_id());
  if (!folder.empty())
    if (auto binary = cache_get(folder, key)) {
      job.binary = *std::move(binary);
      return;
    }
  try {
    if (!isolated_) {
      job.binary = device.compile(job.source);
    } else {
      std::string answer;
      const auto result = lane.worker.ask(packed_compile(device_, job.source), limit, answer);
      Unpacker u(answer);
      if (result == WorkerProcess::Answer::Died) {
        job.outcome = Outcome::Crashed;
        job.text = "the compiler: " + lane.worker.ended();
      } else if (result == WorkerProcess::Answer::Late) {
        job.outcome = Outcome::Hung;
        job.text = cat("the compiler was not done within ", limit, " s");
      } else if (u.get<bool>()) {
        job.binary = u.text();
      } else {
        job.outcome = Outcome::Failed;
        job.text = u.text();
      }
    }
  } catch (const std::exception& e) {
    job.outcome = Outcome::Failed;
    job.text = e.what();
  }
}

void CompilePool::compile(std::vector<CompileJob>& jobs, double limit, double deadline) {
  std::atomic<size_t> next{0};
  const auto work = [&](Lane& lane) {
    for (size_t i; (i = next++) < jobs.size();) {
      if (steady_seconds() < deadline)
        one(lane, jobs[i], limit);
      else
        jobs[i].outcome = Outcome::Slow;
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < std::min(lanes_.size(), jobs.size()); ++i)
    threads.emplace_back(work, std::ref(*lanes_[i]));
  work(*lanes_[0]);
  for (std::thread& t : threads) t.join();
}

}  // namespace tiny
