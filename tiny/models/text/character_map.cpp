#include "tiny/models/text/character_map.h"

#include <algorithm>

#include "tiny/base/error.h"
#include "tiny/models/text/unicode.h"

namespace tiny::models::tokenizers {
namespace {

// A unit of darts-clone: bits 0 to 7 and 31 the label, bit 8 whether a string ends, bit 9 whether
// the offset in bits 10 to 30 counts 256 units each; or, after an end, a value in bits 0 to 30.
constexpr size_t offset_of(uint32_t unit) { return (unit >> 10) << ((unit & 1u << 9) >> 6); }
constexpr uint32_t label_of(uint32_t unit) { return unit & (1u << 31 | 0xff); }
constexpr bool ends_string(uint32_t unit) { return (unit >> 8 & 1) != 0; }
constexpr size_t value_of(uint32_t unit) { return unit & ~(1u << 31); }

uint32_t little_endian(std::string_view bytes) {
  uint32_t value = 0;
  for (int i = 3; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

int base64_digit(char c) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const size_t at = kDigits.find(c);
  check(at != std::string_view::npos, "a character map is no base64: it has the byte ",
        static_cast<int>(static_cast<unsigned char>(c)));
  return static_cast<int>(at);
}

}  // namespace

CharacterMap::CharacterMap(std::string_view bytes) {
  check(bytes.size() >= 4, "a character map has ", bytes.size(), " bytes");
  const size_t size = little_endian(bytes);
  bytes.remove_prefix(4);
  check(size % 4 == 0 && size > 0 && size <= bytes.size(), "a character map's trie has ", size,
        " bytes of ", bytes.size());
  for (size_t i = 0; i < size; i += 4) units_.push_back(little_endian(bytes.substr(i)));
  replacements_ = bytes.substr(size);
  check(is_valid_utf8(replacements_), "a character map's replacements are no valid UTF-8");
}

CharacterMap CharacterMap::from_base64(std::string_view text) {
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  while (text.ends_with('=')) text.remove_suffix(1);
  for (const char c : text) {
    bits = bits << 6 | static_cast<uint32_t>(base64_digit(c));
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> count & 0xff);
  }
  return CharacterMap(bytes);
}

CharacterMap::Prefix CharacterMap::find_prefix(std::string_view text, bool longest) const {
  Prefix found{0, {}};
  size_t node = offset_of(units_[0]);
  for (size_t i = 0; i < text.size() && text[i] != '\0'; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    node ^= byte;
    if (node >= units_.size() || label_of(units_[node]) != byte) break;
    const uint32_t unit = units_[node];
    node ^= offset_of(unit);
    if (!ends_string(unit)) continue;
    const size_t begin = node < units_.size() ? value_of(units_[node]) : replacements_.size();
    check(begin < replacements_.size() && (replacements_[begin] & 0xc0) != 0x80,
          "a character map names the replacement at ", begin, " of ", replacements_.size());
    const size_t end = std::min(replacements_.find('\0', begin), replacements_.size());
    found = {i + 1, std::string_view(replacements_).substr(begin, end - begin)};
    if (!longest) break;
  }
  return found;
}

std::string CharacterMap::replace_longest(std::string_view text) const {
  std::string out;
  while (!text.empty()) {
    const Prefix found = find_prefix(text, true);
    const size_t size = found.size ? found.size : utf8_size(text[0]);
    out += found.size ? found.replacement : text.substr(0, size);
    text.remove_prefix(size);
  }
  return out;
}

std::string CharacterMap::replace_graphemes(std::string_view text) const {
  std::string out;
  const auto replace = [&](std::string_view part) {
    const Prefix found = find_prefix(part, false);
    if (found.size) out += found.replacement;
    return found.size > 0;
  };
  size_t begin = 0;
  for (const size_t end : grapheme_ends(text)) {
    const std::string_view grapheme = text.substr(begin, end - begin);
    begin = end;
    if (grapheme.size() < 6 && replace(grapheme)) continue;
    for_each_code_point(grapheme, [&](char32_t, size_t at, size_t size) {
      const std::string_view part = grapheme.substr(at, size);
      if (!replace(part)) out += part;
    });
  }
  return out;
}

}  // namespace tiny::models::tokenizers
