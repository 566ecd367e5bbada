#include "devices/cuda/driver.h"

#include "tiny/base/exit_order.h"
#include "tiny/base/library.h"

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
  LibraryFunctions functions(library);
#define TINY_NEED(name, symbol, parameters) functions.need(symbol, driver.name);
#define TINY_FIND(name, symbol, parameters) functions.find(symbol, driver.name);
  TINY_GPU_REQUIRED(TINY_NEED)
  TINY_GPU_OPTIONAL(TINY_FIND)
#undef TINY_FIND
#undef TINY_NEED
  return functions.missing();
}

struct CudaSearch {
  GpuDriver driver;
  std::string failure;  // why there is no driver or no GPU

  CudaSearch() {
    // CU_DEVICE_ATTRIBUTE_...
    driver.attributes = {.most_threads = 1,
                         .warp = 10,
                         .multiprocessors = 16,
                         .l2_bytes = 38,
                         .shared_bytes = 97,  // of a block that asks for it
                         .memory_pools = 115};
    const OpenedLibrary library = open_library(files_to_search());
    if (library.handle == nullptr) {
      failure =
          cat("the CUDA driver's library was not found: ", library.failure,
              ". It comes with NVIDIA's driver (Debian, Ubuntu: apt install nvidia-driver; "
              "in a container: run it with --gpus all); without an NVIDIA GPU use DEVICE=CPU");
      return;
    }
    const std::string missing = bind_functions(library.handle, driver);
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

const CudaSearch& cuda_search() {
  static const CudaSearch& instance =
      *new CudaSearch;  // never destroyed: used until the process ends
  return instance;
}

}  // namespace

const GpuDriver& cuda_driver() {
  if (!cuda_search().failure.empty()) throw DeviceError("CUDA: " + cuda_search().failure);
  return cuda_search().driver;
}

std::string cuda_missing_reason() { return cuda_search().failure; }

std::string cuda_version_text(int version) { return cat(version / 1000, ".", version % 1000 / 10); }

}  // namespace tiny
