#include "devices/emulator/grid.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "devices/emulator/fault_guard.h"
#include "devices/emulator/fiber.h"
#include "devices/emulator/matrix_units.h"
#include "devices/emulator/shadow.h"
#include "tiny/base/error.h"
#include "tiny/base/thread.h"
#include "tiny/ir/sizes.h"

// Code on the stacks of fibers: the sanitizers know one stack per thread.
#define ON_FIBER __attribute__((no_sanitize("address", "thread")))

namespace tiny {
namespace {

constexpr int kMaxLanes = 64, kMaxWarps = 128, kSlotBytes = 16;  // warps of a cluster
// An exchange between lanes is positive; a thread that polls asks again at some later time.
constexpr int kBarrier = 0, kEnded = -1, kPoll = -2, kCluster = -3;

std::string text_of(const int (&v)[3]) { return cat("(", v[0], ", ", v[1], ", ", v[2], ")"); }

std::string place_of(int line) {
  return line >= kEmulatorPreludeLine ? cat("line ", line - kEmulatorPreludeLine, " of the prelude")
                                      : cat("line ", line);
}

// One thread of the system with the fibers that execute a block, or the blocks of a cluster.
class Worker : public Emulated {
 public:
  Worker();
  void run_blocks_of(EmulatedLaunch& launch, int64_t cluster);
  std::vector<char>& signal_stack() { return signal_stack_; }
  static FaultTarget fault_target();

 private:
  using Fiber = FiberPool::Fiber;
  // A thread of the block: where it waits, and the fiber that it waits in.
  struct Thread {
    Fiber* fiber = nullptr;
    int what = kEnded, line = 0;
  };

  // A block of the cluster, which is one where there are no others.
  struct Block {
    int place[3] = {0, 0, 0};
    std::vector<char> memory;
    long long ready = 0;
    SharedShadow shadow;
    EmulatedMatrixUnits matrix;
  };

  static void on_wait(Emulated* e, int what, int line);
  static void on_fail(Emulated* e, const char* message, int line);
  static long long on_place(Emulated* e, long long* place, long long bytes, int line);
  static void on_access(Emulated* e, const void* address, long long bytes, int writes,
                        const void* at);
  static int on_mbarrier(Emulated* e, int what, unsigned barrier, unsigned value, int line);
  static void on_copy_box(Emulated* e, unsigned to, const void* map, unsigned barrier,
                          const int* at, int rank, int blocks, int line);
  static void on_words(Emulated* e, unsigned address, int block, void* words, int line);
  static void on_multiply(Emulated* e, void* acc, int columns, unsigned long long a,
                          unsigned long long b, int form, int line);
  static int on_products(Emulated* e, int what, int groups, int line);
  static void on_fault(int signal, const void* address);
  static void on_misaligned(Emulated* e, const void* address, long long alignment, int line);
  static void fiber_main(void* fiber);

  void set_shape(const int64_t (&block)[3]);
  void enter(int block);
  Block& now() { return blocks_[now_]; }
  Block* block_of_cluster(unsigned number, int line);
  FiberContext& next_thread();
  void fail_thread(const std::string& message, int line);
  std::string outside(const char* address, int64_t bytes, bool writes) const;
  std::string shared_problem(int64_t at, int64_t bytes, bool writes, bool by_unit = false);
  void run_warp(int begin, int end);
  void run_lanes(int warp, int begin, int end);
  void exchange_until_barrier(int begin, int end);
  bool polls(int begin, int end) const;
  void resume_polls(int begin, int end);
  void poll_until_barrier();
  void check_together(int begin, int end);
  int number_of(int begin) const {  // of the warp that begins there
    const int warp = launch_->target.warp, each = ceil_div(count_, warp);
    return begin / count_ * each + begin % count_ / warp;
  }
  int64_t events() const;
  bool complete_copy();
  void meet();
  void run_warps(int64_t cluster);
  std::string where(int t) const;
  void check_failure();

  EmulatedLaunch* launch_ = nullptr;
  std::vector<Thread> threads_;  // of all blocks
  std::vector<Block> blocks_;
  int now_ = 0, cluster_ = 1, count_ = 1;      // the block that runs, how many, threads of each
  std::vector<std::array<int, 3>> positions_;  // of the threads in a block of this shape
  int64_t shape_[3] = {0, 0, 0};
  int current_ = 0, end_ = 0;  // the thread that runs; those before end_ follow it
  FiberContext main_;
  FiberPool fibers_{fiber_main, this};
  alignas(64) char slot_memory_[kMaxWarps][2][kMaxLanes * kSlotBytes];  // in turn
  char second_slots_[kMaxWarps] = {};  // whether it is the second one's turn
  std::vector<char> signal_stack_ = std::vector<char>(64 << 10);
  std::vector<char> fault_stack_ = std::vector<char>(64 << 10);
  volatile bool inside_ = false;  // a kernel runs
  std::string failure_;
  const void* failure_code_ = nullptr;  // where it happened, if its line is to be found
};

thread_local Worker* worker_of_thread = nullptr;

Emulated* emulated_of_thread() { return worker_of_thread; }

Worker& this_worker() {
  auto& worker = of_thread<Worker>();
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
  words = on_words;
}

// --- on the stacks of fibers -----------------------------------------------------------------

ON_FIBER void Worker::on_wait(Emulated* e, int what, int line) {
  auto& w = *static_cast<Worker*>(e);
  Thread& thread = w.threads_[w.current_];
  thread.what = what;
  thread.line = line;
  w.next_thread().switch_to(thread.fiber->context);
}

// The fiber that runs when a thread stops: the next one of its warp, in the end the warp's master.
// From fiber to fiber the processor predicts all jumps, as the stacks have the same calls.
ON_FIBER FiberContext& Worker::next_thread() {
  if (++current_ >= end_) return main_;
  ++lane;
  index = current_ % count_;
  const auto& at = positions_[index];
  std::memcpy(thread, at.data(), sizeof(thread));
  Fiber*& fiber = threads_[current_].fiber;
  if (fiber == nullptr) fiber = fibers_.take();
  return fiber->context;
}

// Runs a thread to its end, and then others that have not begun, as long as they do not wait.
ON_FIBER void Worker::fiber_main(void* argument) {
  auto& fiber = *static_cast<Fiber*>(argument);
  Worker& w = *static_cast<Worker*>(fiber.owner);
  while (true) {
    w.launch_->program.run(w.launch_->args);
    w.threads_[w.current_].what = kEnded;
    w.fibers_.put_back(&fiber);  // the next thread takes it where it has none
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
    case 0: problem = w.now().matrix.init(barrier, value); break;
    case 1: w.now().matrix.fence(), w.now().shadow.fence(e->index); break;
    case 2: problem = w.now().matrix.test(barrier, value, &complete); break;
    case 5: {
      EmulatedMatrixUnits& there = w.block_of_cluster(value, line)->matrix;
      problem = there.reach();
      if (problem.empty()) problem = there.arrive(barrier, 0);
      break;
    }
    case 6: w.now().matrix.fence_cluster(); break;
    default: problem = w.now().matrix.arrive(barrier, what == 3 ? value : 0);
  }
  if (!problem.empty()) on_fail(e, problem.c_str(), line);
  return complete;
}

ON_FIBER Worker::Block* Worker::block_of_cluster(unsigned number, int line) {
  if (number < static_cast<unsigned>(cluster_)) return &blocks_[number];
  on_fail(this, "reaches into a block that its cluster does not have", line);
  return nullptr;
}

ON_FIBER void Worker::on_copy_box(Emulated* e, unsigned to, const void* map, unsigned barrier,
                                  const int* at, int places, int blocks, int line) {
  auto& w = *static_cast<Worker*>(e);
  const auto& source = *static_cast<const EmulatedMap*>(map);
  const int rank = source.map.rank, wanted = source.map.windows ? 2 - 2 * rank : rank;
  std::string problem;
  if (places != wanted)
    problem =
        cat("copies at ", std::abs(places), " places of ", places < 0 ? "windows" : "a tensor",
            " what is ", source.map.windows ? "windows" : "a tensor", " of ", rank, " axes");
  else if (blocks == 0)
    problem = w.now().matrix.copy_box(to, source, barrier, at);
  for (unsigned i = 0; problem.empty() && blocks >> i; ++i) {
    if (!(blocks >> i & 1)) continue;
    EmulatedMatrixUnits& there = w.block_of_cluster(i, line)->matrix;
    problem = there.reach();
    if (problem.empty()) problem = there.copy_box(to, source, barrier, at);
  }
  if (!problem.empty()) on_fail(e, problem.c_str(), line);
}

ON_FIBER void Worker::on_words(Emulated* e, unsigned address, int block, void* words, int line) {
  auto& w = *static_cast<Worker*>(e);
  const std::string problem =
      block < 0
          ? w.now().matrix.load(address, words)
          : w.block_of_cluster(static_cast<unsigned>(block), line)->matrix.store(address, words);
  if (!problem.empty()) on_fail(e, problem.c_str(), line);
}

ON_FIBER void Worker::on_multiply(Emulated* e, void* acc, int columns, unsigned long long a,
                                  unsigned long long b, int form, int line) {
  auto& w = *static_cast<Worker*>(e);
  std::string problem = w.now().matrix.multiply(e->index, acc, {a, b, columns, form});
  for (uint32_t at : w.now().matrix.share_of(e->index, {a, b, columns, form}))
    if (problem.empty()) problem = w.shared_problem(at, 1, false, true);
  if (!problem.empty()) on_fail(e, problem.c_str(), line);
}

ON_FIBER int Worker::on_products(Emulated* e, int what, int groups, int line) {
  auto& w = *static_cast<Worker*>(e);
  if (what == 0) w.now().matrix.fence_products(w.index);
  if (what == 1) w.now().matrix.commit(w.index);
  if (what != 2) return 1;
  bool done = true;
  const std::string problem = w.now().matrix.wait(w.index, groups, &done);
  if (!problem.empty()) on_fail(e, problem.c_str(), line);
  return done;
}

// The fault of an access to shared memory; empty where there is none.
std::string Worker::shared_problem(int64_t at, int64_t bytes, bool writes, bool by_unit) {
  SharedShadow& shadow = now().shadow;
  const auto begin_at = static_cast<size_t>(at), size_at = static_cast<size_t>(bytes);
  const bool first = !shadow.is_touched(begin_at);
  int other = -1;
  const auto problem = by_unit ? shadow.touch_by_unit(begin_at, index, &other)
                               : shadow.touch(begin_at, size_at, index, writes, &other);
  if (problem == SharedShadow::Problem::None && !(first && writes)) return "";
  const auto [begin, size] = launch_->program.array_at(at);
  const std::string what = cat(writes ? "writes " : "reads ", bytes, " bytes of shared memory, ");
  if (at + bytes > begin + size) return what + "outside of its arrays";
  if (problem == SharedShadow::Problem::None) return "";
  const auto text_of_thread = [&] {
    return "thread " + text_of({positions_[other][0], positions_[other][1], positions_[other][2]});
  };
  return cat(what, "from byte ", at - begin, " of an array of ", size, ", ",
             fault_text(problem, other < 0 ? "others" : text_of_thread(), other < 0));
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
    w.now().shadow.grow(static_cast<size_t>(at + bytes));
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

// The block whose threads run next.
void Worker::enter(int block) {
  now().ready = shared_ready;
  now_ = block;
  shared = now().memory.data();
  shared_ready = now().ready;
  std::copy(now().place, now().place + 3, this->block);
}

void Worker::check_failure() {
  if (failure_.empty()) return;
  fibers_.restart();
  std::string message = std::exchange(failure_, {});
  if (const void* code = std::exchange(failure_code_, nullptr))
    if (const int line = launch_->program.line_of(code)) message += cat(" (line ", line, ")");
  throw DeviceError(message);
}

std::string Worker::where(int t) const {
  const auto& [x, y, z] = positions_[t % count_];
  const Thread& thread = threads_[t];
  const char* what = thread.what == kEnded     ? " has ended"
                     : thread.what == kBarrier ? " waits at the barrier of "
                     : thread.what == kPoll    ? " waits for ever at "
                     : thread.what == kCluster ? " waits at the cluster's barrier of "
                                               : " exchanges values of lanes at ";
  return cat("thread ", text_of({x, y, z}), what,
             thread.what == kEnded ? "" : place_of(thread.line));
}

// All of these threads must wait at the same place, or have ended.
void Worker::check_together(int begin, int end) {
  const Thread& first = threads_[begin];
  for (int t = begin + 1; t < end; ++t) {
    const Thread& other = threads_[t];
    const bool anywhere = other.what == kEnded || other.what == kCluster;
    if (other.what == first.what && (other.line == first.line || anywhere)) continue;
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
  if (warp / count_ != now_) enter(warp / count_);
  const int number = number_of(warp);
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
    second_slots_[number_of(begin)] ^= 1;
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

int64_t Worker::events() const {
  int64_t n = 0;
  for (const Block& b : blocks_) n += b.matrix.events();
  return n;
}

bool Worker::complete_copy() {
  return std::any_of(blocks_.rbegin(), blocks_.rend(),
                     [](Block& b) { return b.matrix.complete_copy(); });
}

// Copies come to an end when all threads wait and nothing else happens.
void Worker::poll_until_barrier() {
  const int count = cluster_ * count_, warp = launch_->target.warp;
  while (polls(0, count)) {
    const int64_t before = events();
    for (int block = 0; block < cluster_; ++block)
      for (int at = 0; at < count_; at += warp) {
        const int begin = block * count_ + at, end = block * count_ + std::min(at + warp, count_);
        if (!polls(begin, end)) continue;
        resume_polls(begin, end);
        exchange_until_barrier(begin, end);
      }
    if (events() != before || !polls(0, count) || complete_copy()) continue;
    const auto first =
        std::ranges::find_if(threads_, [](const Thread& t) { return t.what == kPoll; });
    const auto t = static_cast<int>(first - threads_.begin());
    failure_ = cat("block ", text_of(blocks_[t / count_].place), ": ", where(t));
    check_failure();
  }
}

// Every other block has its last warp first, so that a missing barrier shows.
void Worker::run_warps(int64_t cluster) {
  const int warp = launch_->target.warp, warps = ceil_div(count_, warp);
  for (int i = 0; i < cluster_ * warps; ++i) {
    const int64_t block = i / warps, number = i % warps;
    const bool forward = (cluster * cluster_ + block) % 2 == 0;
    const int at = warp * static_cast<int>(forward ? number : warps - 1 - number);
    const int begin = static_cast<int>(block) * count_ + at;
    const int end = begin - at + std::min(at + warp, count_);
    fibers_.prepare(static_cast<size_t>(warp));
    run_warp(begin, end);
    exchange_until_barrier(begin, end);
  }
}

// All threads of all blocks are at a barrier, or have ended.
void Worker::meet() {
  check_together(0, cluster_ * count_);
  for (Block& b : blocks_) {
    b.shadow.barrier();
    if (threads_[0].what == kCluster) b.matrix.meet();
    if (threads_[0].what == kEnded) failure_ = b.matrix.end();
    if (!failure_.empty()) failure_ = cat("block ", text_of(b.place), ": ", failure_);
    check_failure();
  }
}

void Worker::run_blocks_of(EmulatedLaunch& launch, int64_t cluster) {
  launch_ = &launch;
  const LaunchSize& size = launch.size;
  cluster_ = size.cluster;
  count_ = static_cast<int>(size.block[0] * size.block[1] * size.block[2]);
  threads_.assign(static_cast<size_t>(cluster_ * count_), {});
  set_shape(size.block);
  blocks_.resize(static_cast<size_t>(cluster_));
  dynamic_shared = size.shared_bytes;
  flushes = launch.target.arch == "gfx90a";
  std::copy(size.grid, size.grid + 3, grid);
  for (int i = 0; i < cluster_; ++i) {
    Block& b = blocks_[i];
    const int64_t index = cluster * cluster_ + i;
    b.place[0] = static_cast<int>(index % size.grid[0]);
    b.place[1] = static_cast<int>(index / size.grid[0] % size.grid[1]);
    b.place[2] = static_cast<int>(index / size.grid[0] / size.grid[1]);
    b.memory.resize(static_cast<size_t>(launch.target.shared_bytes) +
                    EmulatedProgram::kMaxArrays * EmulatedProgram::kGapBytes);
    b.matrix.begin_block(b.memory.data(), static_cast<int64_t>(b.memory.size()), count_);
    b.shadow.grow(0);
    b.shadow.begin_block();
    b.ready = 0;
  }
  now_ = 0;
  shared_ready = 0;
  enter(0);
  do {
    run_warps(cluster);
    poll_until_barrier();
    meet();
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

void run_blocks(EmulatedLaunch& launch) noexcept {
  const auto& grid = launch.size.grid;
  const int64_t clusters = grid[0] * grid[1] * grid[2] / launch.size.cluster;
  Worker& worker = this_worker();
  const FaultGuard guard(Worker::fault_target);
  const SignalStack stack(worker.signal_stack().data(), worker.signal_stack().size());
  for (int64_t i; (i = launch.next.fetch_add(1, std::memory_order_relaxed)) < clusters;) {
    try {
      worker.run_blocks_of(launch, i);
    } catch (const std::exception& error) {
      launch.next.store(clusters, std::memory_order_relaxed);
      std::lock_guard lock(launch.mutex);
      if (launch.error.empty()) launch.error = error.what();
    }
  }
}

}  // namespace tiny
