#include "devices/emulator_grid.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "devices/fiber.h"
#include "tiny/error.h"

// Code on the stacks of fibers: the sanitizers know one stack per thread.
#define ON_FIBER __attribute__((no_sanitize("address", "thread")))

namespace tiny {
namespace {

constexpr int kMostLanes = 64, kSlotBytes = 16;
constexpr int kBarrier = 0, kEnded = -1;  // an exchange between lanes is positive

std::string text_of(const int (&v)[3]) { return cat("(", v[0], ", ", v[1], ", ", v[2], ")"); }

std::string place_of(int line) {
  return line >= kEmulatorPreludeLine ? cat("line ", line - kEmulatorPreludeLine, " of the prelude")
                                      : cat("line ", line);
}

// One thread of the system with the fibers that execute a block.
class Worker : public Emulated {
 public:
  Worker();
  void run_block(EmulatedLaunch& launch, int64_t index);

 private:
  struct Fiber {
    Worker* worker = nullptr;
    FiberContext context;
  };
  // A thread of the block: where it waits, and the fiber that it waits in.
  struct Thread {
    Fiber* fiber = nullptr;
    int what = kEnded, line = 0;
  };

  static void on_wait(Emulated* e, int what, int line);
  static void on_fail(Emulated* e, const char* message, int line);
  static long long on_place(Emulated* e, long long* place, long long bytes, int line);
  static void on_misaligned(Emulated* e, const void* address, long long alignment, int line);
  static void fiber_main(void* fiber);

  void set_thread(int t);
  void position(int t, int (&out)[3]) const;
  Fiber& free_fiber();
  void fail_thread(const std::string& message, int line);
  void start_warp(int begin, int end);
  void resume_warp(int begin, int end);
  void exchange_until_barrier(int begin, int end);
  void check_together(int begin, int end);
  std::string where(int t) const;
  void check_failure();
  void abandon_fibers();

  EmulatedLaunch* launch_ = nullptr;
  std::vector<Thread> threads_;
  int current_ = 0, next_ = 0, last_ = 0;  // the thread that runs; those to be started
  FiberContext main_;
  FiberStacks stacks_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> free_;
  std::vector<char> shared_memory_;
  alignas(64) char slot_memory_[2][kMostLanes * kSlotBytes];
  std::string failure_;
};

thread_local Worker* worker_of_thread = nullptr;

Emulated* emulated_of_thread() { return worker_of_thread; }

Worker& this_worker() {
  thread_local Worker worker;
  worker_of_thread = &worker;
  return worker;
}

Worker::Worker() {
  wait = on_wait;
  fail = on_fail;
  place = on_place;
  misaligned = on_misaligned;
  slots = slot_memory_[0];
}

// --- on the stacks of fibers -----------------------------------------------------------------

ON_FIBER void Worker::on_wait(Emulated* e, int what, int line) {
  auto& w = *static_cast<Worker*>(e);
  Thread& thread = w.threads_[w.current_];
  thread.what = what;
  thread.line = line;
  w.main_.switch_to(thread.fiber->context);
}

// Runs threads, one after the other, as long as they do not wait.
ON_FIBER void Worker::fiber_main(void* argument) {
  auto& fiber = *static_cast<Fiber*>(argument);
  Worker& w = *fiber.worker;
  while (true) {
    while (w.next_ < w.last_) {
      const int t = w.next_++;
      w.threads_[t].fiber = &fiber;
      w.set_thread(t);
      w.launch_->program.run(w.launch_->args);
      w.threads_[w.current_].what = kEnded;
    }
    w.free_.push_back(&fiber);
    w.main_.switch_to(fiber.context);
  }
}

ON_FIBER void Worker::on_fail(Emulated* e, const char* message, int line) {
  auto& w = *static_cast<Worker*>(e);
  w.fail_thread(message, line);
  w.main_.switch_to(w.threads_[w.current_].fiber->context);
}

void Worker::fail_thread(const std::string& message, int line) {
  failure_ = cat("block ", text_of(block), ", thread ", text_of(thread), ", ", place_of(line), ": ",
                 message);
}

ON_FIBER void Worker::on_misaligned(Emulated* e, const void* address, long long alignment,
                                    int line) {
  const std::string message =
      cat("misaligned access: address ", address, " is no multiple of ", alignment);
  on_fail(e, message.c_str(), line);
}

ON_FIBER long long Worker::on_place(Emulated* e, long long* place, long long bytes, int line) {
  auto& w = *static_cast<Worker*>(e);
  const int64_t limit = w.launch_->target.shared_bytes;
  const long long at = w.launch_->program.place_shared(place, bytes, limit);
  if (at < 0) {
    const std::string message = cat("more than ", limit, " bytes of shared memory");
    on_fail(e, message.c_str(), line);
  }
  if (at + bytes > w.shared_ready) {
    std::memset(w.shared + w.shared_ready, 0xFF, static_cast<size_t>(at + bytes - w.shared_ready));
    w.shared_ready = at + bytes;
  }
  return at;
}

// --- on the stack of the system's thread -----------------------------------------------------

void Worker::position(int t, int (&out)[3]) const {
  const auto x = static_cast<int>(launch_->size.block[0]);
  const auto y = static_cast<int>(launch_->size.block[1]);
  out[0] = t % x;
  out[1] = t / x % y;
  out[2] = t / x / y;
}

ON_FIBER void Worker::set_thread(int t) {
  current_ = t;
  lane = t % launch_->target.warp;
  position(t, thread);
}

Worker::Fiber& Worker::free_fiber() {
  if (free_.empty()) {
    const size_t i = fibers_.size();
    char* stack = stacks_.stack(i);
    fibers_.push_back(std::make_unique<Fiber>());
    Fiber& fiber = *fibers_.back();
    fiber.worker = this;
    fiber.context.start(stack, stacks_.usable_bytes(i), fiber_main, &fiber);
    free_.push_back(&fiber);
  }
  Fiber& fiber = *free_.back();
  free_.pop_back();
  return fiber;
}

void Worker::abandon_fibers() {
  free_.clear();
  for (size_t i = 0; i < fibers_.size(); ++i) {
    fibers_[i]->context.start(stacks_.stack(i), stacks_.usable_bytes(i), fiber_main,
                              fibers_[i].get());
    free_.push_back(fibers_[i].get());
  }
}

void Worker::check_failure() {
  if (failure_.empty()) return;
  abandon_fibers();
  throw DeviceError(std::exchange(failure_, {}));
}

std::string Worker::where(int t) const {
  int at[3];
  position(t, at);
  const Thread& thread = threads_[t];
  const char* what = thread.what == kEnded     ? " has ended"
                     : thread.what == kBarrier ? " waits at the barrier of "
                                               : " exchanges values of lanes at ";
  return cat("thread ", text_of(at), what, thread.what == kEnded ? "" : place_of(thread.line));
}

// All of these threads must wait at the same place, or have ended.
void Worker::check_together(int begin, int end) {
  const Thread& first = threads_[begin];
  for (int t = begin + 1; t < end; ++t) {
    const Thread& other = threads_[t];
    if (other.what == first.what && (other.line == first.line || other.what == kEnded)) continue;
    failure_ =
        cat("block ", text_of(block), ": threads do not meet: ", where(begin), ", ", where(t));
    check_failure();
  }
}

void Worker::start_warp(int begin, int end) {
  lanes = end - begin;
  next_ = begin;
  last_ = end;
  while (next_ < last_) {
    free_fiber().context.switch_to(main_);
    check_failure();
  }
  exchange_until_barrier(begin, end);
}

void Worker::resume_warp(int begin, int end) {
  lanes = end - begin;
  for (int t = begin; t < end; ++t) {
    set_thread(t);
    threads_[t].fiber->context.switch_to(main_);
    check_failure();
  }
}

void Worker::exchange_until_barrier(int begin, int end) {
  while (true) {
    check_together(begin, end);
    if (threads_[begin].what <= kBarrier) return;
    slots = slots == slot_memory_[0] ? slot_memory_[1] : slot_memory_[0];
    resume_warp(begin, end);
  }
}

void Worker::run_block(EmulatedLaunch& launch, int64_t index) {
  launch_ = &launch;
  const LaunchSize& size = launch.size;
  block[0] = static_cast<int>(index % size.grid[0]);
  block[1] = static_cast<int>(index / size.grid[0] % size.grid[1]);
  block[2] = static_cast<int>(index / size.grid[0] / size.grid[1]);
  const auto count = static_cast<int>(size.block[0] * size.block[1] * size.block[2]);
  const int warp = launch.target.warp;
  threads_.assign(count, {});
  shared_memory_.resize(launch.target.shared_bytes);
  shared = shared_memory_.data();
  shared_ready = 0;
  for (int t = 0; t < count; t += warp) start_warp(t, std::min(t + warp, count));
  while (true) {
    check_together(0, count);
    if (threads_[0].what == kEnded) return;
    for (int t = 0; t < count; t += warp) {
      resume_warp(t, std::min(t + warp, count));
      exchange_until_barrier(t, std::min(t + warp, count));
    }
  }
}

}  // namespace

EmulatedProgram::EmulatedProgram(const std::string& binary, const std::string& entry)
    : name_(entry), library_(binary, entry) {
  run_ = reinterpret_cast<void (*)(void**)>(library_.symbol("tiny_run"));
  most_threads_ = *static_cast<const int*>(library_.symbol("tiny_threads"));
  using GetEmulated = Emulated* (*)();
  *static_cast<GetEmulated*>(library_.symbol("tiny_emulated")) = emulated_of_thread;
}

int64_t EmulatedProgram::place_shared(long long* place, int64_t bytes, int64_t limit) {
  std::lock_guard lock(mutex_);
  if (*place >= 0) return *place;
  if (shared_bytes_ + bytes > limit) return -1;
  const int64_t at = shared_bytes_;
  __atomic_store_n(place, at, __ATOMIC_RELAXED);
  shared_bytes_ = (at + bytes + 15) / 16 * 16;
  return at;
}

void run_blocks(EmulatedLaunch& launch) noexcept {
  const auto& grid = launch.size.grid;
  const int64_t blocks = grid[0] * grid[1] * grid[2];
  for (int64_t i; (i = launch.next.fetch_add(1, std::memory_order_relaxed)) < blocks;) {
    try {
      this_worker().run_block(launch, i);
    } catch (const std::exception& error) {
      launch.next.store(blocks, std::memory_order_relaxed);
      std::lock_guard lock(launch.mutex);
      if (launch.error.empty()) launch.error = error.what();
    }
  }
}

}  // namespace tiny
