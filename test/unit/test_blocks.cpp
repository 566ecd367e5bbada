#include "tiny/models/files/formats/blocks.h"

#include <dlfcn.h>
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <limits>
#include <random>
#include <vector>

#include "tiny/base/error.h"
#include "tiny/models/files/formats/stored_type.h"

using namespace tiny;

namespace {

using Block = std::vector<uint8_t>;

// The `n` bits of little-endian bytes from bit `at` on.
int bits(const Block& b, int at, int n) {
  int value = 0;
  for (int i = 0; i < n; ++i) value |= (b[(at + i) / 8] >> ((at + i) % 8) & 1) << i;
  return value;
}

double half(const Block& b, int byte) {
  const int sign = bits(b, 8 * byte + 15, 1), e = bits(b, 8 * byte + 10, 5),
            m = bits(b, 8 * byte, 10);
  const double magnitude = e ? std::ldexp(1024 + m, e - 25) : std::ldexp(m, -24);
  return sign ? -magnitude : magnitude;
}

int signed_byte(int v) { return v < 128 ? v : v - 256; }

constexpr int kNonLinear[] = {-127, -104, -83, -65, -49, -35, -22, -10,
                              1,    13,   25,  38,  53,  69,  89,  113};
constexpr double kE2M1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6};

// Element i of a small block: its 4 low bits, the nibbles of which begin at the byte.
int nibble_of_32(const Block& b, int byte, int i) {
  return bits(b, 8 * (byte + i % 16) + (i < 16 ? 0 : 4), 4);
}

// Bits `n` at a time in planes: in each run of `run` elements byte l holds elements l, l + lanes,
// l + 2 lanes, ...
int plane(const Block& b, int byte, int i, int lanes, int n) {
  const int run = lanes * (8 / n), l = i % lanes, k = i % run / lanes;
  return bits(b, 8 * (byte + i / run * lanes + l) + n * k, n);
}

// 6 bits of the scale and of the minimum of a group in the twelve bytes of Q4_K and Q5_K: groups 0
// to 3 have a byte of their own, whose two high bits belong to groups 4 to 7.
int scale6(const Block& b, int byte, int g, bool minimum) {
  if (g < 4) return bits(b, 8 * (byte + g + (minimum ? 4 : 0)), 6);
  const int low = bits(b, 8 * (byte + 8 + g - 4) + (minimum ? 4 : 0), 4);
  return low + 16 * bits(b, 8 * (byte + g - 4 + (minimum ? 4 : 0)) + 6, 2);
}

int scale3(const Block& b, int byte, int g) {
  const int low = bits(b, 8 * (byte + g % 8) + (g < 8 ? 0 : 4), 4);
  return low + 16 * bits(b, 8 * (byte + 8 + g % 4) + 2 * (g / 4), 2) - 32;
}

// Element i of a block, exactly: what the formats' descriptions say, one element after the other.
double element(const std::string& type, const Block& b, int i) {
  if (type == "Q4_0") return half(b, 0) * (nibble_of_32(b, 2, i) - 8);
  if (type == "Q4_1") return half(b, 0) * nibble_of_32(b, 4, i) + half(b, 2);
  if (type == "Q5_0") return half(b, 0) * (nibble_of_32(b, 6, i) + 16 * bits(b, 16 + i, 1) - 16);
  if (type == "Q5_1")
    return half(b, 0) * (nibble_of_32(b, 8, i) + 16 * bits(b, 32 + i, 1)) + half(b, 2);
  if (type == "Q8_0") return half(b, 0) * signed_byte(b[2 + i]);
  if (type == "Q2_K")
    return half(b, 80) * bits(b, 8 * (i / 16), 4) * plane(b, 16, i, 32, 2) -
           half(b, 82) * bits(b, 8 * (i / 16) + 4, 4);
  if (type == "Q3_K")
    return half(b, 108) * scale3(b, 96, i / 16) *
           (plane(b, 32, i, 32, 2) + 4 * plane(b, 0, i, 32, 1) - 4);
  if (type == "Q4_K")
    return half(b, 0) * scale6(b, 4, i / 32, false) * plane(b, 16, i, 32, 4) -
           half(b, 2) * scale6(b, 4, i / 32, true);
  if (type == "Q5_K")
    return half(b, 0) * scale6(b, 4, i / 32, false) *
               (plane(b, 48, i, 32, 4) + 16 * plane(b, 16, i, 32, 1)) -
           half(b, 2) * scale6(b, 4, i / 32, true);
  if (type == "Q6_K")
    return half(b, 208) * signed_byte(b[192 + i / 16]) *
           (plane(b, 0, i, 64, 4) + 16 * plane(b, 128, i, 32, 2) - 32);
  if (type == "IQ4_NL") return half(b, 0) * kNonLinear[nibble_of_32(b, 2, i)];
  if (type == "IQ4_XS") {
    const int g = i / 32, scale = bits(b, 32 + 4 * g, 4) + 16 * bits(b, 16 + 2 * g, 2) - 32;
    return half(b, 0) * scale * kNonLinear[nibble_of_32(b, 8 + 16 * g, i % 32)];
  }
  REQUIRE(type == "MXFP4");
  return std::ldexp(kE2M1[nibble_of_32(b, 1, i)], b[0] - 127);
}

constexpr const char* kQuantised[] = {"Q4_0", "Q4_1", "Q5_0", "Q5_1",   "Q8_0",   "Q2_K", "Q3_K",
                                      "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"};

std::vector<float> decoded(const StoredType& type, const Block& b) {
  std::vector<float> out(b.size() / type.bytes * type.elements, -1);
  type.decode(reinterpret_cast<const std::byte*>(b.data()), static_cast<int64_t>(out.size()),
              out.data());
  return out;
}

// Random bytes, of which no f16 is an infinity or no number.
Block random_block(const StoredType& type, std::mt19937& random) {
  Block b(type.bytes);
  for (uint8_t& byte : b) byte = static_cast<uint8_t>(random());
  const std::string name = type.name;
  std::vector<int> halves = {0};
  if (name == "Q4_1" || name == "Q5_1" || name == "Q4_K" || name == "Q5_K") halves = {0, 2};
  if (name == "Q2_K") halves = {80, 82};
  if (name == "Q3_K") halves = {108};
  if (name == "Q6_K") halves = {208};
  if (name == "MXFP4") halves = {};
  for (int at : halves)
    if ((b[at + 1] & 0x7c) == 0x7c) b[at + 1] ^= 0x40;
  return b;
}

bool same_bits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

// A block whose other bytes are 0.
Block block_of(int size, std::initializer_list<std::pair<int, int>> bytes) {
  Block b(size);
  for (const auto& [at, value] : bytes) b[at] = static_cast<uint8_t>(value);
  return b;
}

std::vector<std::byte> encoded(const StoredType& type, const std::vector<float>& values) {
  std::vector<std::byte> out(values.size() / type.elements * type.bytes);
  type.encode(values.data(), static_cast<int64_t>(values.size()), out.data());
  return out;
}

// Blocks of numbers that are hard to round: ties, tiny and huge ones, zeros.
std::vector<float> hard_values() {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> values;
  for (int exponent : {0, -3, 10, -20, -60, -126, -135, -145, 100, 120})
    for (int i = 0; i < 32 * 40; ++i) values.push_back(std::ldexp(normal(random), exponent));
  for (int i = 0; i < 64; ++i) values.push_back(i < 32 ? 0.0f : -0.0f);
  for (int i = 0; i < 32; ++i) values.push_back(static_cast<float>(i - 16) / 2);
  for (int i = 0; i < 32; ++i) values.push_back(i == 0 ? 127.0f : static_cast<float>(i) + 0.5f);
  // Of groups that lie above zero, below it, and are all one number: whole blocks of 256.
  for (int i = 0; i < 128; ++i)
    values.push_back((i < 32   ? 2.0f
                      : i < 64 ? -2.0f
                               : 0.0f) +
                     (i < 64   ? std::abs(normal(random))
                      : i < 96 ? 0.75f
                               : -0.75f));
  return values;
}

// "q4_0", "q4_K", "iq4_nl", "mxfp4"
std::string ggml_name(std::string type) {
  for (char& c : type)
    if (c != 'K') c = to_lower(c);
  return type;
}

// llama.cpp's own functions, where its library is at hand.
void* ggml_library() {
  const char* set = std::getenv("NODE_MODULES");
  const std::string folder = set ? set : TINY_ROOT "/build/node_modules";
  return dlopen((folder + "/@node-llama-cpp/linux-x64/bins/linux-x64/libggml-base.so").c_str(),
                RTLD_NOW);
}

}  // namespace

TEST_CASE("blocks of every quantised type decode to what their description says, bit for bit") {
  std::mt19937 random(1);
  for (const char* name : kQuantised) {
    CAPTURE(name);
    const StoredType& type = stored_type(name);
    for (int round = 0; round < 200; ++round) {
      const Block b = random_block(type, random);
      const std::vector<float> found = decoded(type, b);
      for (int i = 0; i < type.elements; ++i) {
        CAPTURE(i);
        const auto expected = static_cast<float>(element(name, b, i));
        REQUIRE((found[i] == 0 ? expected == 0 : same_bits(found[i], expected)));
      }
    }
  }
}

TEST_CASE("blocks computed by hand decode to these values") {
  const auto at = [](const char* type, const Block& b, int i) {
    return decoded(stored_type(type), b)[i];
  };
  // 0x3800 is 0.5, 0x3c00 is 1, 0xc000 is -2 as an f16.
  CHECK(at("Q4_0", block_of(18, {{1, 0x38}, {2, 0xf3}}), 0) == -2.5f);
  CHECK(at("Q4_0", block_of(18, {{1, 0x38}, {2, 0xf3}}), 16) == 3.5f);
  CHECK(at("Q4_1", block_of(20, {{1, 0x38}, {3, 0xc0}, {19, 0x70}}), 31) == 1.5f);
  CHECK(at("Q5_0", block_of(22, {{1, 0x3c}, {5, 0x80}, {21, 0x50}}), 31) == 5.0f);
  CHECK(at("Q5_0", block_of(22, {{1, 0x3c}, {5, 0x80}, {21, 0x50}}), 30) == -16.0f);
  CHECK(at("Q5_1", block_of(24, {{1, 0x3c}, {3, 0xc0}, {4, 0x02}, {9, 0x07}}), 1) == 21.0f);
  CHECK(at("Q8_0", block_of(34, {{1, 0x38}, {33, 0x80}}), 31) == -64.0f);
  // Group 15: scale 3, minimum 2; element 255 is the high pair of bits of the last byte.
  CHECK(at("Q2_K", block_of(84, {{15, 0x23}, {79, 0xc0}, {81, 0x3c}, {83, 0x38}}), 255) == 8.0f);
  // Scales of 0 mean -32; group 9's are the high nibble of byte 1 and bits 4, 5 of byte 9.
  CHECK(at("Q3_K", block_of(110, {{109, 0x3c}}), 0) == 128.0f);
  const Block q3 = block_of(110, {{16, 0x10}, {80, 0x02}, {97, 0x50}, {105, 0x20}, {109, 0x3c}});
  CHECK(at("Q3_K", q3, 144) == 10.0f);
  CHECK(at("Q3_K", q3, 145) == -20.0f);
  // Group 5: low nibbles in byte 9 of the scales, high bits in bytes 1 and 5.
  CHECK(at("Q4_K",
           block_of(144, {{1, 0x3c}, {3, 0x38}, {5, 0x80}, {9, 0x40}, {13, 0x21}, {80, 0xa0}}),
           160) == 33 * 10 - 0.5f * 18);
  CHECK(at("Q5_K", block_of(176, {{1, 0x3c}, {4, 0x02}, {17, 0x01}, {49, 0x03}}), 1) == 38.0f);
  CHECK(at("Q6_K", block_of(210, {{63, 0x50}, {191, 0x00}, {159, 0x20}, {199, 0xff}, {209, 0x3c}}),
           127) == -(5 + 0 - 32.0f));
  CHECK(at("IQ4_NL", block_of(18, {{1, 0x38}, {2, 0xf0}}), 0) == -63.5f);
  CHECK(at("IQ4_NL", block_of(18, {{1, 0x38}, {2, 0xf0}}), 16) == 56.5f);
  // Group 7: low nibble in the last byte, high bits at the top of the word.
  CHECK(at("IQ4_XS", block_of(136, {{1, 0x3c}, {3, 0x80}, {7, 0x10}, {135, 0x90}}), 255) == 13.0f);
  CHECK(at("MXFP4", block_of(17, {{0, 128}, {1, 0xf7}}), 0) == 12.0f);
  CHECK(at("MXFP4", block_of(17, {{0, 128}, {1, 0xf7}}), 16) == -12.0f);
  CHECK(at("MXFP4", block_of(17, {{0, 0}, {1, 0x01}}), 0) == std::ldexp(1.0f, -128));
  CHECK(at("MXFP4", block_of(17, {{0, 255}, {1, 0x02}}), 0) == std::ldexp(1.0f, 127) * 2);
}

TEST_CASE("packed 4-bit floats and powers of two decode") {
  CHECK(decoded(stored_type("F4"), {0x7f, 0x81}) == std::vector<float>{-6, 6, 0.5f, -0.0f});
  const std::vector<float> powers = decoded(stored_type("F8_E8M0"), {127, 0, 254, 255});
  CHECK(powers[0] == 1);
  CHECK(powers[1] == std::ldexp(1.0f, -127));
  CHECK(powers[2] == std::ldexp(1.0f, 127));
  CHECK(std::isnan(powers[3]));
}

TEST_CASE("8-bit floats with one zero decode with the larger bias") {
  const std::vector<float> e4m3 =
      decoded(stored_type("F8_E4M3FNUZ"), {0, 1, 0x40, 0xc4, 0x7f, 128});
  CHECK(std::vector<float>(e4m3.begin(), e4m3.end() - 1) ==
        std::vector<float>{0, 0x1p-10f, 1, -1.5f, 240});
  CHECK(std::isnan(e4m3[5]));
  const std::vector<float> e5m2 =
      decoded(stored_type("F8_E5M2FNUZ"), {0, 1, 0x40, 0xc2, 0x7f, 128});
  CHECK(std::vector<float>(e5m2.begin(), e5m2.end() - 1) ==
        std::vector<float>{0, 0x1p-17f, 1, -1.5f, 57344});
  CHECK(std::isnan(e5m2[5]));
}

TEST_CASE("a block quantised by hand has these bytes") {
  std::vector<float> values(32);
  values[0] = -4, values[1] = 4, values[2] = 0.25f, values[17] = 1;
  // Q4_0: d = -4 / -8; 4 would be 16 and becomes 15, a tie of 8.5 + 0.5 goes up.
  const auto q4 = encoded(stored_type("Q4_0"), values);
  CHECK(q4[1] == std::byte{0x38});
  CHECK(q4[2] == std::byte{0x80});
  CHECK(q4[3] == std::byte{0xaf});
  CHECK(q4[4] == std::byte{0x89});
  values[0] = -127, values[1] = 2.5f, values[2] = -2.5f, values[17] = 127;
  const auto q8 = encoded(stored_type("Q8_0"), values);
  CHECK(q8[1] == std::byte{0x3c});
  CHECK(q8[2] == std::byte{0x81});
  CHECK(q8[3] == std::byte{3});
  CHECK(q8[4] == std::byte{0xfd});
  CHECK(q8[19] == std::byte{127});
}

TEST_CASE("quantising loses at most half a step") {
  const std::vector<float> values = hard_values();
  for (const char* name : {"Q4_0", "Q8_0"}) {
    const StoredType& type = stored_type(name);
    const auto bytes = encoded(type, values);
    for (size_t block = 0; block < 32 * 40 * 3 / 32; ++block) {  // of which f16 holds the scales
      float largest = 0;
      for (int i = 0; i < 32; ++i) largest = std::max(largest, std::abs(values[32 * block + i]));
      const float step = largest / (type.bytes == 18 ? 8 : 127);
      float out[32];
      type.decode(bytes.data() + block * type.bytes, 32, out);
      for (int i = 0; i < 32; ++i) {
        // Q4_0 has no +8: there it is a whole step.
        const float most = type.bytes == 18 ? 1.01f : 0.57f;
        REQUIRE(std::abs(out[i] - values[32 * block + i]) <= most * step);
      }
    }
  }
}

TEST_CASE("super-blocks keep as many digits as they have bits") {
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  std::vector<float> values(256 * 64);
  for (float& x : values) x = normal(random);
  for (const auto& [name, most] : {std::pair{"Q4_K", 0.073}, {"Q5_K", 0.037}, {"Q6_K", 0.018}}) {
    CAPTURE(name);
    for (int exponent : {0, -5, 6}) {
      std::vector<float> scaled = values, out(values.size());
      for (float& x : scaled) x = std::ldexp(x, exponent);
      const StoredType& type = stored_type(name);
      const auto bytes = encoded(type, scaled);
      type.decode(bytes.data(), static_cast<int64_t>(out.size()), out.data());
      double squares = 0;
      for (size_t i = 0; i < out.size(); ++i)
        squares += std::pow(std::ldexp(out[i] - scaled[i], -exponent), 2);
      CHECK(std::sqrt(squares / static_cast<double>(out.size())) < most);
    }
  }
}

TEST_CASE("decoding and quantising give llama.cpp's bits") {
  void* library = ggml_library();
  if (library == nullptr) {
    std::cout << "left out: llama.cpp's library is not in $NODE_MODULES (docs/files.md)\n";
    return;
  }
  std::mt19937 random(2);
  for (const char* name : kQuantised) {
    CAPTURE(name);
    using Decode = void (*)(const void*, float*, int64_t);
    const auto theirs =
        reinterpret_cast<Decode>(dlsym(library, ("dequantize_row_" + ggml_name(name)).c_str()));
    REQUIRE(static_cast<bool>(theirs));
    const StoredType& type = stored_type(name);
    for (int round = 0; round < 2000; ++round) {
      const Block b = random_block(type, random);
      const std::vector<float> ours = decoded(type, b);
      std::vector<float> expected(ours.size());
      theirs(b.data(), expected.data(), type.elements);
      REQUIRE(std::memcmp(ours.data(), expected.data(), 4 * ours.size()) == 0);
    }
  }
  const std::vector<float> values = hard_values();
  for (const char* name : {"Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K"}) {
    CAPTURE(name);
    using Encode = void (*)(const float*, void*, int64_t);
    const auto theirs = reinterpret_cast<Encode>(
        dlsym(library, ("quantize_row_" + ggml_name(name) + "_ref").c_str()));
    REQUIRE(static_cast<bool>(theirs));
    const StoredType& type = stored_type(name);
    const std::vector<std::byte> ours = encoded(type, values);
    std::vector<std::byte> expected(ours.size());
    theirs(values.data(), expected.data(), static_cast<int64_t>(values.size()));
    for (size_t i = 0; i < ours.size(); ++i) {
      CAPTURE(i);
      REQUIRE(ours[i] == expected[i]);
    }
  }
}
