#include "tiny/run/memory.h"

#include <filesystem>
#include <ostream>

#include "runtime/device/buffer.h"
#include "runtime/jit/replay.h"
#include "runtime/kernels/kernel.h"
#include "runtime/launch/capture.h"
#include "runtime/realize/realize.h"
#include "runtime/schedule/schedule.h"
#include "tiny/base/error.h"
#include "tiny/base/text.h"
#include "tiny/ir/node.h"

namespace tiny {

namespace {

size_t count_file_handles() {
  std::error_code status;
  size_t count = 0;
  std::filesystem::directory_iterator at("/proc/self/fd", status);
  for (; !status && at != std::filesystem::directory_iterator(); at.increment(status)) ++count;
  return count ? count - 1 : 0;  // one reads the folder
}

std::string padded(std::string text, int width) {
  const auto wanted = static_cast<size_t>(std::abs(width));
  if (text.size() < wanted) text.insert(width < 0 ? text.size() : 0, wanted - text.size(), ' ');
  return text;
}

std::string mebibytes(int64_t bytes) {
  return formatted("%.2f", static_cast<double>(bytes) / 1048576.0);
}

}  // namespace

MemoryReport memory_report(size_t largest) {
  const std::lock_guard lock(runtime_mutex());
  Arena::global().collect();
  MemoryReport r;
  r.devices = device_memory();
  r.nodes = Arena::global().size();
  r.schedules = schedules_kept();
  r.kernels = static_cast<size_t>(Kernel::live.load());
  r.captures = Replay::count();
  r.recordings = static_cast<size_t>(Recording::live.load());
  r.events = static_cast<size_t>(Device::live_events.load());
  r.file_handles = count_file_handles();
  r.largest = largest_holders(largest);
  return r;
}

std::string to_text(const MemoryReport& r) {
  std::string out = "device        buffers    live MiB  cached MiB    peak MiB\n";
  for (const DeviceMemory& d : r.devices)
    out += cat(padded(d.device, -12), padded(std::to_string(d.buffers), 9),
               padded(mebibytes(d.live_bytes), 12), padded(mebibytes(d.cached_bytes), 12),
               padded(mebibytes(d.peak_bytes), 12), '\n');
  out += cat(r.nodes, " nodes, ", r.schedules, " schedules, ", r.kernels, " kernels, ", r.captures,
             " captures, ", r.recordings, " recordings, ", r.events, " events, ", r.file_handles,
             " file handles\n");
  if (!r.largest.empty()) out += "largest, MiB  device      owner     values\n";
  for (const MemoryHolder& h : r.largest)
    out += cat(padded(mebibytes(h.bytes), 12), "  ", padded(h.device, -12), padded(h.owner, -10),
               h.dtype, " x ", h.elements, "  ", h.made_by, '\n');
  return out;
}

std::ostream& operator<<(std::ostream& out, const MemoryReport& r) { return out << to_text(r); }

void relieve_pressure() {
  Replay::free_idle_arenas();
  clear_schedule_cache();
  clear_kernel_cache();
}

void clear_caches() {
  forbid_in_capture("clear_caches() in the step would not happen in a replay",
                    "call it outside of the step");
  const std::lock_guard lock(runtime_mutex());
  relieve_pressure();
  Arena::global().collect();
  free_kept_memory();
}

}  // namespace tiny
