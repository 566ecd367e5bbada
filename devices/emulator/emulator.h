// A GPU emulator: takes the CUDA or HIP text of kernels for one target, compiles it as C++ and
// executes grids on the CPU's cores. Threads of a block are fibers that meet at barriers and
// exchanges between lanes. It is for tests of GPU kernels where no GPU is. It reports, with the
// thread and, where addr2line (binutils) is, the line: threads that do not meet, accesses outside
// of the kernel's buffers, misaligned ones, races in shared memory between two barriers, and reads
// of shared memory that nobody has written. New buffers are filled with NaN.
#pragma once
#include <map>
#include <mutex>
#include <string>

#include "devices/cpu/thread_pool.h"
#include "devices/emulator/grid.h"
#include "runtime/device/device.h"

namespace tiny {

class EmulatorDevice : public Device {
 public:
  // `name` for messages; a target of codegen/target/target.h's table.
  EmulatorDevice(std::string name, const Target& target);

  const Target& target() const override { return target_; }

  void* alloc(size_t bytes) override;
  // This and the copies throw DeviceError when memory beside the buffer was written or would be.
  void free(void* ptr, size_t bytes) override;
  void upload(void* to, const void* from_host, size_t bytes) override;
  void download(void* to_host, const void* from, size_t bytes) override;
  void copy(void* to, const void* from, size_t bytes) override;

  std::string compiler_id() const override;
  std::string compile(const Source& source) override;
  std::unique_ptr<Program> load(const std::string& binary, const std::string& entry) override;

  // Returns when the kernel has run. Throws DeviceError that names the kernel, and the block and
  // thread where there is one, for what a GPU would answer with a hang, a fault or wrong values.
  void launch(Program& program, const LaunchSize& size, const std::vector<void*>& args) override;
  void synchronize() override {}

 private:
  using Buffers = std::map<char*, size_t>;  // first address and bytes

  Buffers::iterator buffer_at(const void* address);  // end() where there is none
  void check_range(const char* what, const void* begin, size_t bytes);
  std::vector<EmulatedBuffer> buffers_of(const std::vector<void*>& args);
  void check_margins(const std::string& kernel, const std::vector<void*>& args);

  const std::string name_;
  const Target target_;
  CpuPool pool_;
  std::mutex mutex_;
  Buffers buffers_;
};

}  // namespace tiny
