// What kernels in CUDA and HIP compute, against the CPU's compilers and plain loops: on the
// emulator, and on a GPU where there is one.
#include "codegen/render/c/prelude_gpu.h"

#include <doctest/doctest.h>

#include <cstring>
#include <limits>
#include <random>

#include "devices/cuda/cuda.h"
#include "test/unit/cuda_kernels.h"
#include "test/unit/run_kernel.h"

using namespace tiny;
using namespace tiny::test;

namespace {

std::vector<std::string> gpus() {
  std::vector<std::string> all = {"EMU:CUDA:sm_90a", "EMU:HIP:gfx942", "EMU:HIP:gfx1201"};
  if (cuda_available()) all.push_back("CUDA");
  return all;
}

// Elements of a dtype as they are in memory.
class Data {
 public:
  Data(DType t, int64_t count) : dtype_(t), bytes_(static_cast<size_t>(count * t.size())) {}
  DType dtype() const { return dtype_; }
  int64_t count() const { return static_cast<int64_t>(bytes_.size()) / dtype_.size(); }
  size_t size() const { return bytes_.size(); }
  void* data() { return bytes_.data(); }
  const void* at(int64_t i) const { return bytes_.data() + i * dtype_.size(); }

  double number(int64_t i) const {
    switch (dtype_.scalar) {
      case Scalar::F16: return f16_to_f32(read<uint16_t>(i));
      case Scalar::BF16: return bf16_to_f32(read<uint16_t>(i));
      case Scalar::F32: return read<float>(i);
      case Scalar::F64: return read<double>(i);
      default: return static_cast<double>(integer(i));
    }
  }
  int64_t integer(int64_t i) const {  // of an integer or bool
    uint64_t bits = 0;
    std::memcpy(&bits, at(i), static_cast<size_t>(dtype_.size()));
    const int unused = 64 - dtype_.bits();
    return dtype_.is_signed() ? static_cast<int64_t>(bits << unused) >> unused
                              : static_cast<int64_t>(bits);
  }
  void set(int64_t i, double v) {
    switch (dtype_.scalar) {
      case Scalar::F16: return write(i, f32_to_f16(static_cast<float>(v)));
      case Scalar::BF16: return write(i, f32_to_bf16(static_cast<float>(v)));
      case Scalar::F32: return write(i, static_cast<float>(v));
      case Scalar::F64: return write(i, v);
      default: return set_integer(i, static_cast<int64_t>(v));
    }
  }
  void set_integer(int64_t i, int64_t v) {
    std::memcpy(bytes_.data() + i * dtype_.size(), &v, static_cast<size_t>(dtype_.size()));
  }

 private:
  template <class T> T read(int64_t i) const {
    T v;
    std::memcpy(&v, at(i), sizeof v);
    return v;
  }
  template <class T> void write(int64_t i, T v) {
    std::memcpy(bytes_.data() + i * dtype_.size(), &v, sizeof v);
  }
  DType dtype_;
  std::vector<char> bytes_;
};

// Numbers of all sizes with the special ones among them.
Data samples(DType t, int64_t count, unsigned seed) {
  Data out(t, count);
  std::mt19937_64 rng(seed);
  const double inf = std::numeric_limits<double>::infinity();
  const double floats[] = {0.0, -0.0, 1, -1, inf, -inf, NAN, 6e-8, 65519, 65520, 1e-40, 3.3e38};
  const double limits[] = {127, 128, 255, 256, 32768, 65536, 0x1p31, -0x1p31, 0x1p32, 0x1p63};
  const DType whole = t.is_float() ? kI32 : t;
  const int64_t ints[] = {0, 1, -1, 2, 7, int_min(whole), int_max(whole), 31};
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t pick = rng();
    const double spread = std::ldexp(1.0, static_cast<int>(rng() % 40) - 20);
    const double number = std::uniform_real_distribution<double>(-1, 1)(rng) * spread;
    if (t.is_bool())
      out.set_integer(i, pick % 2);
    else if (!t.is_float())
      out.set_integer(i, pick % 3 ? static_cast<int64_t>(pick >> (rng() % 60)) : ints[pick % 8]);
    else if (pick % 4)
      out.set(i, number);
    else
      out.set(i, pick % 8 ? floats[pick / 8 % 12] : limits[pick / 8 % 10] * (pick % 3 ? 1 : -1));
  }
  return out;
}

// Runs the kernel on a device; buffers are uploaded and come back changed.
void run_on(const std::string& name, const Linear& linear, const LaunchSize& size,
            std::vector<Data>& buffers) {
  Device& device = find_device(name);
  const Source source = render_c(linear, device.target());
  const auto program = device.load(device.compile(source), source.entry);
  std::vector<void*> args;
  for (Data& b : buffers) {
    args.push_back(device.alloc(b.size()));
    device.upload(args.back(), b.data(), b.size());
  }
  device.launch(*program, size, args);
  device.synchronize();
  for (size_t i = 0; i < buffers.size(); ++i) {
    device.download(buffers[i].data(), args[i], buffers[i].size());
    device.free(args[i], buffers[i].size());
  }
}

LaunchSize launch(int64_t blocks, int64_t x, int64_t y = 1) {
  LaunchSize size;
  size.grid[0] = blocks;
  size.block[0] = x;
  size.block[1] = y;
  return size;
}

// How far functions of floats may be from each other, relative to the value and absolute.
struct Tolerance {
  double relative = 0, absolute = 0;
};
Tolerance tolerance(DType t, bool exact) {
  if (exact || !t.is_float()) return {};
  if (t.scalar == Scalar::F16) return {0x1p-10, 0x1p-24};
  if (t.scalar == Scalar::BF16) return {0x1p-7, 1e-38};
  if (t.scalar == Scalar::F32) return {5e-7, 4e-7};
  return {1e-15, 1e-15};
}
bool same(const Data& a, const Data& b, int64_t i, Tolerance within) {
  if (!a.dtype().is_float()) return a.integer(i) == b.integer(i);
  const double x = a.number(i), y = b.number(i);
  if (std::isnan(x) || std::isnan(y)) return std::isnan(x) && std::isnan(y);
  if (x == y) return true;
  return std::abs(x - y) <= std::max(within.absolute, within.relative * std::abs(y));
}

// Element-wise formulas of x and y on the GPU give what they give on the CPU.
void check_formulas(const std::string& name, DType t, int lanes,
                    const std::vector<Formula>& formulas) {
  const int64_t count = kBlocks * kThreads * lanes;
  const Target cpu = host_target(compilers().front());
  const Linear want_program = elementwise(name, t, lanes, formulas, cpu);
  std::vector<Data> want = {samples(t, count, 1), samples(t, count, 2)};
  for (size_t i = 2; i < want_program.params.size(); ++i)
    want.emplace_back(want_program.params[i]->dtype, count);
  std::vector<Data> blank = want;
  std::vector<void*> args;
  for (Data& d : want) args.push_back(d.data());
  run(want_program, cpu, args, 0, kBlocks * kThreads);
  for (const std::string& gpu : gpus()) {
    std::vector<Data> got = blank;
    run_on(gpu, elementwise(name, t, lanes, formulas, find_device(gpu).target()),
           launch(kBlocks, kThreads), got);
    for (size_t k = 2; k < got.size(); ++k)
      for (int64_t i = 0; i < count; ++i) {
        INFO(gpu, ": ", name, ", output ", k - 2, " of ", want[0].number(i), " and ",
             want[1].number(i));
        REQUIRE_MESSAGE(same(got[k], want[k], i, tolerance(got[k].dtype(), false)),
                        got[k].number(i), " is not ", want[k].number(i));
      }
  }
}

}  // namespace

TEST_CASE("GPU kernels compute what the CPU's do: operations of all dtypes, scalars and vectors") {
  for (DType t : all_dtypes())
    for (int lanes : {1, std::max(2, 16 / t.size())})
      check_formulas(cat("values_", t.name(), "_", lanes), t, lanes, formulas_of(t));
}

TEST_CASE("GPU kernels compute what the CPU's do: casts between all dtypes") {
  for (DType t : all_dtypes())
    for (int lanes : {1, std::max(2, 16 / t.size())})
      check_formulas(cat("casts_", t.name(), "_", lanes), t, lanes, casts_of(t));
}

namespace {

template <class T> T combination(Op o, T a, T b) {
  if (o == Op::Add) return a + b;
  if (o == Op::Mul) return a * b;
  return o == Op::Max ? std::max(a, b) : std::min(a, b);
}

// The combination of small numbers, wrapped or rounded after each as the dtype does.
double combined(Op o, DType t, const std::vector<double>& numbers) {
  if (t.is_bool()) o = o == Op::Add ? Op::Max : o == Op::Mul ? Op::Min : o;
  Data sum(t, 1);
  sum.set(0, numbers[0]);
  for (size_t i = 1; i < numbers.size(); ++i) {
    if (t.is_float())
      sum.set(0, combination(o, sum.number(0), numbers[i]));
    else
      sum.set_integer(0, static_cast<int64_t>(combination(o, static_cast<uint64_t>(sum.integer(0)),
                                                          static_cast<uint64_t>(numbers[i]))));
  }
  return sum.number(0);
}

// Small numbers: sums are exact in every dtype but for wrapping, products lose little.
Data small_numbers(DType t, int64_t count) {
  Data out(t, count);
  std::mt19937 rng(5);
  for (int64_t i = 0; i < count; ++i) {
    const double v = 1 + static_cast<double>(rng() % 2);
    out.set(i, t.is_bool() ? static_cast<double>(rng() % 5 != 0) : t.is_float() ? v * 0.75 : v);
  }
  return out;
}

void check_group(Op o, DType t, int width, int rows, int times) {
  constexpr int64_t kGroups = 64;
  const Linear linear = grouped(o, t, width, rows, times);
  const int64_t results = kGroups * times * rows * t.lanes;
  for (const std::string& gpu : gpus()) {
    const int warp = find_device(gpu).target().warp;
    if (width > warp && width % warp != 0) continue;
    std::vector<Data> data = {small_numbers(t.one(), results * width), Data(t.one(), results)};
    run_on(gpu, linear, launch(kGroups, width, rows), data);
    for (int64_t i = 0; i < results; ++i) {
      std::vector<double> numbers;
      for (int64_t k = 0; k < width; ++k)
        numbers.push_back(data[0].number((i / t.lanes * width + k) * t.lanes + i % t.lanes));
      INFO(gpu, ": ", linear.name, ", result ", i);
      REQUIRE(data[1].number(i) == doctest::Approx(combined(o, t, numbers)).epsilon(1e-5));
    }
  }
}

}  // namespace

TEST_CASE("GPU kernels combine groups of threads, again and again in a loop") {
  for (int width : {2, 8, 32, 64, 96, 256, 512, 1024}) {
    check_group(Op::Add, kF32, width, 1, 3);
    if (width <= 256) check_group(Op::Max, kI32, width, 3, 4);
  }
  check_group(Op::Add, kF32.vec(4), 64, 2, 3);
  for (DType t : {kBool, kI8, kU16, kI64, kF64})
    for (Op o : {Op::Add, Op::Mul, Op::Max, Op::Min}) {
      check_group(o, t, 16, 1, 1);
      check_group(o, t, 128, 1, 1);
    }
}

TEST_CASE("GPU kernels combine elements atomically, in every dtype") {
  constexpr int64_t kThreads = 256, kBins = 13;
  for (DType t : all_dtypes()) {
    const std::vector<Op> ops = {Op::Add, Op::Mul, Op::Max, Op::Min};
    const Node thread = range(0, kThreads, RangeKind::Thread, kI32);
    const Node at = make(Op::Load, kI32, {param(1, kI32), thread});
    const Node x = make(Op::Load, t, {param(0, t), thread});
    Statements s(cat("bins_", t.name()));
    s.loop(thread);
    for (int k = 0; k < 4; ++k)
      s.values(
          make(Op::Store, kVoid, {param(2 + k, t), at, x}, OpArg{ops[static_cast<size_t>(k)]}));
    s.end(thread);
    for (const std::string& gpu : gpus()) {
      std::vector<Data> data = {small_numbers(t, kThreads), Data(kI32, kThreads)};
      for (int64_t i = 0; i < kThreads; ++i) data[1].set(i, static_cast<double>(i * i % kBins));
      for (int k = 0; k < 4; ++k) {
        data.emplace_back(t, kBins);
        for (int64_t i = 0; i < kBins; ++i) data.back().set(i, 1);
      }
      run_on(gpu, s.linear(), launch(1, kThreads), data);
      for (int64_t bin = 0; bin < kBins; ++bin)
        for (size_t k = 0; k < 4; ++k) {
          std::vector<double> numbers = {1};
          for (int64_t i = 0; i < kThreads; ++i)
            if (i * i % kBins == bin) numbers.push_back(data[0].number(i));
          INFO(gpu, ": ", t, " ", ops[k], ", element ", bin);
          const double want = combined(ops[k], t, numbers);
          const double error = t.is_half() ? 0.2 : 1e-5;  // rounded after each, in any order
          REQUIRE(data[2 + k].number(bin) == doctest::Approx(want).epsilon(error));
        }
    }
  }
}
