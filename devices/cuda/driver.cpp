#include "devices/cuda/driver.h"

#include <dlfcn.h>

#include "tiny/base/exit_order.h"

namespace tiny {
namespace {

// The linker's path has it after any usual installation; the others are containers and WSL.
const std::vector<std::string>& files_to_search() {
  static const auto& files = *new std::vector<std::string>{
      "libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"};
  return files;
}

// Fills the table; gives the name of a required function that the library lacks, or nothing.
std::string bind_functions(void* library, GpuDriver& driver) {
#define TINY_BIND(name, symbol, parameters) \
  driver.name = reinterpret_cast<decltype(driver.name)>(dlsym(library, symbol));
#define TINY_BIND_REQUIRED(name, symbol, parameters) \
  TINY_BIND(name, symbol, parameters)                \
  if (driver.name == nullptr) return symbol;
  TINY_GPU_REQUIRED(TINY_BIND_REQUIRED)
  TINY_GPU_OPTIONAL(TINY_BIND)
#undef TINY_BIND_REQUIRED
#undef TINY_BIND
  return "";
}

struct Search {
  GpuDriver driver;
  std::string failure;  // why there is no driver or no GPU

  Search() {
    // CU_DEVICE_ATTRIBUTE_...
    driver.attributes = {.most_threads = 1,
                         .warp = 10,
                         .multiprocessors = 16,
                         .l2_bytes = 38,
                         .shared_bytes = 97,  // of a block that asks for it
                         .memory_pools = 115};
    void* library = open_first(files_to_search(), failure);
    if (library == nullptr) {
      failure =
          cat("the CUDA driver's library was not found: ", failure,
              ". It comes with NVIDIA's driver (Debian, Ubuntu: apt install nvidia-driver; "
              "in a container: run it with --gpus all); without an NVIDIA GPU use DEVICE=CPU");
      return;
    }
    const std::string missing = bind_functions(library, driver);
    if (!missing.empty())
      failure = cat("the CUDA driver's library has no function ", missing,
                    ": it is too old, a driver for CUDA 11.4 or later is needed");
    else if (const int status = driver.init(0); status != kGpuSuccess)
      failure = cat("the CUDA driver found no GPU that it can use: cuInit: ", driver.error(status),
                    "; see what nvidia-smi says, and whether /dev/nvidia0 is there and readable");
    else
      count_devices();
  }

 private:
  void count_devices() {
    end_objects_before_libraries();
    driver.driver_version(&driver.version);
    driver.device_count(&driver.devices);
    if (driver.devices == 0)
      failure = "the CUDA driver sees no GPU: is CUDA_VISIBLE_DEVICES set to none?";
  }
};

const Search& search() {
  static const Search& instance = *new Search;  // never destroyed: used until the process ends
  return instance;
}

}  // namespace

const GpuDriver& cuda_driver() {
  if (!search().failure.empty()) throw DeviceError("CUDA: " + search().failure);
  return search().driver;
}

std::string cuda_missing_reason() { return search().failure; }

std::string cuda_version_text(int version) { return cat(version / 1000, ".", version % 1000 / 10); }

}  // namespace tiny
