// The device HIP. No AMD GPU is needed: the cases "stand-in: ..." run in a process of their own, in
// which test/fake/hip.cpp takes the place of AMD's libraries and the emulator of gfx942 executes
// what they are given.
#include "devices/hip/hip.h"

#include <dlfcn.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "devices/emulator/emulator.h"
#include "devices/gpu/nccl.h"
#include "devices/hip/clang.h"
#include "devices/hip/driver.h"
#include "devices/hip/hiprtc.h"
#include "devices/hip/llvm.h"
#include "runtime/device/buffer.h"
#include "test/command.h"
#include "test/fake/hip.h"
#include "tiny/base/env.h"
#include "tiny/tiny.h"

using namespace tiny;
using namespace tiny::test;
using test::FakeHip;

namespace {

const char* const kStandIn = TINY_BUILD "/libfake_hip.so";

template <class Kind, class Body> std::string message_of(Body body) {
  try {
    body();
  } catch (const Kind& error) {
    return error.what();
  }
  return "nothing was thrown";
}

bool contains(const std::string& text, const std::string& part) {
  const bool found = text.find(part) != std::string::npos;
  if (!found) MESSAGE(part << "\nis not in\n" << text);
  return found;
}

// This program with the stand-in, and a filter of its cases.
CommandResult run_on_stand_in(const std::string& cases, const std::string& variables = "") {
  return run_command(cat("HIP_LIBRARY=", kStandIn, " HIPRTC_LIBRARY=", kStandIn,
                         " RCCL_LIBRARY=", kStandIn, " DEVICE= CACHE=0 ", variables, " ",
                         TINY_BUILD, "/tests -tc='", cases, "'"));
}

// --- kernels of the stand-in -------------------------------------------------------------------

// One for all: GPUs read each other's memory, where the stand-in lets them.
EmulatorDevice& emulator() {
  static EmulatorDevice device("stand-in", gpu_target("gfx942"));
  return device;
}

// What devices/hip/hiprtc.cpp puts around a text, taken away; the name after KERNEL(...).
std::string compile_for_emulator(std::string text, const std::string&, std::string& log) {
  const std::string before = "namespace tiny_kernel {\n", after = "\n}\n";
  if (!text.starts_with(before) || !text.ends_with(after)) std::abort();
  text = text.substr(before.size(), text.size() - before.size() - after.size());
  const size_t kernel = text.find("KERNEL(", text.find("extern \"C\""));
  const size_t name = text.find(") ", kernel) + 2;
  try {
    return emulator().compile(
        {text.substr(name, text.find('(', name) - name), text, Source::Language::Hip});
  } catch (const DeviceError& error) {
    log = error.what();
    return "";
  }
}

// The stand-in, or null in a process without it.
FakeHip* stand_in() {
  static FakeHip* const fake = []() -> FakeHip* {
    if (env_text("HIP_LIBRARY") != kStandIn) return nullptr;
    void* library = dlopen(kStandIn, RTLD_NOW | RTLD_LOCAL);
    if (!library) return nullptr;
    auto* it = reinterpret_cast<FakeHip* (*)()>(dlsym(library, "fake_hip"))();
    it->compile = compile_for_emulator;
    it->load = [](int, const std::string& binary, const std::string& entry) {
      return std::shared_ptr<void>(emulator().load(binary, entry));
    };
    it->run = [](int, void* kernel, const LaunchSize& size, const std::vector<void*>& args) {
      emulator().launch(*static_cast<Program*>(kernel), size, args);
    };
    it->alloc = [](int, size_t bytes) { return emulator().alloc(bytes); };
    it->free = [](int, void* block, size_t bytes) { emulator().free(block, bytes); };
    return it;
  }();
  return fake;
}
const bool set_up = stand_in() != nullptr;  // before anything asks for a device

int64_t count(const FakeHip& fake, const std::string& call) {
  return std::count(fake.calls.begin(), fake.calls.end(), call);
}
bool has_call(const FakeHip& fake, const std::string& begin) {
  return std::any_of(fake.calls.begin(), fake.calls.end(),
                     [&](const std::string& c) { return c.starts_with(begin); });
}

// A kernel of two buffers, with its prelude where an emulator expects it.
std::string scale_text(const char* body = "b0[thread_x()] = b1[thread_x()] * 2;") {
  return cat("#ifndef TINY_PRELUDE\n", R"(typedef float f32;
#define KERNEL(threads) __attribute__((global, amdgpu_flat_work_group_size(1, threads))) void
#define INLINE inline __attribute__((device, always_inline))
INLINE int thread_x() { return __builtin_amdgcn_workitem_id_x(); }
#endif
extern "C" KERNEL(64) k(f32* b0, f32* b1) {
  )",
             body, "\n}\n");
}

}  // namespace

TEST_CASE("hip: a device that is not there is an error with the reason") {
  if (stand_in()) return;
  if (!hip_missing_reason().empty()) {
    const std::string message = message_of<DeviceError>([] { find_device("HIP"); });
    CHECK(message == "HIP: " + hip_missing_reason());
    CHECK(message_of<DeviceError>([] { Tensor::zeros({2}).to("HIP").realize(); }) == message);
  }
  const CommandResult absent = run_command(cat("HIP_LIBRARY=/nowhere/libamdhip64.so ", TINY_BUILD,
                                               "/tests -tc='stand-in that is absent'"));
  CHECK(absent.status == 0);
  CHECK(contains(absent.output,
                 "HIP: the HIP runtime's library libamdhip64 was not found: searched for "
                 "/nowhere/libamdhip64.so ("));
  CHECK(contains(absent.output, "It comes with AMD's ROCm"));
  CHECK(contains(absent.output, "without an AMD GPU use DEVICE=CPU"));
  const std::vector<std::string> files = rocm_files("amdhip64");
  CHECK(files.front() == "libamdhip64.so.7");
  CHECK(files.back() == "/opt/rocm/lib/libamdhip64.so");
  const CommandResult unfit = run_command(
      cat("HIP_LIBRARY=libm.so.6 ", TINY_BUILD, "/tests -tc='stand-in that is absent'"));
  CHECK(contains(unfit.output, "the HIP runtime's library has no function hipInit: it is too old"));
}

TEST_CASE("stand-in that is absent") {
  if (env_text("HIP_LIBRARY").empty() || stand_in()) return;
  std::printf("%s\n", message_of<DeviceError>([] { find_device("HIP"); }).c_str());
}

TEST_CASE("hip: hiprtc gets architectures that its version knows") {
  CHECK(hip_version_for("gfx90a") == 50000000);
  CHECK(hip_version_for("gfx942") == 60000000);
  CHECK(hip_version_for("gfx9999") == 0);
  CHECK(hip_version_text(60042131) == "6.0");
  for (const GpuRow& gpu : gpu_table())
    if (gpu.language == Target::Language::Hip) CHECK(hip_version_for(gpu.arch) > 0);
}

TEST_CASE("hip: runtime calls, their order and errors, on a library that stands in for AMD's") {
  if (stand_in()) return;
  for (const auto& [cases, variables] :
       {std::pair<std::string, std::string>{"stand-in: *", "CHECK_OOB=2"},
        {"stand-in that faults*", ""},
        {"stand-in that faults*", "CHECK=1"}}) {
    const CommandResult child = run_on_stand_in(cases, variables);
    CHECK_MESSAGE(child.status == 0, child.output);
    CHECK_MESSAGE(child.output.find(" 0 passed") == std::string::npos, child.output);
  }
}

// --- in the other process ------------------------------------------------------------------------

TEST_CASE("stand-in: the device is what the runtime says") {
  if (!stand_in()) return;
  const Target& target = find_device("HIP").target();
  CHECK(target.arch == "gfx942");
  CHECK(target.language == Target::Language::Hip);
  CHECK(target.warp == 64);
  CHECK(target.cores == 304);
  CHECK(target.most_threads == 1024);
  CHECK(target.shared_bytes == 64 << 10);
  CHECK(target.l2_bytes == 4 << 20);
  CHECK(contains(find_device("HIP").compiler_id(), "hiprtc 60042131 -std=c++17"));
  CHECK(contains(message_of<Error>([] { find_device("HIP:2"); }),
                 "HIP:2: this machine has 2 GPUs, HIP:0 to HIP:1"));
}

TEST_CASE("stand-in: tensors, gradients and replays are those of the CPU") {
  if (!stand_in()) return;
  FakeHip& fake = *stand_in();
  const auto work = [](const std::string& device) {
    const Tensor x = (Tensor::arange(0, 96, 1, kF32).reshape({8, 12}) / 7).to(device);
    Tensor v = (Tensor::arange(0, 60, 1, kF32).reshape({12, 5}) / 11 - 2).to(device);
    v.requires_grad_();
    const Tensor y = x.matmul(v).softmax(1);
    const Tensor g = Tensor::gradient((y * y).sum(), {v})[0];
    return std::pair{y.to_vector<float>(), g.to_vector<float>()};
  };
  const auto expected = work("CPU"), found = work("HIP");
  for (size_t i = 0; i < expected.first.size(); ++i)
    CHECK(found.first[i] == doctest::Approx(expected.first[i]).epsilon(1e-5));
  for (size_t i = 0; i < expected.second.size(); ++i)
    CHECK(found.second[i] == doctest::Approx(expected.second[i]).epsilon(1e-4));
  CHECK(fake.done.size() >= 2);
  CHECK(has_call(fake, "hiprtcCompileProgram gfx942"));
  CHECK(count(fake, "hipStreamCreateWithFlags 1") == 2);
  Tensor sum = Tensor::zeros({16}).to("HIP").realize();
  Jit step([&](const Tensor& x) {
    sum.assign(sum + x * 3);
    return sum * 1;
  });
  Tensor last = sum;
  for (int i = 0; i < 5; ++i)
    last = step(Tensor::from(std::vector<float>(16, static_cast<float>(i)), {16}, "HIP"));
  CHECK(last.to_vector<float>() == std::vector<float>(16, 30));
}

TEST_CASE("stand-in: launches of a replay wait for what they read alone") {
  if (!stand_in()) return;
  FakeHip& fake = *stand_in();
  Tensor total = Tensor::zeros({1}).to("HIP").realize();
  const Tensor x = Tensor::ones({8, 8}).to("HIP").realize(), y = Tensor::ones({40}).to("HIP");
  Jit step([&](const Tensor& in) {
    total.assign(total + in.sum());
    return std::pair{x.matmul(x), total * 2};
  });
  fake.calls.clear();
  Tensor last;
  for (int i = 0; i < 4; ++i) last = step(y.contiguous().realize()).second;
  CHECK(last.item<float>() == 320);
  CHECK(total.item<float>() == 160);
  int begins = 0;  // that wait for nothing: the product, and the sum
  for (const std::string& call : fake.calls)
    begins += call.starts_with("hipGraphAddKernelNode") && call.ends_with(" after");
  CHECK(begins > 0);
}

TEST_CASE("stand-in: a list of launches is a graph, and other arguments are those of later runs") {
  if (!stand_in()) return;
  FakeHip& fake = *stand_in();
  const int before = fake.graphs;
  Device& device = find_device("HIP");
  const auto program = device.load(device.compile({"k", scale_text(), Source::Language::Hip}), "k");
  std::vector<float> numbers(192, 1);
  auto* memory = static_cast<char*>(device.alloc(768));
  device.upload(memory, numbers.data(), 768);
  LaunchSize size, none;
  size.block[0] = 64;
  none.grid[0] = 0;
  const auto item = [&](int to, int from, const LaunchSize& s) {
    return LaunchItem{program.get(), s, {memory + to * 256, memory + from * 256}};
  };
  fake.calls.clear();
  {
    // 1 = 2 * 0, 2 = 2 * 1, with nothing between them.
    const auto graph = device.record({item(1, 0, size), item(1, 0, none), item(2, 1, size)});
    graph->launch();
    graph->set_args(2, {memory, memory + 256});  // 0 = 2 * 1
    graph->launch();
    graph->launch();
  }
  device.download(numbers.data(), memory, 768);
  CHECK(numbers[0] == 16);
  CHECK(numbers[64] == 8);
  CHECK(numbers[128] == 4);
  CHECK(count(fake, "hipGraphCreate") == 1);
  CHECK(count(fake, "hipGraphAddKernelNode k 1x1x1 64x1x1 0") == 2);
  CHECK(count(fake, "hipGraphExecKernelNodeSetParams k 1x1x1 64x1x1 0") == 1);
  CHECK(count(fake, "hipGraphLaunch") == 3);
  CHECK(!has_call(fake, "hipModuleLaunchKernel"));
  CHECK(fake.graphs == before);
  fake.calls.clear();
  {
    // Beside one another, but for the last one, which waits for the first through an empty one.
    std::vector<LaunchItem> items{item(1, 0, size), item(2, 0, size), item(1, 0, none),
                                  item(2, 1, size)};
    items[1].after = std::vector<int>{};
    items[2].after = std::vector<int>{0};
    items[3].after = std::vector<int>{1, 2};
    const auto graph = device.record(items);
    graph->launch();
    device.synchronize();
  }
  CHECK(count(fake, "hipGraphAddKernelNode k 1x1x1 64x1x1 0") == 1);
  CHECK(count(fake, "hipGraphAddKernelNode k 1x1x1 64x1x1 0 after") == 1);
  CHECK(count(fake, "hipGraphAddKernelNode k 1x1x1 64x1x1 0 after 2 1") == 1);
  fake.fail["hipGraphAddKernelNode"] = 1;
  CHECK(contains(message_of<DeviceError>([&] { device.record({item(1, 0, size)}); }),
                 "HIP: cannot add kernel k (grid 1 x 1 x 1, block 64 x 1 x 1, 0 bytes of shared "
                 "memory) on HIP:0 (Stand-in MI300X) to a graph: hipErrorInvalidValue (1)"));
  CHECK(fake.graphs == before);
  device.free(memory, 768);
}

TEST_CASE("stand-in: RCCL adds up what two GPUs have") {
  if (!stand_in()) return;
  FakeHip& fake = *stand_in();
  CHECK(contains(rccl().version(), "2.21.5 from "));
  CHECK(rccl().missing_reason(kBool) == "RCCL does not add up values of bool");
  const EnvOverride library("COLLECTIVE", "nccl");
  fake.calls.clear();
  const std::vector<std::string> gpus{"HIP:0", "HIP:1"};
  const Tensor x = (Tensor::arange(0, 24, 1, kF32).reshape({4, 6}) + 0.5).realize();
  const Tensor on_both = x.shard(gpus, 0).sum(0) * 2;
  CHECK(on_both.to_vector<float>() == (x.sum(0) * 2).to_vector<float>());
  CHECK(has_call(fake, "ncclReduce") + has_call(fake, "ncclAllReduce") > 0);
  const EnvOverride flags("COLLECTIVE", "flags");
  CHECK(contains(message_of<Error>([&] { x.shard(gpus, 0).sum(1).sum().realize(); }),
                 "COLLECTIVE=flags: only GPUs of NVIDIA can"));
}

// Streams run as late as they may: pinned pieces that are filled again too early, or a download
// that does not wait, would show.
TEST_CASE("stand-in: large copies and kernels keep their order") {
  if (!stand_in()) return;
  constexpr int64_t n = (int64_t{22} << 20) / 4 + 5;  // bytes: more than all pieces hold
  std::vector<int32_t> values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int32_t>(i * 2654435761u);
  const Tensor x = Tensor::from(values, {n}, "HIP"), y = Tensor::from(values, {n}, "HIP:1");
  CHECK(x.to_vector<int32_t>() == values);
  CHECK(y.to("HIP").to_vector<int32_t>() == values);
  CHECK(count(*stand_in(), cat("hipHostMalloc ", 4 << 20, " 1")) >= 6);
  CHECK(has_call(*stand_in(), cat("hipMemcpyPeerAsync 1 to 0, ", n * 4)));
  CHECK(count(*stand_in(), "hipDeviceEnablePeerAccess 0 1") == 1);
  CHECK(count(*stand_in(), "hipMemPoolSetAccess 1 1 0 3") == 1);
}

TEST_CASE("stand-in: a tensor in parts on two GPUs") {
  if (!stand_in()) return;
  const std::vector<std::string> gpus{"HIP", "HIP:1"};
  const Tensor x = Tensor::arange(0, 24, 1, kF32).reshape({4, 6});
  CHECK((x.shard(gpus, 0) * 2).sum(0).to("CPU").to_vector<float>() ==
        (x * 2).sum(0).to_vector<float>());
}

TEST_CASE("stand-in: out of memory says how much, after giving back what is kept") {
  if (!stand_in()) return;
  FakeHip& fake = *stand_in();
  Device& device = find_device("HIP");
  fake.calls.clear();
  const std::string message = message_of<DeviceError>([&] { device.alloc(size_t{3} << 30); });
  CHECK(contains(message, "HIP: out of memory: cannot allocate 3221225472 bytes (3.00 GiB): "));
  CHECK(contains(message, " of 1.00 GiB are free: hipErrorOutOfMemory (2): out of memory"));
  const std::vector<std::string> expected = {"hipMallocAsync 3221225472", "hipStreamSynchronize",
                                             "hipMemPoolTrimTo", "hipMallocAsync 3221225472"};
  CHECK(fake.calls == expected);
  void* block = device.alloc(100);  // and goes on
  CHECK(fake.calls.back() == "hipMallocAsync 256");
  device.free(block, 100);
}

TEST_CASE("stand-in: where a kernel or a graph finds no memory, what is kept is given back first") {
  if (!stand_in()) return;
  FakeHip& fake = *stand_in();
  const EnvOverride on("DEVICE", "HIP");
  const auto times_called = [&](const char* function) {
    return std::count_if(fake.calls.begin(), fake.calls.end(),
                         [&](const std::string& call) { return call.starts_with(function); });
  };
  const auto fails = [&](const char* function) {
    fake.calls.clear();
    fake.fail[function] = 2;  // out of memory
  };
  Tensor kept = Tensor::arange(0, 3000, 1, kF32).contiguous().realize();
  kept = Tensor();  // its memory is kept for the next of its size
  const Tensor x = Tensor::arange(0, 77, 1, kF32).contiguous().realize();
  fails("hipModuleLoadData");
  CHECK((x * 3 + 4).to_vector<float>()[76] == 232);
  CHECK(times_called("hipModuleLoadData") == 2);
  CHECK(times_called("hipFreeAsync") > 0);
  CHECK(times_called("hipMemPoolTrimTo") > 0);
  Jit step([](const Tensor& t) { return ((t + 1) * 5).contiguous().sum(); });
  step(x), step(x);  // called, and recorded
  fails("hipGraphInstantiateWithFlags");
  CHECK(step(x).item<float>() == 5 * (76 * 77 / 2 + 77));
  CHECK(times_called("hipGraphInstantiateWithFlags") == 2);
}

TEST_CASE("stand-in: what the runtime or the compiler refuses is an error with its name and text") {
  if (!stand_in()) return;
  FakeHip& fake = *stand_in();
  Device& device = find_device("HIP");
  const Source source{"k", scale_text(), Source::Language::Hip};
  const std::string binary = device.compile(source);
  fake.fail["hipModuleLoadData"] = 209;
  CHECK(message_of<DeviceError>([&] { device.load(binary, "k"); }) ==
        "HIP: cannot load kernel k for gfx942 on HIP:0 (Stand-in MI300X), made by hiprtc for HIP "
        "6.0 (AMD_COMPILER chooses another one): hipErrorNoBinaryForGpu (209): no kernel image is "
        "available for execution on the device");
  const auto program = device.load(binary, "k");
  void* memory = device.alloc(512);
  LaunchSize size;
  size.block[0] = 64;
  const std::vector<void*> args{memory, static_cast<char*>(memory) + 256};
  fake.fail["hipModuleLaunchKernel"] = 1;
  CHECK(contains(message_of<DeviceError>([&] { device.launch(*program, size, args); }),
                 "HIP: cannot launch kernel k (grid 1 x 1 x 1, block 64 x 1 x 1, 0 bytes of shared "
                 "memory) on HIP:0 (Stand-in MI300X): hipErrorInvalidValue (1): "));
  size.block[0] = 2048;
  CHECK(contains(message_of<DeviceError>([&] { device.launch(*program, size, args); }),
                 "block 2048 x 1 x 1"));
  size.block[0] = 64;
  std::vector<float> numbers(64, 21), twice(64);
  device.upload(args[1], numbers.data(), 256);
  device.launch(*program, size, args);
  CHECK(fake.calls.back() == "hipModuleLaunchKernel k 1x1x1 64x1x1 0");
  device.download(twice.data(), args[0], 256);
  CHECK(twice == std::vector<float>(64, 42));
  fake.fail["hipMemcpyHtoDAsync"] = 1;
  CHECK(contains(message_of<DeviceError>([&] { device.upload(memory, numbers.data(), 256); }),
                 "HIP: cannot copy 256 bytes to the GPU: hipErrorInvalidValue (1)"));
  device.free(memory, 512);
  const std::string wrong = message_of<DeviceError>([&] {
    device.compile({"k", scale_text("b0[0] = missing;"), Source::Language::Hip});
  });
  CHECK(contains(wrong, "hiprtc of HIP 6.0 cannot compile kernel k for gfx942:\n"));
  CHECK(contains(wrong, "missing"));
}

TEST_CASE("stand-in: a compiler is only given what it knows, and another one can be chosen") {
  if (!stand_in()) return;
  const Source source{"k", scale_text(), Source::Language::Hip};
  // The stand-in ends the process when it is asked for gfx1201, as hiprtc 5.2 does.
  const std::string reason = "hiprtc of HIP 6.0 does not know gfx1201, HIP 6.4 does";
  CHECK(hiprtc_missing_reason("gfx1201") == reason);
  CHECK(message_of<DeviceError>([&] { compile_hiprtc(source.text, "gfx1201", "k"); }) ==
        "HIP: " + reason);
  CHECK(contains(hiprtc_missing_reason("gfx9999"), "which versions of hiprtc know gfx9999 is not"));
  CHECK(amd_compiler("gfx942") == "hiprtc");
  if (hip_clang_available())
    CHECK(amd_compiler("gfx1201") == "clang");
  else if (amd_llvm_missing_reason().empty())
    CHECK(amd_compiler("gfx1201") == "llvm");
  else
    CHECK(contains(message_of<DeviceError>([] { amd_compiler("gfx1201"); }), "HIP: " + reason));
  {
    EnvOverride rtc("AMD_COMPILER", "hiprtc");
    CHECK(message_of<DeviceError>([] { amd_compiler("gfx1201"); }) == "HIP: " + reason);
  }
  {
    EnvOverride clang("AMD_COMPILER", "clang");
    if (hip_clang_available())
      CHECK(compile_amd(source, "gfx942")
                .starts_with("\x7f"
                             "ELF"));
  }
  EnvOverride unknown("AMD_COMPILER", "gcc");
  CHECK(message_of<Error>([] { amd_compiler("gfx942"); }) ==
        "AMD_COMPILER=gcc: it is hiprtc, clang or llvm");
}

TEST_CASE("stand-in: marks and timed launches use events of the stream") {
  if (!stand_in()) return;
  Device& device = find_device("HIP");
  const auto program = device.load(device.compile({"k", scale_text(), Source::Language::Hip}), "k");
  void* memory = device.alloc(512);
  LaunchSize size;
  size.block[0] = 64;
  const std::vector<void*> args{memory, static_cast<char*>(memory) + 256};
  const std::vector<float> numbers(128, 1);
  device.upload(memory, numbers.data(), 512);
  const std::vector<LaunchItem> items(2, {program.get(), size, args});
  CHECK(device.launch_timed(items) == doctest::Approx(0.5e-3));     // two tasks
  CHECK(has_call(*stand_in(), cat("hipMemsetD8Async ", 8 << 20)));  // with a cold cache
  const int64_t before = device.mark();
  device.launch(*program, size, args);
  device.launch(*program, size, args);
  const int64_t after = device.mark();
  const double start = device.time_of(before);
  CHECK(device.time_of(after) - start == doctest::Approx(0.5e-3).epsilon(1e-3));
  device.free(memory, 512);
}

TEST_CASE("stand-in: a device gives back what it had, and does without memory pools") {
  if (!stand_in()) return;
  FakeHip& fake = *stand_in();
  find_device("HIP");
  const auto now = [&] {
    return std::array<int64_t, 5>{fake.streams, fake.events, fake.modules, fake.pinned,
                                  static_cast<int64_t>(fake.used[1])};
  };
  const auto before = now();
  for (bool pools : {true, false}) {
    fake.pools = pools;
    fake.calls.clear();
    {
      HipDevice device(1);
      const auto program =
          device.load(device.compile({"k", scale_text(), Source::Language::Hip}), "k");
      void* memory = device.alloc(512);
      std::vector<float> numbers(128, 3);
      device.upload(memory, numbers.data(), 512);
      LaunchSize size;
      size.block[0] = 64;
      device.launch(*program, size, {memory, static_cast<char*>(memory) + 256});
      device.download(numbers.data(), memory, 256);
      CHECK(numbers[0] == 6);
      CHECK(now() != before);
      device.free(memory, 512);
    }
    CHECK(now() == before);
    CHECK(has_call(fake, "hipMallocAsync") == pools);
    CHECK(has_call(fake, "hipMalloc ") != pools);
    CHECK(has_call(fake, "hipMemPoolSetAttribute 4 18446744073709551615") == pools);
  }
  fake.pools = true;
}

// After it every call fails: in a process of its own.
TEST_CASE("stand-in that faults: the kernel is named, or said to be an earlier one") {
  if (!stand_in()) return;
  Device& device = find_device("HIP");
  const std::string text = scale_text("b0[thread_x() + 100000] = b1[thread_x()];");
  const auto program = device.load(device.compile({"k", text, Source::Language::Hip}), "k");
  void* memory = device.alloc(512);
  LaunchSize size;
  size.block[0] = 64;
  const std::string message = message_of<DeviceError>([&] {
    device.launch(*program, size, {memory, static_cast<char*>(memory) + 256});
    if (env_int("CHECK")) throw DeviceError("launch did not wait");
    device.synchronize();
  });
  CHECK(contains(stand_in()->fault, "outside of"));
  if (env_int("CHECK"))
    CHECK(contains(message,
                   "HIP: kernel k (grid 1 x 1 x 1, block 64 x 1 x 1, 0 bytes of shared memory) on "
                   "HIP:0 (Stand-in MI300X) failed: hipErrorLaunchFailure (719): unspecified "
                   "launch failure; DEBUG=4 prints its source"));
  else
    CHECK(contains(message,
                   "HIP: cannot finish the work on HIP:0 (Stand-in MI300X): hipErrorLaunchFailure "
                   "(719): unspecified launch failure; this may stem from a kernel that was "
                   "launched earlier: CHECK=1"));
  device.free(memory, 512);  // tensors must be destructible
}
