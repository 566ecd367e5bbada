#include "devices/cpu/cpu.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <thread>

#include "devices/cpu/cc.h"
#include "devices/cpu/llvm.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"

using namespace tiny;

// The leak checker's switches, present under AddressSanitizer only.
extern "C" void __lsan_disable() __attribute__((weak));
extern "C" void __lsan_enable() __attribute__((weak));

namespace {

// out[i] = a[i] * `factor` + i, in both languages.
Source scale_source(Target::Language language, const std::string& entry, int factor) {
  if (language == Target::Language::C)
    return {entry,
            cat("void ", entry, "(void** args, long begin, long end) {\n",
                "  float* out = args[0]; const float* a = args[1];\n",
                "  for (long i = begin; i < end; i++) out[i] = a[i] * ", factor, ".0f + i;\n}\n"),
            Source::Language::C};
  const std::string head = R"((ptr %args, i64 %begin, i64 %end) nounwind {
start:
  %out = load ptr, ptr %args
  %slot = getelementptr ptr, ptr %args, i64 1
  %a = load ptr, ptr %slot
  %any = icmp slt i64 %begin, %end
  br i1 %any, label %loop, label %done
loop:
  %i = phi i64 [ %begin, %start ], [ %next, %loop ]
  %from = getelementptr float, ptr %a, i64 %i
  %x = load float, ptr %from
  %f = sitofp i64 %i to float
)";
  const std::string tail = R"(
  %y = fadd float %scaled, %f
  %to = getelementptr float, ptr %out, i64 %i
  store float %y, ptr %to
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}
)";
  return {entry,
          cat("define void @", entry, head, "  %scaled = fmul float %x, ", factor, ".0", tail),
          Source::Language::LlvmIr};
}

// out[0] = fmod(a[0], 3.0) on doubles: calls the C library.
Source fmod_source(Target::Language language) {
  if (language == Target::Language::C)
    return {"remainder_of",
            "double fmod(double, double);\n"
            "void remainder_of(void** args, long begin, long end) {\n"
            "  *(double*)args[0] = fmod(*(double*)args[1], 3.0);\n}\n",
            Source::Language::C};
  return {"remainder_of", R"(declare double @fmod(double, double)
define void @remainder_of(ptr %args, i64 %begin, i64 %end) {
  %out = load ptr, ptr %args
  %slot = getelementptr ptr, ptr %args, i64 1
  %a = load ptr, ptr %slot
  %x = load double, ptr %a
  %y = call double @fmod(double %x, double 3.0)
  store double %y, ptr %out
  ret void
}
)",
          Source::Language::LlvmIr};
}

// A kernel that calls a function which is nowhere.
Source unresolved_source(Target::Language language) {
  if (language == Target::Language::C)
    return {"lost", "void no_such_function(void);\nvoid lost(void) { no_such_function(); }\n",
            Source::Language::C};
  return {"lost",
          "declare void @no_such_function()\n"
          "define void @lost() {\n  call void @no_such_function()\n  ret void\n}\n",
          Source::Language::LlvmIr};
}

Source broken_source(Target::Language language) {
  if (language == Target::Language::C)
    return {"broken", "void broken(void) {\n  int x = ;\n}\n", Source::Language::C};
  return {"broken", "define void @broken() {\n  %x = add i32 1, oops\n  ret void\n}\n",
          Source::Language::LlvmIr};
}

std::vector<const char*> compilers() {
  if (llvm_available()) return {"llvm", "cc"};
  MESSAGE("LLVM is not tested: " << llvm_missing_reason());
  return {"cc"};
}

std::unique_ptr<Program> build(Device& device, const Source& source) {
  return device.load(device.compile(source), source.entry);
}

LaunchSize extent(int64_t n) {
  LaunchSize size;
  size.grid[0] = n;
  return size;
}

// Runs scale on 0, 1, 2 ... and gives the output; elements that nobody wrote are -1.
std::vector<float> run_scale(Device& device, Program& program, int64_t n) {
  std::vector<float> out(n, -1.0f), a(n);
  std::iota(a.begin(), a.end(), 0.0f);
  device.launch(program, extent(n), {out.data(), a.data()});
  device.synchronize();
  return out;
}

std::vector<float> expected_scale(int64_t n, int factor) {
  std::vector<float> out(n);
  for (int64_t i = 0; i < n; i++) out[i] = static_cast<float>(i) * factor + i;
  return out;
}

template <class Kind, class Body> std::string message_of(Body body) {
  try {
    body();
  } catch (const Kind& error) {
    return error.what();
  }
  return "nothing was thrown";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("the CPU's memory is aligned, at least 128 bytes, and may have no bytes") {
  CpuDevice device("cc", 1);
  for (size_t bytes :
       {size_t{0}, size_t{1}, size_t{64}, size_t{65}, size_t{1000000}, size_t{9} << 20}) {
    auto* block = static_cast<unsigned char*>(device.alloc(bytes));
    const size_t page = bytes > 8 << 20 ? 2 << 20 : 64;  // huge pages of large blocks
    CHECK(reinterpret_cast<uintptr_t>(block) % page == 0);
    for (size_t i = 0; i < 128; i++) block[i] = 1;
    if (bytes > 0) block[bytes - 1] = 2;
    device.free(block, bytes);
  }
  device.free(nullptr, 0);
}

TEST_CASE("the CPU's upload, download and copy move bytes, and take null for none") {
  CpuDevice device("cc", 1);
  void* a = device.alloc(16);
  void* b = device.alloc(16);
  const std::string text = "sixteen letters.";
  std::string back(16, ' ');
  device.upload(a, text.data(), 16);
  device.copy(b, a, 16);
  device.download(back.data(), b, 16);
  CHECK(back == text);
  device.upload(nullptr, nullptr, 0);
  device.copy(nullptr, nullptr, 0);
  device.download(nullptr, nullptr, 0);
  device.free(a, 16);
  device.free(b, 16);
}

TEST_CASE("an allocation that cannot succeed is a DeviceError with its size") {
  CpuDevice device("cc", 1);
  const size_t most = std::numeric_limits<size_t>::max();
  CHECK(message_of<DeviceError>([&] { device.alloc(most); }) ==
        cat("CPU: out of memory: cannot allocate ", most, " bytes"));
}

TEST_CASE("the CPU's target describes this machine") {
  CpuDevice device("cc", 3);
  const Target& target = device.target();
  CHECK(target.kind == Target::Kind::Cpu);
  CHECK(target.language == Target::Language::C);
  CHECK(target.cores == 3);
  CHECK((target.vector_bytes == 16 || target.vector_bytes == 32 || target.vector_bytes == 64));
  CHECK((target.vector_registers == 16 || target.vector_registers == 32));
  CHECK(target.l1_bytes >= 8 << 10);
  CHECK(target.l2_bytes > target.l1_bytes);
  if (llvm_available()) {
    CHECK(CpuDevice("llvm", 1).target().language == Target::Language::LlvmIr);
  }
}

TEST_CASE("both CPU compilers give the same results with 1 to 4 threads") {
  for (const char* compiler : compilers())
    for (int threads = 1; threads <= 4; threads++) {
      CpuDevice device(compiler, threads);
      auto program = build(device, scale_source(device.target().language, "scale", 3));
      for (int64_t n : {0, 1, 2, 5, 1000})
        CHECK(run_scale(device, *program, n) == expected_scale(n, 3));
    }
}

TEST_CASE("threads take each iteration of a kernel once, in pieces that are worth it") {
  struct Seen {
    std::vector<std::atomic<int>> times;
    std::atomic<int64_t> pieces{0}, smallest{INT64_MAX};
    explicit Seen(int64_t n) : times(static_cast<size_t>(n)) {}
  };
  const auto mark = [](void** args, int64_t begin, int64_t end) {
    auto& seen = *static_cast<Seen*>(args[0]);
    for (int64_t i = begin; i < end; ++i) ++seen.times[static_cast<size_t>(i)];
    ++seen.pieces;
    if (end < static_cast<int64_t>(seen.times.size())) {  // the last one is what is left
      int64_t least = seen.smallest;
      while (end - begin < least && !seen.smallest.compare_exchange_weak(least, end - begin)) {
      }
    }
  };
  CpuProgram program(mark);
  for (int threads = 1; threads <= 4; threads++) {
    CpuDevice device({}, threads);
    for (int64_t n : {1, 2, 7, 64, 1001})
      for (int64_t chunk : {1, 16, 160, 2000}) {
        CAPTURE(threads);
        CAPTURE(n);
        CAPTURE(chunk);
        Seen seen(n);
        LaunchSize size;
        size.grid[0] = n;
        size.chunk = chunk;
        device.launch(program, size, {&seen});
        CHECK(std::all_of(seen.times.begin(), seen.times.end(), [](int t) { return t == 1; }));
        CHECK(seen.smallest >= chunk / 8);
        if (threads == 1 || n < 2 * chunk) CHECK(seen.pieces == 1);
      }
  }
}

TEST_CASE("a GEMM kernel gives the same results") {
  for (const char* compiler : compilers()) {
    CpuDevice device(compiler, 2);
    Source source = scale_source(device.target().language, "scale", 5);
    source.is_gemm = true;
    auto program = build(device, source);
    CHECK(run_scale(device, *program, 333) == expected_scale(333, 5));
  }
}

TEST_CASE("kernels may call the C library") {
  for (const char* compiler : compilers()) {
    CpuDevice device(compiler, 1);
    auto program = build(device, fmod_source(device.target().language));
    double out = 0, a = 7.5;
    device.launch(*program, {}, {&out, &a});
    CHECK(out == 1.5);
  }
}

TEST_CASE("a kernel that does not compile is a DeviceError with its name and line") {
  for (const char* compiler : compilers()) {
    CpuDevice device(compiler, 1);
    const Source source = broken_source(device.target().language);
    const std::string message = message_of<DeviceError>([&] { device.compile(source); });
    CAPTURE(message);
    CHECK(contains(message, "cannot compile kernel broken"));
    CHECK(contains(message, device.target().language == Target::Language::C ? "int x = ;"
                                                                            : "add i32 1, oops"));
  }
}

TEST_CASE("a kernel that calls a missing function is a DeviceError that names it") {
  for (const char* compiler : compilers()) {
    CpuDevice device(compiler, 1);
    const Source source = unresolved_source(device.target().language);
    const std::string binary = device.compile(source);
    const std::string message = message_of<DeviceError>([&] { device.load(binary, "lost"); });
    CAPTURE(message);
    CHECK(contains(message, "cannot load kernel lost"));
    CHECK(contains(message, "no_such_function"));
  }
}

TEST_CASE("a program that outlives main is not unloaded into a closed library") {
  // Checked by the end of this test program, which would crash.
  static std::unique_ptr<Program> kept;
  CpuDevice device(compilers()[0], 1);
  kept = build(device, scale_source(device.target().language, "scale", 2));
  CHECK(run_scale(device, *kept, 3) == expected_scale(3, 2));
}

TEST_CASE("loading an entry that a binary lacks is a DeviceError, and so is loading no binary") {
  for (const char* compiler : compilers()) {
    CpuDevice device(compiler, 1);
    const std::string binary = device.compile(scale_source(device.target().language, "scale", 2));
    const std::string message = message_of<DeviceError>([&] { device.load(binary, "other"); });
    CAPTURE(message);
    CHECK(contains(message, "other"));
    CHECK_THROWS_AS(device.load("no binary", "scale"), DeviceError);
    CHECK_THROWS_AS(device.load("", "scale"), DeviceError);
    auto program = device.load(binary, "scale");  // the failures have left nothing behind
    CHECK(run_scale(device, *program, 10) == expected_scale(10, 2));
  }
}

TEST_CASE("kernels of the same name are loaded side by side and unloaded in any order") {
  for (const char* compiler : compilers()) {
    CpuDevice device(compiler, 2);
    const auto language = device.target().language;
    auto first = build(device, scale_source(language, "scale", 2));
    auto second = build(device, scale_source(language, "scale", 7));
    CHECK(run_scale(device, *first, 50) == expected_scale(50, 2));
    CHECK(run_scale(device, *second, 50) == expected_scale(50, 7));
    first.reset();
    auto third = build(device, scale_source(language, "scale", 9));
    CHECK(run_scale(device, *second, 50) == expected_scale(50, 7));
    CHECK(run_scale(device, *third, 50) == expected_scale(50, 9));
  }
}

TEST_CASE("one binary can be loaded and unloaded many times") {
  for (const char* compiler : compilers()) {
    CpuDevice device(compiler, 1);
    const std::string binary = device.compile(scale_source(device.target().language, "scale", 2));
    auto kept = device.load(binary, "scale");
    for (int i = 0; i < 200; i++) {
      auto program = device.load(binary, "scale");
      REQUIRE(run_scale(device, *program, 3) == expected_scale(3, 2));
    }
    CHECK(run_scale(device, *kept, 3) == expected_scale(3, 2));
  }
}

TEST_CASE("two threads may compile, load and launch at once") {
  for (const char* compiler : compilers()) {
    CpuDevice device(compiler, 2);
    const int rounds = device.target().language == Target::Language::C ? 3 : 40;
    auto work = [&](int base) {
      for (int i = 0; i < rounds; i++) {
        auto program = build(device, scale_source(device.target().language, "scale", base + i));
        if (run_scale(device, *program, 100) != expected_scale(100, base + i)) return false;
      }
      return true;
    };
    bool ok = false;
    std::thread other([&] { ok = work(1000); });
    CHECK(work(1));
    other.join();
    CHECK(ok);
  }
}

TEST_CASE("an unknown CPU compiler is an Error that names the choices") {
  CHECK(message_of<Error>([] { CpuDevice device("tcc", 1); }) ==
        "CPU_COMPILER=tcc: no such compiler of the CPU device, choose llvm or cc");
  EnvOverride compiler("CPU_COMPILER", "LLVM");
  CHECK(contains(message_of<Error>([] { CpuDevice device; }), "choose llvm or cc"));
}

TEST_CASE("CPU_COMPILER and THREADS choose where the arguments do not") {
  EnvOverride compiler("CPU_COMPILER", "cc"), threads("THREADS", "3");
  CpuDevice device;
  CHECK(device.target().language == Target::Language::C);
  CHECK(device.target().cores == 3);
  CHECK(CpuDevice("", 2).target().cores == 2);
  EnvOverride wrong("THREADS", "-1");
  CHECK(message_of<Error>([] { CpuDevice bad; }) ==
        "THREADS=-1: the CPU device takes 1 to 1024 threads, or 0 for all cores");
}

TEST_CASE("compiler_id names the compiler, the processor and the flags") {
  for (const char* compiler : compilers()) {
    const std::string id = CpuDevice(compiler, 1).compiler_id();
    CAPTURE(id);
    CHECK(id == CpuDevice(compiler, 2).compiler_id());
    CHECK(id.find('\n') == std::string::npos);
    CHECK(id.starts_with(compiler));
  }
  CHECK(contains(CpuDevice("cc", 1).compiler_id(), "-fno-trapping-math"));
}

TEST_CASE("a C compiler that is missing or fails is a DeviceError that names it") {
  const Source source = scale_source(Target::Language::C, "scale", 2);
  {
    EnvOverride cc("CC", "/no/such/compiler");
    const std::string message = message_of<DeviceError>([&] { compile_cc(source); });
    CAPTURE(message);
    CHECK(contains(message, "cannot run the C compiler /no/such/compiler"));
  }
  EnvOverride cc("CC", "false");
  CHECK(contains(message_of<DeviceError>([&] { compile_cc(source); }),
                 "false cannot compile kernel scale"));
}

TEST_CASE("CC may hold a wrapper and flags") {
  EnvOverride cc("CC", "env cc -DUNUSED");
  CpuDevice device("cc", 1);
  auto program = build(device, scale_source(Target::Language::C, "scale", 2));
  CHECK(run_scale(device, *program, 10) == expected_scale(10, 2));
  CHECK(device.compiler_id().starts_with("cc env cc -DUNUSED "));
}

TEST_CASE("C kernels keep NaN and infinity") {
  CpuDevice device("cc", 1);
  auto program = build(device, scale_source(Target::Language::C, "scale", 2));
  std::vector<float> a{NAN, INFINITY, -INFINITY}, out(3);
  device.launch(*program, extent(3), {out.data(), a.data()});
  CHECK(std::isnan(out[0]));
  CHECK(out[1] == INFINITY);
  CHECK(out[2] == -INFINITY);
}

TEST_CASE("a missing LLVM library is explained") {
  const std::string reason = llvm_search_failure({"libNoSuchLLVM.so.1", "/no/such/libLLVM.so"});
  CAPTURE(reason);
  CHECK(contains(reason, "searched for libNoSuchLLVM.so.1, /no/such/libLLVM.so"));
  CHECK(contains(reason, "apt install libllvm19"));
  CHECK(contains(reason, "LLVM_PATH"));
}

TEST_CASE("a library that is not LLVM is refused with the function that it lacks") {
  const std::string reason = llvm_search_failure({"libm.so.6"});
  CAPTURE(reason);
  CHECK(contains(reason, "libm.so.6: has no function LLVMGetVersion"));
}

TEST_CASE("LLVM refuses invalid code that its parser accepts") {
  if (!llvm_available()) return;
  const Source source{"odd", R"(define i32 @odd(i1 %c) {
  br i1 %c, label %a, label %b
a:
  %x = add i32 1, 2
  br label %b
b:
  ret i32 %x
}
)",
                      Source::Language::LlvmIr};
  const std::string message = message_of<DeviceError>([&] { compile_llvm(source); });
  CAPTURE(message);
  CHECK(contains(message, "cannot compile kernel odd"));
  CHECK(contains(message, "does not dominate"));
}

TEST_CASE("LLVM reports wrong assembly of a kernel") {
  if (!llvm_available()) return;
  const Source source{"assembly",
                      "define void @assembly() {\n"
                      "  call void asm sideeffect \"nonsense\", \"\"()\n  ret void\n}\n",
                      Source::Language::LlvmIr};
  const std::string message = message_of<DeviceError>([&] { compile_llvm(source); });
  CAPTURE(message);
  CHECK(contains(message, "cannot compile kernel assembly"));
}

TEST_CASE("code that this processor does not have is a DeviceError, and LLVM works afterwards") {
  if (!llvm_available()) return;
  const Source source{"foreign",
                      "declare void @llvm.nvvm.barrier0()\n"
                      "define void @foreign() {\n  call void @llvm.nvvm.barrier0()\n"
                      "  ret void\n}\n",
                      Source::Language::LlvmIr};
  if (__lsan_disable) __lsan_disable();  // such an error is known to leak what LLVM had in hand
  const std::string message = message_of<DeviceError>([&] { compile_llvm(source); });
  if (__lsan_enable) __lsan_enable();
  CAPTURE(message);
  CHECK(contains(message, "cannot compile kernel foreign"));
  CpuDevice device("llvm", 1);
  auto program = build(device, scale_source(Target::Language::LlvmIr, "scale", 2));
  CHECK(run_scale(device, *program, 10) == expected_scale(10, 2));
}
