// The CUDA driver's functions that we call, found in libcuda.so.1 when a CUDA device is first
// asked for. Types and constants are those of cuda.h, which is not needed to build.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "tiny/error.h"

namespace tiny {

using CuAddress = unsigned long long;  // CUdeviceptr
using CuContext = struct CuContextTag*;
using CuStream = struct CuStreamTag*;
using CuEvent = struct CuEventTag*;
using CuModule = struct CuModuleTag*;
using CuFunction = struct CuFunctionTag*;
using CuPool = struct CuPoolTag*;
using CuGraph = struct CuGraphTag*;
using CuGraphNode = struct CuGraphNodeTag*;
using CuGraphExec = struct CuGraphExecTag*;

enum CuStatus : int {
  kCuSuccess = 0,
  kCuOutOfMemory = 2,
  kCuIllegalAddress = 700,
  kCuPeerAccessAlreadyEnabled = 704,
  kCuLaunchFailed = 719,
};

enum CuAttribute : int {
  kCuMostThreads = 1,
  kCuWarp = 10,
  kCuMultiprocessors = 16,
  kCuL2Bytes = 38,
  kCuMajor = 75,
  kCuMinor = 76,
  kCuSharedBytesOptIn = 97,
  kCuMemoryPools = 115,
};

constexpr unsigned kCuStreamNonBlocking = 1, kCuEventTimed = 0, kCuEventUntimed = 2;
constexpr int kCuDynamicSharedBytes = 8;    // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr int kCuPoolReleaseThreshold = 4;  // CU_MEMPOOL_ATTR_RELEASE_THRESHOLD

struct CuKernelNode {  // CUDA_KERNEL_NODE_PARAMS_v1
  CuFunction function;
  unsigned grid[3], block[3], shared_bytes;
  void** params;
  void** extra;
};

struct alignas(64) CuTensorMap {  // CUtensorMap
  unsigned char bytes[128];
};
enum CuTensorType : int { kCuTensorF16 = 6, kCuTensorF32 = 7, kCuTensorBf16 = 9 };
constexpr int kCuInterleaveNone = 0, kCuSwizzle128 = 3, kCuPromote256 = 3, kCuFillZero = 0;

struct CuAccess {  // CUmemAccessDesc: a device, and that it may read and write
  int location = 1, ordinal = 0, flags = 3;
};

// Name of ours, symbol of the library, parameters; all of them return a CuStatus. The suffix _v2
// is part of what cuda.h's macros make of the names.
#define TINY_CUDA_REQUIRED(X)                                                                    \
  X(init, "cuInit", (unsigned))                                                                  \
  X(driver_version, "cuDriverGetVersion", (int*))                                                \
  X(error_name, "cuGetErrorName", (int, const char**))                                           \
  X(error_string, "cuGetErrorString", (int, const char**))                                       \
  X(device_count, "cuDeviceGetCount", (int*))                                                    \
  X(device_get, "cuDeviceGet", (int*, int))                                                      \
  X(device_name, "cuDeviceGetName", (char*, int, int))                                           \
  X(device_attribute, "cuDeviceGetAttribute", (int*, int, int))                                  \
  X(device_can_access, "cuDeviceCanAccessPeer", (int*, int, int))                                \
  X(context_retain, "cuDevicePrimaryCtxRetain", (CuContext*, int))                               \
  X(context_release, "cuDevicePrimaryCtxRelease_v2", (int))                                      \
  X(context_get, "cuCtxGetCurrent", (CuContext*))                                                \
  X(context_set, "cuCtxSetCurrent", (CuContext))                                                 \
  X(context_push, "cuCtxPushCurrent_v2", (CuContext))                                            \
  X(context_pop, "cuCtxPopCurrent_v2", (CuContext*))                                             \
  X(context_enable_peer, "cuCtxEnablePeerAccess", (CuContext, unsigned))                         \
  X(stream_create, "cuStreamCreate", (CuStream*, unsigned))                                      \
  X(stream_destroy, "cuStreamDestroy_v2", (CuStream))                                            \
  X(stream_synchronize, "cuStreamSynchronize", (CuStream))                                       \
  X(stream_wait, "cuStreamWaitEvent", (CuStream, CuEvent, unsigned))                             \
  X(event_create, "cuEventCreate", (CuEvent*, unsigned))                                         \
  X(event_destroy, "cuEventDestroy_v2", (CuEvent))                                               \
  X(event_record, "cuEventRecord", (CuEvent, CuStream))                                          \
  X(event_synchronize, "cuEventSynchronize", (CuEvent))                                          \
  X(event_elapsed, "cuEventElapsedTime", (float*, CuEvent, CuEvent))                             \
  X(memory_info, "cuMemGetInfo_v2", (size_t*, size_t*))                                          \
  X(memory_alloc, "cuMemAlloc_v2", (CuAddress*, size_t))                                         \
  X(memory_free, "cuMemFree_v2", (CuAddress))                                                    \
  X(host_alloc, "cuMemHostAlloc", (void**, size_t, unsigned))                                    \
  X(host_free, "cuMemFreeHost", (void*))                                                         \
  X(copy_in, "cuMemcpyHtoDAsync_v2", (CuAddress, const void*, size_t, CuStream))                 \
  X(copy_out, "cuMemcpyDtoHAsync_v2", (void*, CuAddress, size_t, CuStream))                      \
  X(copy_within, "cuMemcpyDtoDAsync_v2", (CuAddress, CuAddress, size_t, CuStream))               \
  X(copy_peer, "cuMemcpyPeerAsync",                                                              \
    (CuAddress, CuContext, CuAddress, CuContext, size_t, CuStream))                              \
  X(fill_bytes, "cuMemsetD8Async", (CuAddress, unsigned char, size_t, CuStream))                 \
  X(module_load, "cuModuleLoadData", (CuModule*, const void*))                                   \
  X(module_unload, "cuModuleUnload", (CuModule))                                                 \
  X(module_function, "cuModuleGetFunction", (CuFunction*, CuModule, const char*))                \
  X(function_set, "cuFuncSetAttribute", (CuFunction, int, int))                                  \
  X(launch, "cuLaunchKernel",                                                                    \
    (CuFunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CuStream, \
     void**, void**))

// Null where the driver is too old: stream-ordered memory needs 11.2, graphs 11.4, tensor
// maps 12.0, the number of a kernel's parameters 12.4.
#define TINY_CUDA_OPTIONAL(X)                                                                      \
  X(pool_of_device, "cuDeviceGetDefaultMemPool", (CuPool*, int))                                   \
  X(pool_set, "cuMemPoolSetAttribute", (CuPool, int, void*))                                       \
  X(pool_trim, "cuMemPoolTrimTo", (CuPool, size_t))                                                \
  X(pool_allow, "cuMemPoolSetAccess", (CuPool, const CuAccess*, size_t))                           \
  X(pool_alloc, "cuMemAllocAsync", (CuAddress*, size_t, CuStream))                                 \
  X(pool_free, "cuMemFreeAsync", (CuAddress, CuStream))                                            \
  X(graph_create, "cuGraphCreate", (CuGraph*, unsigned))                                           \
  X(graph_destroy, "cuGraphDestroy", (CuGraph))                                                    \
  X(graph_add_kernel, "cuGraphAddKernelNode",                                                      \
    (CuGraphNode*, CuGraph, const CuGraphNode*, size_t, const CuKernelNode*))                      \
  X(graph_instantiate, "cuGraphInstantiateWithFlags", (CuGraphExec*, CuGraph, unsigned long long)) \
  X(graph_set_kernel, "cuGraphExecKernelNodeSetParams",                                            \
    (CuGraphExec, CuGraphNode, const CuKernelNode*))                                               \
  X(graph_launch, "cuGraphLaunch", (CuGraphExec, CuStream))                                        \
  X(graph_exec_destroy, "cuGraphExecDestroy", (CuGraphExec))                                       \
  X(tensor_map, "cuTensorMapEncodeTiled",                                                          \
    (CuTensorMap*, int, unsigned, void*, const unsigned long long*, const unsigned long long*,     \
     const unsigned*, const unsigned*, int, int, int, int))

struct CudaDriver {
#define TINY_DECLARE(name, symbol, parameters) int(*name) parameters = nullptr;
  TINY_CUDA_REQUIRED(TINY_DECLARE)
  TINY_CUDA_OPTIONAL(TINY_DECLARE)
#undef TINY_DECLARE

  int version = 0;  // 13000 for CUDA 13.0: the newest that the driver knows
  int devices = 0;  // at least one

  bool has_pools() const {
    return pool_of_device && pool_set && pool_trim && pool_allow && pool_alloc && pool_free;
  }
  bool has_graphs() const {
    return graph_create && graph_destroy && graph_add_kernel && graph_instantiate &&
           graph_set_kernel && graph_launch && graph_exec_destroy;
  }
};

// The driver, opened and initialised at the first call. Throws DeviceError with the reason why
// there is none, or no GPU.
const CudaDriver& cuda_driver();
std::string cuda_missing_reason();  // empty when there is a driver and a GPU

// "CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered".
std::string cuda_error(int status);

// The same of a call that is not to blame for it: for errors that kernels cause, how to find the
// one that did.
std::string cuda_later_error(int status);

// Throws DeviceError "CUDA: cannot WHAT: error" unless the status is success.
template <class... Parts> void check_cuda(int status, const Parts&... what) {
  if (status != kCuSuccess) [[unlikely]]
    throw DeviceError(cat("CUDA: cannot ", what..., ": ", cuda_later_error(status)));
}

// Makes a context current on this thread. A thread that had none keeps it: to ask is cheaper than
// to push and pop, and nobody's context is in the way.
class CudaScope {
 public:
  CudaScope(const CudaDriver& cuda, CuContext context) : cuda_(cuda) {
    CuContext current = nullptr;
    check_cuda(cuda.context_get(&current), "ask for the current context");
    if (current == context) return;
    pushed_ = current != nullptr;
    check_cuda(pushed_ ? cuda.context_push(context) : cuda.context_set(context),
               "make a GPU's context current");
  }
  ~CudaScope() {
    CuContext ours;
    if (pushed_) cuda_.context_pop(&ours);
  }
  CudaScope(const CudaScope&) = delete;
  CudaScope& operator=(const CudaScope&) = delete;

 private:
  const CudaDriver& cuda_;
  bool pushed_ = false;
};

// An event of the current context, timed or not; the device's memory report counts those that are
// not destroyed yet. Null is none.
CuEvent make_event(const CudaDriver& cuda, unsigned flags);
void destroy_event(const CudaDriver& cuda, CuEvent event);

// How versions are written: 12040 is "12.4".
std::string cuda_version_text(int version);

}  // namespace tiny
