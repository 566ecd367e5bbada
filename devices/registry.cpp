// The devices by name: a new device is one row here.
#include <map>
#include <mutex>

#include "devices/cpu/cpu.h"
#include "devices/cuda/cuda.h"
#include "devices/cuda/driver.h"
#include "devices/cuda/nvrtc.h"
#include "devices/emulator/emulator.h"
#include "devices/hip/driver.h"
#include "devices/hip/hip.h"
#include "devices/null.h"
#include "devices/remote.h"
#include "devices/webgpu/webgpu.h"
#include "runtime/device/device.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/run/ranks.h"

namespace tiny {

namespace {

struct DeviceRow {
  const char* name;
  std::unique_ptr<Device> (*open)(int index);
};

// Processes that work together have a GPU each, which is the first one to each of them.
int first_of_process(int index, int count) {
  const bool is_one_of_several = rank_count() > 1 && index < count;
  return is_one_of_several ? (local_rank() + index) % count : index;
}
std::unique_ptr<Device> open_cuda(int index) {
  return std::make_unique<CudaDevice>(first_of_process(index, cuda_driver().devices));
}
std::unique_ptr<Device> open_hip(int index) {
  return std::make_unique<HipDevice>(first_of_process(index, hip_driver().devices));
}

// The device that process `index` brings into work of several: of the default kind, a GPU by its
// number among the processes of a machine.
std::unique_ptr<Device> open_rank(int index) {
  check(index < rank_count(), "RANK:", index, ": there are ", rank_count(),
        " processes (WORLD_SIZE)");
  if (index != rank())
    return std::make_unique<RemoteDevice>(find_device("RANK:" + std::to_string(rank())), index);
  const std::string chosen = env_text("DEVICE");
  const std::string kind = canonical_device(chosen.empty() ? fastest_device() : chosen);
  std::unique_ptr<Device> own;
  if (kind.starts_with("CUDA"))
    own = open_cuda(0);
  else if (kind.starts_with("HIP"))
    own = open_hip(0);
  else
    own = std::make_unique<CpuDevice>();
  own->rank = index;
  return own;
}

constexpr DeviceRow kDevices[] = {
    {"CPU", [](int) -> std::unique_ptr<Device> { return std::make_unique<CpuDevice>(); }},
    {"CUDA", open_cuda},
    {"HIP", open_hip},
    {"EMULATOR",
     [](int) -> std::unique_ptr<Device> {
       return std::make_unique<EmulatorDevice>("EMULATOR", gpu_target("sm_90a"));
     }},
    {"RANK", open_rank},
    {"WEBGPU", [](int) -> std::unique_ptr<Device> { return std::make_unique<WebGpuDevice>(); }},
    {"NULL", [](int) -> std::unique_ptr<Device> { return std::make_unique<NullDevice>(); }},
};

// "EMU:CUDA:sm_80", "EMU:HIP:gfx942": an emulator for each row of the table of GPUs, of which there
// may be several, "EMU:CUDA:sm_80:1". "EMU:LLVM:gfx942" gets LLVM IR instead of HIP.
constexpr std::string_view kEmulators = "EMU:";

std::vector<Target::Language> languages_of(const GpuRow& gpu) {
  if (gpu.language == Target::Language::Cuda) return {gpu.language};
  return {gpu.language, Target::Language::LlvmIr};
}
std::string emulator_name(const GpuRow& gpu, Target::Language language) {
  const bool ir = language == Target::Language::LlvmIr;
  return cat(kEmulators,
             ir                                      ? "LLVM:"
             : gpu.language == Target::Language::Hip ? "HIP:"
                                                     : "CUDA:",
             gpu.arch);
}
std::optional<Target> emulated_gpu(std::string_view name) {
  if (!name.starts_with(kEmulators)) return {};
  for (const GpuRow& gpu : gpu_table())
    for (Target::Language language : languages_of(gpu)) {
      if (emulator_name(gpu, language) != name) continue;
      Target target = gpu_target(gpu.arch);
      target.language = language;
      return target;
    }
  return {};
}

// "CUDA:1" as its kind and its number, 0 where there is none. No kind where the text behind the
// last colon is no number; "EMU:CUDA:sm_80" is all kind.
std::string_view kind_of(std::string_view name, int* index) {
  *index = 0;
  const size_t colon = name.rfind(':');
  if (colon == std::string_view::npos || emulated_gpu(name)) return name;
  for (char c : name.substr(colon + 1)) {
    if (c < '0' || c > '9' || *index > 9999) return {};
    *index = *index * 10 + (c - '0');
  }
  return colon + 1 == name.size() ? std::string_view() : name.substr(0, colon);
}

const DeviceRow* row_of(std::string_view kind) {
  for (const DeviceRow& row : kDevices)
    if (row.name == kind) return &row;
  return nullptr;
}

}  // namespace

std::string canonical_device(std::string_view name) {
  int index;
  const std::string_view kind = kind_of(name, &index);
  if (!row_of(kind) && !emulated_gpu(kind)) {
    std::string known, emulators;
    for (const GpuRow& gpu : gpu_table())
      for (Target::Language language : languages_of(gpu))
        emulators += ", " + emulator_name(gpu, language);
    for (const DeviceRow& r : kDevices) known += cat(known.empty() ? "" : ", ", r.name);
    throw Error(cat("unknown device '", name, "': known are ", known, emulators,
                    ", each also as NAME:number"));
  }
  return index ? cat(kind, ':', index) : std::string(kind);
}

std::string fastest_device() {
  static const bool has_cuda = cuda_available();
  return has_cuda ? "CUDA" : "CPU";  // HIP is asked for until a GPU has shown what it does
}

Device& find_device(std::string_view name) {
  static std::recursive_mutex mutex;  // a rank's device asks for another one
  static auto* open = new std::map<std::string, std::unique_ptr<Device>>;  // outlives all buffers
  static auto* known = new std::map<std::string, Device*, std::less<>>;    // as it was spelled
  std::lock_guard lock(mutex);
  if (const auto at = known->find(name); at != known->end()) return *at->second;
  const std::string key = canonical_device(name);
  auto& slot = (*open)[key];  // which stays where it is
  int index;
  const std::string_view kind = kind_of(key, &index);
  if (!slot) {
    const std::optional<Target> gpu = emulated_gpu(kind);
    slot = gpu ? std::make_unique<EmulatorDevice>(key, *gpu) : row_of(kind)->open(index);
  }
  known->emplace(name, slot.get());
  return *slot;
}

std::string compile_for(std::string_view device, const std::string& arch, const Source& source) {
  if (canonical_device(device).starts_with("CUDA"))
    return compile_cuda(source.text, arch, nullptr, source.entry);
  if (canonical_device(device).starts_with("HIP")) return compile_amd(source, arch);
  return find_device(device).compile(source);
}

}  // namespace tiny
