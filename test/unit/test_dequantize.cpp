#include "tiny/models/files/formats/dequantize.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/lower.h"
#include "runtime/device/buffer.h"
#include "runtime/realize/realize.h"
#include "runtime/schedule/schedule.h"
#include "test/error_of.h"
#include "tiny/base/env.h"
#include "tiny/models/files/quantized_weight.h"
#include "tiny/tiny.h"

using namespace tiny;

namespace {

constexpr const char* kTypes[] = {"Q4_0", "Q4_1", "Q5_0", "Q5_1",   "Q8_0",   "Q2_K", "Q3_K",
                                  "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"};

// Random bytes: scales of every magnitude, subnormal ones among them, and now and then no number.
std::vector<uint8_t> random_bytes(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> out(static_cast<size_t>(count));
  for (uint8_t& b : out) b = static_cast<uint8_t>(random() >> 11);
  return out;
}

std::vector<float> decoded(const StoredType& type, const std::vector<uint8_t>& bytes) {
  const int64_t count = std::ssize(bytes) / type.bytes * type.elements;
  std::vector<float> out(static_cast<size_t>(count));
  type.decode(reinterpret_cast<const std::byte*>(bytes.data()), count, out.data());
  return out;
}

bool same_bits(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

// A weight of random codes whose scales are ordinary numbers, and its decoded values.
struct Example {
  const StoredType& type;
  int64_t out, in;
  Tensor stored;
  std::vector<float> values;

  Example(const char* name, int64_t out, int64_t blocks)
      : type(stored_type(name)), out(out), in(blocks * type.elements) {
    std::vector<uint8_t> bytes = random_bytes(out * blocks * type.bytes, 5);
    const std::string_view n = name;
    const size_t size = static_cast<size_t>(type.bytes);
    const size_t at = n == "Q2_K" ? 80 : n == "Q3_K" ? 108 : n == "Q6_K" ? 208 : 0;
    for (size_t block = 0; block < bytes.size(); block += size) {
      if (n == "MXFP4") {
        bytes[block] = static_cast<uint8_t>(120 + block % 5);
        continue;
      }
      bytes[block + at + 1] = static_cast<uint8_t>(0x20 | (bytes[block + at + 1] & 0x87));
      if (at == 0 || at == 80)  // the high byte of a minimum, or a few codes
        bytes[block + at + 3] = static_cast<uint8_t>(0x20 | (bytes[block + at + 3] & 0x87));
    }
    values = decoded(type, bytes);
    stored = Tensor::from(bytes, {out, blocks * type.bytes});
  }
};

std::vector<float> waves(int64_t count) {
  std::vector<float> x(static_cast<size_t>(count));
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<float>(std::sin(1.7 * static_cast<double>(i)) * (i % 64 < 32 ? 3 : 0.01));
  return x;
}

// As products of bytes see it: 32 neighbours in 127 steps of their largest magnitude.
std::vector<float> in_bytes(std::vector<float> x) {
  for (size_t begin = 0; begin < x.size(); begin += 32) {
    float largest = 0;
    for (size_t i = begin; i < begin + 32; ++i) largest = std::max(largest, std::abs(x[i]));
    const float scale = largest / 127;
    if (scale == 0) continue;
    for (size_t i = begin; i < begin + 32; ++i) x[i] = std::nearbyint(x[i] / scale) * scale;
  }
  return x;
}

std::vector<float> in_halves(std::vector<float> x) {
  for (float& value : x) value = static_cast<float>(static_cast<BFloat16>(value));
  return x;
}

// The largest error of y = x W^T beside the sum of the terms' magnitudes.
double worst_error(const std::vector<float>& y, const std::vector<float>& x, const Example& w) {
  double worst = 0;
  for (size_t at = 0; at < y.size(); ++at) {
    const size_t in = static_cast<size_t>(w.in), row = at / static_cast<size_t>(w.out) * in;
    const size_t column = at % static_cast<size_t>(w.out) * in;
    double sum = 0, magnitude = 1e-30;
    for (size_t i = 0; i < in; ++i) {
      const double term = static_cast<double>(x[row + i]) * w.values[column + i];
      sum += term;
      magnitude += std::abs(term);
    }
    worst = std::max(worst, std::abs(sum - y[at]) / magnitude);
  }
  return worst;
}

bool has_byte_products(const std::string& name) {
  return name != "IQ4_NL" && name != "IQ4_XS" && name != "MXFP4";
}

}  // namespace

TEST_CASE("dequantising by tensor operations gives the bits of the decoder") {
  for (const char* name : kTypes) {
    CAPTURE(name);
    const StoredType& type = stored_type(name);
    REQUIRE(has_quantized_blocks(type));
    const int64_t rows = 24, row = 4 * type.bytes;
    const std::vector<uint8_t> bytes = random_bytes(rows * row, 7);
    const std::vector<float> expected = decoded(type, bytes);
    const Tensor values = dequantize(Tensor::from(bytes, {rows, row}), type);
    CHECK(values.dtype() == kF32);
    REQUIRE(to_shape(values.shape()) == Shape{rows, 4 * type.elements});
    const std::vector<float> got = values.to_vector<float>();
    size_t wrong = 0;
    for (size_t i = 0; i < got.size(); ++i) wrong += !same_bits(got[i], expected[i]);
    CHECK(wrong == 0);
  }
}

TEST_CASE("rows of weights have the bits of the decoder, packed or not") {
  const NoGrad no_grad;
  const std::vector<size_t> some{36, 0, 17, 16};
  for (const char* name : kTypes) {
    CAPTURE(name);
    const StoredType& type = stored_type(name);
    const int64_t out = 37, blocks = type.elements == 32 ? 5 : 2;
    const std::vector<uint8_t> bytes = random_bytes(out * blocks * type.bytes, 3);
    const std::vector<float> expected = decoded(type, bytes);
    const Tensor stored = Tensor::from(bytes, {out, blocks * type.bytes});
    for (const auto how : {QuantizedProduct::Floats, QuantizedProduct::Bytes}) {
      const QuantizedWeight weight(stored, type, how);
      CHECK((weight.product() == QuantizedProduct::Bytes) ==
            (how == QuantizedProduct::Bytes && has_byte_products(name)));
      REQUIRE(weight.in() == blocks * type.elements);
      const std::vector<float> all = weight.values().to_vector<float>();
      const std::vector<float> rows = weight.rows(Tensor::from({36, 0, 17, 16})).to_vector<float>();
      REQUIRE(all.size() == expected.size());
      const auto in = static_cast<size_t>(weight.in());
      REQUIRE(rows.size() == some.size() * in);
      size_t wrong = 0;
      for (size_t i = 0; i < all.size(); ++i) wrong += !same_bits(all[i], expected[i]);
      for (size_t i = 0; i < rows.size(); ++i)
        wrong += !same_bits(rows[i], expected[some[i / in] * in + i % in]);
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("products with quantised weights are those with their values") {
  const NoGrad no_grad;
  for (const char* name : kTypes) {
    const Example w(name, 37, 2);
    const QuantizedWeight floats(w.stored, w.type);
    const QuantizedWeight bytes(w.stored, w.type, QuantizedProduct::Bytes);
    for (const int64_t rows : {1, 5, 33}) {
      CAPTURE(name);
      CAPTURE(rows);
      const std::vector<float> x = waves(rows * w.in);
      const Tensor given = Tensor::from(x, {1, rows, w.in});
      const Tensor y = floats.linear(given);
      REQUIRE(to_shape(y.shape()) == Shape{1, rows, w.out});
      CHECK(worst_error(y.to_vector<float>(), x, w) < 1e-6);
      const std::vector<float> rounded = bytes.linear(given).to_vector<float>();
      const bool exact = bytes.product() == QuantizedProduct::Floats;
      CHECK(worst_error(rounded, exact ? x : in_bytes(x), w) < 1e-6);
      CHECK(worst_error(rounded, x, w) < 2e-2);
    }
  }
}

TEST_CASE("many rows and values are rounded to bf16 where there are tiles of it") {
  constexpr const char* kDevice = "CPU:71";
  {
    const EnvOverride units("CPU_UNITS", "plain amx-bf16"), cores("THREADS", "2");
    find_device(kDevice);
  }
  const NoGrad no_grad;
  for (const char* name : kTypes) {
    if (!has_byte_products(name)) continue;
    const Example w(name, 37, 2);
    Example rounded = w;
    rounded.values = in_halves(w.values);
    const QuantizedWeight weight(w.stored.to(kDevice), w.type, QuantizedProduct::Bytes);
    // 50 rows are too few for tiles beside 37 columns, and rounded all the same.
    for (const int64_t rows : {47, 50, 70}) {
      CAPTURE(name);
      CAPTURE(rows);
      const std::vector<float> x = waves(rows * w.in);
      const Tensor y = weight.linear(Tensor::from(x, {rows, w.in}).to(kDevice));
      REQUIRE(to_shape(y.shape()) == Shape{rows, w.out});
      const bool halves = rows > 47;
      const double error = worst_error(y.to_vector<float>(), halves ? in_halves(x) : in_bytes(x),
                                       halves ? rounded : w);
      CHECK(error < 1e-6);
    }
  }
}

TEST_CASE("values of a quantised weight are computed straight into tiles, by vectors of columns") {
  const NoGrad no_grad;
  constexpr const char* kDevice = "CPU:71";  // of the test above
  const EnvOverride units("CPU_UNITS", "plain amx-bf16"), cores("THREADS", "2");
  find_device(kDevice);
  for (const char* name : {"Q4_0", "Q8_0", "Q4_K", "Q6_K"}) {
    CAPTURE(name);
    const Example w(name, 256, name[3] == 'K' ? 4 : 32);
    const QuantizedWeight weight(w.stored.to(kDevice), w.type, QuantizedProduct::Bytes);
    const int64_t rows = 64;
    Jit product([&](const Tensor& x) { return weight.linear(x); });
    const Tensor x = Tensor::from(waves(rows * w.in), {rows, w.in}).to(kDevice).realize();
    for (int call = 0; call < 3; ++call) product(x).realize();
    // Both operands as bf16; values as floats would be four bytes each beside them.
    CHECK(product.statistics().arena_bytes < 3 * w.out * w.in + 3 * rows * w.in);
    CHECK(product.statistics().kernels == 3);
  }
}

TEST_CASE("a vector's product with a quantised weight reads several streams, asked for ahead") {
  const NoGrad no_grad;
  Target target;
  target.kind = Target::Kind::Cpu;
  target.language = Target::Language::LlvmIr;
  target.vector_bytes = 64;
  target.cores = 2;
  target.arch = "avx512vnni";
  const auto kernel_of = [&](int64_t out) {
    const Example w("Q4_0", out, 64);
    const QuantizedWeight weight(w.stored, w.type, QuantizedProduct::Bytes);
    const Tensor y = weight.linear(Tensor::from(waves(w.in), {1, w.in}));
    const Node root = y.node();
    const Normalized graph = normalize({&root, 1});
    std::vector<int> devices;
    for (Node b : graph.buffers) devices.push_back(b->device);
    const auto plan = schedule(graph, devices, device_id("CPU"));
    return lower(plan->steps.back().kernel.get(), "k", target);
  };
  const Lowered large = kernel_of(2048), small = kernel_of(64);
  CHECK(has(to_text(large.options), "split r0 4, bind r3 unroll"));
  CHECK(has(large.source.text, "llvm.prefetch"));
  CHECK_FALSE(has(to_text(small.options), "unroll"));  // too little for two cores
  CHECK_FALSE(has(small.source.text, "llvm.prefetch"));
}

TEST_CASE("gradients pass through quantised weights to what is multiplied") {
  const Example w("Q4_K", 20, 1);
  const Tensor seed = Tensor::from(waves(3 * w.out), {3, w.out});
  const auto gradient = [&](const auto& product) {
    Tensor x = Tensor::from(waves(3 * w.in), {3, w.in}).requires_grad_();
    product(x).backward(seed);
    return x.grad().to_vector<float>();
  };
  const Tensor values = Tensor::from(w.values, {w.out, w.in});
  const std::vector<float> expected = gradient([&](const Tensor& x) { return x.linear(values); });
  for (const auto how : {QuantizedProduct::Floats, QuantizedProduct::Bytes}) {
    const QuantizedWeight weight(w.stored, w.type, how);
    const std::vector<float> got = gradient([&](const Tensor& x) { return weight.linear(x); });
    REQUIRE(got.size() == expected.size());
    for (size_t i = 0; i < got.size(); ++i)
      CHECK(got[i] == doctest::Approx(expected[i]).epsilon(1e-4));
  }
}

TEST_CASE("a product computes no copy of a quantised weight's values") {
  const NoGrad no_grad;
  for (const char* name : kTypes) {
    CAPTURE(name);
    const Example w(name, 256, stored_type(name).elements == 32 ? 32 : 4);
    for (const auto how : {QuantizedProduct::Floats, QuantizedProduct::Bytes}) {
      const QuantizedWeight weight(w.stored, w.type, how);
      CHECK(weight.bytes() <= w.stored.numel() * 6 / 5);
      Jit product([&](const Tensor& x) { return weight.linear(x); });
      const Tensor x = Tensor::from(waves(w.in), {1, w.in}).realize();
      for (int call = 0; call < 3; ++call) product(x).realize();
      // Scales at most, of floats: values would be four bytes each.
      CHECK(product.statistics().arena_bytes < w.out * w.in);
    }
  }
}

TEST_CASE("integers with grouped scales are multiplied as they are") {
  const NoGrad no_grad;
  std::mt19937 random(9);
  const int64_t out = 20, in = 256;
  for (const int bits : {4, 8})
    for (const int64_t group : {32, 64, 128}) {
      CAPTURE(bits);
      CAPTURE(group);
      std::vector<int8_t> codes(static_cast<size_t>(out * in));
      const int lowest = -(1 << (bits - 1));
      for (int8_t& c : codes)
        c = static_cast<int8_t>(lowest + static_cast<int>(random() >> 8) % (1 << bits));
      std::vector<float> scale(static_cast<size_t>(out * in / group)), min = scale;
      for (float& s : scale) s = 0.01f + static_cast<float>(random() % 100) / 5000;
      for (float& m : min) m = static_cast<float>(random() % 100) / 1000 - 0.05f;
      Example w("Q4_0", out, in / 32);  // of its size
      for (size_t i = 0; i < codes.size(); ++i) {
        const size_t g = i / static_cast<size_t>(group);
        w.values[i] = static_cast<float>(codes[i]) * scale[g] - min[g];
      }
      const QuantizedBlocks blocks = quantized_blocks(Tensor::from(codes, {out, in}), bits,
                                                      Tensor::from(scale, {out, in / group}),
                                                      Tensor::from(min, {out, in / group}));
      const std::vector<float> x = waves(2 * in);
      for (const auto how : {QuantizedProduct::Floats, QuantizedProduct::Bytes}) {
        const QuantizedWeight weight(blocks, how);
        CHECK(weight.product() == how);
        const std::vector<float> y = weight.linear(Tensor::from(x, {2, in})).to_vector<float>();
        CHECK(worst_error(y, how == QuantizedProduct::Bytes ? in_bytes(x) : x, w) < 1e-6);
        CHECK(weight.values().to_vector<float>() == w.values);
      }
    }
}

TEST_CASE("integers of four bits lie two in a byte, the first in the low bits") {
  const Tensor bytes = Tensor::from(std::vector<uint8_t>{0x10, 0x8f, 0x7a}, {3});
  CHECK(unpack_int4(bytes).to_vector<int8_t>() == std::vector<int8_t>{0, 1, -1, -8, -6, 7});
}

TEST_CASE("what is no quantised weight is an error with its sizes") {
  const Tensor bytes = Tensor::from(std::vector<uint8_t>(40), {2, 20});
  CHECK(has(error_of([&] { dequantize(bytes, stored_type("Q4_0")); }),
            "u8 (2,20), expected u8 with rows of whole blocks of Q4_0, 18 bytes each"));
  CHECK(has(error_of([&] { dequantize(bytes, stored_type("F16")); }),
            "F16 is no type of quantised blocks that is known"));
  CHECK(has(error_of([&] { dequantize(bytes.to(kI8), stored_type("Q4_1")); }), "i8 (2,20)"));
  const QuantizedWeight weight(bytes, stored_type("Q4_1"));
  CHECK(has(error_of([&] {
              weight.linear(Tensor::zeros({3, 31}));
            }),
            "f32 (3,31) by a weight (2,32): expected floats whose last axis is 32"));
  const Tensor codes = Tensor::zeros({2, 32}, kI8);
  CHECK(has(error_of([&] { quantized_blocks(codes, 9, Tensor::ones({2, 1})); }), "9 bits"));
  CHECK(has(error_of([&] { quantized_blocks(codes, 4, Tensor::ones({2, 3})); }), "(2,3)"));
}
