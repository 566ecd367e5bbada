#include "test/fake/hip.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>

#include "test/fake/machine.h"

using tiny::LaunchSize;

namespace tiny::test {

std::recursive_mutex mutex;
FakeHip fake;
std::set<Stream*> streams;
int lost = kSuccess;  // what every call gives after a kernel's fault
thread_local int current = 0;

int enter(const std::string& function, const std::string& details) {
  fake.calls.push_back(details.empty() ? function : function + ' ' + details);
  const auto planned = fake.fail.find(function);
  if (planned == fake.fail.end()) return lost;
  const int status = planned->second;
  fake.fail.erase(planned);
  return status;
}

bool is_next_ready(const Stream& stream) {
  const Task& next = stream.queue.front();
  return !next.is_ready || next.is_ready();
}

void run_next(Stream& stream) {
  const Task task = std::move(stream.queue.front());
  stream.queue.pop_front();
  ++stream.finished;
  task.work();
}

void rest() {
  mutex.unlock();
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  mutex.lock();
}

void run_until(Stream& stream, int64_t count) {
  while (stream.finished < count)
    if (is_next_ready(stream))
      run_next(stream);
    else
      rest();
}

int add(Stream* stream, std::function<void()> work, std::function<bool()> is_ready) {
  if (!streams.count(stream) || stream->device != current) return kInvalidHandle;
  stream->queue.push_back({std::move(work), std::move(is_ready)});
  ++stream->issued;
  return kSuccess;
}

}  // namespace tiny::test

using namespace tiny::test;

namespace {

struct Event {
  bool timed;
  Stream* stream = nullptr;  // where it was recorded last, behind so many tasks
  int64_t behind = 0;
};
struct Module {
  int device;
  std::string binary;
  size_t arguments;
  std::map<std::string, std::shared_ptr<struct Function>> functions;
};
struct Function {
  int device;
  std::string name;
  size_t arguments;
  std::shared_ptr<void> kernel;
};
struct Block {
  size_t bytes;
  int device;
};

std::map<char*, Block> blocks;
std::set<std::pair<int, int>> reachable;  // by the first, the second's memory

// The device that has all of these bytes, -1 where none has.
int owner(const void* begin, size_t bytes) {
  auto* at = const_cast<char*>(static_cast<const char*>(begin));
  auto block = blocks.upper_bound(at);
  if (block == blocks.begin()) return -1;
  --block;
  const bool inside = at + bytes <= block->first + block->second.bytes;
  return inside ? block->second.device : -1;
}

int allocate(void** out, size_t bytes) {
  if (fake.used[current] + bytes > fake.memory) return kOutOfMemory;
  *out = fake.alloc ? fake.alloc(current, bytes) : std::malloc(bytes);
  blocks[static_cast<char*>(*out)] = {bytes, current};
  fake.used[current] += bytes;
  return kSuccess;
}

int release(void* pointer) {
  const auto block = blocks.find(static_cast<char*>(pointer));
  if (block == blocks.end()) return kInvalidValue;
  const auto [bytes, device] = block->second;
  blocks.erase(block);
  fake.used[device] -= bytes;
  if (fake.free)
    fake.free(device, pointer, bytes);
  else
    std::free(pointer);
  return kSuccess;
}

std::string size_text(const unsigned* d) {
  return std::to_string(d[0]) + 'x' + std::to_string(d[1]) + 'x' + std::to_string(d[2]);
}

// hipKernelNodeParams
struct KernelNode {
  unsigned block[3];
  void** extra;
  Function* function;
  unsigned grid[3];
  void** params;
  unsigned shared;
};
struct Launch {
  std::shared_ptr<void> kernel;
  int device = 0;
  std::string name;
  LaunchSize size;
  std::vector<void*> args;
};
using Graph = std::vector<Launch>;

std::string describe(const KernelNode& n) {
  return n.function->name + ' ' + size_text(n.grid) + ' ' + size_text(n.block) + ' ' +
         std::to_string(n.shared);
}

// What a node says now: the values of its arguments are read.
int read(const KernelNode& n, Launch& out) {
  const Function& f = *n.function;
  if (n.extra || f.device != current || n.block[0] * n.block[1] * n.block[2] > 1024)
    return kInvalidValue;
  out = {f.kernel, f.device, f.name, {}, {}};
  for (int i = 0; i < 3; ++i) out.size.grid[i] = n.grid[i], out.size.block[i] = n.block[i];
  out.size.shared_bytes = n.shared;
  for (size_t i = 0; i < f.arguments; ++i) out.args.push_back(*static_cast<void**>(n.params[i]));
  for (const void* arg : out.args) {
    const int device = owner(arg, 0);
    if (device >= 0 && device != current && !reachable.count({current, device}))
      return kIllegalAddress;
  }
  return kSuccess;
}

void execute(const Launch& launch) {
  fake.done.push_back(launch.name);
  try {
    if (fake.run) fake.run(launch.device, launch.kernel.get(), launch.size, launch.args);
  } catch (const std::exception& e) {
    fake.fault = e.what();
    lost = kLaunchFailure;
  }
}

}  // namespace

extern "C" {

FakeHip* fake_hip() { return &fake; }

// --- devices -------------------------------------------------------------------------------------

const char* hipGetErrorName(int status) {
  switch (status) {
    case kSuccess: return "hipSuccess";
    case kInvalidValue: return "hipErrorInvalidValue";
    case kOutOfMemory: return "hipErrorOutOfMemory";
    case 100: return "hipErrorNoDevice";
    case kInvalidDevice: return "hipErrorInvalidDevice";
    case 209: return "hipErrorNoBinaryForGpu";
    case kInvalidHandle: return "hipErrorInvalidHandle";
    case kLaunchFailure: return "hipErrorLaunchFailure";
    default: return "hipErrorUnknown";
  }
}
const char* hipGetErrorString(int status) {
  switch (status) {
    case kOutOfMemory: return "out of memory";
    case 100: return "no ROCm-capable device is detected";
    case 209: return "no kernel image is available for execution on the device";
    case kLaunchFailure: return "unspecified launch failure";
    default: return "the stand-in has no text for it";
  }
}

int hipInit(unsigned) {
  ENTER("hipInit");
  return fake.devices > 0 ? kSuccess : 100;
}
int hipRuntimeGetVersion(int* version) {
  *version = fake.version;
  return kSuccess;
}
int hipGetDeviceCount(int* count) {
  ENTER("hipGetDeviceCount");
  *count = fake.devices;
  return kSuccess;
}
int hipDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return ordinal < fake.devices ? kSuccess : kInvalidDevice;
}
int hipDeviceGetName(char* name, int bytes, int) {
  std::strncpy(name, "Stand-in MI300X", static_cast<size_t>(bytes));
  return kSuccess;
}
int hipDeviceGetAttribute(int* value, int attribute, int) {
  const std::map<int, int> values = {{19, 4 << 20},  {56, 1024},      {63, 304},
                                     {74, 64 << 10}, {87, fake.warp}, {88, fake.pools}};
  const auto at = values.find(attribute);
  if (at == values.end()) return kInvalidValue;
  *value = at->second;
  return kSuccess;
}
// As long as that of HIP 6: name first, architecture near the end.
int hipGetDevicePropertiesR0600(void* properties, int) {
  auto* bytes = static_cast<char*>(properties);
  std::memset(bytes, 0, 1472);
  std::strcpy(bytes, "gfx, a name that only looks like it");
  std::strcpy(bytes + 1160, fake.arch.c_str());
  return kSuccess;
}
int hipDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = fake.peers && device != peer;
  return kSuccess;
}
int hipGetDevice(int* device) {
  *device = current;
  return kSuccess;
}
int hipSetDevice(int device) {
  if (device < 0 || device >= fake.devices) return kInvalidDevice;
  current = device;
  return kSuccess;
}
int hipDeviceEnablePeerAccess(int peer, unsigned) {
  ENTER("hipDeviceEnablePeerAccess", std::to_string(current) + ' ' + std::to_string(peer));
  if (peer == current) return kInvalidDevice;
  return reachable.insert({current, peer}).second ? kSuccess : kPeerAccessAlreadyEnabled;
}

// --- streams and events --------------------------------------------------------------------------

int hipStreamCreateWithFlags(Stream** stream, unsigned flags) {
  ENTER("hipStreamCreateWithFlags", std::to_string(flags));
  *stream = new Stream{current, {}};
  streams.insert(*stream);
  ++fake.streams;
  return kSuccess;
}
int hipStreamDestroy(Stream* stream) {
  ENTER("hipStreamDestroy");
  run_until(*stream, stream->issued);
  streams.erase(stream);
  delete stream;
  --fake.streams;
  return kSuccess;
}
int hipStreamSynchronize(Stream* stream) {
  ENTER("hipStreamSynchronize");
  run_until(*stream, stream->issued);
  return lost;
}
int hipStreamWaitEvent(Stream* stream, Event* event, unsigned) {
  ENTER("hipStreamWaitEvent");
  Stream* const other = event->stream;
  if (!other) return kSuccess;
  return add(stream, [other, behind = event->behind] {
    if (streams.count(other)) run_until(*other, behind);
  });
}
int hipEventCreateWithFlags(Event** event, unsigned flags) {
  ENTER("hipEventCreateWithFlags", std::to_string(flags));
  *event = new Event{flags == 0};
  ++fake.events;
  return kSuccess;
}
int hipEventDestroy(Event* event) {
  std::lock_guard lock(mutex);
  delete event;
  --fake.events;
  return kSuccess;
}
int hipEventRecord(Event* event, Stream* stream) {
  ENTER("hipEventRecord");
  if (stream->device != current) return kInvalidHandle;
  event->stream = stream;
  event->behind = stream->issued;
  return kSuccess;
}
int hipEventSynchronize(Event* event) {
  ENTER("hipEventSynchronize");
  if (event->stream) run_until(*event->stream, event->behind);
  return lost;
}
int hipEventQuery(Event* event) {
  ENTER("hipEventQuery");
  Stream* const stream = event->stream;
  while (stream && streams.count(stream) && stream->finished < event->behind) {
    if (!is_next_ready(*stream)) return kNotReady;
    run_next(*stream);
  }
  return lost;
}
int hipEventElapsedTime(float* milliseconds, Event* start, Event* end) {
  ENTER("hipEventElapsedTime");
  if (!start->timed || !end->timed || !start->stream || !end->stream) return kInvalidHandle;
  if (end->stream->finished < end->behind) return kNotReady;
  *milliseconds = 0.25f * static_cast<float>(end->behind - start->behind);  // a task's time
  return kSuccess;
}

// --- memory --------------------------------------------------------------------------------------

int hipMemGetInfo(size_t* free, size_t* total) {
  std::lock_guard lock(mutex);
  *total = fake.memory;
  *free = fake.memory - fake.used[current];
  return kSuccess;
}
int hipMalloc(void** block, size_t bytes) {
  ENTER("hipMalloc", std::to_string(bytes));
  return allocate(block, bytes);
}
int hipFree(void* block) {
  ENTER("hipFree");
  return release(block);
}
int hipHostMalloc(void** memory, size_t bytes, unsigned flags) {
  ENTER("hipHostMalloc", std::to_string(bytes) + ' ' + std::to_string(flags));
  *memory = std::malloc(bytes);
  ++fake.pinned;
  return kSuccess;
}
int hipHostFree(void* memory) {
  std::free(memory);
  --fake.pinned;
  return kSuccess;
}
int hipDeviceGetDefaultMemPool(void** pool, int device) {
  *pool = reinterpret_cast<void*>(static_cast<uintptr_t>(device) + 1);
  return kSuccess;
}
int hipMemPoolSetAttribute(void*, int attribute, void* value) {
  ENTER("hipMemPoolSetAttribute",
        std::to_string(attribute) + ' ' + std::to_string(*static_cast<uint64_t*>(value)));
  return kSuccess;
}
int hipMemPoolTrimTo(void*, size_t) {
  ENTER("hipMemPoolTrimTo");
  return kSuccess;
}
int hipMemPoolSetAccess(void* pool, const int* access, size_t) {  // location's type, number, flags
  const auto device = reinterpret_cast<uintptr_t>(pool) - 1;
  ENTER("hipMemPoolSetAccess", std::to_string(device) + ' ' + std::to_string(access[0]) + ' ' +
                                   std::to_string(access[1]) + ' ' + std::to_string(access[2]));
  return kSuccess;
}
int hipMallocAsync(void** block, size_t bytes, Stream* stream) {
  ENTER("hipMallocAsync", std::to_string(bytes));
  if (fake.used[current] + bytes > fake.memory) run_until(*stream, stream->issued);
  return allocate(block, bytes);
}
int hipFreeAsync(void* block, Stream* stream) {
  ENTER("hipFreeAsync");
  return add(stream, [block] { release(block); });
}

int hipMemcpyHtoDAsync(void* to, const void* from, size_t bytes, Stream* stream) {
  ENTER("hipMemcpyHtoDAsync", std::to_string(bytes));
  if (owner(to, bytes) != current) return kInvalidValue;
  return add(stream, [=] { std::memcpy(to, from, bytes); });
}
int hipMemcpyDtoHAsync(void* to, const void* from, size_t bytes, Stream* stream) {
  ENTER("hipMemcpyDtoHAsync", std::to_string(bytes));
  if (owner(from, bytes) != current) return kInvalidValue;
  return add(stream, [=] { std::memcpy(to, from, bytes); });
}
int hipMemcpyDtoDAsync(void* to, const void* from, size_t bytes, Stream* stream) {
  ENTER("hipMemcpyDtoDAsync", std::to_string(bytes));
  if (owner(to, bytes) != current || owner(from, bytes) != current) return kInvalidValue;
  return add(stream, [=] { std::memmove(to, from, bytes); });
}
int hipMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                       Stream* stream) {
  ENTER("hipMemcpyPeerAsync", std::to_string(from_device) + " to " + std::to_string(to_device) +
                                  ", " + std::to_string(bytes));
  if (owner(to, bytes) != to_device || owner(from, bytes) != from_device) return kInvalidValue;
  return add(stream, [=] { std::memcpy(to, from, bytes); });
}
int hipMemsetD8Async(void* to, unsigned char value, size_t bytes, Stream* stream) {
  ENTER("hipMemsetD8Async", std::to_string(bytes));
  if (owner(to, bytes) != current) return kInvalidValue;
  return add(stream, [=] { std::memset(to, value, bytes); });
}

// --- kernels -------------------------------------------------------------------------------------

int hipModuleLoadData(Module** module, const void* image) {
  ENTER("hipModuleLoadData");
  CodeHeader header;
  std::memcpy(&header, image, sizeof header);
  if (std::memcmp(header.magic, CodeHeader::kMagic, 8) != 0) return kInvalidImage;
  const char* code = static_cast<const char*>(image) + sizeof header;
  *module = new Module{current, std::string(code, header.bytes), header.arguments, {}};
  ++fake.modules;
  return kSuccess;
}
int hipModuleUnload(Module* module) {
  ENTER("hipModuleUnload");
  delete module;
  --fake.modules;
  return kSuccess;
}
int hipModuleGetFunction(Function** function, Module* module, const char* name) {
  ENTER("hipModuleGetFunction", name);
  try {
    auto& slot = module->functions[name];
    if (!slot)
      slot = std::make_shared<Function>(
          Function{module->device, name, module->arguments,
                   fake.load ? fake.load(module->device, module->binary, name) : nullptr});
    *function = slot.get();
    return kSuccess;
  } catch (const std::exception&) {
    return kNotFound;
  }
}
int hipModuleLaunchKernel(Function* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                          unsigned by, unsigned bz, unsigned shared, Stream* stream, void** params,
                          void** extra) {
  const KernelNode node{{bx, by, bz}, extra, f, {gx, gy, gz}, params, shared};
  ENTER("hipModuleLaunchKernel", describe(node));
  Launch launch;
  if (const int status = read(node, launch); status != kSuccess) return status;
  return add(stream, [launch] { execute(launch); });
}

// --- graphs --------------------------------------------------------------------------------------

int hipGraphCreate(Graph** graph, unsigned) {
  ENTER("hipGraphCreate");
  *graph = new Graph;
  ++fake.graphs;
  return kSuccess;
}
int hipGraphDestroy(Graph* graph) {
  std::lock_guard lock(mutex);
  delete graph;
  --fake.graphs;
  return kSuccess;
}
// Nodes are numbered from 1; the call says which ones one depends on, unless it is the one before.
int hipGraphAddKernelNode(void** node, Graph* graph, void* const* after, size_t count,
                          const KernelNode* kernel) {
  const size_t number = graph->size() + 1;
  std::string waits;
  bool valid = true;
  for (size_t i = 0; i < count; ++i) {
    const auto other = reinterpret_cast<size_t>(after[i]);
    valid &= other > 0 && other < number;
    waits += ' ' + std::to_string(other);
  }
  const bool chain = count == 1 ? waits == ' ' + std::to_string(number - 1) : number == 1;
  ENTER("hipGraphAddKernelNode", describe(*kernel) + (chain ? "" : " after" + waits));
  if (!valid) return kInvalidValue;
  *node = reinterpret_cast<void*>(number);
  graph->emplace_back();
  return read(*kernel, graph->back());
}
int hipGraphInstantiateWithFlags(Graph** exec, Graph* graph, unsigned long long) {
  ENTER("hipGraphInstantiateWithFlags");
  *exec = new Graph(*graph);
  ++fake.graphs;
  return kSuccess;
}
int hipGraphExecKernelNodeSetParams(Graph* exec, void* node, const KernelNode* kernel) {
  ENTER("hipGraphExecKernelNodeSetParams", describe(*kernel));
  const size_t at = reinterpret_cast<size_t>(node) - 1;
  return at < exec->size() ? read(*kernel, (*exec)[at]) : kInvalidValue;
}
int hipGraphLaunch(Graph* exec, Stream* stream) {
  ENTER("hipGraphLaunch");
  return add(stream, [graph = *exec] {  // later changes are of later launches
    for (const Launch& launch : graph) execute(launch);
  });
}
int hipGraphExecDestroy(Graph* exec) { return hipGraphDestroy(exec); }

}  // extern "C"
