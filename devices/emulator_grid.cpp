#include "devices/emulator_grid.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "devices/emulator_matrix.h"
#include "devices/emulator_shadow.h"
#include "devices/fault_guard.h"
#include "devices/fiber.h"
#include "tiny/error.h"

// Code on the stacks of fibers: the sanitizers know one stack per thread.
#define ON_FIBER __attribute__((no_sanitize("address", "thread")))

namespace tiny {
namespace {

constexpr int64_t kGapBytes = 16;  // between arrays of shared memory
constexpr size_t kMostArrays = 256;
constexpr int kMostLanes = 64, kMostWarps = 64, kSlotBytes = 16;
// An exchange between lanes is positive; a thread that polls asks again at some later time.
constexpr int kBarrier = 0, kEnded = -1, kPoll = -2;

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
  std::vector<char>& signal_stack() { return signal_stack_; }
  static FaultTarget fault_target();

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
  static void on_access(Emulated* e, const void* address, long long bytes, int writes,
                        const void* at);
  static int on_mbarrier(Emulated* e, int what, unsigned barrier, unsigned value, int line);
  static void on_copy_box(Emulated* e, unsigned to, const void* map, unsigned barrier,
                          const int* at, int rank, int line);
  static void on_multiply(Emulated* e, void* acc, int columns, unsigned long long a,
                          unsigned long long b, int form, int line);
  static int on_products(Emulated* e, int what, int groups, int line);
  static void on_fault(int signal, const void* address);
  static void on_misaligned(Emulated* e, const void* address, long long alignment, int line);
  static void fiber_main(void* fiber);

  void set_shape(const int64_t (&block)[3]);
  FiberContext& next_thread();
  void prepare_fibers(size_t count);
  void fail_thread(const std::string& message, int line);
  std::string outside(const char* address, int64_t bytes, bool writes) const;
  std::string shared_problem(int64_t at, int64_t bytes, bool writes);
  void run_warp(int begin, int end);
  void run_lanes(int warp, int begin, int end);
  void exchange_until_barrier(int begin, int end);
  bool polls(int begin, int end) const;
  void resume_polls(int begin, int end);
  void poll_until_barrier(int count, int warp);
  void check_together(int begin, int end);
  std::string where(int t) const;
  void check_failure();
  void abandon_fibers();

  EmulatedLaunch* launch_ = nullptr;
  std::vector<Thread> threads_;
  std::vector<std::array<int, 3>> positions_;  // of the threads in a block of this shape
  int64_t shape_[3] = {0, 0, 0};
  int current_ = 0, end_ = 0;  // the thread that runs; those before end_ follow it
  FiberContext main_;
  FiberStacks stacks_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> free_;
  std::vector<char> shared_memory_;
  SharedShadow shadow_;
  EmulatedMatrixUnits matrix_;
  alignas(64) char slot_memory_[kMostWarps][2][kMostLanes * kSlotBytes];  // in turn
  char second_slots_[kMostWarps] = {};  // whether it is the second one's turn
  std::vector<char> signal_stack_ = std::vector<char>(64 << 10);
  std::vector<char> fault_stack_ = std::vector<char>(64 << 10);
  volatile bool inside_ = false;  // a kernel runs
  std::string failure_;
  const void* failure_code_ = nullptr;  // where it happened, if its line is to be found
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
  access = on_access;
  mbarrier = on_mbarrier;
  copy_box = on_copy_box;
  multiply = on_multiply;
  products = on_products;
}

// --- on the stacks of fibers -----------------------------------------------------------------

ON_FIBER void Worker::on_wait(Emulated* e, int what, int line) {
  auto& w = *static_cast<Worker*>(e);
  Thread& thread = w.threads_[w.current_];
  thread.what = what;
  thread.line = line;
  w.next_thread().switch_to(thread.fiber->context);
}

// What runs when a thread has come to a stop: the next one of its warp, in the end the warp's
// master. From fiber to fiber the processor predicts all jumps, as the stacks have the same calls.
ON_FIBER FiberContext& Worker::next_thread() {
  if (++current_ >= end_) return main_;
  ++lane;
  index = current_;
  const auto& at = positions_[current_];
  std::memcpy(thread, at.data(), sizeof(thread));
  Fiber*& fiber = threads_[current_].fiber;
  if (fiber == nullptr) {
    fiber = free_.back();
    free_.pop_back();
  }
  return fiber->context;
}

// Runs a thread to its end, and then others that have not begun, as long as they do not wait.
ON_FIBER void Worker::fiber_main(void* argument) {
  auto& fiber = *static_cast<Fiber*>(argument);
  Worker& w = *fiber.worker;
  while (true) {
    w.launch_->program.run(w.launch_->args);
    w.threads_[w.current_].what = kEnded;
    w.free_.push_back(&fiber);  // the next thread takes it where it has none
    FiberContext& next = w.next_thread();
    if (&next != &fiber.context) next.switch_to(fiber.context);
  }
}

ON_FIBER void Worker::on_fail(Emulated* e, const char* message, int line) {
  auto& w = *static_cast<Worker*>(e);
  w.fail_thread(message, line);
  w.main_.switch_to(w.threads_[w.current_].fiber->context);
}

void Worker::fail_thread(const std::string& message, int line) {
  failure_ = cat("block ", text_of(block), ", thread ", text_of(thread), line ? ", " : "",
                 line ? place_of(line) : "", ": ", message);
}

ON_FIBER void Worker::on_misaligned(Emulated* e, const void* address, long long alignment,
                                    int line) {
  const std::string message =
      cat("misaligned access: address ", address, " is no multiple of ", alignment);
  on_fail(e, message.c_str(), line);
}

ON_FIBER void Worker::on_access(Emulated* e, const void* address, long long bytes, int writes,
                                const void* at) {
  auto& w = *static_cast<Worker*>(e);
  const auto* p = static_cast<const char*>(address);
  for (const EmulatedBuffer& buffer : w.launch_->buffers)
    if (p >= buffer.begin && p + bytes <= buffer.begin + buffer.bytes) return;
  const char* own = reinterpret_cast<const char*>(&w);
  if (p >= own && p < own + sizeof(Worker)) return;
  const bool is_shared = p >= w.shared && p + bytes <= w.shared + w.shared_ready;
  const std::string problem =
      is_shared ? w.shared_problem(p - w.shared, bytes, writes) : w.outside(p, bytes, writes);
  if (problem.empty()) return;
  w.failure_code_ = at;
  on_fail(e, problem.c_str(), 0);
}

ON_FIBER int Worker::on_mbarrier(Emulated* e, int what, unsigned barrier, unsigned value,
                                 int line) {
  auto& w = *static_cast<Worker*>(e);
  bool complete = true;
  std::string problem;
  switch (what) {
    case 0: problem = w.matrix_.init(barrier, value); break;
    case 1: w.matrix_.fence(); break;
    case 2: problem = w.matrix_.test(barrier, value, &complete); break;
    default: problem = w.matrix_.arrive(barrier, what == 3 ? value : 0);
  }
  if (!problem.empty()) on_fail(e, problem.c_str(), line);
  return complete;
}

ON_FIBER void Worker::on_copy_box(Emulated* e, unsigned to, const void* map, unsigned barrier,
                                  const int* at, int places, int line) {
  const auto& source = *static_cast<const EmulatedMap*>(map);
  auto& matrix = static_cast<Worker*>(e)->matrix_;
  const int rank = source.map.rank, wanted = source.map.windows ? 2 - 2 * rank : rank;
  const std::string problem =
      places == wanted
          ? matrix.copy_box(to, source, barrier, at)
          : cat("copies at ", std::abs(places), " places of ", places < 0 ? "windows" : "a tensor",
                " what is ", source.map.windows ? "windows" : "a tensor", " of ", rank, " axes");
  if (!problem.empty()) on_fail(e, problem.c_str(), line);
}

ON_FIBER void Worker::on_multiply(Emulated* e, void* acc, int columns, unsigned long long a,
                                  unsigned long long b, int form, int line) {
  const std::string problem =
      static_cast<Worker*>(e)->matrix_.multiply(e->index, acc, {a, b, columns, form});
  if (!problem.empty()) on_fail(e, problem.c_str(), line);
}

ON_FIBER int Worker::on_products(Emulated* e, int what, int groups, int line) {
  auto& w = *static_cast<Worker*>(e);
  if (what == 0) w.matrix_.fence_products(w.index);
  if (what == 1) w.matrix_.commit(w.index);
  if (what != 2) return 1;
  bool done = true;
  const std::string problem = w.matrix_.wait(w.index, groups, &done);
  if (!problem.empty()) on_fail(e, problem.c_str(), line);
  return done;
}

// What is wrong with an access to shared memory, if anything.
std::string Worker::shared_problem(int64_t at, int64_t bytes, bool writes) {
  const bool first = !shadow_.is_touched(static_cast<size_t>(at));
  int other = -1;
  const auto problem =
      shadow_.touch(static_cast<size_t>(at), static_cast<size_t>(bytes), index, writes, &other);
  if (problem == SharedShadow::Problem::None && !(first && writes)) return "";
  const auto [begin, size] = launch_->program.array_at(at);
  const std::string what = cat(writes ? "writes " : "reads ", bytes, " bytes of shared memory, ");
  if (at + bytes > begin + size) return what + "outside of its arrays";
  const std::string place = cat(what, "from byte ", at - begin, " of an array of ", size, ", ");
  const std::string who =
      other < 0
          ? "others"
          : "thread " + text_of({positions_[other][0], positions_[other][1], positions_[other][2]});
  switch (problem) {
    case SharedShadow::Problem::NeverWritten: return place + "that no thread has written";
    case SharedShadow::Problem::RaceWithWrite:
      return cat(place, "that ", who, " writes with no barrier between them");
    case SharedShadow::Problem::RaceWithRead:
      return cat(place, "that ", who, other < 0 ? " read" : " reads",
                 " with no barrier between them");
    default: return "";
  }
}

// An access that is in none of the buffers, and how far from the nearest one.
std::string Worker::outside(const char* address, int64_t bytes, bool writes) const {
  constexpr int64_t kNear = 1 << 20;
  std::string where = cat("address ", static_cast<const void*>(address));
  int64_t least = kNear;
  for (const EmulatedBuffer& b : launch_->buffers) {
    const bool before = address < b.begin;
    const int64_t distance = before ? b.begin - address : address - (b.begin + b.bytes);
    if (distance >= least) continue;
    least = distance;
    where = distance < 0
                ? cat("the last of them beyond the end")
                : cat(distance, before ? " bytes before the start" : " bytes after the end");
    where += cat(" of argument ", b.argument, ", a buffer of ", b.bytes, " bytes");
  }
  return cat(writes ? "writes " : "reads ", bytes, " bytes outside of its buffers: ", where);
}

FaultTarget Worker::fault_target() {
  Worker* w = worker_of_thread;
  if (w == nullptr || !w->inside_) return {};
  return {on_fault, w->fault_stack_.data() + w->fault_stack_.size()};
}

// On a stack of its own, since that of the fiber may have overflowed. A fault is the kernel's
// doing: nothing of this process was interrupted in the middle.
ON_FIBER void Worker::on_fault(int signal, const void* address) {
  const std::string message = signal == SIGFPE   ? "integer division by zero or overflow of one"
                              : signal == SIGILL ? "illegal instruction"
                                                 : cat("illegal access to address ", address);
  on_fail(worker_of_thread, message.c_str(), 0);
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
    w.shadow_.grow(static_cast<size_t>(at + bytes));
  }
  return at;
}

// --- on the stack of the system's thread -----------------------------------------------------

void Worker::set_shape(const int64_t (&block)[3]) {
  if (std::equal(block, block + 3, shape_)) return;
  std::copy(block, block + 3, shape_);
  positions_.clear();
  for (int z = 0; z < block[2]; ++z)
    for (int y = 0; y < block[1]; ++y)
      for (int x = 0; x < block[0]; ++x) positions_.push_back({x, y, z});
}

// From here on so many can be taken.
void Worker::prepare_fibers(size_t count) {
  while (free_.size() < count) {
    const size_t i = fibers_.size();
    char* stack = stacks_.stack(i);
    fibers_.push_back(std::make_unique<Fiber>());
    Fiber& fiber = *fibers_.back();
    fiber.worker = this;
    fiber.context.start(stack, stacks_.usable_bytes(i), fiber_main, &fiber);
    free_.push_back(&fiber);
  }
  free_.reserve(fibers_.size());
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
  std::string message = std::exchange(failure_, {});
  if (const void* code = std::exchange(failure_code_, nullptr))
    if (const int line = launch_->program.line_of(code)) message += cat(" (line ", line, ")");
  throw DeviceError(message);
}

std::string Worker::where(int t) const {
  const auto& [x, y, z] = positions_[t];
  const Thread& thread = threads_[t];
  const char* what = thread.what == kEnded     ? " has ended"
                     : thread.what == kBarrier ? " waits at the barrier of "
                     : thread.what == kPoll    ? " waits for ever at "
                                               : " exchanges values of lanes at ";
  return cat("thread ", text_of({x, y, z}), what,
             thread.what == kEnded ? "" : place_of(thread.line));
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

// Lets each thread of a warp run until it waits or ends; those without a fiber begin.
void Worker::run_warp(int begin, int end) {
  lanes = end - begin;
  run_lanes(begin, begin, end);
}

// The same for some threads of the warp that begins at `warp`.
void Worker::run_lanes(int warp, int begin, int end) {
  const int number = warp / launch_->target.warp;
  slots = slot_memory_[number][static_cast<int>(second_slots_[number])];
  lane = begin - warp - 1;
  current_ = begin - 1;
  end_ = end;
  inside_ = true;
  next_thread().switch_to(main_);
  inside_ = false;
  check_failure();
}

void Worker::exchange_until_barrier(int begin, int end) {
  while (!polls(begin, end)) {
    check_together(begin, end);
    if (threads_[begin].what <= kBarrier) return;
    second_slots_[begin / launch_->target.warp] ^= 1;
    run_warp(begin, end);
  }
}

bool Worker::polls(int begin, int end) const {
  return std::any_of(threads_.begin() + begin, threads_.begin() + end,
                     [](const Thread& t) { return t.what == kPoll; });
}

// Lets the threads of a warp that poll ask again: all at once, or where others of it are elsewhere
// one by one.
void Worker::resume_polls(int begin, int end) {
  const bool all = std::all_of(
      threads_.begin() + begin, threads_.begin() + end,
      [&](const Thread& t) { return t.what == kPoll && t.line == threads_[begin].line; });
  if (all) return run_warp(begin, end);
  lanes = end - begin;
  for (int t = begin; t < end; ++t)
    if (threads_[t].what == kPoll) run_lanes(begin, t, t + 1);
}

// Copies come to an end when all threads wait and nothing else happens.
void Worker::poll_until_barrier(int count, int warp) {
  while (polls(0, count)) {
    const int64_t before = matrix_.events();
    for (int begin = 0; begin < count; begin += warp) {
      const int end = std::min(begin + warp, count);
      if (!polls(begin, end)) continue;
      resume_polls(begin, end);
      exchange_until_barrier(begin, end);
    }
    if (matrix_.events() != before || !polls(0, count) || matrix_.complete_copy()) continue;
    const auto first = std::find_if(threads_.begin(), threads_.end(),
                                    [](const Thread& t) { return t.what == kPoll; });
    failure_ =
        cat("block ", text_of(block), ": ", where(static_cast<int>(first - threads_.begin())));
    check_failure();
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
  set_shape(size.block);
  shared_memory_.resize(static_cast<size_t>(launch.target.shared_bytes) + kMostArrays * kGapBytes);
  shared = shared_memory_.data();
  shared_ready = 0;
  dynamic_shared = size.shared_bytes;
  flushes = launch.target.arch == "gfx90a";
  std::copy(size.grid, size.grid + 3, grid);
  matrix_.begin_block(shared, static_cast<int64_t>(shared_memory_.size()), count);
  shadow_.grow(0);
  shadow_.begin_block();
  // Every other block has its last warp first: so one of them reads what a missing barrier lets it
  // read too early.
  const int warps = (count + warp - 1) / warp;
  do {
    for (int i = 0; i < warps; ++i) {
      const int begin = warp * (index % 2 == 0 ? i : warps - 1 - i);
      const int end = std::min(begin + warp, count);
      prepare_fibers(warp);
      run_warp(begin, end);
      exchange_until_barrier(begin, end);
    }
    poll_until_barrier(count, warp);
    check_together(0, count);
    shadow_.barrier();
  } while (threads_[0].what != kEnded);
}

}  // namespace

EmulatedProgram::EmulatedProgram(const std::string& binary, const std::string& entry)
    : name_(entry), library_(binary, entry), binary_(binary) {
  run_ = reinterpret_cast<void (*)(void**)>(library_.symbol("tiny_run"));
  most_threads_ = *static_cast<const int*>(library_.symbol("tiny_threads"));
  using GetEmulated = Emulated* (*)();
  *static_cast<GetEmulated*>(library_.symbol("tiny_emulated")) = emulated_of_thread;
}

int64_t EmulatedProgram::place_shared(long long* place, int64_t bytes, int64_t limit) {
  std::lock_guard lock(mutex_);
  if (*place >= 0) return *place;
  int64_t used = bytes, at = 0;
  for (const auto& [begin, size] : arrays_) {
    used += (size + 15) / 16 * 16;
    at = (begin + size + 15) / 16 * 16 + kGapBytes;
  }
  if (used > limit || arrays_.size() == kMostArrays) return -1;
  arrays_.emplace_back(at, bytes);
  __atomic_store_n(place, at, __ATOMIC_RELAXED);
  return at;
}

std::pair<int64_t, int64_t> EmulatedProgram::array_at(int64_t byte) {
  std::lock_guard lock(mutex_);
  for (const auto& [begin, size] : arrays_)
    if (byte >= begin && byte < begin + size) return {begin, size};
  return {0, 0};
}

// The address that a call returns to lies behind the call. A function that was inlined is followed
// by those around it, the kernel last.
int EmulatedProgram::line_of(const void* code) const {
  Dl_info info;
  if (dladdr(code, &info) == 0) return 0;
  const auto offset = static_cast<const char*>(code) - static_cast<char*>(info.dli_fbase) - 1;
  int line = 0;
  for (const int l : lines_of_code(binary_, static_cast<uint64_t>(offset)))
    if (l < kEmulatorPreludeLine) line = l;
  return line;
}

void run_blocks(EmulatedLaunch& launch) noexcept {
  const auto& grid = launch.size.grid;
  const int64_t blocks = grid[0] * grid[1] * grid[2];
  Worker& worker = this_worker();
  const FaultGuard guard(Worker::fault_target);
  const SignalStack stack(worker.signal_stack().data(), worker.signal_stack().size());
  for (int64_t i; (i = launch.next.fetch_add(1, std::memory_order_relaxed)) < blocks;) {
    try {
      worker.run_block(launch, i);
    } catch (const std::exception& error) {
      launch.next.store(blocks, std::memory_order_relaxed);
      std::lock_guard lock(launch.mutex);
      if (launch.error.empty()) launch.error = error.what();
    }
  }
}

}  // namespace tiny
