// Launches of kernels, plain or watched: DEBUG=2 shows each with its time, a profile times them,
// CHECK_NAN=1 reads their inputs and outputs.
#pragma once
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/kernels/kernel.h"

namespace tiny {

// How launches are watched at present.
struct Watch {
  bool shown = false, clocked = false, timed = false, checked = false;
  bool any() const { return shown || clocked || timed || checked; }
};
Watch watch_now();

// One step of a schedule; `args` in slot order.
void launch(const Schedule& s, const Step& step, Kernel& kernel, Device& device,
            const std::vector<void*>& args, Watch watch);

// Steps by which the same devices add values up together, each of them a step of its own: those
// that can be made at once.
class Sums {
 public:
  explicit Sums(const Schedule& s) : s_(s) {}
  static bool takes(const Step& step) { return !step.kernel && step.values.size() > 2; }
  // False where the step has to come after those that are here.
  bool add(const Step& step, const std::vector<void*>& args);
  void clear() { all_.clear(); }
  const std::string& what() const { return what_; }  // with other ranks: for errors
  const std::vector<AllReduce>& all() const { return all_; }
  const std::vector<std::string>& device_names() const { return names_; }

 private:
  const Schedule& s_;
  std::vector<AllReduce> all_;
  std::vector<std::string> names_;
  std::string what_;
};

// Steps that copy a value from one device, or one place of it, to another, or add values up.
// Consecutive ones are made at once, up to one that touches bytes that another one writes.
class Copies {
 public:
  Copies(const Schedule& s, Watch watch) : s_(s), watch_(watch), sums_(s) {}
  void add(const Step& step, const std::vector<void*>& args);
  void flush();  // before any other step, and at the end
  bool waiting() const { return !pending_.empty() || !sums_.all().empty(); }

 private:
  void make_sums();
  bool conflicts(const Transfer& t) const;

  const Schedule& s_;
  const Watch watch_;
  std::vector<Transfer> pending_;
  Sums sums_;  // one of the two is empty
};

// When devices have to meet (Device::meet) because kernels of one read the memory of others: before
// such steps and after them. Steps that follow one another share their meetings, up to one that
// touches what a step on another device writes, or writes what that reads.
class Meetings {
 public:
  explicit Meetings(const Schedule& s) : s_(s) {}
  // The devices that meet before a step, or at the end; mostly none. Addresses in slot order.
  std::vector<Device*> before(const Step& step, const std::vector<void*>& args) {
    if (!step.reads_peers) return at_end();
    return before_sum(step, args);
  }
  std::vector<Device*> at_end() { return std::exchange(devices_, {}); }
  bool needed(const Step& step) const { return step.reads_peers || !devices_.empty(); }

 private:
  struct Use {  // of memory, by a kernel of a device
    int device;
    const std::byte *begin, *end;
    bool written;
  };
  std::vector<Device*> before_sum(const Step& step, const std::vector<void*>& args);

  const Schedule& s_;
  std::vector<Device*> devices_;  // that have met and are going to; empty elsewhere
  std::vector<Use> uses_;         // since then
};

// The steps of a schedule, one after the other.
class Steps {
 public:
  Steps(const Schedule& s, Watch watch) : s_(s), watch_(watch), copies_(s, watch), meetings_(s) {}
  // `kernel`: null where the step copies or adds up; addresses in slot order.
  void run(const Step& step, Kernel* kernel, const std::vector<void*>& args);
  void finish();

 private:
  const Schedule& s_;
  const Watch watch_;
  Copies copies_;
  Meetings meetings_;
  Device* device_ = nullptr;  // of the last kernel
  int device_id_ = 0;
};

// Throws Error on all ranks unless they have the same plan. Before its first launch, where it has
// work on a rank's device.
void agree_on_plan(const Schedule& s);

// The slots of a step that it writes, and those whose values it reads.
std::vector<bool> written_slots(const Step& step);
std::vector<bool> read_slots(const Step& step);

// While one lives, the kernels of each schedule that runs are launched a second time, one after the
// other with cold caches at first, and their time on the device is added up. For benchmarks; one at
// a time.
class KernelClock {
 public:
  KernelClock();
  ~KernelClock();
  KernelClock(const KernelClock&) = delete;
  KernelClock& operator=(const KernelClock&) = delete;

  void add(Device& device, const LaunchItem& item);  // that the schedule has launched
  void finish();                                     // at its end

  double seconds = 0;
  int kernels = 0;

 private:
  Device* device_ = nullptr;
  std::vector<LaunchItem> items_;
};
void time_clocked_kernels();  // at the end of a schedule, its memory still there

}  // namespace tiny
