#include "devices/cuda.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <utility>

#include "devices/cuda_nvrtc.h"
#include "tiny/env.h"

namespace tiny {
namespace {

constexpr int64_t kSharedWithoutAsking = 48 << 10;  // more needs an attribute of the kernel
constexpr const char* kShowSource = "; DEBUG=4 prints its source";

CuAddress address(const void* p) { return reinterpret_cast<CuAddress>(p); }

std::string dimensions(const int64_t (&d)[3]) { return cat(d[0], " x ", d[1], " x ", d[2]); }

// The driver refuses what does not fit, so a number that is too large must stay so.
unsigned narrow(int64_t v) { return static_cast<unsigned>(std::clamp<int64_t>(v, 0, UINT32_MAX)); }

bool is_empty(const LaunchSize& size) {
  return size.grid[0] == 0 || size.grid[1] == 0 || size.grid[2] == 0;
}

bool waits_after_launch() { return env_int("CHECK") != 0 || env_int("DEBUG") >= 2; }

CuTensorMap encode(const CudaDriver& cuda, const TensorMap& map, void* buffer) {
  CuTensorMap out;
  unsigned long long sizes[5], strides[5];
  unsigned box[5], steps[5];
  for (int d = 0; d < map.rank; ++d) {
    sizes[d] = static_cast<unsigned long long>(map.sizes[d]);
    if (d > 0) strides[d - 1] = static_cast<unsigned long long>(map.strides[d]);  // the first is 1
    box[d] = static_cast<unsigned>(map.box[d]);
    steps[d] = 1;
  }
  const int type = map.is_bf16 ? kCuTensorBf16 : kCuTensorF16;
  check_cuda(cuda.tensor_map(&out, type, static_cast<unsigned>(map.rank),
                             static_cast<char*>(buffer) + map.offset, sizes, strides, box, steps,
                             kCuInterleaveNone, kCuSwizzle128, kCuPromote256, kCuFillZero),
             "describe an operand of ", map.rank, " axes to the copy engine");
  return out;
}

// A kernel's parameters as the driver takes them: an array of pointers to each one's value, tensor
// maps before buffers. The driver reads as many as the kernel has.
class Parameters {
 public:
  Parameters(const CudaDriver& cuda, const LaunchSize& size, const std::vector<void*>& args) {
    const size_t count = size.maps.size() + args.size();
    if (count > few_.size()) many_.resize(count);
    void** to = get();
    expect(size.maps.size() <= maps_.size(), "CUDA: a kernel with ", size.maps.size(),
           " tensor maps");
    for (size_t i = 0; i < size.maps.size(); ++i) {
      maps_[i] = encode(cuda, size.maps[i], args.at(static_cast<size_t>(size.maps[i].slot)));
      *to++ = &maps_[i];
    }
    for (const void* const& arg : args) *to++ = const_cast<void**>(&arg);
  }
  void** get() { return many_.empty() ? few_.data() : many_.data(); }

 private:
  std::array<CuTensorMap, 2> maps_;
  std::array<void*, 64> few_;
  std::vector<void*> many_;
};

}  // namespace

// ---------------------------------------------------------------------------- programs

class CudaProgram : public Program {
 public:
  CudaProgram(CudaDevice& device, CuModule module, const std::string& entry)
      : device_(device), module_(module), entry_(entry) {
    const CudaDriver& cuda = device.cuda_;
    check_cuda(cuda.module_function(&function_, module, entry.c_str()), "find kernel ", entry,
               " in its binary");
  }
  ~CudaProgram() override {
    try {
      const CudaScope scope(device_.cuda_, device_.context_);
      device_.cuda_.stream_synchronize(device_.compute_);  // it may still run
      device_.cuda_.module_unload(module_);
    } catch (const DeviceError&) {  // the GPU is lost, and the module with it
    }
  }

  const CudaDevice& device() const { return device_; }
  CuFunction function() const { return function_; }
  const std::string& entry() const { return entry_; }

  // What must hold before each launch of that size.
  void prepare(const LaunchSize& size) {
    if (size.shared_bytes <= shared_bytes_.load(std::memory_order_relaxed)) return;
    check_cuda(device_.cuda_.function_set(function_, kCuDynamicSharedBytes,
                                          static_cast<int>(size.shared_bytes)),
               "give kernel ", entry_, " ", size.shared_bytes, " bytes of shared memory (at most ",
               device_.target_.shared_bytes, ")");
    shared_bytes_ = size.shared_bytes;
  }

  CuKernelNode node(const LaunchSize& size, Parameters& params) const {
    return {function_,
            {narrow(size.grid[0]), narrow(size.grid[1]), narrow(size.grid[2])},
            {narrow(size.block[0]), narrow(size.block[1]), narrow(size.block[2])},
            narrow(size.shared_bytes),
            params.get(),
            nullptr};
  }

  std::string describe(const LaunchSize& size) const {
    return cat("kernel ", entry_, " (grid ", dimensions(size.grid), ", block ",
               dimensions(size.block), ", ", size.shared_bytes, " bytes of shared memory) on ",
               device_.name_);
  }

 private:
  CudaDevice& device_;
  const CuModule module_;
  const std::string entry_;
  CuFunction function_ = nullptr;
  std::atomic<int64_t> shared_bytes_{kSharedWithoutAsking};
};

// ---------------------------------------------------------------------------- graphs

class CudaGraph : public Recording {
 public:
  CudaGraph(CudaDevice& device, std::vector<LaunchItem> items)
      : device_(device), items_(std::move(items)), nodes_(items_.size()) {
    try {
      build();
    } catch (...) {
      destroy();
      throw;
    }
  }
  ~CudaGraph() override { destroy(); }

  void set_args(size_t item, const std::vector<void*>& args) override {
    LaunchItem& it = items_.at(item);
    if (it.args == args) return;
    it.args = args;
    if (!nodes_[item]) return;
    const CudaScope scope(device_.cuda_, device_.context_);
    CudaProgram& program = program_of(it);
    program.prepare(it.size);
    Parameters params(device_.cuda_, it.size, it.args);
    const CuKernelNode node = program.node(it.size, params);
    const int status = device_.cuda_.graph_set_kernel(exec_, nodes_[item], &node);
    if (status != kCuSuccess) [[unlikely]]
      throw DeviceError(cat("CUDA: cannot change the arguments of ", program.describe(it.size),
                            " in a graph: ", cuda_later_error(status)));
  }

  void launch() override {
    if (!exec_) return;
    const CudaScope scope(device_.cuda_, device_.context_);
    check_cuda(device_.cuda_.graph_launch(exec_, device_.compute_), "launch a graph of ",
               items_.size(), " kernels");
  }

 private:
  static CudaProgram& program_of(const LaunchItem& item) {
    return static_cast<CudaProgram&>(*item.program);
  }

  void build() {
    const CudaDriver& cuda = device_.cuda_;
    const CudaScope scope(cuda, device_.context_);
    check_cuda(cuda.graph_create(&graph_, 0), "create a graph");
    const CuGraphNode* before = nullptr;
    for (size_t i = 0; i < items_.size(); ++i) {
      const LaunchItem& item = items_[i];
      if (is_empty(item.size)) continue;
      CudaProgram& program = program_of(item);
      program.prepare(item.size);
      Parameters params(cuda, item.size, item.args);
      const CuKernelNode node = program.node(item.size, params);
      check_cuda(cuda.graph_add_kernel(&nodes_[i], graph_, before, before ? 1 : 0, &node), "add ",
                 program.describe(item.size), " to a graph");
      before = &nodes_[i];
    }
    if (before) check_cuda(cuda.graph_instantiate(&exec_, graph_, 0), "make a graph executable");
  }

  void destroy() {
    const CudaDriver& cuda = device_.cuda_;
    if (exec_) cuda.graph_exec_destroy(exec_);  // a run that was launched still completes
    if (graph_) cuda.graph_destroy(graph_);
  }

  CudaDevice& device_;
  std::vector<LaunchItem> items_;
  std::vector<CuGraphNode> nodes_;  // null for an empty grid
  CuGraph graph_ = nullptr;
  CuGraphExec exec_ = nullptr;
};

// ---------------------------------------------------------------------------- the device

namespace {

int attribute(const CudaDriver& cuda, int which, int ordinal) {
  int value = 0;
  check_cuda(cuda.device_attribute(&value, which, ordinal), "ask GPU ", ordinal,
             " for its attribute ", which);
  return value;
}

Target detect_target(const CudaDriver& cuda, int ordinal) {
  const auto ask = [&](int which) { return attribute(cuda, which, ordinal); };
  Target target;
  target.kind = Target::Kind::Gpu;
  target.language = Target::Language::Cuda;
  target.arch = cuda_arch(ask(kCuMajor), ask(kCuMinor));
  target.vector_bytes = 16;       // the widest load of a thread
  target.vector_registers = 255;  // of 32 bits, the most that a thread can have
  target.cores = ask(kCuMultiprocessors);
  target.l2_bytes = ask(kCuL2Bytes);
  target.has_f16 = true;
  target.has_bf16 = ask(kCuMajor) >= 8;
  target.has_wgmma = target.arch == "sm_90a" && cuda.tensor_map;
  target.warp = ask(kCuWarp);
  target.most_threads = ask(kCuMostThreads);
  target.shared_bytes = ask(kCuSharedBytesOptIn);
  return target;
}

void check_index(const CudaDriver& cuda, int index) {
  check(index < cuda.devices, "CUDA:", index, ": this machine has ", cuda.devices,
        cuda.devices == 1 ? " GPU, CUDA:0" : cat(" GPUs, CUDA:0 to CUDA:", cuda.devices - 1));
}

}  // namespace

CudaDevice::CudaDevice(int index) : cuda_(cuda_driver()) {
  check_index(cuda_, index);
  if (!nvrtc_available()) throw DeviceError("CUDA: " + nvrtc_missing_reason());
  check_cuda(cuda_.device_get(&ordinal_, index), "open GPU ", index);
  char model[256] = "";
  cuda_.device_name(model, sizeof model, ordinal_);
  name_ = cat("CUDA:", index, " (", model, ")");
  target_ = detect_target(cuda_, ordinal_);
  check_cuda(cuda_.context_retain(&context_, ordinal_), "open the context of ", name_);
  const CudaScope scope(cuda_, context_);
  for (CuStream* stream : {&compute_, &copy_})
    check_cuda(cuda_.stream_create(stream, kCuStreamNonBlocking), "create a stream on ", name_);
  order_ = make_event(cuda_, kCuEventUntimed);
  for (CuEvent* event : {&start_, &end_}) *event = make_event(cuda_, kCuEventTimed);
  memory_ = std::make_unique<CudaMemory>(cuda_, ordinal_, compute_);
  staging_ = std::make_unique<CudaStaging>(cuda_, compute_, copy_);
  if (env_int("DEBUG") >= 1)
    std::fprintf(stderr, "%s: %s, %d multiprocessors, driver for CUDA %s, NVRTC %s\n",
                 name_.c_str(), target_.arch.c_str(), target_.cores,
                 cuda_version_text(cuda_.version).c_str(), nvrtc_version().c_str());
}

CudaDevice::~CudaDevice() {
  try {
    const CudaScope scope(cuda_, context_);
    cuda_.stream_synchronize(compute_);
    staging_ = nullptr;
    sums_.clear();
    for (CuEvent event : {order_, start_, end_, anchor_}) destroy_event(cuda_, event);
    for (const auto& [mark, event] : marks_) destroy_event(cuda_, event);
    for (CuEvent event : free_events_) destroy_event(cuda_, event);
    for (CuStream stream : {compute_, copy_}) cuda_.stream_destroy(stream);
  } catch (const DeviceError&) {  // the GPU is lost
  }
  cuda_.context_release(ordinal_);
}

void* CudaDevice::alloc(size_t bytes) {
  const CudaScope scope(cuda_, context_);
  return reinterpret_cast<void*>(memory_->alloc(bytes));
}

void CudaDevice::free(void* ptr, size_t) {
  try {
    const CudaScope scope(cuda_, context_);
    memory_->free(address(ptr));
  } catch (const DeviceError&) {  // the GPU is lost; tensors must be destructible nevertheless
  }
}

void CudaDevice::trim() {
  const CudaScope scope(cuda_, context_);
  memory_->trim();
}

void CudaDevice::upload(void* to, const void* from_host, size_t bytes) {
  const CudaScope scope(cuda_, context_);
  staging_->upload(address(to), from_host, bytes);
}

void CudaDevice::download(void* to_host, const void* from, size_t bytes) {
  const CudaScope scope(cuda_, context_);
  staging_->download(to_host, address(from), bytes);
}

void CudaDevice::copy(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  const CudaScope scope(cuda_, context_);
  check_cuda(cuda_.copy_within(address(to), address(from), bytes, compute_), "copy ", bytes,
             " bytes on ", name_);
}

void CudaDevice::synchronize() {
  const CudaScope scope(cuda_, context_);
  check_cuda(cuda_.stream_synchronize(compute_), "finish the work on ", name_);
}

// ---------------------------------------------------------------------------- kernels

std::string CudaDevice::compiler_id() const { return cat(nvrtc_id(), " ", target_.arch); }

std::string CudaDevice::compile(const Source& source) {
  expect(source.language == Source::Language::Cuda, "CUDA: kernel ", source.entry,
         " is not CUDA C++");
  std::string log;
  std::string binary = compile_cuda(source.text, target_.arch, &log, source.entry);
  if (env_int("DEBUG") >= 3) {
    const CudaResources used = cuda_resources(log);
    std::fprintf(stderr, "resources %s: %d registers, %d bytes of stack, %d bytes spilled\n",
                 source.entry.c_str(), used.registers, used.stack_bytes, used.spill_bytes);
  }
  return binary;
}

std::unique_ptr<Program> CudaDevice::load(const std::string& binary, const std::string& entry) {
  const CudaScope scope(cuda_, context_);
  CuModule module = nullptr;
  check_cuda(cuda_.module_load(&module, binary.c_str()), "load kernel ", entry, " for ",
             target_.arch, " on ", name_, ", made by NVRTC ", nvrtc_version(),
             " for a driver that knows CUDA ", cuda_version_text(cuda_.version),
             " (NVRTC_LIBRARY chooses another one)");
  try {
    return std::make_unique<CudaProgram>(*this, module, entry);
  } catch (...) {
    cuda_.module_unload(module);
    throw;
  }
}

void CudaDevice::enqueue(CudaProgram& program, const LaunchSize& size,
                         const std::vector<void*>& args) {
  if (is_empty(size)) return;
  program.prepare(size);
  Parameters params(cuda_, size, args);
  const CuKernelNode n = program.node(size, params);
  const int status =
      cuda_.launch(n.function, n.grid[0], n.grid[1], n.grid[2], n.block[0], n.block[1], n.block[2],
                   n.shared_bytes, compute_, n.params, nullptr);
  if (status != kCuSuccess) [[unlikely]]
    throw DeviceError(cat("CUDA: cannot launch ", program.describe(size), ": ",
                          cuda_later_error(status), kShowSource));
}

// Without a wait, also where launch() has one: it needs what other GPUs are given after it.
void CudaDevice::start(Program& program, const LaunchSize& size, const std::vector<void*>& args) {
  const CudaScope scope(cuda_, context_);
  enqueue(static_cast<CudaProgram&>(program), size, args);
}

void CudaDevice::wait_for(const CudaProgram& program, const LaunchSize& size) {
  if (const int status = cuda_.stream_synchronize(compute_); status != kCuSuccess)
    throw DeviceError(
        cat("CUDA: ", program.describe(size), " failed: ", cuda_error(status), kShowSource));
}

void CudaDevice::launch(Program& program, const LaunchSize& size, const std::vector<void*>& args) {
  const CudaScope scope(cuda_, context_);
  auto& kernel = static_cast<CudaProgram&>(program);
  enqueue(kernel, size, args);
  if (waits_after_launch()) [[unlikely]]
    wait_for(kernel, size);
}

// Overwrites the L2 cache. That takes the GPU longer than it takes the host to enqueue a few
// kernels between two events, so these measure the kernels and not the wait for them.
void CudaDevice::empty_cache() {
  const auto bytes = static_cast<size_t>(target_.l2_bytes);
  try {
    const CuAddress scratch = memory_->alloc(bytes);
    cuda_.fill_bytes(scratch, 0, bytes, compute_);
    memory_->free(scratch);
  } catch (const DeviceError&) {  // no room for it: the time is that of a warm cache
  }
}

double CudaDevice::launch_timed(std::span<const LaunchItem> items) {
  const CudaScope scope(cuda_, context_);
  std::lock_guard lock(timing_);
  empty_cache();
  check_cuda(cuda_.event_record(start_, compute_), "record an event");
  for (const LaunchItem& i : items) enqueue(static_cast<CudaProgram&>(*i.program), i.size, i.args);
  check_cuda(cuda_.event_record(end_, compute_), "record an event");
  if (!items.empty()) wait_for(static_cast<CudaProgram&>(*items.back().program), items.back().size);
  float milliseconds = 0;
  check_cuda(cuda_.event_elapsed(&milliseconds, start_, end_), "read the time of an event");
  return milliseconds * 1e-3;
}

CuEvent CudaDevice::timed_event() {
  CuEvent event = nullptr;
  if (free_events_.empty()) {
    event = make_event(cuda_, kCuEventTimed);
  } else {
    event = free_events_.back();
    free_events_.pop_back();
  }
  check_cuda(cuda_.event_record(event, compute_), "record an event");
  return event;
}

int64_t CudaDevice::mark() {
  const CudaScope scope(cuda_, context_);
  std::lock_guard lock(timing_);
  if (!anchor_) {  // the one point where both clocks are read
    check_cuda(cuda_.stream_synchronize(compute_), "finish the work on ", name_);
    anchor_ = timed_event();
    check_cuda(cuda_.event_synchronize(anchor_), "wait for an event");
    anchor_time_ =
        std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  marks_[next_mark_] = timed_event();
  return next_mark_++;
}

double CudaDevice::time_of(int64_t mark) {
  const CudaScope scope(cuda_, context_);
  std::lock_guard lock(timing_);
  const auto at = marks_.find(mark);
  expect(at != marks_.end(), "CUDA: mark ", mark, " was read before");
  check_cuda(cuda_.event_synchronize(at->second), "wait for an event");
  float milliseconds = 0;
  check_cuda(cuda_.event_elapsed(&milliseconds, anchor_, at->second), "read the time of an event");
  anchor_time_ += milliseconds * 1e-3;
  free_events_.push_back(std::exchange(anchor_, at->second));
  marks_.erase(at);
  return anchor_time_;
}

std::unique_ptr<Recording> CudaDevice::record(std::vector<LaunchItem> items) {
  if (!cuda_.has_graphs() || waits_after_launch()) return Device::record(std::move(items));
  return std::make_unique<CudaGraph>(*this, std::move(items));
}

bool cuda_available() { return cuda_missing_reason().empty() && nvrtc_available(); }

}  // namespace tiny
