// LLVM IR for AMD's GPUs, executed by emulators: values, and faults that are planted into it.
#include <doctest/doctest.h>

#include "codegen/lower.h"
#include "devices/compilers/llvm_library.h"
#include "devices/emulator/emulator.h"
#include "devices/emulator/llvm.h"
#include "test/unit/integers.h"
#include "test/unit/kernels.h"
#include "tiny/base/env.h"
#include "tiny/tiny.h"

using namespace tiny;
using namespace tiny::test;

namespace {

constexpr const char* kDevices[] = {"EMU:LLVM:gfx90a", "EMU:LLVM:gfx942", "EMU:LLVM:gfx1100",
                                    "EMU:LLVM:gfx1201"};

// The sum of a row of 1024 elements by a block of one warp or more, and what the device says when
// its IR is changed.
struct RowSum {
  explicit RowSum(const std::string& name) : device(find_device(name)) {
    const Node row = build::reshape(sum(tensor_param(1, {4, 4096}, kF32), 2), Shape{4});
    low = lower(kernel_of({row}), "k", device.target());
  }

  std::string run(const std::string& from, const std::string& to) {
    Source source = low.source;
    const size_t at = source.text.find(from);
    INFO(from, "\n", source.text);
    REQUIRE(at != std::string::npos);
    source.text.replace(at, from.size(), to);
    std::vector<float> numbers(4 * 4096), sums(4), want(4);
    for (size_t i = 0; i < numbers.size(); ++i)
      want[i / 4096] += numbers[i] = static_cast<float>(i % 7);
    void *out = device.alloc(16), *in = device.alloc(numbers.size() * 4);
    device.upload(in, numbers.data(), numbers.size() * 4);
    std::string problem;
    try {
      const auto program = device.load(device.compile(source), "k");
      device.launch(*program, low.launch, {out, in});
      device.download(sums.data(), out, 16);
      if (sums != want) problem = "wrong sums";
    } catch (const DeviceError& error) {
      problem = error.what();
    }
    device.free(out, 16);
    device.free(in, numbers.size() * 4);
    return problem;
  }

  Device& device;
  Lowered low;
};

}  // namespace

TEST_CASE("emulated IR: kernels give what the CPU gives, on waves of 64 lanes and of 32") {
  if (!llvm_available()) return;
  for (const std::string device : kDevices) {
    const auto values = [](const std::string& on) {
      const Tensor x = integers({5, 3000}, kF32, on), h = integers({50, 4}, kBF16, on);
      const Tensor at = integers({50}, kI64, on).abs();
      const Tensor image = integers({2, 16, 10, 10}, kF16, on);
      std::vector<Tensor> all{
          x.sum(1),
          x.cumsum(1),
          x.max(1),
          x.argmax(1),
          x.to(kI8).sum(0),
          (x > 1).any(1),
          where(x > 0, x * 2, x.floor()),
          Tensor::zeros({7, 4}, kF32).to(on).index_add(0, at, h.to(kF32)),
          Tensor::zeros({7, 4}, kBF16).to(on).index_add(0, at, h),
          x.narrow(1, 1, 2998).transpose(0, 1).contiguous(),
          integers({3, 70}, kF32, on).sort(1).values,
          conv2d(image, integers({32, 16, 3, 3}, kF16, on), Tensor(), {.stride = 2, .padding = 1})};
      for (DType t : {kF32, kF16, kBF16}) {
        const Tensor a = integers({2, 64, 32}, t, on), b = integers({2, 32, 48}, t, on);
        all.push_back((a.matmul(b) + integers({48}, t, on)).relu());
      }
      for (DType t : {kI8, kF8E4M3, kF8E5M2}) {  // of ragged sizes
        const Tensor a = integers({2, 65, 70}, t, on), b = integers({2, 70, 49}, t, on);
        all.push_back(a.matmul(b, t == kI8 ? kI32 : kF32));
      }
      return all;
    };
    const auto have = values(device), want = values("CPU");
    for (size_t i = 0; i < have.size(); ++i) {
      CAPTURE(device);
      CAPTURE(i);
      CHECK(have[i].to(kF64).to_vector<double>() == want[i].to(kF64).to_vector<double>());
    }
  }
}

TEST_CASE("emulated IR: a missing barrier, another lane, and accesses outside are found") {
  if (!llvm_available()) return;
  for (const std::string device : {"EMU:LLVM:gfx942", "EMU:LLVM:gfx1201"}) {
    CAPTURE(device);
    RowSum k(device);
    CHECK(k.run("ret void", "ret void") == "");
    const std::string barrier = "call void @llvm.amdgcn.s.barrier()";
    const std::string race = k.run("  " + barrier + "\n", "");
    CHECK_MESSAGE(race.find("reads 4 bytes of shared memory") != std::string::npos, race);
    CHECK(k.run("= xor i32 %", "= and i32 %") == "wrong sums");
    const std::string outside =
        k.run("ptr addrspace(1) %b0, i32 %", "ptr addrspace(1) %b0, i32 4 ;");
    CHECK_MESSAGE(outside.find("writes 4 bytes") != std::string::npos, outside);
    const std::string oops = k.run("entry:\n", "entry:\n  oops\n");
    CHECK_MESSAGE(oops.find("cannot compile kernel k") != std::string::npos, oops);
  }
}

TEST_CASE("emulated IR: each array in shared memory has a place, however many there are") {
  std::string text;
  for (int i = 0; i < 200; ++i)
    text += cat("@shared", i, " = internal addrspace(3) global [2 x i32] poison, align 16\n");
  const std::string ir = emulated_llvm_ir(text + "entry:\n");
  for (int i = 0; i < 200; ++i) {
    CHECK(ir.find(cat("@shared", i, ".place = internal global i64 -1\n")) != std::string::npos);
    CHECK(ir.find(cat("@amdgcn_shared(ptr @shared", i, ".place, ")) != std::string::npos);
  }
  if (!llvm_available()) return;
  std::vector<double> values(73);  // whose kernel has 65 arrays
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i * 29 % 73);
  const Tensor x = Tensor::from(values, {73}, "EMU:LLVM:gfx942");
  CHECK(x.median(0, false).to("CPU").item<double>() == 36);
}
