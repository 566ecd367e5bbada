#include "tiny/models/files/formats/dequantize.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "test/error_of.h"
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
  return (std::isnan(a) && std::isnan(b)) || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
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

TEST_CASE("rows of packed weights have the bits of the decoder") {
  const NoGrad no_grad;
  for (const char* name : kTypes) {
    CAPTURE(name);
    const StoredType& type = stored_type(name);
    const int64_t out = 37, blocks = type.elements == 32 ? 5 : 2;
    const std::vector<uint8_t> bytes = random_bytes(out * blocks * type.bytes, 3);
    const std::vector<float> expected = decoded(type, bytes);
    const Tensor stored = Tensor::from(bytes, {out, blocks * type.bytes});
    for (const auto how : {QuantizedProduct::Floats, QuantizedProduct::Bytes}) {
      const QuantizedWeight weight(stored, type, how);
      CHECK(weight.out() == out);
      REQUIRE(weight.in() == blocks * type.elements);
      const std::vector<float> all = weight.values().to_vector<float>();
      const std::vector<float> some =
          weight.rows(Tensor::from({36, 0, 17, 16})).to_vector<float>();
      size_t wrong = all.size() != expected.size();
      for (size_t i = 0; i < all.size(); ++i) wrong += !same_bits(all[i], expected[i]);
      const size_t in = static_cast<size_t>(weight.in());
      for (size_t r = 0; r < 4; ++r)
        for (size_t i = 0; i < in; ++i) {
          const size_t row = std::vector<size_t>{36, 0, 17, 16}[r];
          wrong += !same_bits(some[r * in + i], expected[row * in + i]);
        }
      CHECK(wrong == 0);
    }
  }
}
