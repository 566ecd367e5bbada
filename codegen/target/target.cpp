#include "codegen/target/target.h"

#include <algorithm>

#include "tiny/base/error.h"

namespace tiny {

namespace {

constexpr auto kCuda = Target::Language::Cuda, kHip = Target::Language::Hip;

// NVIDIA: the programming guide's table "compute capabilities" and the models' data sheets. AMD:
// the instruction set manuals and "GPU hardware specifications" of ROCm's documentation; shared
// memory (LDS) as much as one workgroup can have, L2 of one die.
constexpr GpuRow kGpus[] = {
    {"sm_80", "A100", kCuda, 32, 1024, 108, 163, 40, 255, "mma", false},
    {"sm_90a", "H200", kCuda, 32, 1024, 132, 227, 50, 255, "wgmma", true},
    {"sm_120", "RTX 5090", kCuda, 32, 1024, 170, 99, 96, 255, "mma", true},
    {"gfx90a", "MI250X", kHip, 64, 1024, 110, 64, 8, 512, "mfma", false},
    {"gfx942", "MI300X", kHip, 64, 1024, 304, 64, 4, 512, "mfma", true},
    {"gfx1100", "RX 7900 XTX", kHip, 32, 1024, 96, 64, 6, 256, "wmma", false},
    {"gfx1201", "RX 9070 XT", kHip, 32, 1024, 64, 64, 8, 256, "wmma", true},
};

}  // namespace

bool loads_with_masks(const Target& target) {
  constexpr int kAvx2 = 32;  // bytes
  return target.kind == Target::Kind::Cpu && target.language == Target::Language::LlvmIr &&
         target.vector_bytes >= kAvx2;
}

std::span<const GpuRow> gpu_table() { return kGpus; }

Target gpu_target(std::string_view arch) {
  std::string known;
  for (const GpuRow& row : kGpus) {
    known += cat(known.empty() ? "" : ", ", row.arch);
    if (arch != row.arch) continue;
    Target target;
    target.kind = Target::Kind::Gpu;
    target.language = row.language;
    target.arch = row.arch;
    target.vector_bytes = 16;  // bytes of a thread's largest load
    target.vector_registers = row.registers;
    target.cores = row.cores;
    target.l2_bytes = int64_t{row.l2_mb} << 20;
    target.has_f16 = target.has_bf16 = true;
    target.warp = row.warp;
    target.most_threads = row.most_threads;
    target.shared_bytes = int64_t{row.shared_kb} << 10;
    target.has_wgmma = target.arch == "sm_90a";
    target.has_f8_mma = row.has_fp8 && row.language == kCuda;
    return target;
  }
  throw Error(cat("no GPU architecture ", arch, " is known: there are ", known));
}

// https://www.w3.org/TR/webgpu, "Limits", column "Default"; numbers that tune are of a laptop's
// GPU. Of the 16 KiB of workgroup memory 4 are for threads that combine theirs: four words each.
Target webgpu_target() {
  constexpr int64_t kGroupBytes = 4 << 10;
  Target target;
  target.kind = Target::Kind::Gpu;
  target.language = Target::Language::Wgsl;
  target.arch = "webgpu";
  target.vector_bytes = 16;
  target.vector_registers = 128;
  target.cores = 16;
  target.has_f16 = true;  // or functions of the text do what an adapter lacks
  target.most_threads = 256;
  target.shared_bytes = (16 << 10) - kGroupBytes;
  target.least_of_thread = 64;
  target.most_buffers = 8;
  target.most_buffer_bytes = int64_t{128} << 20;
  target.most_blocks = 65535;
  return target;
}

Dispatch dispatch_size(const LaunchSize& size, const Target& target) {
  Dispatch out;
  int64_t all = 1;
  for (int i = 0; i < 3; ++i) {
    out.groups[i] = size.grid[i];
    all *= size.grid[i];
    out.linear |= size.grid[i] > target.most_blocks;
  }
  if (!out.linear) return out;
  out.groups[0] = std::min(all, target.most_blocks);
  out.groups[1] = (all + target.most_blocks - 1) / target.most_blocks;
  out.groups[2] = 1;
  return out;
}

}  // namespace tiny
