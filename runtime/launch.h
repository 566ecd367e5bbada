// Launches of kernels, plain or watched: DEBUG=2 shows each with its time, a profile times them,
// CHECK_NAN=1 looks at what they read and write.
#pragma once
#include <vector>

#include "runtime/kernel.h"

namespace tiny {

// How launches are watched at present.
struct Watch {
  bool shown = false, clocked = false, timed = false, checked = false;
  bool any() const { return shown || clocked || timed || checked; }
};
Watch watch_now();

// One step of a schedule; `args` in slot order.
void launch(const Schedule& s, const Step& step, Kernel& kernel, const std::vector<void*>& args,
            Watch watch);

// Steps that copy a value from one device, or one place of it, to another. Those that follow one
// another are made at once, up to one that touches what another one writes.
class Copies {
 public:
  Copies(const Schedule& s, Watch watch) : s_(s), watch_(watch) {}
  void add(const Step& step, void* to, const void* from);
  void flush();  // before any other step, and at the end

 private:
  bool conflicts(const Transfer& t) const;

  const Schedule& s_;
  const Watch watch_;
  std::vector<Transfer> pending_;
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
