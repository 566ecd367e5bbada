#include "devices/cuda/nvrtc_worker.h"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>

#include "tiny/base/env.h"
#include "tiny/base/worker_process.h"

namespace tiny {
namespace {

constexpr const char* kService = "nvrtc";
constexpr int kMaxWorkers = 16;
constexpr double kPatience = 1e6;  // seconds: a compilation may take what it takes

std::string serve(const std::string& request) {
  Unpacker in(request);
  NvrtcResult result;
  try {
    const auto text = in.get<std::string>(), arch = in.get<std::string>();
    result = nvrtc_compile(text, arch);
  } catch (const std::exception& error) {
    result.log = error.what();
  }
  return Packer().add(result.ok).add(result.binary).add(result.log).take();
}

__attribute__((constructor)) void serve_nvrtc() { serve_if_worker(kService, serve); }

struct NvrtcWorker {
  std::unique_ptr<WorkerProcess> process;  // none while it is being started
  bool busy = false;

  bool compile(const std::string& text, const std::string& arch, NvrtcResult& result) {
    std::string answer;
    const std::string request = Packer().add(text).add(arch).take();
    if (process->ask(request, kPatience, answer) != WorkerProcess::Answer::Good) return false;
    Unpacker out(answer);
    result.ok = out.get<bool>();
    result.binary = out.get<std::string>();
    result.log = out.get<std::string>();
    return true;
  }
};

// Who compiles: this process, one kernel at a time, and the workers.
class Compilers {
 public:
  Compilers() {
    std::atexit([] { compilers().end_all(); });
  }

  static Compilers& compilers() {
    static Compilers& instance = *new Compilers;  // never destroyed: threads may still compile
    return instance;
  }

  NvrtcResult compile(const std::string& text, const std::string& arch) {
    if (NvrtcWorker* worker = take()) {
      NvrtcResult result;
      const bool alive = worker->compile(text, arch, result);
      give_back(worker, alive);
      if (alive) return result;
      take_this_process();
    }
    const std::unique_ptr<Compilers, void (*)(Compilers*)> lease(
        this, [](Compilers* self) { self->give_back_this_process(); });
    return nvrtc_compile(text, arch);
  }

 private:
  static size_t most_workers() {
    const int64_t wanted = env_int("NVRTC_WORKERS");
    if (wanted >= 0) return static_cast<size_t>(wanted);
    return std::clamp<size_t>(std::thread::hardware_concurrency(), 1, kMaxWorkers);
  }

  // A worker, or nullptr with this process taken.
  NvrtcWorker* take() {
    const size_t most = getpid() == owner_ ? most_workers() : 0;  // not those of a fork's parent
    std::unique_lock lock(mutex_);
    for (;; freed_.wait(lock)) {
      if (!busy_) {
        busy_ = true;
        return nullptr;
      }
      if (most == 0) continue;
      for (const auto& worker : workers_) {
        if (worker->busy) continue;
        worker->busy = true;
        return worker.get();
      }
      if (!starting_fails_ && workers_.size() < most) return start(lock);
    }
  }

  // Starts a worker without holding the lock.
  NvrtcWorker* start(std::unique_lock<std::mutex>& lock) {
    NvrtcWorker* worker = workers_.emplace_back(std::make_unique<NvrtcWorker>()).get();
    worker->busy = true;
    lock.unlock();
    auto process = std::make_unique<WorkerProcess>(
        kService,
        std::vector<std::pair<std::string, std::string>>{{"NVRTC_LIBRARY", nvrtc_file()}});
    lock.lock();
    worker->process = std::move(process);
    if (!worker->process->alive()) starting_fails_ = true;  // compile() notices and carries on
    return worker;
  }

  void give_back(NvrtcWorker* worker, bool alive) {
    std::lock_guard lock(mutex_);
    worker->busy = false;
    if (!alive) std::erase_if(workers_, [&](const auto& w) { return w.get() == worker; });
    freed_.notify_all();
  }

  void take_this_process() {
    std::unique_lock lock(mutex_);
    freed_.wait(lock, [&] { return !busy_; });
    busy_ = true;
  }

  void give_back_this_process() {
    std::lock_guard lock(mutex_);
    busy_ = false;
    freed_.notify_all();
  }

  // When the process exits; a thread that waits for a worker sees it die.
  void end_all() {
    std::lock_guard lock(mutex_);
    if (getpid() != owner_) return;
    std::erase_if(workers_, [](const auto& worker) { return !worker->busy; });
  }

  const pid_t owner_ = getpid();
  std::mutex mutex_;
  std::condition_variable freed_;  // this process or a worker
  bool busy_ = false;              // this process compiles
  bool starting_fails_ = false;
  std::vector<std::unique_ptr<NvrtcWorker>> workers_;
};

}  // namespace

NvrtcResult compile_in_workers(const std::string& text, const std::string& arch) {
  return Compilers::compilers().compile(text, arch);
}

}  // namespace tiny
