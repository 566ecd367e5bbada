// The functions of a GPU's driver that we call, as a table: NVIDIA's (devices/cuda/driver.h) and
// AMD's (devices/hip/driver.h) differ in names and few parameters. Types and constants are those of
// cuda.h, to which hip_runtime_api.h keeps.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tiny/base/error.h"

namespace tiny {

using GpuAddress = unsigned long long;  // CUdeviceptr
using GpuContext = struct GpuContextTag*;
using GpuStream = struct GpuStreamTag*;
using GpuEvent = struct GpuEventTag*;
using GpuModule = struct GpuModuleTag*;
using GpuFunction = struct GpuFunctionTag*;
using GpuPool = struct GpuPoolTag*;
using GpuGraph = struct GpuGraphTag*;
using GpuGraphNode = struct GpuGraphNodeTag*;
using GpuGraphExec = struct GpuGraphExecTag*;

enum GpuStatus : int {
  kGpuSuccess = 0,
  kGpuOutOfMemory = 2,
  kGpuNotReady = 600,
  kGpuIllegalAddress = 700,
  kGpuPeerAccessAlreadyEnabled = 704,
  kGpuLaunchFailed = 719,
};

// Their numbers of what can be asked of a device.
struct GpuAttributes {
  int most_threads, warp, multiprocessors, l2_bytes, shared_bytes, memory_pools;
};

constexpr unsigned kGpuStreamNonBlocking = 1, kGpuEventTimed = 0, kGpuEventUntimed = 2;
constexpr int kGpuDynamicSharedBytes = 8;    // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr int kGpuPoolReleaseThreshold = 4;  // CU_MEMPOOL_ATTR_RELEASE_THRESHOLD

struct GpuKernelNode {  // CUDA_KERNEL_NODE_PARAMS_v1
  GpuFunction function;
  unsigned grid[3], block[3], shared_bytes;
  void** params;
  void** extra;
};

struct GpuEdge {  // CUgraphEdgeData
  unsigned char from_port = 0, to_port = 0, type = 0, reserved[5] = {};
};
constexpr GpuEdge kGpuEarly{1, 0, 1};  // port and type PROGRAMMATIC

struct alignas(64) GpuTensorMap {  // CUtensorMap
  unsigned char bytes[128];
};
enum GpuTensorType : int {
  kGpuTensorU8 = 0,
  kGpuTensorF16 = 6,
  kGpuTensorBf16 = 9,
  kGpuTensorTf32 = 11,  // f32 in memory, rounded when it is copied
};
constexpr int kGpuInterleaveNone = 0, kGpuFillZero = 0;
constexpr int kGpuPromote128 = 2, kGpuPromote256 = 3;  // bytes that a miss fetches
constexpr int kGpuSwizzle32 = 1, kGpuSwizzle64 = 2, kGpuSwizzle128 = 3;

struct GpuAccess {  // CUmemAccessDesc: a device, and that it may read and write
  int location = 1, ordinal = 0, flags = 3;
};

// Name of ours, symbol of the library, parameters; all of them return a GpuStatus. The suffix _v2
// is part of what cuda.h's macros make of the names. HIP has no contexts to speak of: there they
// stand for devices.
#define TINY_GPU_REQUIRED(X)                                                                       \
  X(init, "cuInit", (unsigned))                                                                    \
  X(driver_version, "cuDriverGetVersion", (int*))                                                  \
  X(error_name, "cuGetErrorName", (int, const char**))                                             \
  X(error_string, "cuGetErrorString", (int, const char**))                                         \
  X(device_count, "cuDeviceGetCount", (int*))                                                      \
  X(device_get, "cuDeviceGet", (int*, int))                                                        \
  X(device_name, "cuDeviceGetName", (char*, int, int))                                             \
  X(device_attribute, "cuDeviceGetAttribute", (int*, int, int))                                    \
  X(device_can_access, "cuDeviceCanAccessPeer", (int*, int, int))                                  \
  X(context_retain, "cuDevicePrimaryCtxRetain", (GpuContext*, int))                                \
  X(context_release, "cuDevicePrimaryCtxRelease_v2", (int))                                        \
  X(context_get, "cuCtxGetCurrent", (GpuContext*))                                                 \
  X(context_set, "cuCtxSetCurrent", (GpuContext))                                                  \
  X(context_enable_peer, "cuCtxEnablePeerAccess", (GpuContext, unsigned))                          \
  X(stream_create, "cuStreamCreate", (GpuStream*, unsigned))                                       \
  X(stream_destroy, "cuStreamDestroy_v2", (GpuStream))                                             \
  X(stream_synchronize, "cuStreamSynchronize", (GpuStream))                                        \
  X(stream_wait, "cuStreamWaitEvent", (GpuStream, GpuEvent, unsigned))                             \
  X(event_create, "cuEventCreate", (GpuEvent*, unsigned))                                          \
  X(event_destroy, "cuEventDestroy_v2", (GpuEvent))                                                \
  X(event_record, "cuEventRecord", (GpuEvent, GpuStream))                                          \
  X(event_synchronize, "cuEventSynchronize", (GpuEvent))                                           \
  X(event_query, "cuEventQuery", (GpuEvent))                                                       \
  X(event_elapsed, "cuEventElapsedTime", (float*, GpuEvent, GpuEvent))                             \
  X(memory_info, "cuMemGetInfo_v2", (size_t*, size_t*))                                            \
  X(memory_alloc, "cuMemAlloc_v2", (GpuAddress*, size_t))                                          \
  X(memory_free, "cuMemFree_v2", (GpuAddress))                                                     \
  X(host_alloc, "cuMemHostAlloc", (void**, size_t, unsigned))                                      \
  X(host_free, "cuMemFreeHost", (void*))                                                           \
  X(copy_in, "cuMemcpyHtoDAsync_v2", (GpuAddress, const void*, size_t, GpuStream))                 \
  X(copy_out, "cuMemcpyDtoHAsync_v2", (void*, GpuAddress, size_t, GpuStream))                      \
  X(copy_within, "cuMemcpyDtoDAsync_v2", (GpuAddress, GpuAddress, size_t, GpuStream))              \
  X(copy_peer, "cuMemcpyPeerAsync",                                                                \
    (GpuAddress, GpuContext, GpuAddress, GpuContext, size_t, GpuStream))                           \
  X(fill_bytes, "cuMemsetD8Async", (GpuAddress, unsigned char, size_t, GpuStream))                 \
  X(module_load, "cuModuleLoadData", (GpuModule*, const void*))                                    \
  X(module_unload, "cuModuleUnload", (GpuModule))                                                  \
  X(module_function, "cuModuleGetFunction", (GpuFunction*, GpuModule, const char*))                \
  X(function_set, "cuFuncSetAttribute", (GpuFunction, int, int))                                   \
  X(launch, "cuLaunchKernel",                                                                      \
    (GpuFunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, GpuStream, \
     void**, void**))

// Null where the driver is too old: stream-ordered memory needs 11.2, graphs 11.4, tensor
// maps 12.0, kinds of edges 12.3.
#define TINY_GPU_OPTIONAL(X)                                                                    \
  X(pool_of_device, "cuDeviceGetDefaultMemPool", (GpuPool*, int))                               \
  X(pool_set, "cuMemPoolSetAttribute", (GpuPool, int, void*))                                   \
  X(pool_trim, "cuMemPoolTrimTo", (GpuPool, size_t))                                            \
  X(pool_allow, "cuMemPoolSetAccess", (GpuPool, const GpuAccess*, size_t))                      \
  X(pool_alloc, "cuMemAllocAsync", (GpuAddress*, size_t, GpuStream))                            \
  X(pool_free, "cuMemFreeAsync", (GpuAddress, GpuStream))                                       \
  X(graph_create, "cuGraphCreate", (GpuGraph*, unsigned))                                       \
  X(graph_destroy, "cuGraphDestroy", (GpuGraph))                                                \
  X(graph_add_kernel, "cuGraphAddKernelNode",                                                   \
    (GpuGraphNode*, GpuGraph, const GpuGraphNode*, size_t, const GpuKernelNode*))               \
  X(graph_add_edges, "cuGraphAddDependencies_v2",                                               \
    (GpuGraph, const GpuGraphNode*, const GpuGraphNode*, const GpuEdge*, size_t))               \
  X(graph_instantiate, "cuGraphInstantiateWithFlags",                                           \
    (GpuGraphExec*, GpuGraph, unsigned long long))                                              \
  X(graph_set_kernel, "cuGraphExecKernelNodeSetParams",                                         \
    (GpuGraphExec, GpuGraphNode, const GpuKernelNode*))                                         \
  X(graph_launch, "cuGraphLaunch", (GpuGraphExec, GpuStream))                                   \
  X(graph_exec_destroy, "cuGraphExecDestroy", (GpuGraphExec))                                   \
  X(tensor_map, "cuTensorMapEncodeTiled",                                                       \
    (GpuTensorMap*, int, unsigned, void*, const unsigned long long*, const unsigned long long*, \
     const unsigned*, const unsigned*, int, int, int, int))                                     \
  X(window_map, "cuTensorMapEncodeIm2col",                                                      \
    (GpuTensorMap*, int, unsigned, void*, const unsigned long long*, const unsigned long long*, \
     const int*, const int*, unsigned, unsigned, const unsigned*, int, int, int, int))

struct GpuDriver {
#define TINY_DECLARE(name, symbol, parameters) int(*name) parameters = nullptr;
  TINY_GPU_REQUIRED(TINY_DECLARE)
  TINY_GPU_OPTIONAL(TINY_DECLARE)
#undef TINY_DECLARE

  const char* vendor = "CUDA";  // also the device's name
  GpuAttributes attributes = {};
  int64_t shared_without_asking = 48 << 10;  // more needs an attribute of the kernel
  int version = 0;  // as the library numbers it: 13000 is CUDA 13.0, 60042131 is HIP 6.0
  int devices = 0;  // at least one

  bool has_pools() const {
    return pool_of_device && pool_set && pool_trim && pool_allow && pool_alloc && pool_free;
  }
  bool has_graphs() const {
    return graph_create && graph_destroy && graph_add_kernel && graph_instantiate &&
           graph_set_kernel && graph_launch && graph_exec_destroy;
  }

  // "CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered".
  std::string error(int status) const;
  // The error of a later call, which is not to blame for it: for errors that kernels cause, how to
  // find the one that did.
  std::string later_error(int status) const;
  // Throws DeviceError "CUDA: cannot WHAT: error" unless the status is success.
  template <class... Parts> void check(int status, const Parts&... what) const {
    if (status != kGpuSuccess) [[unlikely]]
      throw DeviceError(cat(vendor, ": cannot ", what..., ": ", later_error(status)));
  }
};

// Makes a context current on this thread, and the one before again. A thread that had none keeps
// it: to ask is cheaper than to change it, and nobody's context is in the way.
class GpuScope {
 public:
  GpuScope(const GpuDriver& driver, GpuContext context) : driver_(driver) {
    GpuContext current = nullptr;
    driver.check(driver.context_get(&current), "ask for the current context");
    if (current == context) return;
    driver.check(driver.context_set(context), "make a GPU's context current");
    before_ = current;
  }
  ~GpuScope() {
    if (before_) driver_.context_set(before_);
  }
  GpuScope(const GpuScope&) = delete;
  GpuScope& operator=(const GpuScope&) = delete;

 private:
  const GpuDriver& driver_;
  GpuContext before_ = nullptr;
};

// An event of the current context, timed or not; the device's memory report counts those that are
// not destroyed yet. Null is none.
GpuEvent make_event(const GpuDriver& driver, unsigned flags);
void destroy_event(const GpuDriver& driver, GpuEvent event);

}  // namespace tiny
