// The CPU as a device: host memory, kernels compiled by LLVM in this process or by the system's C
// compiler, and a thread pool that shares the parallel range of a launch.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "devices/cpu/cc.h"
#include "devices/cpu/thread_pool.h"
#include "runtime/device/device.h"

namespace tiny {

// The machine code of a kernel: does the elements begin..end-1 of its parallel range.
using CpuKernel = void (*)(void** args, int64_t begin, int64_t end);

// A loaded kernel; the derived classes of the two compilers unload it.
class CpuProgram : public Program {
 public:
  explicit CpuProgram(CpuKernel kernel) : kernel_(kernel) {}
  CpuKernel kernel() const { return kernel_; }

 private:
  CpuKernel kernel_;
};

// A compiler for the CPU: a row of the table in cpu.cpp.
struct CpuCompiler {
  const char* name;
  Target::Language language;
  std::string (*id)();
  std::string (*compile)(const Source& source);
  std::unique_ptr<Program> (*load)(const std::string& binary, const std::string& entry);
};

class CpuDevice : public Device {
 public:
  // `compiler` is "llvm" or "cc", empty for CPU_COMPILER and where that is empty for llvm if its
  // library is found, else cc. `threads` counts the caller, 0 takes THREADS and where that is 0
  // all cores. Throws Error for another compiler or a negative number of threads, DeviceError for
  // llvm without its library.
  explicit CpuDevice(std::string_view compiler = {}, int64_t threads = 0);

  const Target& target() const override { return target_; }
  bool has_host_memory() const override { return true; }

  void* alloc(size_t bytes) override;
  void free(void* ptr, size_t bytes) override;
  void upload(void* to, const void* from_host, size_t bytes) override;
  void download(void* to_host, const void* from, size_t bytes) override;
  void copy(void* to, const void* from, size_t bytes) override;
  bool copy_from(Device& source, void* to, const void* from, size_t bytes) override;
  bool transfer(std::span<const Transfer> all) override;  // between CPU devices
  bool reads(Device& peer) override;
  // Not faster here; so that programs and tests may ask for it as they do on GPUs.
  std::string missing_for_all_reduce(SumBy by, DType dtype) override;
  std::shared_ptr<PendingAllReduce> all_reduce(std::span<const AllReduce> sums) override;

  std::string compiler_id() const override { return compiler_.id(); }
  std::string compile(const Source& source) override { return compiler_.compile(source); }
  // Also a shared object, whichever compiler this one has.
  std::unique_ptr<Program> load(const std::string& binary, const std::string& entry) override {
    return is_shared_object(binary) ? load_cc(binary, entry) : compiler_.load(binary, entry);
  }
  std::string standalone(const std::string& binary, const std::string& entry) override {
    return is_shared_object(binary) ? binary : link_object(binary, entry);
  }

  // Returns when the kernel has run; `program` must come from load of a CpuDevice. Launches of
  // several threads at once are legal, one of them then has the pool and the others run alone.
  void launch(Program& program, const LaunchSize& size, const std::vector<void*>& args) override;
  void synchronize() override {}
  void trim() override;

 private:
  const CpuCompiler& compiler_;
  CpuPool pool_;
  Target target_;
};

// Name and features of this machine's processor as one line, for cache keys.
std::string host_cpu_id();

}  // namespace tiny
