#include "devices/gpu/gpu.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <utility>

#include "tiny/base/env.h"
#include "tiny/ir/node.h"

namespace tiny {
namespace {

constexpr const char* kShowSource = "; DEBUG=4 prints its source";

GpuAddress address(const void* p) { return reinterpret_cast<GpuAddress>(p); }

std::string dimensions(const int64_t (&d)[3]) { return cat(d[0], " x ", d[1], " x ", d[2]); }

// The driver refuses what does not fit, so a number that is too large must stay so.
unsigned narrow(int64_t v) { return static_cast<unsigned>(std::clamp<int64_t>(v, 0, UINT32_MAX)); }

bool is_empty(const LaunchSize& size) {
  return size.grid[0] == 0 || size.grid[1] == 0 || size.grid[2] == 0;
}

constinit const EnvCondition waits_after_launch([] {
  return env_int("CHECK") != 0 || env_int("DEBUG") >= 2;
});

int tensor_type(DType t) {
  switch (t.scalar) {
    case Scalar::BF16: return kGpuTensorBf16;
    case Scalar::F16: return kGpuTensorF16;
    case Scalar::F32: return kGpuTensorTf32;
    default: expect(t.size() == 1, "a tensor map of ", t.name()); return kGpuTensorU8;
  }
}

GpuTensorMap encode(const GpuDriver& driver, const TensorMap& map, void* buffer) {
  GpuTensorMap out;
  unsigned long long sizes[5], strides[5];
  unsigned box[5], steps[5];
  for (int d = 0; d < map.rank; ++d) {
    sizes[d] = static_cast<unsigned long long>(map.sizes[d]);
    if (d > 0) strides[d - 1] = static_cast<unsigned long long>(map.strides[d]);  // the first is 1
    box[d] = static_cast<unsigned>(map.box[d]);
    steps[d] = 1;
  }
  const int row = map.box[0] * map.element_bytes;
  const int swizzle = row <= 32 ? kGpuSwizzle32 : row <= 64 ? kGpuSwizzle64 : kGpuSwizzle128;
  const int type = tensor_type(map.dtype);
  const auto rank = static_cast<unsigned>(map.rank);
  char* const base = static_cast<char*>(buffer) + map.offset;
  if (map.windows) {
    for (int d = 1; d < map.rank - 1; ++d) steps[d] = static_cast<unsigned>(map.steps[d - 1]);
    driver.check(
        driver.window_map(&out, type, rank, base, sizes, strides, map.lower, map.upper, box[0],
                          box[1], steps, kGpuInterleaveNone, swizzle, kGpuPromote256, kGpuFillZero),
        "describe windows of ", map.rank, " axes to TMA");
  } else {
    driver.check(
        driver.tensor_map(&out, type, rank, base, sizes, strides, box, steps, kGpuInterleaveNone,
                          swizzle, map.once ? kGpuPromote128 : kGpuPromote256, kGpuFillZero),
        "describe an operand of ", map.rank, " axes to TMA");
  }
  return out;
}

// A kernel's parameters as the driver takes them: an array of pointers to each one's value, tensor
// maps before buffers. The driver reads as many as the kernel has.
class Parameters {
 public:
  Parameters(const GpuDriver& driver, const LaunchSize& size, const std::vector<void*>& args) {
    const size_t count = size.maps.size() + args.size();
    if (count > few_.size()) many_.resize(count);
    void** to = get();
    expect(size.maps.size() <= maps_.size(), "a kernel with ", size.maps.size(), " tensor maps");
    for (size_t i = 0; i < size.maps.size(); ++i) {
      maps_[i] = encode(driver, size.maps[i], args.at(static_cast<size_t>(size.maps[i].slot)));
      *to++ = &maps_[i];
    }
    for (const void* const& arg : args) *to++ = const_cast<void**>(&arg);
  }
  void** get() { return many_.empty() ? few_.data() : many_.data(); }

 private:
  std::array<GpuTensorMap, 2> maps_;
  std::array<void*, 64> few_;
  std::vector<void*> many_;
};

}  // namespace

// ---------------------------------------------------------------------------- programs

class GpuProgram : public Program {
 public:
  GpuProgram(GpuDevice& device, GpuModule module, const std::string& entry)
      : device_(device), module_(module), entry_(entry) {
    const GpuDriver& driver = device.driver_;
    driver.check(driver.module_function(&function_, module, entry.c_str()), "find kernel ", entry,
                 " in its binary");
  }
  ~GpuProgram() override {
    try {
      const GpuScope scope(device_.driver_, device_.context_);
      device_.driver_.stream_synchronize(device_.compute_);  // it may still run
      device_.driver_.module_unload(module_);
    } catch (const DeviceError&) {  // the GPU is lost, and the module with it
    }
  }

  const GpuDevice& device() const { return device_; }
  GpuFunction function() const { return function_; }
  const std::string& entry() const { return entry_; }

  // Sets the attributes that each launch of that size needs.
  void prepare(const LaunchSize& size) {
    if (size.shared_bytes <= shared_bytes_.load(std::memory_order_relaxed)) return;
    device_.driver_.check(device_.driver_.function_set(function_, kGpuDynamicSharedBytes,
                                                       static_cast<int>(size.shared_bytes)),
                          "give kernel ", entry_, " ", size.shared_bytes,
                          " bytes of shared memory (at most ", device_.target_.shared_bytes, ")");
    shared_bytes_ = size.shared_bytes;
  }

  GpuKernelNode node(const LaunchSize& size, Parameters& params) const {
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
  GpuDevice& device_;
  const GpuModule module_;
  const std::string entry_;
  GpuFunction function_ = nullptr;
  std::atomic<int64_t> shared_bytes_{device_.driver_.shared_without_asking};
};

// ---------------------------------------------------------------------------- graphs

class GpuRecording : public Recording {
 public:
  GpuRecording(GpuDevice& device, std::vector<LaunchItem> items)
      : device_(device), items_(std::move(items)), nodes_(items_.size()) {
    try {
      build();
    } catch (...) {
      destroy();
      throw;
    }
  }
  ~GpuRecording() override { destroy(); }

  void set_args(size_t item, const std::vector<void*>& args) override {
    LaunchItem& it = items_.at(item);
    if (it.args == args) return;
    it.args = args;
    if (!nodes_[item]) return;
    const GpuScope scope(device_.driver_, device_.context_);
    GpuProgram& program = program_of(it);
    program.prepare(it.size);
    Parameters params(device_.driver_, it.size, it.args);
    const GpuKernelNode node = program.node(it.size, params);
    const int status = device_.driver_.graph_set_kernel(exec_, nodes_[item], &node);
    if (status != kGpuSuccess) [[unlikely]]
      throw DeviceError(cat(device_.driver_.vendor, ": cannot change the arguments of ",
                            program.describe(it.size),
                            " in a graph: ", device_.driver_.later_error(status)));
  }

  void launch() override {
    if (!exec_) return;
    const GpuScope scope(device_.driver_, device_.context_);
    device_.driver_.check(device_.driver_.graph_launch(exec_, device_.compute_),
                          "launch a graph of ", items_.size(), " kernels");
  }

 private:
  static GpuProgram& program_of(const LaunchItem& item) {
    return static_cast<GpuProgram&>(*item.program);
  }

  std::vector<GpuGraphNode> nodes_before(size_t item,
                                         const std::vector<std::vector<GpuGraphNode>>& ends) const {
    std::vector<int> after;
    if (items_[item].after)
      after = *items_[item].after;
    else if (item > 0)
      after = {static_cast<int>(item) - 1};
    std::vector<GpuGraphNode> out;
    for (int i : after)
      for (GpuGraphNode n : ends.at(i))
        if (!contains(out, n)) out.push_back(n);
    return out;
  }

  void build() {
    const GpuDriver& driver = device_.driver_;
    const GpuScope scope(driver, device_.context_);
    driver.check(driver.graph_create(&graph_, 0), "create a graph");
    // By item: the nodes that what waits for it waits for; those before it where it has no node.
    std::vector<std::vector<GpuGraphNode>> ends(items_.size());
    for (size_t i = 0; i < items_.size(); ++i) {
      const LaunchItem& item = items_[i];
      const std::vector<GpuGraphNode> before = nodes_before(i, ends);
      ends[i] = before;
      if (is_empty(item.size)) continue;
      GpuProgram& program = program_of(item);
      program.prepare(item.size);
      Parameters params(driver, item.size, item.args);
      const GpuKernelNode node = program.node(item.size, params);
      // One that waits for another one alone: what came before that is complete when that is.
      const bool early = device_.starts_early_ && item.size.waits && before.size() == 1;
      driver.check(driver.graph_add_kernel(&nodes_[i], graph_, before.data(),
                                           early ? 0 : before.size(), &node),
                   "add ", program.describe(item.size), " to a graph");
      if (early)
        driver.check(driver.graph_add_edges(graph_, before.data(), &nodes_[i], &kGpuEarly, 1),
                     "let ", program.describe(item.size), " begin early");
      ends[i] = {nodes_[i]};
    }
    if (std::ranges::any_of(nodes_, [](GpuGraphNode n) { return n != nullptr; }))
      driver.check(driver.graph_instantiate(&exec_, graph_, 0), "make a graph executable");
  }

  void destroy() {
    const GpuDriver& driver = device_.driver_;
    if (exec_) driver.graph_exec_destroy(exec_);  // a run that was launched still completes
    if (graph_) driver.graph_destroy(graph_);
  }

  GpuDevice& device_;
  std::vector<LaunchItem> items_;
  std::vector<GpuGraphNode> nodes_;  // null for an empty grid
  GpuGraph graph_ = nullptr;
  GpuGraphExec exec_ = nullptr;
};

// ---------------------------------------------------------------------------- the device

namespace {

void check_index(const GpuDriver& driver, int index) {
  const std::string name = driver.vendor;
  check(index < driver.devices, name, ":", index, ": this machine has ", driver.devices,
        driver.devices == 1 ? cat(" GPU, ", name, ":0")
                            : cat(" GPUs, ", name, ":0 to ", name, ":", driver.devices - 1));
}

}  // namespace

GpuDevice::GpuDevice(const GpuDriver& driver, int index) : driver_(driver) {
  check_index(driver_, index);
  driver_.check(driver_.device_get(&ordinal_, index), "open GPU ", index);
  char model[256] = "";
  driver_.device_name(model, sizeof model, ordinal_);
  name_ = cat(driver_.vendor, ":", index, " (", model, ")");
  driver_.check(driver_.context_retain(&context_, ordinal_), "open the context of ", name_);
  const GpuScope scope(driver_, context_);
  for (GpuStream* stream : {&compute_, &copy_})
    driver_.check(driver_.stream_create(stream, kGpuStreamNonBlocking), "create a stream on ",
                  name_);
  order_ = make_event(driver_, kGpuEventUntimed);
  for (GpuEvent* event : {&start_, &end_}) *event = make_event(driver_, kGpuEventTimed);
  memory_ = std::make_unique<GpuMemory>(driver_, ordinal_, compute_);
  staging_ = std::make_unique<GpuStaging>(driver_, compute_, copy_);
}

int GpuDevice::attribute(int which) const {
  int value = 0;
  driver_.check(driver_.device_attribute(&value, which, ordinal_), "ask GPU ", ordinal_,
                " for its attribute ", which);
  return value;
}

GpuDevice::~GpuDevice() {
  try {
    const GpuScope scope(driver_, context_);
    driver_.stream_synchronize(compute_);
    staging_ = nullptr;
    for (GpuEvent event : {order_, start_, end_, anchor_}) destroy_event(driver_, event);
    for (const auto& [mark, event] : marks_) destroy_event(driver_, event);
    for (GpuEvent event : free_events_) destroy_event(driver_, event);
    for (GpuStream stream : {compute_, copy_}) driver_.stream_destroy(stream);
  } catch (const DeviceError&) {  // the GPU is lost
  }
  driver_.context_release(ordinal_);
}

void* GpuDevice::alloc(size_t bytes) {
  const GpuScope scope(driver_, context_);
  return reinterpret_cast<void*>(memory_->alloc(bytes));
}

void GpuDevice::free(void* ptr, size_t) {
  try {
    const GpuScope scope(driver_, context_);
    memory_->free(address(ptr));
  } catch (const DeviceError&) {  // the GPU is lost; tensors must be destructible nevertheless
  }
}

void GpuDevice::trim() {
  const GpuScope scope(driver_, context_);
  memory_->trim();
}

void GpuDevice::upload(void* to, const void* from_host, size_t bytes) {
  const GpuScope scope(driver_, context_);
  staging_->upload(address(to), from_host, bytes);
}

void GpuDevice::download(void* to_host, const void* from, size_t bytes) {
  const GpuScope scope(driver_, context_);
  staging_->download(to_host, address(from), bytes);
}

void GpuDevice::copy(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  const GpuScope scope(driver_, context_);
  driver_.check(driver_.copy_within(address(to), address(from), bytes, compute_), "copy ", bytes,
                " bytes on ", name_);
}

void GpuDevice::synchronize() {
  const GpuScope scope(driver_, context_);
  driver_.check(driver_.stream_synchronize(compute_), "finish the work on ", name_);
}

// ---------------------------------------------------------------------------- kernels

std::unique_ptr<Program> GpuDevice::load(const std::string& binary, const std::string& entry) {
  const GpuScope scope(driver_, context_);
  GpuModule module = nullptr;
  driver_.check(driver_.module_load(&module, binary.c_str()), "load kernel ", entry, " for ",
                target_.arch, " on ", name_, ", made by ", binary_origin());
  try {
    return std::make_unique<GpuProgram>(*this, module, entry);
  } catch (...) {
    driver_.module_unload(module);
    throw;
  }
}

// The driver keeps the host busy for 2.7 to 4.2 us a launch (H200s, driver 580), and the GPU begins
// a small kernel every 1.3 to 1.6 us. Parameters in one piece, cuLaunchKernelEx, CUkernels, the
// default stream or one with a priority, and a context that spins take the same.
void GpuDevice::enqueue(GpuProgram& program, const LaunchSize& size,
                        const std::vector<void*>& args) {
  if (is_empty(size)) return;
  program.prepare(size);
  Parameters params(driver_, size, args);
  const GpuKernelNode n = program.node(size, params);
  const int status =
      driver_.launch(n.function, n.grid[0], n.grid[1], n.grid[2], n.block[0], n.block[1],
                     n.block[2], n.shared_bytes, compute_, n.params, nullptr);
  if (status != kGpuSuccess) [[unlikely]]
    throw DeviceError(cat(driver_.vendor, ": cannot launch ", program.describe(size), ": ",
                          driver_.later_error(status), kShowSource));
}

// Without a wait, also where launch() has one: it needs what other GPUs are given after it.
void GpuDevice::start(Program& program, const LaunchSize& size, const std::vector<void*>& args) {
  const GpuScope scope(driver_, context_);
  enqueue(static_cast<GpuProgram&>(program), size, args);
}

void GpuDevice::wait_for(const GpuProgram& program, const LaunchSize& size) {
  if (const int status = driver_.stream_synchronize(compute_); status != kGpuSuccess)
    throw DeviceError(cat(driver_.vendor, ": ", program.describe(size),
                          " failed: ", driver_.error(status), kShowSource));
}

void GpuDevice::launch(Program& program, const LaunchSize& size, const std::vector<void*>& args) {
  const GpuScope scope(driver_, context_);
  auto& kernel = static_cast<GpuProgram&>(program);
  enqueue(kernel, size, args);
  if (waits_after_launch) [[unlikely]]
    wait_for(kernel, size);
}

// Fills L2 with other data: by reading it where a device has a kernel for that, else by writing.
// Lines that were written have to go to memory while the timed kernels run (measurements.md:
// empty_cache). Either takes the GPU longer than it takes the host to enqueue a few kernels between
// two events, so these measure the kernels and not the wait for them.
void GpuDevice::empty_cache() {
  const size_t bytes = 2 * static_cast<size_t>(target_.l2_bytes);
  Program* const reader = memory_reader();
  try {
    const GpuAddress scratch = memory_->alloc(bytes);
    if (reader) {
      LaunchSize size;
      size.grid[0] = 4 * target_.cores;
      size.block[0] = 512;
      enqueue(static_cast<GpuProgram&>(*reader), size,
              {reinterpret_cast<void*>(scratch), reinterpret_cast<void*>(scratch + bytes)});
    } else {
      driver_.fill_bytes(scratch, 0, bytes, compute_);
    }
    memory_->free(scratch);
  } catch (const DeviceError&) {  // no room for it: the time is that of a warm cache
  }
}

double GpuDevice::launch_timed(std::span<const LaunchItem> items) {
  const GpuScope scope(driver_, context_);
  std::lock_guard lock(timing_);
  empty_cache();
  driver_.check(driver_.event_record(start_, compute_), "record an event");
  for (const LaunchItem& i : items) enqueue(static_cast<GpuProgram&>(*i.program), i.size, i.args);
  driver_.check(driver_.event_record(end_, compute_), "record an event");
  if (!items.empty()) wait_for(static_cast<GpuProgram&>(*items.back().program), items.back().size);
  float milliseconds = 0;
  driver_.check(driver_.event_elapsed(&milliseconds, start_, end_), "read the time of an event");
  return milliseconds * 1e-3;
}

GpuEvent GpuDevice::timed_event() {
  GpuEvent event = nullptr;
  if (free_events_.empty()) {
    event = make_event(driver_, kGpuEventTimed);
  } else {
    event = free_events_.back();
    free_events_.pop_back();
  }
  driver_.check(driver_.event_record(event, compute_), "record an event");
  return event;
}

int64_t GpuDevice::mark() {
  const GpuScope scope(driver_, context_);
  std::lock_guard lock(timing_);
  if (!anchor_) {  // the one point where both clocks are read
    driver_.check(driver_.stream_synchronize(compute_), "finish the work on ", name_);
    anchor_ = timed_event();
    driver_.check(driver_.event_synchronize(anchor_), "wait for an event");
    anchor_time_ =
        std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  marks_[next_mark_] = timed_event();
  return next_mark_++;
}

double GpuDevice::time_of(int64_t mark) {
  const GpuScope scope(driver_, context_);
  std::lock_guard lock(timing_);
  const auto at = marks_.find(mark);
  expect(at != marks_.end(), driver_.vendor, ": mark ", mark, " was read before");
  driver_.check(driver_.event_synchronize(at->second), "wait for an event");
  float milliseconds = 0;
  driver_.check(driver_.event_elapsed(&milliseconds, anchor_, at->second),
                "read the time of an event");
  anchor_time_ += milliseconds * 1e-3;
  free_events_.push_back(std::exchange(anchor_, at->second));
  marks_.erase(at);
  return anchor_time_;
}

std::unique_ptr<Recording> GpuDevice::record(std::vector<LaunchItem> items) {
  if (!driver_.has_graphs() || waits_after_launch) return Device::record(std::move(items));
  return std::make_unique<GpuRecording>(*this, std::move(items));
}

}  // namespace tiny
