#include "runtime/launch/profile.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "runtime/kernels/kernel.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/base/file.h"
#include "tiny/base/text.h"
#include "tiny/tensor/tensor.h"

namespace tiny {

namespace {

constexpr size_t kMaxEvents = 4'000'000;  // later events are in the table only
constexpr size_t kMaxPending = 1024;      // launches whose times have not been read yet
constexpr int kHost = 1, kDevices = 2;    // the trace's processes

struct Event {
  const char* name;
  const char* category;
  const std::string* operations;  // of kernels and copies
  int process, track;
  double begin, seconds;  // of a counter: when, and its value
  double flops, bytes;
};

// A launch whose time is still on the device.
struct PendingSpan {
  const std::string *name, *operations, *device_name;
  Device* device;
  int64_t begin, end;
  double flops, bytes;
  bool is_copy;
};

// Everything under one lock; names are kept once.
struct Recorder {
  std::mutex mutex;
  bool living = false;
  std::string path;
  double start = 0;
  std::vector<Event> events;
  size_t dropped = 0;
  std::vector<PendingSpan> pending;
  std::set<std::string> names;
  std::map<std::string, int> tracks;                                                // of devices
  std::map<std::pair<const std::string*, const std::string*>, KernelTime> kernels;  // and devices
  int threads = 0;

  const std::string* keep(const std::string& text) { return &*names.insert(text).first; }

  int track_of(const std::string& device) {
    return tracks.try_emplace(device, static_cast<int>(tracks.size()) + 1).first->second;
  }

  void add(const Event& e) {
    if (path.empty()) return;
    if (events.size() < kMaxEvents)
      events.push_back(e);
    else
      ++dropped;
  }

  void add_pending(PendingSpan p) {
    pending.push_back(p);
    if (pending.size() >= kMaxPending) read_times();
  }

  void read_times() {
    for (const PendingSpan& p : pending) {
      const double begin = p.device->time_of(p.begin), seconds = p.device->time_of(p.end) - begin;
      add({p.name->c_str(), p.is_copy ? "copy" : "kernel", p.operations, kDevices,
           track_of(*p.device_name), begin, seconds, p.flops, p.bytes});
      if (p.is_copy) continue;
      KernelTime& k = kernels[{p.name, p.device_name}];
      k.name = *p.name, k.operations = *p.operations, k.device = *p.device_name;
      ++k.calls;
      k.seconds += seconds;
      k.flops += p.flops;
      k.bytes += p.bytes;
    }
    pending.clear();
  }
};

Recorder& recorder() {
  static Recorder* r = new Recorder;
  return *r;
}

int this_thread() {
  static std::atomic<int> count{0};
  thread_local const int id = ++count;
  return id;
}

// --- The trace: the Trace Event Format, "JSON Object Format" with complete events and counters ---

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text)
    if (c == '"' || c == '\\')
      (out += '\\') += c;
    else
      out += static_cast<unsigned char>(c) < ' ' ? formatted("\\u%04x", c) : std::string(1, c);
  return out + '"';
}

std::string to_json(const Event& e, double start) {
  const std::string head =
      cat("{\"name\": ", quoted(e.name), ", \"ts\": ", formatted("%.3f", (e.begin - start) * 1e6));
  if (e.process == kDevices && e.track == 0)
    return head + formatted(", \"ph\": \"C\", \"pid\": %d, \"args\": {\"MiB\": %.6g}}", kHost,
                            e.seconds / 1048576);
  std::string out =
      cat(head, ", \"ph\": \"X\", \"cat\": ", quoted(e.category), ", \"pid\": ", e.process,
          ", \"tid\": ", e.track, ", \"dur\": ", formatted("%.3f", e.seconds * 1e6));
  if (e.process != kDevices) return out + "}";
  out += formatted(", \"args\": {\"bytes\": %.0f", e.bytes);
  if (e.operations) out += ", \"operations\": " + quoted(*e.operations);
  if (e.seconds > 0) out += formatted(", \"GB/s\": %.6g", e.bytes / e.seconds * 1e-9);
  if (e.seconds > 0 && e.flops > 0)
    out += formatted(", \"GFLOP/s\": %.6g", e.flops / e.seconds * 1e-9);
  return out + "}}";
}

std::string name_row(const char* what, int process, int track, const std::string& name) {
  return cat("{\"ph\": \"M\", \"name\": ", quoted(what), ", \"pid\": ", process,
             ", \"tid\": ", track, ", \"args\": {\"name\": ", quoted(name), "}}");
}

void write_trace(const Recorder& r) {
  const FileLimitGuard guard;
  std::ofstream out(r.path);
  out << "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n"
      << name_row("process_name", kHost, 0, "host") << ",\n"
      << name_row("process_name", kDevices, 0, "devices");
  for (const auto& [device, track] : r.tracks)
    out << ",\n" << name_row("thread_name", kDevices, track, device);
  for (const Event& e : r.events) out << ",\n" << to_json(e, r.start);
  out << "\n]}\n";
  out.flush();
  if (!out)
    std::cerr << cat("PROFILE: cannot write ", r.path, "\n");
  else if (r.dropped)
    std::cerr << cat("PROFILE: ", r.path, " has the first ", r.events.size(), " events, ",
                     r.dropped, " more were dropped\n");
}

// --- The limit -----------------------------------------------------------------------------------

// Bytes a second that adding a number to a vector reads and writes: a vector of 64 MiB, or the
// first size that takes 5 ms.
double measured_limit(const std::string& device) {
  static std::mutex mutex;
  static auto* known = new std::map<std::string, double>;
  std::lock_guard lock(mutex);
  double& limit = (*known)[device];
  for (int64_t n = 1 << 16; limit == 0 && n <= 1 << 24; n *= 4) {
    const Tensor x = Tensor::from(std::vector<float>(static_cast<size_t>(n)), {n}, device);
    double best = 1e30;
    for (int i = 0; i < 4; ++i) {
      find_device(device).synchronize();
      const double begin = steady_seconds();
      Tensor y = x + 1.0f;
      y.realize();
      find_device(device).synchronize();
      best = std::min(best, steady_seconds() - begin);
    }
    if (best > 5e-3 || n == 1 << 24) limit = 8.0 * static_cast<double>(n) / best;
  }
  return limit;
}

// The profile rests while it lives.
class Pause {
 public:
  Pause() : before_(profile_detail::on.exchange(false)) {}
  ~Pause() { profile_detail::on = before_; }
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;

 private:
  bool before_;
};

}  // namespace

// --- What the runtime calls ----------------------------------------------------------------------

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void HostSpan::end() const {
  const double seconds = steady_seconds() - begin_;
  Recorder& r = recorder();
  std::lock_guard lock(r.mutex);
  if (r.living) r.add({what_, category_, nullptr, kHost, this_thread(), begin_, seconds, 0, 0});
}

void profile_kernel(const Kernel& k, const std::string& operations, Device& device,
                    const std::string& device_name, int64_t begin, int64_t end) {
  Recorder& r = recorder();
  std::lock_guard lock(r.mutex);
  r.add_pending({r.keep(k.name), r.keep(operations), r.keep(device_name), &device, begin, end,
                 k.flops, k.bytes, false});
}

void profile_copy(const std::string& operations, double bytes, Device& device,
                  const std::string& device_name, std::pair<int64_t, int64_t> marks) {
  Recorder& r = recorder();
  std::lock_guard lock(r.mutex);
  r.add_pending({r.keep("copy"), r.keep(operations), r.keep(device_name), &device, marks.first,
                 marks.second, 0, bytes, true});
}

void profile_memory(const std::string& device_name, int64_t bytes) {
  Recorder& r = recorder();
  std::lock_guard lock(r.mutex);
  const std::string* name = r.keep("memory of " + device_name);
  r.add({name->c_str(), "", nullptr, kDevices, 0, steady_seconds(), static_cast<double>(bytes), 0,
         0});
}

void begin_profile_of_environment() {
  static const bool begun = [] {
    std::string path = env_text("PROFILE");
    if (path.empty() || path == "0") return false;
    static std::unique_ptr<Profile> whole;
    whole = std::make_unique<Profile>(path == "1" ? "tiny_profile.json" : path);
    std::atexit([] { whole = nullptr; });
    return true;
  }();
  static_cast<void>(begun);
}

// --- What users call -----------------------------------------------------------------------------

Profile::Profile(const std::string& path) {
  Recorder& r = recorder();
  std::lock_guard lock(r.mutex);
  check(!r.living, "Profile: another one lives, for ",
        r.path.empty() ? std::string("no file") : r.path);
  r.living = true;
  r.path = path;
  r.start = steady_seconds();
  r.events.clear();
  r.pending.clear();
  r.kernels.clear();
  r.tracks.clear();
  r.dropped = 0;
  profile_detail::on = true;
}

Profile::~Profile() {
  profile_detail::on = false;
  Recorder& r = recorder();
  std::lock_guard lock(r.mutex);
  try {
    r.read_times();
  } catch (const std::exception& e) {  // a device is lost
    std::cerr << cat("PROFILE: ", e.what(), "\n");
  }
  if (!r.path.empty()) write_trace(r);
  r.events.clear();
  r.events.shrink_to_fit();
  r.living = false;
}

std::vector<KernelTime> kernel_times() {
  Recorder& r = recorder();
  std::lock_guard lock(r.mutex);
  r.read_times();
  std::vector<KernelTime> out;
  for (const auto& [key, k] : r.kernels) out.push_back(k);
  std::sort(out.begin(), out.end(),
            [](const KernelTime& a, const KernelTime& b) { return a.seconds > b.seconds; });
  return out;
}

std::string kernel_report(size_t most) {
  const std::vector<KernelTime> all = kernel_times();
  double total = 0;
  for (const KernelTime& k : all) total += k.seconds;
  const Pause pause;
  std::string out =
      "   calls    total ms   share   us a call   GFLOP/s      GB/s  of copy  kernel "
      "(operations)\n";
  for (size_t i = 0; i < std::min(all.size(), most); ++i) {
    const KernelTime& k = all[i];
    const double calls = static_cast<double>(k.calls), seconds = std::max(k.seconds, 1e-12);
    out += formatted("%8.0f %11.3f %5.1f %% %11.2f %9.1f %9.1f %6.0f %%  ", calls, k.seconds * 1e3,
                     100 * k.seconds / std::max(total, 1e-12), k.seconds * 1e6 / calls,
                     k.flops / seconds * 1e-9, k.bytes / seconds * 1e-9,
                     100 * k.bytes / seconds / measured_limit(k.device));
    out += cat(k.device == "CPU" ? "" : k.device + " ", k.name, " (", k.operations, ")\n");
  }
  if (all.size() > most) out += cat(all.size() - most, " more kernels\n");
  std::set<std::string> devices;
  for (const KernelTime& k : all) devices.insert(k.device);
  for (const std::string& d : devices) {
    out += formatted("%s: a copy reaches %.1f GB/s\n", d.c_str(), measured_limit(d) * 1e-9);
  }
  return out;
}

}  // namespace tiny
