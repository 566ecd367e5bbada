// The device interface: the operations that hardware must offer, and finding a device by name. A
// new device is one file in devices/ and one row in devices/registry.cpp.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/target/source.h"
#include "codegen/target/target.h"
#include "tiny/ir/dtype.h"

namespace tiny {

class Program {  // a loaded kernel
 public:
  virtual ~Program() = default;
};

// One kernel of a list that is launched again and again: buffer addresses in slot order.
struct LaunchItem {
  Program* program = nullptr;
  LaunchSize size;
  std::vector<void*> args;
  // Earlier items of the list that it waits for; without this, the one before it.
  std::optional<std::vector<int>> after = {};
};

// A list of launches made ready for replay: a graph where the hardware has them.
class Recording {
 public:
  Recording() { ++live; }
  virtual ~Recording() { --live; }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  virtual void set_args(size_t item, const std::vector<void*>& args) = 0;
  // All items, each after those that it waits for; like Device::launch it may return before.
  virtual void launch() = 0;

  static inline std::atomic<int64_t> live = 0;  // how many there are
};

class Device;

// Who adds up what several devices have: a kernel of one of them, which reads the memory of the
// others; a kernel on each, at once, which wait for one another by flags; a library.
enum class SumBy { Kernel, Flags, Library };
// The result: one sum, or the pieces, one after the other (by flags alone).
enum class Together { Sum, Gather };

// A sum of what several devices have, `from` by device, on each that wants it: null in `to`
// elsewhere. Of a Gather `counts` says how many elements each has, and `count` how many all have.
struct AllReduce {
  std::vector<Device*> devices;
  std::vector<const void*> from;
  std::vector<void*> to;
  DType dtype;
  size_t count = 0;
  SumBy by = SumBy::Library;
  std::vector<size_t> counts = {};  // empty: a sum
};

// A sum with devices of other processes. A thread watches over it, from before its start, which may
// wait for the others as well (runtime/distributed/rank_watch.h).
class PendingAllReduce {
 public:
  virtual ~PendingAllReduce() = default;
  virtual void start() = 0;      // once
  virtual bool has_begun() = 0;  // the device's earlier work is done
  virtual bool has_ended() = 0;
  virtual std::string failure() = 0;  // empty: none
  // It ends, with wrong values; the device makes no other sum with these processes.
  virtual void abandon() = 0;
};

// Bytes that go from one device to another.
struct Transfer {
  Device* to_device = nullptr;
  void* to = nullptr;
  Device* from_device = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  int rank = -1;  // of the process that has it (tiny/run/ranks.h); -1: each has one of its own
  bool is_remote = false;  // of another process: here nothing is computed on it

  virtual const Target& target() const = 0;

  // Whether device addresses are the host's as well, which may read and write there.
  virtual bool has_host_memory() const { return false; }

  // Memory. Pointers are device addresses, aligned to 64 bytes or better where memory begins (an
  // argument of one element may lie within; runtime/schedule/steps.cpp); zero bytes are legal
  // everywhere. alloc throws DeviceError when out of memory.
  virtual void* alloc(size_t bytes) = 0;
  virtual void free(void* ptr, size_t bytes) = 0;
  virtual void upload(void* to, const void* from_host, size_t bytes) = 0;
  virtual void download(void* to_host, const void* from, size_t bytes) = 0;
  virtual void copy(void* to, const void* from, size_t bytes) = 0;  // within the device

  // compile is pure and may run on any thread: source to a binary that a cache can keep.
  // `compiler_id` names everything besides the source that the binary depends on.
  virtual std::string compiler_id() const = 0;
  virtual std::string compile(const Source& source) = 0;
  virtual std::unique_ptr<Program> load(const std::string& binary, const std::string& entry) = 0;
  // The same code in a form that load() takes where the compiler is not.
  virtual std::string standalone(const std::string& binary, const std::string&) { return binary; }

  // Buffer addresses in `args`, in slot order. May return before the kernel has run.
  virtual void launch(Program& program, const LaunchSize& size, const std::vector<void*>& args) = 0;
  virtual void synchronize() = 0;

  // Operations that a device may do better than these: run kernels one after the other, caches cold
  // when the first one begins, and return their seconds (of device time, where there is a clock);
  // make a list of launches ready for replay; copy from another device without a detour through the
  // host (false: it cannot), and make many such copies at once, of which none reads or writes bytes
  // that another one writes.
  virtual double launch_timed(std::span<const LaunchItem> items);
  virtual std::unique_ptr<Recording> record(std::vector<LaunchItem> items);

  // A mark between two pieces of the device's work, and when the work before it had ended: seconds
  // on the host's steady clock. Each mark is read once, in the order in which they were made.
  // Here: for devices whose launches have ended when they return.
  virtual int64_t mark();
  virtual double time_of(int64_t mark);
  virtual bool copy_from(Device& source, void* to, const void* from, size_t bytes);
  virtual bool transfer(std::span<const Transfer>) { return false; }

  // Whether kernels here can read the memory of another device; and, for devices that can: what
  // each is given after a meeting comes after all that any of them was given before.
  virtual bool reads(Device& peer) { return &peer == this; }
  virtual void barrier(std::span<Device* const>) {}

  // Why such devices cannot add up values of a dtype together, by flags or a library, empty where
  // they can; and such sums, which come after what their devices were given before.
  virtual std::string missing_for_all_reduce(SumBy, DType) { return "only GPUs of NVIDIA can"; }
  // With devices of other processes among them each has its own part, which is to be started, in
  // one order.
  virtual std::shared_ptr<PendingAllReduce> all_reduce(std::span<const AllReduce>) {
    return nullptr;
  }
  // The all-reduces as launches, for each of their devices, which are to be given to all of them
  // and may be recorded; empty where there are none such.
  virtual std::vector<std::vector<LaunchItem>> all_reduce_launches(std::span<const AllReduce>) {
    return {};
  }
  static inline std::atomic<int64_t> live_events = 0;  // of GPUs, of all devices together
  virtual void trim() {}  // gives freed memory that the device keeps back to the system
};

// "CPU", "CPU:0", "NULL": the device of that name, opened at first use; the name's canonical form
// ("CPU:0" is "CPU"). Throws Error for an unknown name, listing the known ones.
Device& find_device(std::string_view name);
std::string canonical_device(std::string_view name);

// A kernel compiled for the device of that name, whose target has that `arch`. A GPU is not opened
// for it: what processes do that only compile.
std::string compile_for(std::string_view device, const std::string& arch, const Source& source);

// The text of the first of these ranks, on all of them, each of which calls this; `what` is for
// errors. It is a message (runtime/distributed/messages.h).
std::string text_of_first(std::span<const int> ranks, std::string text, const std::string& what);

// The device that is used where none is named: "CUDA" where there is a GPU, else "CPU".
std::string fastest_device();

}  // namespace tiny
