#include "devices/cpu/thread_pool.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "tiny/base/thread.h"

namespace tiny {
namespace {

// The life of a worker: Idle -> Ready (there is a loop for it) -> Running (it takes part, or the
// caller has seen that it need not) -> Idle. Stop ends it.
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

// First element of part i of [0, n); written so that no product overflows.
int64_t part_begin(int64_t n, int64_t parts, int64_t i) {
  return n / parts * i + std::min(i, n % parts);
}

// Moves the calling thread away from a processor, if it may run on another: where all are busy, of
// other programs say, a thread is woken on the one of the thread that wakes it, and both take turns
// there.
void leave(int processor) {
  cpu_set_t all, others;
  if (sched_getaffinity(0, sizeof(all), &all) != 0) return;
  others = all;
  CPU_CLR(static_cast<size_t>(processor), &others);
  if (CPU_COUNT(&others) == 0 || sched_setaffinity(0, sizeof(others), &others) != 0) return;
  sched_setaffinity(0, sizeof(all), &all);
}

}  // namespace

// A part of a loop, which its thread does piece by piece; others that have done theirs take pieces
// of it too.
struct alignas(128) CpuPool::Share {
  std::atomic<int64_t> next{0};  // piece
  int64_t begin = 0, end = 0, pieces = 0;
};

struct alignas(128) CpuPool::Worker {
  std::atomic<uint32_t> state{kIdle};
  Share share;
  Thread thread;

  // The store must be sequentially consistent: notify_one skips the system call when it sees no
  // sleeper, so the new state has to be visible before it looks.
  void signal(PoolState next) {
    state.store(next, std::memory_order_seq_cst);
    state.notify_one();
  }

  bool claim() {
    uint32_t expected = kReady;
    return state.compare_exchange_strong(expected, kRunning, std::memory_order_acquire);
  }
};

CpuPool::CpuPool(int threads) : own_(std::make_unique<Share>()), process_(getpid()) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  spins_ = threads <= cores ? kSpins : 0;  // spinning would keep a working thread off its core
  for (int i = 1; i < threads; i++) {
    auto worker = std::make_unique<Worker>();
    Worker& own = *worker;
    own.thread = Thread::start_if_possible([this, &own, i] { serve(own, i); });
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
  constexpr int64_t kPieces = 8;  // of a thread: the last to end keeps the others waiting for one
  if (n <= 0) return;
  const int64_t parts = std::min<int64_t>(n, threads());
  if (parts == 1 || busy_.exchange(true, std::memory_order_acquire)) {
    body(context, 0, n);
    return;
  }
  loop_ = {body, context, parts, sched_getcpu()};
  unfinished_.store(static_cast<uint32_t>(parts - 1), std::memory_order_relaxed);
  for (int64_t i = 0; i < parts; i++) {
    Share& share = share_of(i);
    share.begin = part_begin(n, parts, i);
    share.end = part_begin(n, parts, i + 1);
    share.pieces = std::min(share.end - share.begin, kPieces);
    share.next.store(0, std::memory_order_relaxed);
  }
  for (int64_t i = 1; i < parts; i++) workers_[i - 1]->signal(kReady);
  work(0);
  for (int64_t i = 1; i < parts; i++)
    if (workers_[i - 1]->claim()) finish(*workers_[i - 1]);
  wait_until(unfinished_, spins_, [](uint32_t left) { return left == 0; });
  busy_.store(false, std::memory_order_release);
}

CpuPool::Share& CpuPool::share_of(int64_t part) const {
  return part == 0 ? *own_ : workers_[part - 1]->share;
}

void CpuPool::serve(Worker& worker, int64_t part) {
  auto wanted = [](uint32_t state) { return state == kReady || state == kStop; };
  // A thread that was asleep is often woken beside its caller, and goes elsewhere by itself.
  constexpr int kOften = 3;
  int together = 0;  // loops in a row
  while (wait_until(worker.state, spins_, wanted) != kStop) {
    if (!worker.claim()) continue;
    together = spins_ > 0 && sched_getcpu() == loop_.processor ? together + 1 : 0;
    if (together >= kOften) leave(loop_.processor);
    work(part);
    finish(worker);
  }
}

// The pieces of a thread's own part, then those that others have not begun: of all parts for the
// caller, which has to wait for them, of the next two for a worker, since to look at a part may
// cost a line of another processor's cache.
void CpuPool::work(int64_t part) {
  constexpr int64_t kLooks = 3;
  const auto [body, context, parts, processor] = loop_;
  for (int64_t i = 0; i < (part == 0 ? parts : std::min(parts, kLooks)); i++) {
    Share& share = share_of((part + i) % parts);
    const int64_t size = share.end - share.begin;
    while (share.next.load(std::memory_order_relaxed) < share.pieces) {
      const int64_t piece = share.next.fetch_add(1, std::memory_order_relaxed);
      if (piece >= share.pieces) break;
      body(context, share.begin + part_begin(size, share.pieces, piece),
           share.begin + part_begin(size, share.pieces, piece + 1));
    }
  }
}

// After the count has gone down the caller may return and call the worker again, so that is the
// last access.
void CpuPool::finish(Worker& worker) {
  worker.state.store(kIdle, std::memory_order_relaxed);
  if (unfinished_.fetch_sub(1, std::memory_order_seq_cst) == 1) unfinished_.notify_one();
}

}  // namespace tiny
