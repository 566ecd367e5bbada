// Prints what this machine has to compute with: devices, compilers and libraries, with versions,
// and for what is missing where it was looked for and what to install. Each device that is there
// then multiplies matrices for about a second and compares the products with plain loops.
//   build/release/doctor [device ...]       by default all but the emulators of single chips
// Status 0 where the CPU and all other devices that are there compute what they should.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "codegen/proof/solver/smt.h"
#include "devices/cpu/cc.h"
#include "devices/cpu/llvm.h"
#include "devices/cuda/cuda.h"
#include "devices/cuda/nvrtc.h"
#include "devices/gpu/nccl.h"
#include "devices/hip/clang.h"
#include "devices/hip/hiprtc.h"
#include "devices/hip/llvm.h"
#include "tiny/tiny.h"

using namespace tiny;

namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void print_row(const char* kind, const std::string& name, const std::string& text) {
  std::printf("%-9s %-18s %s\n", kind, name.c_str(), text.c_str());
  std::fflush(stdout);
}

// What `describe` says, or why it cannot.
template <class Describe> std::string said(const Describe& describe) {
  try {
    return describe();
  } catch (const std::exception& e) {
    return cat("missing: ", e.what());
  }
}

void print_compilers() {
  const auto row = [](const char* name, const auto& describe) {
    print_row("compiler", name, said(describe));
  };
  row("LLVM", [] { return llvm_id(); });
  row("C", [] { return cc_id(); });
  row("C++ (emulators)", [] { return find_device("EMULATOR").compiler_id(); });
  row("CUDA", [] {
    return nvrtc_available() ? nvrtc_id() + " from " + nvrtc_file()
                             : "missing: " + nvrtc_missing_reason();
  });
  row("HIP (hiprtc)", [] { return hiprtc_id(); });
  row("HIP (clang)", [] { return hip_clang_id(); });
  row("AMD (LLVM)", [] {
    const std::string missing = amd_llvm_missing_reason();
    return missing.empty() ? amd_llvm_id() : "missing: " + missing;
  });
  print_row("library", "NCCL", said([] { return nccl().version(); }));
  print_row("library", "RCCL", said([] { return rccl().version(); }));
  print_row("prover", "z3",
            has_solver() ? "found" : "missing: apt install libz3-4, or set Z3_PATH");
}

std::string description(const Target& t) {
  if (t.kind == Target::Kind::Cpu)
    return cat(t.cores, " cores, vectors of ", t.vector_bytes * 8, " bits, ", t.l2_bytes >> 10,
               " KiB of L2");
  return cat(t.arch, ", ", t.cores, " multiprocessors, ", t.warp, " lanes a warp, ",
             t.shared_bytes >> 10, " KiB of shared memory, ", t.l2_bytes >> 20, " MiB of L2",
             t.has_wgmma ? ", matrix units (wgmma)" : "");
}

std::string description_of(const GpuRow& gpu) {
  return cat(gpu.model, ": ", gpu.cores, " multiprocessors, ", gpu.warp, " lanes a warp, ",
             gpu.shared_kb, " KiB of shared memory, matrix units (", gpu.matrix_units,
             gpu.has_fp8 ? ", also of fp8)" : ")");
}

// Small integers, so that every sum is exact.
std::vector<float> numbers(int64_t count, int64_t step) {
  std::vector<float> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(static_cast<float>(i * step % 7 - 3));
  return out;
}

// The number of wrong elements of relu(ab + 1) for matrices of that size.
int64_t wrong_elements(const std::string& device, int64_t n) {
  const auto a = numbers(n * n, 5), b = numbers(n * n, 3);
  const Tensor x = Tensor::from(a, {n, n}, device), y = Tensor::from(b, {n, n}, device);
  const auto found = (x.matmul(y) + 1).relu().to_vector<float>();
  int64_t wrong = 0;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j) {
      float sum = 1;
      for (int64_t k = 0; k < n; ++k) sum += a[i * n + k] * b[k * n + j];
      wrong += found[i * n + j] != std::max(sum, 0.0f);
    }
  return wrong;
}

// Products of growing sizes for about a second; prints how it went.
bool test_device(const std::string& name) {
  const auto start = Clock::now();
  int products = 0;
  try {
    for (int64_t n = 8; since(start) < 1 && n <= 512; n = n * 3 / 2 + 1, ++products)
      if (const int64_t wrong = wrong_elements(name, n)) {
        print_row("self-test", name, cat("FAILED: ", wrong, " wrong elements of ", n * n));
        return false;
      }
  } catch (const std::exception& e) {
    print_row("self-test", name, cat("FAILED: ", e.what()));
    return false;
  }
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.2f s", since(start));
  print_row("self-test", name, cat("ok: ", products, " products are right, ", seconds));
  return true;
}

// The device and its self-test; true where it is missing, but for the CPU, which never may.
bool examine(const std::string& name) {
  try {
    Device& device = find_device(name);
    print_row("device", name, description(device.target()));
    device.compiler_id();
  } catch (const std::exception& e) {
    print_row("device", name, cat("missing: ", e.what()));
    return name != "CPU";
  }
  return test_device(name);
}

}  // namespace

int main(int argc, char** argv) {
  if (print_version("doctor", argc, argv)) return 0;
  std::vector<std::string> names(argv + 1, argv + argc);
  if (names.empty()) {
    print_compilers();
    for (const GpuRow& gpu : gpu_table()) print_row("target", gpu.arch, description_of(gpu));
    names = {"CPU", "CUDA", "HIP", "EMULATOR"};
  }
  bool ok = true;
  for (const std::string& name : names) ok &= examine(name);
  std::printf("DEVICE is %s where it is not set\n", fastest_device().c_str());
  return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
