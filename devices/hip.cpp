#include "devices/hip.h"

#include <cstdio>

#include "devices/hip_compiler.h"
#include "devices/hip_driver.h"
#include "devices/hip_rtc.h"
#include "tiny/env.h"

namespace tiny {
namespace {

// What the runtime does not tell: from the table of GPUs, or as it is on most of their kind.
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
  if (env_int("DEBUG") >= 1)
    std::fprintf(stderr, "%s: %s, %d multiprocessors, waves of %d, HIP %s, compiler %s\n",
                 name_.c_str(), target_.arch.c_str(), target_.cores, target_.warp,
                 hip_version_text(driver_.version).c_str(), compiler.c_str());
}

std::string HipDevice::compiler_id() const {
  const bool rtc = amd_compiler(target_.arch) == "hiprtc";
  return cat(rtc ? hiprtc_id() : hip_clang_id(), " ", target_.arch);
}

std::string HipDevice::compile(const Source& source) { return compile_amd(source, target_.arch); }

std::string HipDevice::binary_origin() const {
  return cat(amd_compiler(target_.arch), " for HIP ", hip_version_text(driver_.version),
             " (AMD_COMPILER chooses another one)");
}

std::string amd_compiler(const std::string& arch) {
  const std::string wanted = env_text("AMD_COMPILER");
  check(wanted.empty() || wanted == "hiprtc" || wanted == "llvm", "AMD_COMPILER=", wanted,
        ": it is hiprtc or llvm");
  const std::string without = wanted == "llvm" ? "" : hiprtc_missing_reason(arch);
  if (wanted != "llvm" && without.empty()) return "hiprtc";
  if (wanted == "hiprtc") throw DeviceError("HIP: " + without);
  if (hip_clang_available()) return "llvm";
  throw DeviceError(cat("HIP: ", without, without.empty() ? "" : "; ", hip_clang_missing_reason()));
}

std::string compile_amd(const Source& source, const std::string& arch) {
  expect(source.language == Source::Language::Hip, "HIP: kernel ", source.entry, " is not HIP");
  return amd_compiler(arch) == "hiprtc" ? compile_hiprtc(source.text, arch, source.entry)
                                        : compile_hip(source.text, arch, source.entry);
}

}  // namespace tiny
