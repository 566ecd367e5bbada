#include "devices/hip/hip.h"

#include <functional>
#include <iostream>

#include "devices/gpu/nccl.h"
#include "devices/hip/clang.h"
#include "devices/hip/driver.h"
#include "devices/hip/hiprtc.h"
#include "devices/hip/llvm.h"
#include "tiny/base/env.h"

namespace tiny {
namespace {

// Facts that the runtime does not report: from the table of GPUs, or as on most of their kind.
Target known_target(const std::string& arch) {
  for (const GpuRow& row : gpu_table())
    if (row.arch == arch) return gpu_target(arch);
  Target target;
  target.kind = Target::Kind::Gpu;
  target.language = Target::Language::Hip;
  target.arch = arch;
  target.vector_bytes = 16;
  target.vector_registers = 256;
  target.has_f16 = target.has_bf16 = true;
  return target;
}

}  // namespace

HipDevice::HipDevice(int index) : GpuDevice(hip_driver(), index) {
  const GpuAttributes& known = driver_.attributes;
  target_ = known_target(hip_arch(ordinal_));
  target_.cores = attribute(known.multiprocessors);
  target_.l2_bytes = attribute(known.l2_bytes);
  target_.warp = attribute(known.warp);
  target_.most_threads = attribute(known.most_threads);
  target_.shared_bytes = attribute(known.shared_bytes);
  const std::string compiler = amd_compiler(target_.arch);
  if (compiler == "llvm") target_.language = Target::Language::LlvmIr;
  if (env_int("DEBUG") >= 1)
    std::cerr << cat(name_, ": ", target_.arch, ", ", target_.cores, " multiprocessors, waves of ",
                     target_.warp, ", HIP ", hip_version_text(driver_.version), ", compiler ",
                     compiler, "\n");
}

std::string HipDevice::compiler_id() const {
  if (target_.language == Target::Language::LlvmIr) return cat(amd_llvm_id(), " ", target_.arch);
  const bool rtc = amd_compiler(target_.arch) == "hiprtc";
  return cat(rtc ? hiprtc_id() : hip_clang_id(), " ", target_.arch);
}

std::string HipDevice::compile(const Source& source) { return compile_amd(source, target_.arch); }

std::string HipDevice::missing_for_all_reduce(SumBy by, DType dtype) {
  return by == SumBy::Library ? rccl().missing_reason(dtype)
                              : Device::missing_for_all_reduce(by, dtype);
}

std::shared_ptr<PendingAllReduce> HipDevice::all_reduce(std::span<const AllReduce> sums) {
  return add_by_library(rccl(), sums);
}

std::string HipDevice::binary_origin() const {
  return cat(amd_compiler(target_.arch), " for HIP ", hip_version_text(driver_.version),
             " (AMD_COMPILER chooses another one)");
}

std::string amd_compiler(const std::string& arch) {
  const std::string wanted = env_text("AMD_COMPILER");
  const std::pair<const char*, std::function<std::string()>> compilers[] = {
      {"hiprtc", [&] { return hiprtc_missing_reason(arch); }},
      {"clang", hip_clang_missing_reason},
      {"llvm", amd_llvm_missing_reason},
  };
  std::string missing;
  bool is_known = wanted.empty();
  for (const auto& [name, missing_reason] : compilers) {
    if (!wanted.empty() && wanted != name) continue;
    is_known = true;
    const std::string reason = missing_reason();
    if (reason.empty()) return name;
    missing += (missing.empty() ? "" : "; ") + reason;
  }
  check(is_known, "AMD_COMPILER=", wanted, ": it is hiprtc, clang or llvm");
  throw DeviceError("HIP: " + missing);
}

std::string compile_amd(const Source& source, const std::string& arch) {
  if (source.language == Source::Language::LlvmIr) return compile_amd_llvm(source, arch);
  expect(source.language == Source::Language::Hip, "HIP: kernel ", source.entry, " is not HIP");
  return amd_compiler(arch) == "hiprtc" ? compile_hiprtc(source.text, arch, source.entry)
                                        : compile_hip(source.text, arch, source.entry);
}

}  // namespace tiny
