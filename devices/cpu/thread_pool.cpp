#include "devices/cpu/thread_pool.h"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "tiny/base/thread.h"

namespace tiny {
namespace {

// The life of a worker's chunk: Idle -> Ready (the caller has filled it in) -> Running (the worker
// or the caller has claimed it) -> Idle. Stop ends the worker.
enum PoolState : uint32_t { kIdle, kReady, kRunning, kStop };

// About 25 us on AMD, 90 us on Intel: longer than the gap between two kernels of a busy program,
// and short enough that an idle program uses no processor.
constexpr int kSpins = 2000;

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits until done(word), at first awake and then asleep, and gives that value.
template <class Done> uint32_t wait_until(const std::atomic<uint32_t>& word, int spins, Done done) {
  for (int i = 0; i < spins; i++) {
    uint32_t value = word.load(std::memory_order_acquire);
    if (done(value)) return value;
    relax();
  }
  while (true) {
    uint32_t value = word.load(std::memory_order_acquire);
    if (done(value)) return value;
    word.wait(value, std::memory_order_acquire);
  }
}

// First element of chunk i of [0, n); written so that no product overflows.
int64_t chunk_begin(int64_t n, int64_t chunks, int64_t i) {
  return n / chunks * i + std::min(i, n % chunks);
}

}  // namespace

struct alignas(128) CpuPool::Worker {
  std::atomic<uint32_t> state{kIdle};
  // Written by the caller while Idle, read by whoever moved the state from Ready to Running.
  Body body = nullptr;
  void* context = nullptr;
  int64_t begin = 0, end = 0;
  Thread thread;

  // The store must be sequentially consistent: notify_one skips the system call when it sees no
  // sleeper, so the new state has to be visible before it looks.
  void signal(PoolState next) {
    state.store(next, std::memory_order_seq_cst);
    state.notify_one();
  }
};

CpuPool::CpuPool(int threads) : process_(getpid()) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  spins_ = threads <= cores ? kSpins : 0;  // spinning would keep a working thread off its core
  for (int i = 1; i < threads; i++) {
    auto worker = std::make_unique<Worker>();
    Worker& own = *worker;
    own.thread = Thread::start_if_possible([this, &own] { serve(own); });
    if (!own.thread.runs()) return;
    workers_.push_back(std::move(worker));
  }
}

CpuPool::~CpuPool() {
  const bool forked = process_ != getpid();  // the workers stayed in the parent process
  for (auto& worker : workers_) {
    if (forked) {
      worker->thread.detach();
      continue;
    }
    worker->signal(kStop);
    worker->thread.join();
  }
}

void CpuPool::parallel_for(int64_t n, Body body, void* context) noexcept {
  if (n <= 0) return;
  const int64_t chunks = std::min<int64_t>(n, threads());
  if (chunks == 1 || busy_.exchange(true, std::memory_order_acquire)) {
    body(context, 0, n);
    return;
  }
  unfinished_.store(static_cast<uint32_t>(chunks - 1), std::memory_order_relaxed);
  for (int64_t i = 1; i < chunks; i++) {
    Worker& worker = *workers_[i - 1];
    worker.body = body;
    worker.context = context;
    worker.begin = chunk_begin(n, chunks, i);
    worker.end = chunk_begin(n, chunks, i + 1);
    worker.signal(kReady);
  }
  body(context, 0, chunk_begin(n, chunks, 1));
  // The last worker was called last, so it is the likeliest to be still asleep.
  for (int64_t i = chunks - 1; i >= 1; i--) run_if_ready(*workers_[i - 1]);
  wait_until(unfinished_, spins_, [](uint32_t left) { return left == 0; });
  busy_.store(false, std::memory_order_release);
}

void CpuPool::serve(Worker& worker) {
  auto wanted = [](uint32_t state) { return state == kReady || state == kStop; };
  while (wait_until(worker.state, spins_, wanted) != kStop) run_if_ready(worker);
}

// Runs the worker's chunk unless another thread has claimed it. After the count has gone down the
// caller may return and fill the worker in again, so that is the last access.
void CpuPool::run_if_ready(Worker& worker) {
  uint32_t expected = kReady;
  if (!worker.state.compare_exchange_strong(expected, kRunning, std::memory_order_acquire)) return;
  worker.body(worker.context, worker.begin, worker.end);
  worker.state.store(kIdle, std::memory_order_relaxed);
  if (unfinished_.fetch_sub(1, std::memory_order_seq_cst) == 1) unfinished_.notify_one();
}

}  // namespace tiny
