#include "devices/cuda_driver.h"

#include <dlfcn.h>

#include "runtime/device.h"

namespace tiny {
namespace {

// The linker's path has it after any usual installation; the others are containers and WSL.
constexpr const char* kFiles[] = {"libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1",
                                  "/usr/lib/wsl/lib/libcuda.so.1"};

// Fills the table; gives the name of a required function that the library lacks, or nothing.
std::string bind_functions(void* library, CudaDriver& cuda) {
#define TINY_BIND(name, symbol, parameters) \
  cuda.name = reinterpret_cast<decltype(cuda.name)>(dlsym(library, symbol));
#define TINY_BIND_REQUIRED(name, symbol, parameters) \
  TINY_BIND(name, symbol, parameters)                \
  if (cuda.name == nullptr) return symbol;
  TINY_CUDA_REQUIRED(TINY_BIND_REQUIRED)
  TINY_CUDA_OPTIONAL(TINY_BIND)
#undef TINY_BIND_REQUIRED
#undef TINY_BIND
  return "";
}

void* open_library(std::string& failure) {
  std::string reason;
  for (const char* file : kFiles) {
    if (void* library = dlopen(file, RTLD_NOW | RTLD_LOCAL)) return library;
    if (reason.empty()) reason = dlerror();  // of the linker's path
  }
  failure = "the CUDA driver's library was not found: searched for";
  for (const char* file : kFiles) failure += cat(file == kFiles[0] ? " " : ", ", file);
  failure += cat(" (", reason,
                 "). It comes with NVIDIA's driver (Debian, Ubuntu: apt install nvidia-driver; in "
                 "a container: run it with --gpus all); without an NVIDIA GPU use DEVICE=CPU");
  return nullptr;
}

std::string name_and_text(const CudaDriver& cuda, int status) {
  const char *name = nullptr, *text = nullptr;
  if (cuda.error_name == nullptr || cuda.error_name(status, &name) != kCuSuccess || !name)
    name = "unknown error";
  if (cuda.error_string == nullptr || cuda.error_string(status, &text) != kCuSuccess || !text)
    text = "the driver has no text for it";
  return cat(name, " (", status, "): ", text);
}

struct Search {
  CudaDriver cuda;
  std::string failure;  // why there is no driver or no GPU

  Search() {
    void* library = open_library(failure);
    if (library == nullptr) return;
    const std::string missing = bind_functions(library, cuda);
    if (!missing.empty())
      failure = cat("the CUDA driver's library has no function ", missing,
                    ": it is too old, a driver for CUDA 11.4 or later is needed");
    else if (const int status = cuda.init(0); status != kCuSuccess)
      failure =
          cat("the CUDA driver found no GPU that it can use: cuInit: ", name_and_text(cuda, status),
              "; see what nvidia-smi says, and whether /dev/nvidia0 is there and readable");
    else
      count_devices();
  }

 private:
  void count_devices() {
    cuda.driver_version(&cuda.version);
    cuda.device_count(&cuda.devices);
    if (cuda.devices == 0)
      failure = "the CUDA driver sees no GPU: is CUDA_VISIBLE_DEVICES set to none?";
  }
};

const Search& search() {
  static const Search& instance = *new Search;  // never destroyed: used until the process ends
  return instance;
}

// Errors that a kernel causes and that show at some later call: illegal address, timeout, assert,
// 714 to 718 illegal instructions and their like, launch failed. After them every call of the
// process fails in the same way.
bool may_be_of_a_kernel(int status) {
  return status == kCuIllegalAddress || status == 702 || status == 710 ||
         (status >= 714 && status <= kCuLaunchFailed);
}

}  // namespace

const CudaDriver& cuda_driver() {
  if (!search().failure.empty()) throw DeviceError("CUDA: " + search().failure);
  return search().cuda;
}

std::string cuda_missing_reason() { return search().failure; }

std::string cuda_error(int status) { return name_and_text(search().cuda, status); }

std::string cuda_later_error(int status) {
  if (!may_be_of_a_kernel(status)) return cuda_error(status);
  return cuda_error(status) +
         "; this may stem from a kernel that was launched earlier: CHECK=1 waits after each launch "
         "and names it. This process cannot use the GPU any more";
}

CuEvent make_event(const CudaDriver& cuda, unsigned flags) {
  CuEvent event = nullptr;
  check_cuda(cuda.event_create(&event, flags), "create an event");
  ++Device::live_events;
  return event;
}

void destroy_event(const CudaDriver& cuda, CuEvent event) {
  if (!event) return;
  cuda.event_destroy(event);
  --Device::live_events;
}

std::string cuda_version_text(int version) { return cat(version / 1000, ".", version % 1000 / 10); }

}  // namespace tiny
