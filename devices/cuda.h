// One NVIDIA GPU as a device, through the driver API; kernels are compiled by NVRTC. Both are
// libraries that are opened when a device is. Any thread may call.
//
// Kernels, uploads and copies are in the order of one stream; launches and uploads return before
// the GPU has done them. An error of a kernel shows at a later call, unless CHECK=1 or DEBUG>=2
// makes launch wait.
#pragma once
#include <map>
#include <memory>
#include <set>

#include "devices/cuda_memory.h"
#include "runtime/device.h"

namespace tiny {

class CudaProgram;

class CudaDevice : public Device {
 public:
  // Throws DeviceError without driver, GPU or NVRTC, Error for a number that no GPU has.
  explicit CudaDevice(int index);
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  const Target& target() const override { return target_; }

  void* alloc(size_t bytes) override;
  void free(void* ptr, size_t bytes) override;
  void upload(void* to, const void* from_host, size_t bytes) override;
  void download(void* to_host, const void* from, size_t bytes) override;
  void copy(void* to, const void* from, size_t bytes) override;

  std::string compiler_id() const override;
  std::string compile(const Source& source) override;
  std::unique_ptr<Program> load(const std::string& binary, const std::string& entry) override;

  // `program` must come from this device's load. A grid without blocks does nothing.
  void launch(Program& program, const LaunchSize& size, const std::vector<void*>& args) override;
  void synchronize() override;
  void trim() override;

  // Seconds between two events around the launch, with an L2 cache that holds nothing of its
  // buffers: what was there is overwritten first.
  double launch_timed(std::span<const LaunchItem> items) override;
  // A CUDA graph with the items in a chain; plain launches with CHECK=1 or DEBUG>=2. The programs
  // must outlive it.
  std::unique_ptr<Recording> record(std::vector<LaunchItem> items) override;
  // Events on the compute stream.
  int64_t mark() override;
  double time_of(int64_t mark) override;
  // From another GPU, or from a device whose memory is the host's.
  bool copy_from(Device& source, void* to, const void* from, size_t bytes) override;
  bool transfer(std::span<const Transfer> all) override;  // between GPUs
  bool reads(Device& peer) override;
  void meet(std::span<Device* const> devices) override;
  // By flags: a kernel on each GPU that waits for the others; the library is NCCL.
  std::string missing_for_sums(SumBy by, DType dtype) override;
  void add_up(std::span<const SharedSum> sums) override;

 private:
  friend class CudaProgram;
  friend class CudaGraph;
  struct Together;  // cuda_sum.cpp

  void enqueue(CudaProgram& program, const LaunchSize& size, const std::vector<void*>& args);
  void wait_for(const CudaProgram& program, const LaunchSize& size);
  void empty_cache();
  bool reach(CudaDevice& peer);
  void start(Program& program, const LaunchSize& size, const std::vector<void*>& args);
  Program& sum_program(DType dtype);
  void mark_order();
  void wait_for_order(CudaDevice& other);
  CuEvent timed_event();

  const CudaDriver& cuda_;
  int ordinal_ = 0;   // the driver's number of the GPU
  std::string name_;  // "CUDA:0 (NVIDIA H200)"
  Target target_;
  CuContext context_ = nullptr;
  CuStream compute_ = nullptr, copy_ = nullptr;
  CuEvent order_ = nullptr;  // between the streams of two GPUs
  std::unique_ptr<CudaMemory> memory_;
  std::unique_ptr<CudaStaging> staging_;
  std::mutex ordering_, timing_;
  CuEvent start_ = nullptr, end_ = nullptr;  // of launch_timed
  // Marks that have not been read, by their number; events that are free; the event of the mark
  // that was read last, and its time: differences of near events are exact.
  std::map<int64_t, CuEvent> marks_;
  std::vector<CuEvent> free_events_;
  int64_t next_mark_ = 0;
  CuEvent anchor_ = nullptr;
  double anchor_time_ = 0;
  std::map<Scalar, std::unique_ptr<Program>> sums_;
  std::map<const CudaDevice*, bool> reached_;  // whether this one reads their memory directly
};

// The kernel that GPUs add up with, together, for a dtype that it knows: sum_together(batch).
Source cuda_sum_source(DType dtype);

// Whether there is a driver, a GPU and NVRTC. Opens the libraries, costs next to nothing where the
// driver's is absent.
bool cuda_available();

}  // namespace tiny
