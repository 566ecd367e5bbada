#include "tiny/models/files/formats/dequantize.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "test/error_of.h"
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
    REQUIRE(has_quantized_parts(type));
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
