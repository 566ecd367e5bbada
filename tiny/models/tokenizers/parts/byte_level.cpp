#include "tiny/models/tokenizers/parts/byte_level.h"

#include <array>
#include <cstdint>

#include "tiny/models/text/unicode.h"

namespace tiny::models::tokenizers {
namespace {

constexpr size_t kAlphabetEnd = 0x144;

struct Alphabet {
  std::array<std::string, 256> characters;
  std::array<int16_t, kAlphabetEnd> bytes;  // of the code points; -1: none

  Alphabet() {
    bytes.fill(-1);
    char32_t next = 0x100;
    for (size_t byte = 0; byte < 256; ++byte) {
      const bool prints = (0x21 <= byte && byte <= 0x7e) || (0xa1 <= byte && byte != 0xad);
      const char32_t c = prints ? static_cast<char32_t>(byte) : next++;
      append_utf8(characters[byte], c);
      bytes[c] = static_cast<int16_t>(byte);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet made;
  return made;
}

}  // namespace

void append_byte_level(std::string& out, std::string_view bytes) {
  const Alphabet& a = alphabet();
  for (const char c : bytes) out += a.characters[static_cast<unsigned char>(c)];
}

std::string to_byte_level(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  append_byte_level(out, bytes);
  return out;
}

std::string from_byte_level(std::string_view token) {
  const Alphabet& a = alphabet();
  std::string out;
  bool known = true;
  for_each_code_point(token, [&](char32_t c, size_t, size_t) {
    if (c >= kAlphabetEnd || a.bytes[c] < 0) {
      known = false;
    } else {
      out += static_cast<char>(a.bytes[c]);
    }
  });
  return known ? out : std::string(token);
}

}  // namespace tiny::models::tokenizers
