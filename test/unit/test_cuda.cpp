#include "devices/cuda/cuda.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <random>
#include <thread>
#include <utility>

#include "devices/cuda/driver.h"
#include "devices/cuda/nvrtc.h"
#include "devices/gpu/nccl.h"
#include "runtime/device/buffer.h"
#include "tiny/base/env.h"
#include "tiny/base/worker_process.h"
#include "tiny/run/devices.h"
#include "tiny/run/jit.h"

using namespace tiny;

namespace {

constexpr const char* kChildVariable = "TINY_TEST_CUDA_CHILD";

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

template <class Kind, class Body> std::string message_of(Body body) {
  try {
    body();
  } catch (const Kind& error) {
    return error.what();
  }
  return "nothing was thrown";
}

bool has_nvrtc() {
  if (!nvrtc_available()) MESSAGE("left out: " << nvrtc_missing_reason());
  return nvrtc_available();
}

bool has_gpu() {
  static bool is_said = false;
  if (!cuda_available() && !std::exchange(is_said, true))
    MESSAGE("the tests on a GPU are left out: " << cuda_missing_reason() << nvrtc_missing_reason());
  return cuda_available();
}

// out[i] = a[i] * factor + i, one thread an element.
std::string scale_text(int factor) {
  return cat("extern \"C\" __global__ void scale(float* __restrict__ out, ",
             "const float* __restrict__ a) {\n",
             "  const int i = blockIdx.x * blockDim.x + threadIdx.x;\n", "  out[i] = a[i] * ",
             factor, ".0f + i;\n}\n");
}

Source cuda_source(const std::string& entry, const std::string& text) {
  return {entry, text, Source::Language::Cuda};
}

std::unique_ptr<Program> build(Device& device, const Source& source) {
  return device.load(device.compile(source), source.entry);
}

LaunchSize blocks(int64_t grid, int64_t block) {
  LaunchSize size;
  size.grid[0] = grid;
  size.block[0] = block;
  return size;
}

// A block of device memory for as long as it lives.
class Block {
 public:
  Block(Device& device, size_t bytes) : device_(device), bytes_(bytes) {
    ptr_ = device.alloc(bytes);
  }
  ~Block() { device_.free(ptr_, bytes_); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  void* get() const { return ptr_; }

  template <class T> void write(const std::vector<T>& values) {
    device_.upload(ptr_, values.data(), values.size() * sizeof(T));
  }
  template <class T> std::vector<T> read(size_t count) const {
    std::vector<T> values(count);
    device_.download(values.data(), ptr_, count * sizeof(T));
    return values;
  }

 private:
  Device& device_;
  void* ptr_;
  size_t bytes_;
};

std::vector<float> ramp(size_t n) {
  std::vector<float> values(n);
  std::iota(values.begin(), values.end(), 0.0f);
  return values;
}

std::vector<uint8_t> noise(size_t bytes) {
  std::mt19937 random(static_cast<unsigned>(bytes));
  std::vector<uint8_t> out(bytes);
  for (uint8_t& b : out) b = static_cast<uint8_t>(random());
  return out;
}

std::vector<float> scaled(const std::vector<float>& a, float factor) {
  std::vector<float> out(a.size());
  for (size_t i = 0; i < a.size(); ++i) out[i] = a[i] * factor + static_cast<float>(i);
  return out;
}

}  // namespace

// --- without a GPU -------------------------------------------------------------------------------

TEST_CASE("cuda: NVRTC makes machine code for each generation and PTX for newer ones") {
  if (!has_nvrtc()) return;
  for (const char* arch : {"sm_80", "sm_90a", "sm_120"}) {
    std::string log;
    const std::string binary = compile_cuda(scale_text(2), arch, &log);
    CHECK_MESSAGE(binary.substr(0, 4) ==
                      "\x7f"
                      "ELF",
                  arch);
    if (log.empty()) continue;  // NVRTC had it in a cache of its own
    CHECK(contains(log, cat("Compiling entry function 'scale' for '", arch, "'")));
    CHECK(cuda_resources(log).registers > 0);
    CHECK(cuda_resources(log).stack_bytes == 0);
    CHECK(cuda_resources(log).spill_bytes == 0);
  }
  const std::string ptx = compile_cuda(scale_text(2), "compute_90");
  CHECK(contains(ptx, ".target sm_90"));
  CHECK(contains(ptx, ".entry scale("));
}

TEST_CASE("cuda: functions without __device__ are for the GPU, inline PTX needs no header") {
  if (!has_nvrtc()) return;
  const std::string text =
      "static float twice(float x) { return x + x; }\n"
      "extern \"C\" __global__ void k(float* b0, unsigned short* b1) {\n"
      "  unsigned short h;\n"
      "  asm(\"cvt.rn.f16.f32 %0, %1;\" : \"=h\"(h) : \"f\"(twice(b0[0])));\n"
      "  b1[0] = h;\n}\n";
  CHECK(!compile_cuda(text, "sm_90a").empty());
}

TEST_CASE("cuda: the kernel of sums over GPUs stays in registers, for every dtype") {
  if (!has_nvrtc()) return;
  for (const DType t : {kF32, kF64, kF16, kBF16, kI32, kI64})
    for (const size_t gpus : {2, 3, 4, 8}) {
      std::string log;
      compile_cuda(cuda_sum_source(t, gpus).text, "sm_90a", &log);
      if (log.empty()) continue;  // NVRTC had it in a cache of its own
      CAPTURE(log);
      CHECK(cuda_resources(log).registers > 0);
      CHECK(cuda_resources(log).registers <= 128);  // 512 threads a block
      CHECK(cuda_resources(log).stack_bytes == 0);
      CHECK(cuda_resources(log).spill_bytes == 0);
    }
}

TEST_CASE("cuda: an array that is indexed dynamically shows as bytes of the stack") {
  if (!has_nvrtc()) return;
  std::string log;
  compile_cuda(
      "extern \"C\" __global__ void k(float* b0, const int* b1) {\n"
      "  float a[64] = {};\n"
      "  for (int i = 0; i < 64; ++i) a[b1[i]] += b0[i];\n"
      "  b0[0] = a[b1[0]] + a[b1[1]];\n}\n",
      "sm_90a", &log);
  CHECK(cuda_resources(log).stack_bytes >= 256);
  const CudaResources nothing = cuda_resources("");
  CHECK(nothing.registers == -1);
  CHECK(nothing.stack_bytes == -1);
  CHECK(nothing.spill_bytes == -1);
  const std::string two =
      "Compiling entry function 'k1' for 'sm_90a'\n8 bytes stack frame, 4 bytes spill stores, "
      "4 bytes spill loads\nptxas info : Used 9 registers\n"
      "Compiling entry function 'k' for 'sm_90a'\n0 bytes stack frame, 0 bytes spill stores, "
      "0 bytes spill loads\nptxas info : Used 7 registers\n";
  CHECK(cuda_resources(two, "k1").stack_bytes == 8);
  CHECK(cuda_resources(two, "k1").registers == 9);
  CHECK(cuda_resources(two, "k").stack_bytes == 0);
  CHECK(cuda_resources(two, "k").registers == 7);
  CHECK(cuda_resources(two, "k2").registers == -1);
  const CudaResources spilled = cuda_resources(
      "ptxas . 16 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads\n"
      "ptxas info    : Used 24 registers, used 0 barriers");
  CHECK(spilled.registers == 24);
  CHECK(spilled.stack_bytes == 16);
  CHECK(spilled.spill_bytes == 20);
}

TEST_CASE("cuda: a compile error names the kernel and shows the numbered lines") {
  if (!has_nvrtc()) return;
  const std::string text =
      "typedef int i32;\n\nextern \"C\" __global__ void k(float* b0) {\n"
      "  b0[0] = missing;\n}\n";
  const std::string message =
      message_of<DeviceError>([&] { compile_cuda(text, "sm_90a", nullptr, "sum_exp"); });
  CHECK(contains(message,
                 cat("NVRTC ", nvrtc_version(), " cannot compile kernel sum_exp for sm_90a:\n")));
  CHECK(contains(message, "kernel.cu(4): error: identifier \"missing\" is undefined"));
  CHECK(contains(message,
                 "the lines that it names:\n"
                 "    3 | extern \"C\" __global__ void k(float* b0) {\n"
                 "    4 >   b0[0] = missing;\n"
                 "    5 | }\n"
                 "DEBUG=4 prints the source of every kernel"));
}

TEST_CASE("cuda: an unknown architecture is an error that lists the known ones") {
  if (!has_nvrtc()) return;
  const std::string message = message_of<DeviceError>([] { compile_cuda(scale_text(1), "sm_7"); });
  CHECK(contains(message, "invalid value for --gpu-architecture"));
  CHECK(contains(message, "; this NVRTC knows sm_"));
}

TEST_CASE("cuda: the architecture follows the GPU and what NVRTC knows") {
  const std::vector<int> known = {75, 80, 86, 90, 100, 120};
  CHECK(cuda_arch(8, 0, known) == "sm_80");
  CHECK(cuda_arch(9, 0, known) == "sm_90a");
  CHECK(cuda_arch(10, 0, known) == "sm_100a");
  CHECK(cuda_arch(12, 0, known) == "sm_120a");
  CHECK(cuda_arch(8, 9, known) == "sm_86");         // the same major version
  CHECK(cuda_arch(11, 0, known) == "compute_100");  // a later one
  CHECK(cuda_arch(13, 2, known) == "compute_120");
  const std::string message = message_of<DeviceError>([&] { cuda_arch(7, 0, known); });
  CHECK(contains(message, "compute capability 7.0 is older"));
  CHECK(contains(message, "sm_75 and later"));
}

TEST_CASE("cuda: a missing NVRTC is described with the files and how to get it") {
  const std::string message =
      nvrtc_search_failure({"libnvrtc.so.no", "/nowhere/libnvrtc.so.12", "libz.so.1"});
  CHECK(contains(message,
                 "searched for libnvrtc.so.no, /nowhere/libnvrtc.so.12, libz.so.1 (libz.so.1: has "
                 "no function nvrtcVersion, NVRTC 11.2 or later is needed). Install it"));
  CHECK(contains(message, "set NVRTC_LIBRARY to"));
}

TEST_CASE("cuda: kernels that are compiled at once are shared out to worker processes") {
  if (!has_nvrtc()) return;
  constexpr int kKernels = 12, kThreads = 4;
  const EnvOverride workers("NVRTC_WORKERS", "2");
  std::vector<std::string> binaries(kKernels);
  const auto compile_all = [&] {
    std::atomic<int> next{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t)
      threads.emplace_back([&] {
        for (int i; (i = next++) < kKernels;) binaries[i] = compile_cuda(scale_text(i), "sm_90a");
      });
    for (std::thread& t : threads) t.join();
  };
  const size_t before =
      worker_processes("nvrtc").size();  // of other tests, which may have had more
  compile_all();
  CHECK(worker_processes("nvrtc").size() >= 1);
  CHECK(worker_processes("nvrtc").size() <= std::max<size_t>(2, before));
  for (int i = 0; i < kKernels; ++i)
    CHECK(binaries[i] == nvrtc_compile(scale_text(i), "sm_90a").binary);

  // A worker that has died is replaced, and leaves no process behind.
  const int first = worker_processes("nvrtc")[0];
  CHECK(kill(first, SIGKILL) == 0);
  compile_all();
  CHECK(waitpid(first, nullptr, WNOHANG) == -1);
  CHECK(binaries[kKernels - 1] == nvrtc_compile(scale_text(kKernels - 1), "sm_90a").binary);

  // Errors come back from workers as well.
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&] {
      const std::string message = message_of<DeviceError>([] { compile_cuda("oops", "sm_90a"); });
      failures += contains(message, "kernel.cu(1): error");
    });
  for (std::thread& t : threads) t.join();
  CHECK(failures == kThreads);
}

TEST_CASE("cuda: a device that is not there is an error with the reason") {
  if (!cuda_missing_reason().empty()) {
    const std::string message = message_of<DeviceError>([] { find_device("CUDA:7"); });
    CHECK(contains(message, "CUDA: " + cuda_missing_reason()));
    CHECK(fastest_device() == "CPU");
    CHECK(message_of<DeviceError>([] { Tensor::zeros({2}).to("CUDA").realize(); }) == message);
  } else if (cuda_available() && cuda_driver().devices < 8) {
    const std::string message = message_of<Error>([] { find_device("CUDA:7"); });
    CHECK(contains(message, "CUDA:7: this machine has "));
    CHECK(fastest_device() == "CUDA");
  }
  CHECK(canonical_device("CUDA:0") == "CUDA");
  CHECK(contains(message_of<Error>([] { find_device("CUDO"); }), "known are CPU, CUDA, "));
}

TEST_CASE("out of memory lists the largest buffers of the device and what made them") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return;  // the sanitizers end the process instead
#endif
  const std::string device = fastest_device();
  std::vector<std::unique_ptr<Buffer>> buffers;
  for (int i = 1; i <= 12; ++i) {
    buffers.push_back(std::make_unique<Buffer>(device, kF32, i * 1000000));
    buffers.back()->label = cat("operation_", i);
    buffers.back()->data();
  }
  Tensor made = (Tensor::arange(0, 30000000, 1, kF32) * 2).contiguous().realize();
  Buffer huge(device, kF32, int64_t{1} << 55);
  const std::string message = message_of<DeviceError>([&] { huge.data(); });
  CHECK(contains(message, "out of memory: cannot allocate 144115188075855872 bytes"));
  CHECK(contains(message, " buffers in use there:\n    114.44 MiB  f32 x 30000000  "));
  CHECK(contains(message, "\n     45.78 MiB  f32 x 12000000  operation_12\n"));
  CHECK(contains(message, "operation_4"));
  CHECK(!contains(message, "operation_3"));
  CHECK(made.narrow(0, 1, 1).item<float>() == 2.0f);  // everything else still works
}

// --- with a GPU ----------------------------------------------------------------------------------

TEST_CASE("cuda: the target describes the GPU") {
  if (!has_gpu()) return;
  const Target& target = find_device("CUDA").target();
  CHECK(target.kind == Target::Kind::Gpu);
  CHECK(target.language == Target::Language::Cuda);
  CHECK(contains(target.arch, "_"));
  CHECK(target.vector_bytes == 16);
  CHECK(target.warp == 32);
  CHECK(target.cores > 0);
  CHECK(target.most_threads >= 1024);
  CHECK(target.shared_bytes >= 48 << 10);
  CHECK(target.l2_bytes > 0);
  CHECK(contains(find_device("CUDA").compiler_id(), target.arch));
}

TEST_CASE("cuda: memory comes back as it went, for sizes around those of the staging pieces") {
  if (!has_gpu()) return;
  Device& device = find_device("CUDA");
  const size_t piece = size_t{4} << 20;
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{255}, size_t{4097}, piece - 1, piece, piece + 1,
                       2 * piece + 3, 8 * piece, size_t{100000007}}) {
    const auto data = noise(bytes);
    Block a(device, bytes), b(device, bytes);
    CHECK(reinterpret_cast<uintptr_t>(a.get()) % 256 == 0);
    a.write(data);
    device.copy(b.get(), a.get(), bytes);
    CHECK_MESSAGE(b.read<uint8_t>(bytes) == data, bytes);
  }
}

TEST_CASE("cuda: many small uploads from memory that changes at once arrive unchanged") {
  if (!has_gpu()) return;
  Device& device = find_device("CUDA");
  constexpr size_t kCount = 3000, kBytes = 9001;  // more than the staging ring holds
  Block all(device, kCount * kBytes);
  std::vector<uint8_t> host(kBytes), expected;
  for (size_t i = 0; i < kCount; ++i) {
    std::fill(host.begin(), host.end(), static_cast<uint8_t>(i * 7));
    device.upload(static_cast<char*>(all.get()) + i * kBytes, host.data(), kBytes);
    expected.insert(expected.end(), host.begin(), host.end());
  }
  CHECK(all.read<uint8_t>(kCount * kBytes) == expected);
}

TEST_CASE("cuda: a kernel is compiled, loaded, launched and timed") {
  if (!has_gpu()) return;
  Device& device = find_device("CUDA");
  const auto program = build(device, cuda_source("scale", scale_text(3)));
  constexpr int64_t kBlocks = 4096, kThreads = 256;
  const auto a = ramp(kBlocks * kThreads);
  Block in(device, a.size() * 4), out(device, a.size() * 4);
  in.write(a);
  device.launch(*program, blocks(kBlocks, kThreads), {out.get(), in.get()});
  CHECK(out.read<float>(a.size()) == scaled(a, 3));
  const double seconds = device.launch_timed(
      std::vector<LaunchItem>{{program.get(), blocks(kBlocks, kThreads), {out.get(), in.get()}}});
  CHECK(seconds > 0);
  CHECK(out.read<float>(a.size()) == scaled(a, 3));
  device.launch(*program, blocks(0, kThreads), {out.get(), in.get()});  // does nothing
  device.synchronize();
}

TEST_CASE("cuda: more arguments than the kernel has are ignored") {
  if (!has_gpu()) return;
  Device& device = find_device("CUDA");
  const auto program = build(device, cuda_source("scale", scale_text(5)));
  const auto a = ramp(256);
  Block in(device, 1024), out(device, 1024);
  in.write(a);
  device.launch(*program, blocks(1, 256), {out.get(), in.get(), nullptr, in.get()});
  CHECK(out.read<float>(256) == scaled(a, 5));
}

TEST_CASE("cuda: a kernel with more than 48 KiB of dynamic shared memory") {
  if (!has_gpu()) return;
  Device& device = find_device("CUDA");
  LaunchSize size = blocks(1, 256);
  size.shared_bytes = 96 << 10;
  if (device.target().shared_bytes < size.shared_bytes) return;
  const auto program =
      build(device,
            cuda_source("mirror",
                        "extern \"C\" __global__ void mirror(int* out) {\n"
                        "  extern __shared__ int s[];\n"
                        "  for (int i = threadIdx.x; i < 24576; i += 256) s[i] = i;\n"
                        "  __syncthreads();\n"
                        "  for (int i = threadIdx.x; i < 24576; i += 256) out[i] = s[24575 - i];\n"
                        "}\n"));
  Block out(device, 24576 * 4);
  device.launch(*program, size, {out.get()});
  std::vector<int> expected(24576);
  for (int i = 0; i < 24576; ++i) expected[i] = 24575 - i;
  CHECK(out.read<int>(24576) == expected);
  size.shared_bytes = int64_t{1} << 30;
  CHECK(contains(message_of<DeviceError>([&] { device.launch(*program, size, {out.get()}); }),
                 "cannot give kernel mirror 1073741824 bytes of shared memory (at most "));
}

TEST_CASE("cuda: freed memory is given out again without waiting, in the order of the stream") {
  if (!has_gpu()) return;
  Device& device = find_device("CUDA");
  const auto program = build(device, cuda_source("scale", scale_text(2)));
  constexpr int64_t kBlocks = 8192, kThreads = 256;
  const auto a = ramp(kBlocks * kThreads);
  const size_t bytes = a.size() * 4;
  Block in(device, bytes), out(device, bytes);
  in.write(a);
  const auto twice = scaled(a, 2);
  for (int i = 0; i < 20; ++i) {
    {
      Block middle(device, bytes);
      device.launch(*program, blocks(kBlocks, kThreads), {middle.get(), in.get()});
      device.launch(*program, blocks(kBlocks, kThreads), {out.get(), middle.get()});
    }
    Block other(device, bytes);  // most likely the same memory
    device.upload(other.get(), twice.data(), bytes);
  }
  CHECK(out.read<float>(a.size()) == scaled(twice, 2));
}

TEST_CASE("cuda: a recording replays its launches in order, with arguments that change") {
  if (!has_gpu()) return;
  Device& device = find_device("CUDA");
  const auto twice = build(device, cuda_source("scale", scale_text(2)));
  const auto thrice = build(device, cuda_source("scale", scale_text(3)));
  const auto a = ramp(1 << 16), b = scaled(a, 7);
  Block in(device, a.size() * 4), other(device, a.size() * 4), middle(device, a.size() * 4),
      out(device, a.size() * 4);
  in.write(a);
  other.write(b);
  const LaunchSize size = blocks(256, 256);
  for (const char* check : {"0", "1"}) {  // as a graph, and as plain launches
    const EnvOverride plain("CHECK", check);
    auto recording = device.record({{twice.get(), size, {middle.get(), in.get()}},
                                    {thrice.get(), blocks(0, 256), {in.get(), in.get()}},
                                    {thrice.get(), size, {out.get(), middle.get()}}});
    for (int i = 0; i < 3; ++i) recording->launch();
    CHECK(out.read<float>(a.size()) == scaled(scaled(a, 2), 3));
    recording->set_args(0, {middle.get(), other.get()});
    recording->launch();
    CHECK(out.read<float>(a.size()) == scaled(scaled(b, 2), 3));
    recording->set_args(0, {middle.get(), in.get()});
    recording->set_args(2, {other.get(), middle.get()});
    recording->launch();
    CHECK(other.read<float>(a.size()) == scaled(scaled(a, 2), 3));
    other.write(b);
    CHECK_THROWS_AS(recording->set_args(3, {}), std::out_of_range);
  }
  device.record({})->launch();
}

TEST_CASE("cuda: threads use the device at once") {
  if (!has_gpu()) return;
  Device& device = find_device("CUDA");
  const auto program = build(device, cuda_source("scale", scale_text(4)));
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      auto a = ramp(1 << 16);
      for (float& x : a) x += static_cast<float>(t);
      for (int i = 0; i < 20; ++i) {
        Block in(device, a.size() * 4), out(device, a.size() * 4);
        in.write(a);
        device.launch(*program, blocks(256, 256), {out.get(), in.get()});
        right += out.read<float>(a.size()) == scaled(a, 4);
      }
    });
  for (std::thread& t : threads) t.join();
  CHECK(right == 160);
}

TEST_CASE("cuda: out of memory leaves everything usable") {
  if (!has_gpu()) return;
  Device& device = find_device("CUDA");
  const auto data = noise(1000);
  Block block(device, 1000);
  block.write(data);
  for (size_t bytes : {size_t{1} << 40, std::numeric_limits<size_t>::max()})
    CHECK(contains(message_of<DeviceError>([&] { device.alloc(bytes); }),
                   cat("CUDA: out of memory: cannot allocate ", bytes, " bytes (")));
  CHECK(block.read<uint8_t>(1000) == data);
  Block more(device, 1 << 20);
}

TEST_CASE("cuda: what cannot be launched or loaded is an error that names it") {
  if (!has_gpu()) return;
  Device& device = find_device("CUDA");
  const auto program = build(device, cuda_source("scale", scale_text(2)));
  Block out(device, 4096);
  const std::string message = message_of<DeviceError>([&] {
    device.launch(*program, blocks(1, 5000), {out.get(), out.get()});
  });
  CHECK(contains(message,
                 "CUDA: cannot launch kernel scale (grid 1 x 1 x 1, block 5000 x 1 x 1, 0 bytes of "
                 "shared memory) on CUDA:0 ("));
  CHECK(contains(message, "CUDA_ERROR_INVALID_VALUE (1): "));
  CHECK(contains(message, "; DEBUG=4 prints its source"));
  CHECK(contains(message_of<DeviceError>([&] { device.load("no machine code", "scale"); }),
                 "CUDA: cannot load kernel scale for "));
  const std::string binary = device.compile(cuda_source("scale", scale_text(2)));
  CHECK(contains(message_of<DeviceError>([&] { device.load(binary, "other"); }),
                 "CUDA: cannot find kernel other in its binary: CUDA_ERROR_NOT_FOUND (500)"));
  CHECK(out.read<uint8_t>(4096).size() == 4096);
}

// Runs in a process of its own, since the GPU is lost to the process after it.
TEST_CASE("cuda: (child) an illegal access") {
  if (!std::getenv(kChildVariable)) return;
  Device& device = find_device("CUDA");
  const auto program = build(device, cuda_source("stray",
                                                 "extern \"C\" __global__ void stray("
                                                 "float* out) { *out = 1; }\n"));
  Block block(device, 4);
  const auto strike = [&] {
    device.launch(*program, blocks(1, 32), {reinterpret_cast<void*>(uintptr_t{1} << 20)});
  };
  std::printf("launch: %s\n", message_of<DeviceError>(strike).c_str());
  std::printf("later: %s\n", message_of<DeviceError>([&] { device.synchronize(); }).c_str());
}

TEST_CASE("cuda: an illegal access names the kernel with CHECK=1, else the error says how to") {
  if (!has_gpu()) return;
  char program[4096] = "";
  REQUIRE(readlink("/proc/self/exe", program, sizeof program - 1) > 0);
  const auto run = [&](const std::string& variables) {
    const std::string command = cat(kChildVariable, "=1 ", variables, " '", program,
                                    "' -tc='cuda: (child) an illegal access' 2>&1");
    FILE* pipe = popen(command.c_str(), "r");
    std::string text;
    for (int c; (c = std::fgetc(pipe)) != EOF;) text.push_back(static_cast<char>(c));
    pclose(pipe);
    return text;
  };
  for (const char* variables : {"CHECK=1 DEBUG=0", "CHECK=0 DEBUG=2"}) {
    const std::string text = run(variables);
    CHECK_MESSAGE(contains(text,
                           "launch: CUDA: kernel stray (grid 1 x 1 x 1, block 32 x 1 x 1, 0 "
                           "bytes of shared memory) on CUDA:0 ("),
                  text);
    CHECK(contains(text, "failed: CUDA_ERROR_ILLEGAL_ADDRESS (700): "));
    CHECK(contains(text, "; DEBUG=4 prints its source"));
  }
  const std::string text = run("CHECK=0 DEBUG=0");
  CHECK_MESSAGE(contains(text, "launch: nothing was thrown"), text);
  CHECK(contains(text, "later: CUDA: cannot finish the work on CUDA:0 ("));
  CHECK(contains(text, "CHECK=1 waits after each launch and names it"));
}

TEST_CASE("cuda: tensors move between devices") {
  if (!has_gpu()) return;
  const auto values = ramp(1000003);
  Tensor x = Tensor::from(values, {1000003}, "CPU").to("CUDA");
  x.realize();
  CHECK(x.to("CPU").to_vector<float>() == values);
  CHECK(x.to_vector<float>() == values);
}

TEST_CASE("cuda: memory is copied from one GPU to another in the order of both") {
  if (!has_gpu()) return;
  if (cuda_driver().devices < 2) {
    MESSAGE("left out: one GPU alone");
    return;
  }
  Device &first = find_device("CUDA"), &second = find_device("CUDA:1");
  const auto program = build(first, cuda_source("scale", scale_text(2)));
  const auto back = build(second, cuda_source("scale", scale_text(3)));
  const auto a = ramp(1 << 20);
  const size_t bytes = a.size() * 4;
  Block in(first, bytes), out(first, bytes), there(second, bytes), result(second, bytes);
  in.write(a);
  for (int i = 0; i < 5; ++i) {
    first.launch(*program, blocks(1 << 12, 256), {out.get(), in.get()});
    CHECK(second.copy_from(first, there.get(), out.get(), bytes));
    first.launch(*program, blocks(1 << 12, 256), {out.get(), out.get()});  // after the copy
    second.launch(*back, blocks(1 << 12, 256), {result.get(), there.get()});
  }
  CHECK(result.read<float>(a.size()) == scaled(scaled(a, 2), 3));
}

// Sums of small whole numbers, exact in every dtype and order; replays that follow one another at
// once show what does not wait.
TEST_CASE("cuda: sums over GPUs are the same by every way, also in replays") {
  if (!has_gpu()) return;
  if (cuda_driver().devices < 2) {
    MESSAGE("left out: one GPU alone");
    return;
  }
  const EnvOverride device("DEVICE", "CUDA");
  const auto names = devices_from("CUDA", std::min(4, cuda_driver().devices));
  const auto count = static_cast<int64_t>(names.size());
  for (const char* how : {"", "naive", "one_shot", "two_shot_direct", "flags", "nccl"}) {
    const EnvOverride collective("COLLECTIVE", how);
    if (how == std::string("nccl") && !nccl().missing_reason(kF32).empty()) {
      MESSAGE("left out: " << nccl().missing_reason(kF32));
      continue;
    }
    for (const DType t : {kF32, kBF16, kF16, kI64})
      for (const int64_t size : {1, 7, 1000, 300'001}) {
        if (t.is_half() && size > 1) continue;  // the sum of all would not be exact
        CAPTURE(how);
        CAPTURE(t);
        CAPTURE(size);
        const Tensor whole = mod(Tensor::arange(count * size), 5).reshape({count, size}).to(t);
        const Tensor x = whole.shard(names, 0).realize();
        Jit step([](const Tensor& in, const Tensor& more) {
          return ((in + more).sum(0) + 1).sum(0, true) + (in * more).sum(0).narrow(0, 0, 1);
        });
        const auto wanted_of = [&](int i) {
          const Tensor a = whole.to(kI64), m = Tensor::full({}, i % 3 + 2).to(kI64);
          return static_cast<double>(((a + m).sum(0) + 1).sum().item<int64_t>() +
                                     (a * m).sum(0).narrow(0, 0, 1).item<int64_t>());
        };
        std::vector<Tensor> got;
        for (int i = 0; i < 6; ++i)
          got.push_back(
              step(x, Tensor::full({}, i % 3 + 2).to(t).contiguous().shard(names).realize()));
        // Wanted on one GPU alone; the others give their part.
        const double first = (x.sum(0) + 1).to("CPU").to(kF64).to_vector<double>()[0];
        CHECK(first == static_cast<double>(whole.to(kI64).sum(0).to_vector<int64_t>()[0] + 1));
        for (int i = 0; i < 6; ++i) {
          const double value = got[i].to(kF64).to_vector<double>()[0], wanted = wanted_of(i);
          CHECK(std::abs(value - wanted) <= (t == kF32 ? wanted * 1e-6 : 0));
        }
      }
  }
}
