#include "devices/cpu/cpu.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "devices/cpu/cc.h"
#include "devices/cpu/llvm.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/base/text.h"
#include "tiny/ir/sizes.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace tiny {
namespace {

constexpr CpuCompiler kCompilers[] = {
    {"llvm", Target::Language::LlvmIr, llvm_id, compile_llvm, load_llvm},
    {"cc", Target::Language::C, cc_id, compile_cc, load_cc},
};

constexpr size_t kAlignment = 64;       // bytes of a cache line, and of the largest vector register
constexpr size_t kSmallestBlock = 128;  // a kernel may load a whole vector at element 0
constexpr int64_t kMaxThreads = 1024;

const CpuCompiler& choose_compiler(std::string_view wanted) {
  std::string name(wanted);
  if (name.empty()) name = env_text("CPU_COMPILER");
  if (name.empty()) name = llvm_available() ? "llvm" : "cc";
  for (const CpuCompiler& compiler : kCompilers) {
    if (name != compiler.name) continue;
    if (compiler.language == Target::Language::LlvmIr && !llvm_available())
      throw DeviceError(cat("CPU_COMPILER=llvm: ", llvm_missing_reason()));
    return compiler;
  }
  throw Error(
      cat("CPU_COMPILER=", name, ": no such compiler of the CPU device, choose llvm or cc"));
}

int choose_threads(int64_t wanted) {
  if (wanted == 0) wanted = env_int("THREADS");
  if (wanted == 0) wanted = std::max(1u, std::thread::hardware_concurrency());
  check(wanted > 0 && wanted <= kMaxThreads, "THREADS=", wanted, ": the CPU device takes 1 to ",
        kMaxThreads, " threads, or 0 for all cores");
  return static_cast<int>(wanted);
}

int64_t cache_bytes(int name, int64_t fallback) {
  const int64_t bytes = sysconf(name);  // 0 or -1 where the system does not know
  return bytes > 0 ? bytes : fallback;
}

#if defined(__x86_64__)

struct CpuidWords {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

CpuidWords cpuid(uint32_t leaf, uint32_t subleaf) {
  CpuidWords r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);  // leaves 0 if unknown
  return r;
}

// The built-in checks the operating system's part as well: whether it saves those registers.
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

// Tiles are registers that the system gives a process when it asks for them (Linux,
// Documentation/arch/x86/xstate.rst); its threads have them from then on.
bool may_use_tiles() {
#if defined(__linux__)
  constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool granted = syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
  return granted;
#else
  return false;
#endif
}

// Bits as in Intel's manual, volume 2A, CPUID: AMX_BF16, AMX_TILE, AMX_INT8, AMX_FP16, AVX512_BF16
// and AVX512_VNNI. Intel's VDPBF16PS is slower than the same product in f32: on Sapphire Rapids
// 1024 x 1024 x 1024 took 24.3 ms on one core, 12.5 in f32.
std::string matrix_features() {
  const CpuidWords features = cpuid(7, 0);
  std::string out;
  const auto add = [&](const char* name) { out += cat(out.empty() ? "" : " ", name); };
  const bool tiles = (features.edx >> 24 & 1) && may_use_tiles();
  if (tiles && (features.edx >> 22 & 1)) add("amx-bf16");
  if (tiles && (cpuid(7, 1).eax >> 21 & 1)) add("amx-fp16");
  if (tiles && (features.edx >> 25 & 1)) add("amx-int8");
  if (has_avx512() && __builtin_cpu_is("amd") && (cpuid(7, 1).eax >> 5 & 1)) add("avx512bf16");
  if (has_avx512() && (features.ecx >> 11 & 1)) add("avx512vnni");
  return out;
}

void detect_vectors(Target& target) {
  const bool avx2 = __builtin_cpu_supports("avx2");
  target.vector_bytes = has_avx512() ? 64 : avx2 ? 32 : 16;
  target.vector_registers = has_avx512() ? 32 : 16;
  // The bit as in Intel's manual, volume 2A, CPUID: F16C. AVX512_BF16 is not asked for: its
  // VCVTNEPS2BF16 gives 0 for subnormal numbers.
  target.has_f16 = avx2 && (cpuid(1, 0).ecx >> 29 & 1);
  target.arch = matrix_features();
}

#else

void detect_vectors(Target& target) {
  target.vector_bytes = 16;
  target.vector_registers = 32;
}

#endif

// LLVM does not use the instructions (devices/compilers/llvm_library.cpp).
void forget_bf16(Target& target) {
  const std::string unit = "avx512bf16";
  if (const size_t at = target.arch.find(unit); at != std::string::npos)
    target.arch.erase(at, unit.size() + 1);
}

// The matrix units that CPU_UNITS names, as plain code where it says so or the processor lacks one.
void choose_units(Target& target) {
  const std::string wanted = env_text("CPU_UNITS"), own = target.arch;
  if (wanted.empty()) return;
  target.arch.clear();
  TextReader words(wanted);
  for (std::string word; words >> word;) {
    if (word == "none") continue;
    if (word == "plain") {
      target.emulates = true;
      continue;
    }
    constexpr const char* kKnown[] = {"amx-bf16", "amx-fp16", "amx-int8", "avx512bf16",
                                      "avx512vnni"};
    check(std::find(std::begin(kKnown), std::end(kKnown), word) != std::end(kKnown),
          "CPU_UNITS=", wanted, ": there are amx-bf16, amx-fp16, amx-int8, avx512bf16, avx512vnni");
    target.arch += cat(target.arch.empty() ? "" : " ", word);
    target.emulates |= own.find(word) == std::string::npos;
  }
}

Target detect_target(Target::Language language, int threads) {
  Target target;
  target.kind = Target::Kind::Cpu;
  target.language = language;
  detect_vectors(target);
  // The C dialect has no 16-bit float that all compilers know (clang 14 has none without
  // AVX512-FP16, gcc 12 no bf16), so there they are left to integer operations.
  if (language == Target::Language::C) {
    target.has_f16 = false;
    target.arch.clear();
  } else {
    if (llvm_c::host().features.find("-avx512bf16") != std::string::npos) forget_bf16(target);
    choose_units(target);
  }
  target.cores = threads;
#if defined(_SC_LEVEL1_DCACHE_SIZE)
  target.l1_bytes = cache_bytes(_SC_LEVEL1_DCACHE_SIZE, target.l1_bytes);
  target.l2_bytes = cache_bytes(_SC_LEVEL2_CACHE_SIZE, target.l2_bytes);
#endif
  return target;
}

// A kernel in progress. Threads take pieces of its range until none is left, each a share of what
// there still is: one that is late, or slower, does less, and at the end none waits for long.
struct Launch {
  CpuKernel kernel;
  void** args;
  int64_t count, shares, least;  // least: iterations of a piece, but of the last one
  std::atomic<int64_t> next{0};
};

void take_pieces(void* context, int64_t, int64_t) {
  auto& launch = *static_cast<Launch*>(context);
  int64_t begin = launch.next.load(std::memory_order_relaxed);
  while (begin < launch.count) {
    const int64_t left = launch.count - begin;
    const int64_t piece = std::min(left, std::max(launch.least, left / launch.shares));
    if (!launch.next.compare_exchange_weak(begin, begin + piece, std::memory_order_relaxed))
      continue;  // another thread took one: `begin` is where the next one is now
    launch.kernel(launch.args, begin, begin + piece);
    begin = launch.next.load(std::memory_order_relaxed);
  }
}

}  // namespace

CpuDevice::CpuDevice(std::string_view compiler, int64_t threads)
    : compiler_(choose_compiler(compiler)),
      pool_(choose_threads(threads)),
      target_(detect_target(compiler_.language, pool_.threads())) {}

// Huge pages are asked for where a block is larger than an L2 cache: what is read there once comes
// from memory the faster for it (measurements.md: huge_pages). In smaller blocks columns that are
// read at a stride of 4 KiB would fall into the same sets of a cache: a product of 1024 x 1024 took
// a fifth longer.
void* CpuDevice::alloc(size_t bytes) {
  constexpr size_t kHugePage = 2 << 20, kLarge = 8 << 20;
  const size_t size = std::max(kSmallestBlock, round_up(bytes, kAlignment));
  const size_t alignment = size < kLarge ? kAlignment : kHugePage;
  void* block = nullptr;
  if (size < bytes /* wrapped around */ || posix_memalign(&block, alignment, size) != 0)
    throw DeviceError(cat("CPU: out of memory: cannot allocate ", bytes, " bytes"));
#if defined(MADV_HUGEPAGE)
  if (size >= kLarge) madvise(block, size, MADV_HUGEPAGE);
#endif
  return block;
}

void CpuDevice::free(void* ptr, size_t) { std::free(ptr); }

// The C library keeps freed blocks below its own limit, which grows.
void CpuDevice::trim() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

void CpuDevice::upload(void* to, const void* from_host, size_t bytes) {
  copy(to, from_host, bytes);
}

void CpuDevice::download(void* to_host, const void* from, size_t bytes) {
  copy(to_host, from, bytes);
}

void CpuDevice::copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memmove(to, from, bytes);  // null pointers are legal for zero bytes
}

// All CPU devices have the memory of one process.
bool CpuDevice::copy_from(Device& source, void* to, const void* from, size_t bytes) {
  if (!dynamic_cast<CpuDevice*>(&source)) return false;
  copy(to, from, bytes);
  return true;
}

bool CpuDevice::reads(Device& peer) { return dynamic_cast<CpuDevice*>(&peer) != nullptr; }

// From the last to the first: tests see where copies were put together that may not be.
bool CpuDevice::transfer(std::span<const Transfer> all) {
  for (const Transfer& t : all)
    for (Device* d : {t.to_device, t.from_device})
      if (!dynamic_cast<CpuDevice*>(d)) return false;
  for (size_t i = all.size(); i-- > 0;) copy(all[i].to, all[i].from, all[i].bytes);
  return true;
}

namespace {

void gather(const AllReduce& s) {
  const auto width = static_cast<size_t>(s.dtype.size());
  for (void* to : s.to) {
    auto* at = static_cast<std::byte*>(to);
    for (size_t i = 0; at && i < s.from.size(); at += s.counts[i++] * width)
      std::memcpy(at, s.from[i], s.counts[i] * width);
  }
}

template <class T> void add_up_as(const AllReduce& s) {
  for (size_t i = 0; i < s.count; ++i) {
    T sum = 0;
    for (const void* from : s.from) sum += static_cast<const T*>(from)[i];
    for (void* to : s.to)
      if (to) static_cast<T*>(to)[i] = sum;
  }
}

// By dtype; null where there is none.
void (*adder_of(DType t))(const AllReduce&) {
  if (t == kF32) return add_up_as<float>;
  if (t == kF64) return add_up_as<double>;
  if (t == kI32) return add_up_as<int32_t>;
  return t == kI64 ? add_up_as<int64_t> : nullptr;
}

}  // namespace

std::string CpuDevice::missing_for_all_reduce(SumBy by, DType dtype) {
  if (by != SumBy::Flags) return "CPUs have no library for it";
  return adder_of(dtype) ? "" : cat("CPUs do not add up values of ", dtype, " together");
}

// From the last to the first, as above.
std::shared_ptr<PendingAllReduce> CpuDevice::all_reduce(std::span<const AllReduce> sums) {
  for (size_t i = sums.size(); i-- > 0;)
    sums[i].counts.empty() ? adder_of(sums[i].dtype)(sums[i]) : gather(sums[i]);
  return nullptr;
}

void CpuDevice::launch(Program& program, const LaunchSize& size, const std::vector<void*>& args) {
  const int64_t count = size.grid[0];
  const int64_t workers =
      std::clamp<int64_t>(count / std::max<int64_t>(size.chunk, 1), 1, pool_.threads());
  // Pieces of a few microseconds even out well enough and still cost next to nothing. On 16 cores
  // of a shared Xeon products took 5 to 20 % less than in four pieces for each thread.
  const int64_t shares = workers == 1 ? 1 : 2 * workers;
  // A kernel only reads the array of its arguments, though its type does not say so.
  Launch launch{static_cast<CpuProgram&>(program).kernel(), const_cast<void**>(args.data()), count,
                shares, std::max<int64_t>(1, size.chunk / 8)};
  pool_.parallel_for(workers, take_pieces, &launch);
}

std::string host_cpu_id() {
#if defined(__x86_64__)
  TextStream out;
  std::string brand;  // leaves 0x80000002..4 hold 48 characters, padded with zeros
  for (uint32_t leaf = 0x80000002; leaf <= 0x80000004; leaf++) {
    const CpuidWords words = cpuid(leaf, 0);
    brand.append(reinterpret_cast<const char*>(&words), sizeof(words));
  }
  const CpuidWords model = cpuid(1, 0), features = cpuid(7, 0), more = cpuid(7, 1);
  out << brand.c_str() << " family-model " << std::hex << model.eax << " features " << model.ecx
      << ' ' << model.edx << ' ' << features.ebx << ' ' << features.ecx << ' ' << features.edx
      << ' ' << more.eax << " vector bytes " << std::dec;
  Target target;
  detect_vectors(target);  // only features that the operating system lets us use
  out << target.vector_bytes;
  return out.str();
#else
  utsname names{};
  uname(&names);
  return names.machine;
#endif
}

}  // namespace tiny
