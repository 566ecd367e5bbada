// Where time goes. PROFILE=1 (or PROFILE=file) times all that a program does and writes a trace
// that chrome://tracing and ui.perfetto.dev show: on the host scheduling, lowering, compiling,
// launching and transfers, on each device its kernels and copies, and how much memory is in use.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tiny {

// Times what happens while it lives, on all threads, plain steps and replays of a Jit alike; the
// latter launch by launch. PROFILE=1 makes one for the whole program, which writes
// tiny_profile.json.
class Profile {
 public:
  // Begins anew. An empty path writes no trace. Throws Error while another one lives.
  explicit Profile(const std::string& path = "");
  // Writes the trace; a file that cannot be written is said so on stderr.
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;
};

// A kernel in the present profile, or in the one that ended last.
struct KernelTime {
  std::string name, operations, device;  // operations: the user's, "conv2d, relu"
  int64_t calls = 0;
  double seconds = 0;           // of all calls, on the device
  double flops = 0, bytes = 0;  // of all calls
};

// The slowest first.
std::vector<KernelTime> kernel_times();

// These as a table: calls, time, share of the time of all, GFLOP/s, GB/s and that as a share of
// what adding a number to a large vector reaches on the device, which is measured for it. `most`
// rows.
std::string kernel_report(size_t most = 30);

}  // namespace tiny
