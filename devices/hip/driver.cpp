#include "devices/hip/driver.h"

#include <cstdlib>
#include <cstring>

#include "tiny/base/env.h"
#include "tiny/base/exit_order.h"
#include "tiny/base/library.h"

namespace tiny {
namespace {

struct KernelNode;

// Functions that the table has in another form.
struct Runtime {
  const char* (*error_name)(int) = nullptr;
  const char* (*error_string)(int) = nullptr;
  int (*get_device)(int*) = nullptr;
  int (*set_device)(int) = nullptr;
  int (*enable_peer)(int, unsigned) = nullptr;
  int (*copy_peer)(GpuAddress, int, GpuAddress, int, size_t, GpuStream) = nullptr;
  int (*properties)(void*, int) = nullptr;
  int (*graph_add_kernel)(GpuGraphNode*, GpuGraph, const GpuGraphNode*, size_t,
                          const KernelNode*) = nullptr;
  int (*graph_set_kernel)(GpuGraphExec, GpuGraphNode, const KernelNode*) = nullptr;
};
Runtime hip;

// HIP knows a current device instead of a current context: the handle is its number, from 1.
GpuContext context_of(int ordinal) {
  return reinterpret_cast<GpuContext>(static_cast<uintptr_t>(ordinal) + 1);
}
int ordinal_of(GpuContext context) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(context) - 1);
}

int error_name(int status, const char** text) {
  *text = hip.error_name(status);
  return kGpuSuccess;
}
int error_string(int status, const char** text) {
  *text = hip.error_string(status);
  return kGpuSuccess;
}
int context_retain(GpuContext* context, int ordinal) {
  *context = context_of(ordinal);
  return kGpuSuccess;
}
int context_release(int) { return kGpuSuccess; }
int context_get(GpuContext* context) {
  int ordinal = 0;
  const int status = hip.get_device(&ordinal);
  *context = context_of(ordinal);
  return status;
}
int context_set(GpuContext context) { return hip.set_device(ordinal_of(context)); }
int context_enable_peer(GpuContext peer, unsigned flags) {
  return hip.enable_peer(ordinal_of(peer), flags);
}
int copy_peer(GpuAddress to, GpuContext to_context, GpuAddress from, GpuContext from_context,
              size_t bytes, GpuStream stream) {
  return hip.copy_peer(to, ordinal_of(to_context), from, ordinal_of(from_context), bytes, stream);
}

struct KernelNode {  // hipKernelNodeParams; it takes a function of a module as well
  unsigned block[3];
  void** extra;
  GpuFunction function;
  unsigned grid[3];
  void** params;
  unsigned shared_bytes;

  explicit KernelNode(const GpuKernelNode& n)
      : block{n.block[0], n.block[1], n.block[2]},
        extra(n.extra),
        function(n.function),
        grid{n.grid[0], n.grid[1], n.grid[2]},
        params(n.params),
        shared_bytes(n.shared_bytes) {}
};
int graph_add_kernel(GpuGraphNode* node, GpuGraph graph, const GpuGraphNode* after, size_t count,
                     const GpuKernelNode* kernel) {
  const KernelNode theirs(*kernel);
  return hip.graph_add_kernel(node, graph, after, count, &theirs);
}
int graph_set_kernel(GpuGraphExec exec, GpuGraphNode node, const GpuKernelNode* kernel) {
  const KernelNode theirs(*kernel);
  return hip.graph_set_kernel(exec, node, &theirs);
}

// Ours, theirs: what has the same parameters. Pointers to memory are void* there, as large.
#define TINY_HIP_SAME(X)                         \
  X(init, "hipInit")                             \
  X(driver_version, "hipRuntimeGetVersion")      \
  X(device_count, "hipGetDeviceCount")           \
  X(device_get, "hipDeviceGet")                  \
  X(device_name, "hipDeviceGetName")             \
  X(device_attribute, "hipDeviceGetAttribute")   \
  X(device_can_access, "hipDeviceCanAccessPeer") \
  X(stream_create, "hipStreamCreateWithFlags")   \
  X(stream_destroy, "hipStreamDestroy")          \
  X(stream_synchronize, "hipStreamSynchronize")  \
  X(stream_wait, "hipStreamWaitEvent")           \
  X(event_create, "hipEventCreateWithFlags")     \
  X(event_destroy, "hipEventDestroy")            \
  X(event_record, "hipEventRecord")              \
  X(event_synchronize, "hipEventSynchronize")    \
  X(event_query, "hipEventQuery")                \
  X(event_elapsed, "hipEventElapsedTime")        \
  X(memory_info, "hipMemGetInfo")                \
  X(memory_alloc, "hipMalloc")                   \
  X(memory_free, "hipFree")                      \
  X(host_alloc, "hipHostMalloc")                 \
  X(host_free, "hipHostFree")                    \
  X(copy_in, "hipMemcpyHtoDAsync")               \
  X(copy_out, "hipMemcpyDtoHAsync")              \
  X(copy_within, "hipMemcpyDtoDAsync")           \
  X(fill_bytes, "hipMemsetD8Async")              \
  X(module_load, "hipModuleLoadData")            \
  X(module_unload, "hipModuleUnload")            \
  X(module_function, "hipModuleGetFunction")     \
  X(launch, "hipModuleLaunchKernel")

// Null where the runtime is too old: pools need HIP 5.2, graphs 5.3.
#define TINY_HIP_OPTIONAL(X)                           \
  X(pool_of_device, "hipDeviceGetDefaultMemPool")      \
  X(pool_set, "hipMemPoolSetAttribute")                \
  X(pool_trim, "hipMemPoolTrimTo")                     \
  X(pool_allow, "hipMemPoolSetAccess")                 \
  X(pool_alloc, "hipMallocAsync")                      \
  X(pool_free, "hipFreeAsync")                         \
  X(graph_create, "hipGraphCreate")                    \
  X(graph_destroy, "hipGraphDestroy")                  \
  X(graph_instantiate, "hipGraphInstantiateWithFlags") \
  X(graph_launch, "hipGraphLaunch")                    \
  X(graph_exec_destroy, "hipGraphExecDestroy")

// Fills the tables; gives the name of a required function that the library lacks, or nothing.
std::string bind_functions(void* library, GpuDriver& driver) {
  LibraryFunctions functions(library);
#define TINY_NEED(name, symbol) functions.need(symbol, driver.name);
  TINY_HIP_SAME(TINY_NEED)
#undef TINY_NEED
#define TINY_FIND(name, symbol) functions.find(symbol, driver.name);
  TINY_HIP_OPTIONAL(TINY_FIND)
#undef TINY_FIND
  functions.need("hipGetErrorName", hip.error_name);
  functions.need("hipGetErrorString", hip.error_string);
  functions.need("hipGetDevice", hip.get_device);
  functions.need("hipSetDevice", hip.set_device);
  functions.need("hipDeviceEnablePeerAccess", hip.enable_peer);
  functions.need("hipMemcpyPeerAsync", hip.copy_peer);
  if (!functions.find("hipGetDevicePropertiesR0600", hip.properties))
    functions.need("hipGetDeviceProperties", hip.properties);
  if (functions.find("hipGraphAddKernelNode", hip.graph_add_kernel))
    driver.graph_add_kernel = graph_add_kernel;
  if (functions.find("hipGraphExecKernelNodeSetParams", hip.graph_set_kernel))
    driver.graph_set_kernel = graph_set_kernel;
  driver.error_name = error_name;
  driver.error_string = error_string;
  driver.context_retain = context_retain;
  driver.context_release = context_release;
  driver.context_get = context_get;
  driver.context_set = context_set;
  driver.context_enable_peer = context_enable_peer;
  driver.copy_peer = copy_peer;
  return functions.missing();
}

struct HipSearch {
  GpuDriver driver;
  void* library = nullptr;
  std::string failure;  // why there is no runtime or no GPU

  HipSearch() {
    driver.vendor = "HIP";
    driver.shared_without_asking = INT64_MAX;  // a block just takes what there is
    // hipDeviceAttribute..., the same numbers from HIP 5 on.
    driver.attributes = {.most_threads = 56,
                         .warp = 87,
                         .multiprocessors = 63,
                         .l2_bytes = 19,
                         .shared_bytes = 74,
                         .memory_pools = 88};
    std::vector<std::string> files = rocm_files("amdhip64");
    if (const std::string file = env_text("HIP_LIBRARY"); !file.empty()) files = {file};
    const OpenedLibrary opened = open_library(files);
    library = opened.handle;
    if (library == nullptr)
      failure = cat("the HIP runtime's library libamdhip64 was not found: ", opened.failure,
                    ". It comes with AMD's ROCm (rocm.docs.amd.com; Debian, Ubuntu: apt install "
                    "libamdhip64-5), HIP_LIBRARY names the file where it lies elsewhere; without "
                    "an AMD GPU use DEVICE=CPU");
    else if (const std::string missing = bind_functions(library, driver); !missing.empty())
      failure = cat("the HIP runtime's library has no function ", missing,
                    ": it is too old, HIP 5 or later is needed");
    else
      find_devices();
  }

 private:
  void find_devices() {
    driver.driver_version(&driver.version);
    int status = driver.init(0);
    end_objects_before_libraries();
    if (status == kGpuSuccess) status = driver.device_count(&driver.devices);
    if (status == kGpuSuccess && driver.devices > 0) return;
    failure =
        cat("the HIP runtime ", hip_version_text(driver.version), " found no GPU that it can use: ",
            status == kGpuSuccess ? "it counts none" : driver.error(status),
            "; see what rocminfo says, whether /dev/kfd is there and this user may open it "
            "(groups render and video), and whether HIP_VISIBLE_DEVICES is set to none");
  }
};

const HipSearch& hip_search() {
  static const HipSearch& instance =
      *new HipSearch;  // never destroyed: used until the process ends
  return instance;
}

}  // namespace

const GpuDriver& hip_driver() {
  if (!hip_search().failure.empty()) throw DeviceError("HIP: " + hip_search().failure);
  return hip_search().driver;
}

std::string hip_missing_reason() { return hip_search().failure; }

void* hip_library() { return hip_search().library; }
int hip_version() { return hip_search().driver.version; }

std::string hip_version_text(int version) {
  return cat(version / 10000000, ".", version % 10000000 / 100000);
}

// The structure of a device's properties differs between versions; in all of them the name comes
// first, in 256 bytes, and the architecture's later, alone in beginning so.
std::string hip_arch(int ordinal) {
  const GpuDriver& driver = hip_driver();
  constexpr size_t kNameBytes = 256;
  std::string bytes(16384, '\0');  // several times as long as any
  driver.check(hip.properties(bytes.data(), ordinal), "ask GPU ", ordinal, " for its properties");
  const size_t at = bytes.find("gfx", kNameBytes);
  if (at == std::string::npos)
    throw DeviceError(cat("HIP: GPU ", ordinal, " does not say its architecture"));
  const std::string name = bytes.c_str() + at;
  return name.substr(0, name.find(':'));
}

std::vector<std::string> rocm_files(const std::string& name) {
  std::vector<std::string> folders = {""};  // the linker's path
  if (const char* home = std::getenv("ROCM_PATH"); home && *home)
    folders.push_back(cat(home, "/lib/"));
  folders.push_back("/opt/rocm/lib/");
  std::vector<std::string> files;
  for (const std::string& folder : folders)
    for (const char* ending : {".7", ".6", ".5", ""})
      files.push_back(cat(folder, "lib", name, ".so", ending));
  return files;
}

}  // namespace tiny
