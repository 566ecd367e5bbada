// One GPU as a device, through its driver's functions (devices/gpu/driver.h): the common part of
// NVIDIA's and AMD's. devices/cuda/cuda.h and devices/hip/hip.h choose its kernels and compilers.
// Any thread may call.
//
// Kernels, uploads and copies are in the order of one stream; launches and uploads return before
// the GPU has done them. An error of a kernel shows at a later call, unless CHECK=1 or DEBUG>=2
// makes launch wait.
#pragma once
#include <map>
#include <memory>
#include <set>

#include "devices/gpu/memory.h"
#include "devices/gpu/nccl.h"
#include "runtime/device/device.h"

namespace tiny {

class GpuProgram;

class GpuDevice : public Device {
 public:
  ~GpuDevice() override;
  GpuDevice(const GpuDevice&) = delete;
  GpuDevice& operator=(const GpuDevice&) = delete;

  const Target& target() const override { return target_; }

  void* alloc(size_t bytes) override;
  void free(void* ptr, size_t bytes) override;
  void upload(void* to, const void* from_host, size_t bytes) override;
  void download(void* to_host, const void* from, size_t bytes) override;
  void copy(void* to, const void* from, size_t bytes) override;

  std::unique_ptr<Program> load(const std::string& binary, const std::string& entry) override;

  // `program` must come from this device's load. A grid without blocks does nothing.
  void launch(Program& program, const LaunchSize& size, const std::vector<void*>& args) override;
  void synchronize() override;
  void trim() override;

  // Seconds between two events around the launch, with an L2 cache that holds nothing of its
  // buffers and, where memory_reader() is there, nothing that is still to be written to memory.
  double launch_timed(std::span<const LaunchItem> items) override;
  // A graph, in which items that do not wait for one another run concurrently; plain launches in
  // order where the driver has none, and with CHECK=1 or DEBUG>=2. The programs must outlive it.
  std::unique_ptr<Recording> record(std::vector<LaunchItem> items) override;
  // Events on the compute stream.
  int64_t mark() override;
  double time_of(int64_t mark) override;
  // From another GPU, or from a device whose memory is the host's.
  bool copy_from(Device& source, void* to, const void* from, size_t bytes) override;
  bool transfer(std::span<const Transfer> all) override;  // between GPUs
  bool reads(Device& peer) override;
  void barrier(std::span<Device* const> devices) override;

 protected:
  // Throws DeviceError where the driver refuses, Error for a number that no GPU has. `target_` is
  // left to the derived class.
  GpuDevice(const GpuDriver& driver, int index);

  virtual std::string binary_origin() const = 0;  // "NVRTC 13.0": for errors of loading
  // Reads all from its first argument to its second; null where there is none.
  virtual Program* memory_reader() { return nullptr; }
  int attribute(int which) const;
  bool reach(GpuDevice& peer);
  void start(Program& program, const LaunchSize& size, const std::vector<void*>& args);
  // All-reduces by NCCL; nothing where there are none. With other processes this one's part.
  std::shared_ptr<PendingAllReduce> add_by_library(const Nccl&, std::span<const AllReduce>);

  const GpuDriver& driver_;
  int ordinal_ = 0;   // the driver's number of the GPU
  std::string name_;  // "CUDA:0 (NVIDIA H200)"
  Target target_;
  bool starts_early_ = false;  // kernels that wait by themselves
  GpuContext context_ = nullptr;
  GpuStream compute_ = nullptr, copy_ = nullptr;
  std::mutex ordering_;

 private:
  friend class GpuProgram;
  friend class GpuRecording;
  friend class GpuSumOfRanks;
  struct Group;  // ranks.cpp

  void enqueue(GpuProgram& program, const LaunchSize& size, const std::vector<void*>& args);
  void wait_for(const GpuProgram& program, const LaunchSize& size);
  void empty_cache();
  void mark_order();
  void wait_for_order(GpuDevice& other);
  GpuEvent timed_event();
  std::shared_ptr<PendingAllReduce> add_with_ranks(const Nccl&, std::span<const AllReduce>);
  std::shared_ptr<Group> join(const Nccl& library, const std::vector<int>& ranks);

  GpuEvent order_ = nullptr;  // between the streams of two GPUs
  std::unique_ptr<GpuMemory> memory_;
  std::unique_ptr<GpuStaging> staging_;
  std::mutex timing_;
  GpuEvent start_ = nullptr, end_ = nullptr;  // of launch_timed
  // Marks that have not been read, by their number; events that are free; the event of the mark
  // that was read last, and its time: differences of near events are exact.
  std::map<int64_t, GpuEvent> marks_;
  std::vector<GpuEvent> free_events_;
  int64_t next_mark_ = 0;
  GpuEvent anchor_ = nullptr;
  double anchor_time_ = 0;
  std::map<const GpuDevice*, bool> reached_;  // whether this one reads their memory directly
  std::map<std::vector<int>, std::shared_ptr<Group>> groups_;  // by the ranks that it adds up with
};

}  // namespace tiny
