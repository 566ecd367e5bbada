// Products with what comes before and after them and at any sizes (extra/bench/product_variants.h):
// the values, the instruction that multiplies on each kind of GPU, and how many kernels some take.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <sstream>
#include <utility>

#include "codegen/lower.h"
#include "extra/bench/product_variants.h"
#include "test/devices.h"
#include "test/reference.h"
#include "test/unit/schedules.h"
#include "tiny/tiny.h"

namespace tiny {
namespace {

using bench::ProductInputs;
using bench::ProductSizes;
using bench::ProductVariant;

// --- Instructions --------------------------------------------------------------------------------

// Zeros, the same ones for all variants.
class Zeros {
 public:
  explicit Zeros(std::string device) : device_(std::move(device)) {}

  ProductInputs inputs(DType dtype) {
    taken_.clear();
    return {[this](const Shape& shape, DType t, int64_t) { return next(shape, t); }, dtype};
  }

 private:
  Tensor next(const Shape& shape, DType dtype) {
    const std::string key = cat(to_text(shape), dtype);
    std::vector<Tensor>& all = made_[key];
    const size_t i = taken_[key]++;
    if (i == all.size()) {
      const std::vector<char> bytes(static_cast<size_t>(numel(shape) * dtype.size()));
      all.push_back(Tensor::from_bytes(bytes.data(), dtype, shape, device_));
    }
    return all[i];
  }

  std::string device_;
  std::map<std::string, std::vector<Tensor>> made_;
  std::map<std::string, size_t> taken_;
};

// The kernels of tensors for a device.
struct Kernels {
  int all = 0, on_units = 0, without = 0;
  bool waits = true;  // for what is copied to tiles of products, 16 bytes at a time
  std::string text;   // a line for each
};

Kernels kernels_of(const std::vector<Tensor>& tensors, const std::string& device) {
  Kernels out;
  for (const Step& step : test::schedule_on(device, tensors)->steps) {
    ++out.all;
    if (!step.kernel) continue;
    const Lowered low = lower(step.kernel.get(), step.name, find_device(device).target());
    out.text += cat("\n  ", step.name, "  ", to_text(low.unit));
    out.on_units += !low.unit.instruction.empty();
    out.without += !low.unit.reason.empty();
    out.waits &= low.source.text.find("copies.start<16>") == std::string::npos;
  }
  return out;
}

// As large as it takes that the product limits, not memory.
constexpr int64_t kSide = 4096, kSideOnCpu = 512;

void check_instructions(const char* device, DType dtype, int64_t side = kSide) {
  const EnvOverride use("DEVICE", device), rounds("ALLOW_TF32", "1");
  Zeros zeros(device);
  for (const ProductVariant& v : bench::product_variants()) {
    if (dtype.is_f8() && !v.takes_f8) continue;
    ProductInputs in = zeros.inputs(dtype);
    const Kernels found = kernels_of(v.make(in, v.at(side)), device);
    const std::string what = cat(v.name, " of ", dtype, " on ", device, ":", found.text);
    CHECK_MESSAGE(found.on_units + found.without <= v.products, what);
    const bool is_f32 = side == kSideOnCpu && v.name == "beside_f32";  // for which CPUs have none
    if (!v.on_units || is_f32) continue;
    CHECK_MESSAGE((found.on_units >= 1 && found.without == 0), what);
  }
}

TEST_CASE("variants of products are on wgmma or mma.sync, for each dtype that Hopper multiplies") {
  for (const DType dtype : {kBF16, kF16, kF32, kF8E4M3})
    check_instructions("EMU:CUDA:sm_90a", dtype);
}

TEST_CASE("variants of products are on the matrix units of other GPUs") {
  check_instructions("EMU:CUDA:sm_80", kBF16);
  check_instructions("EMU:HIP:gfx942", kBF16);
}

TEST_CASE("variants of products are on the matrix units of CPUs") {
  // Devices that no other test has opened: they keep the units that they are opened with.
  for (const auto& [device, unit] :
       {std::pair("CPU:73", "amx-bf16"), std::pair("CPU:74", "avx512bf16")}) {
    const EnvOverride units("CPU_UNITS", unit);
    check_instructions(device, kBF16, kSideOnCpu);
  }
}

// What is written to stderr while it lives.
class Said {
 public:
  Said() : before_(std::cerr.rdbuf(text_.rdbuf())) {}
  ~Said() { std::cerr.rdbuf(before_); }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::streambuf* before_;
};

TEST_CASE("DEBUG=2 names the matrix instruction of a product, or why it has none") {
  const auto said = [](const char* device, const Shape& x, const Shape& y, DType dtype) {
    const EnvOverride use("DEVICE", device), shown("DEBUG", "2");
    const Tensor a = Tensor::zeros(x, dtype).contiguous().realize();
    const Tensor b = Tensor::zeros(y, dtype).contiguous().realize();
    const Said said;
    a.matmul(b).realize();
    return said.text();
  };
  const auto has = [](const std::string& text, const char* part) {
    CHECK_MESSAGE(text.find(part) != text.npos, part, " in ", text);
  };
  const char *hopper = "EMU:CUDA:sm_90a", *ampere = "EMU:CUDA:sm_80", *cdna = "EMU:HIP:gfx942";
  has(said(hopper, {256, 64}, {64, 256}, kBF16), "GB/s  wgmma.m64n");
  has(said(ampere, {64, 64}, {64, 64}, kF16), "GB/s  mma.sync.m16n8k16.f16\n");
  has(said(cdna, {64, 64}, {64, 64}, kBF16), "GB/s  mfma.f32.16x16x16bf16.1k\n");
  has(said(ampere, {64, 48}, {48, 32}, kF32),
      "GB/s  no matrix unit: no matrix unit takes f32 (ALLOW_TF32=0); 32 x 64 results of 48 "
      "terms\n");
  has(said(ampere, {5, 64}, {64, 64}, kBF16),
      "no matrix unit: 5 x 64 results of 64 terms: 5 is no multiple of 8\n");
  has(said(ampere, {1, 64}, {64, 64}, kBF16),
      "no matrix unit: a vector times a matrix, 1 x 64 results of 64 terms\n");
  const EnvOverride use("DEVICE", "CPU"), shown("DEBUG", "2");
  const Said quiet;
  (Tensor::ones({4}).contiguous() + 1).realize();
  CHECK(quiet.text().find("unit") == std::string::npos);
}

// What products read on their way and what they do before they store takes no kernel of its own, or
// one in front.
struct Expected {
  const char* variant;
  int kernels[3];      // on sm_90a, sm_80 and gfx942
  bool bytes = false;  // what is read is staged as it is, where copies are asynchronous
};
constexpr Expected kExpected[] = {
    {"int8_scaled_rows_8", {2, 2, 2}, true},
    {"int8_scaled_rows_40", {2, 2, 2}, true},
    {"int8_groups_8", {2, 2, 2}, true},
    {"int8_groups_40", {2, 2, 2}, true},
    {"f8_scaled_columns_8", {2, 2, 2}, true},
    {"f8_scaled_columns_40", {2, 2, 2}, true},
    {"int4_scaled_rows_8", {2, 2, 2}},
    {"int4_scaled_rows_40", {2, 2, 2}},
    {"f32_weights_8", {2, 2, 2}},
    {"f32_weights_40", {2, 2, 2}},
    {"int8_scaled_rows", {2, 2, 2}},
    {"int8_groups", {2, 2, 2}},
    {"f8_scaled_columns", {2, 2, 2}},
    {"both_of_f32", {3, 1, 1}},
    {"normalised_rows", {2, 2, 2}},
    {"gelu_first", {2, 2, 2}},
    {"gathered_rows", {2, 2, 2}},
    {"bias_gelu_residual", {1, 1, 1}},
    {"transposed_result", {1, 1, 1}},
    {"quantised", {1, 1, 1}},
    {"one_gates_another", {2, 2, 2}},
    {"one_first_for_all", {1, 1, 1}},
    {"gathered_for_experts", {2, 2, 2}},
    {"added_for_tokens", {4, 4, 4}},
};

TEST_CASE("products take on what comes before and after them") {
  constexpr int64_t kLess = 2048;
  const char* devices[] = {"EMU:CUDA:sm_90a", "EMU:CUDA:sm_80", "EMU:HIP:gfx942"};
  const std::vector<ProductVariant> variants = bench::product_variants();
  for (int d = 0; d < 3; ++d) {
    const EnvOverride use("DEVICE", devices[d]);
    Zeros zeros(devices[d]);
    for (const Expected& e : kExpected) {
      const auto v = std::ranges::find(variants, e.variant, &ProductVariant::name);
      REQUIRE_MESSAGE(v != variants.end(), e.variant);
      ProductInputs in = zeros.inputs(kBF16);
      const Kernels found = kernels_of(v->make(in, v->at(kLess)), devices[d]);
      const std::string what = cat(v->name, " on ", devices[d], ":", found.text);
      CHECK_MESSAGE(found.all == e.kernels[d], what);
      CHECK_MESSAGE(found.on_units >= 1, what);
      if (e.bytes && d != 2) CHECK_MESSAGE(!found.waits, what);
    }
  }
}

// --- Values --------------------------------------------------------------------------------------

// Small numbers, each sum of products of which is exact.
ProductInputs filled(const std::string& device, DType dtype) {
  const auto source = [device, count = size_t{0}](const Shape& shape, DType t,
                                                  int64_t below) mutable {
    ++count;
    const auto size = static_cast<size_t>(numel(shape));
    const size_t range = below > 0 ? static_cast<size_t>(below) : t == kU8 ? 256 : 11;
    const size_t step = below > 2 ? 7919 : 7;  // of places, that they are all different
    std::vector<float> values(size);
    for (size_t i = 0; i < size; ++i)
      values[i] = static_cast<float>((i * step + (below > 2 ? 0 : count * 5 + i / 13)) % range) -
                  (range == 11 ? 5 : 0);
    Tensor x = Tensor::from(values, shape, device).to(t);
    x.realize();
    return x;
  };
  return {source, dtype};
}

// Of few terms and results, as an interpreter and emulators compute them.
ProductSizes small_sizes(const ProductVariant& v) {
  constexpr int64_t kMax = 5000000, kLargest = 80000000;  // of multiplications
  if (!v.is_sized) return v.at(128);
  for (const int64_t side : {64, 32, 16}) {
    const ProductSizes s = v.at(side);
    if (s.m * s.n * s.k * s.batch < kMax) return s;
  }
  ProductSizes s = v.at(8);
  while (s.m * s.n * s.k * s.batch > kLargest) s.k /= 2;  // the interpreter stores each
  return s;
}

// Sums of squares of what is expected and of what differs from it.
void check_near(const std::vector<double>& got, const std::vector<double>& expected, double most,
                const std::string& what) {
  REQUIRE_MESSAGE(got.size() == expected.size(), what);
  double error = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += std::pow(got[i] - expected[i], 2);
    norm += std::pow(expected[i], 2);
  }
  CHECK_MESSAGE(std::sqrt(error) <= most * std::sqrt(norm), what);
}

using Values = std::vector<std::vector<double>>;

Values computed(const ProductVariant& v, const std::string& device, DType dtype) {
  const EnvOverride use("DEVICE", device);
  ProductInputs in = filled(device, dtype);
  std::vector<Tensor> outputs = v.make(in, small_sizes(v));
  std::vector<Tensor*> all;
  for (Tensor& t : outputs) all.push_back(&t);
  Tensor::realize(all);
  Values out;
  for (const Tensor& t : outputs) out.push_back(t.to(kF64).to("CPU").to_vector<double>());
  return out;
}

Values interpreted(const ProductVariant& v, DType dtype) {
  const EnvOverride use("DEVICE", "CPU");
  ProductInputs in = filled("CPU", dtype);
  std::vector<Node> roots;
  const std::vector<Tensor> outputs = v.make(in, small_sizes(v));
  for (const Tensor& t : outputs) roots.push_back(t.node());
  Values out;
  for (const HostTensor& t : evaluate(roots)) out.push_back(t.numbers());
  return out;
}

TEST_CASE("variants of products are right, for each dtype on each device") {
  const EnvOverride rounds("ALLOW_TF32", "1");
  for (const ProductVariant& v : bench::product_variants())
    for (const DType dtype : {kBF16, kF16, kF32, kF8E4M3}) {
      if (dtype.is_f8() && !v.takes_f8) continue;
      const std::string name = cat(v.name, " of ", dtype);
      std::vector<std::string> devices;
      for (const std::string& device : test_devices()) {
        const int64_t others = dtype == kBF16 ? 1 : 8;  // other dtypes share their code with bf16
        if (is_in_turn(name, parts_on(device) * others)) devices.push_back(device);
      }
      if (devices.empty()) continue;
      const Values expected = interpreted(v, dtype);
      // One number that is rounded to the other side of a tie is far off among 8-bit floats.
      const double most = dtype.is_f8() ? 2e-2 : 4e-3;
      Arena::global().collect();
      for (const std::string& device : devices) {
        const Values got = computed(v, device, dtype);
        REQUIRE(got.size() == expected.size());
        for (size_t i = 0; i < got.size(); ++i)
          check_near(got[i], expected[i], most, cat(name, " on ", device));
      }
    }
}

}  // namespace
}  // namespace tiny
