#include "tiny/models/text/unicode.h"

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "tiny/base/error.h"

#if __has_include(<utf8proc.h>)
#include <utf8proc.h>
#define TINY_HAS_UTF8PROC 1
#endif

namespace tiny::models::tokenizers {
namespace {

bool is_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<int8_t>(c) >= 0; });
}

constexpr bool is_between(char32_t c, char32_t first, char32_t last) {
  return first <= c && c <= last;
}

// What may follow the first byte of a character: the Unicode Standard, table 3-7.
struct SecondByte {
  size_t size;  // of the whole character; 0: no character begins so
  unsigned char low, high;
};

SecondByte second_byte(unsigned char first) {
  if (first < 0x80) return {1, 0, 0};
  if (first < 0xc2 || first > 0xf4) return {0, 0, 0};
  if (first < 0xe0) return {2, 0x80, 0xbf};
  if (first < 0xf0)
    return {3, static_cast<unsigned char>(first == 0xe0 ? 0xa0 : 0x80),
            static_cast<unsigned char>(first == 0xed ? 0x9f : 0xbf)};
  return {4, static_cast<unsigned char>(first == 0xf0 ? 0x90 : 0x80),
          static_cast<unsigned char>(first == 0xf4 ? 0x8f : 0xbf)};
}

struct Sequence {
  size_t size;
  bool valid;
};

// A valid character, or the maximal part of an ill-formed one.
Sequence sequence_at(std::string_view bytes, size_t at) {
  const SecondByte next = second_byte(static_cast<unsigned char>(bytes[at]));
  if (next.size < 2) return {1, next.size == 1};
  for (size_t i = 1; i < next.size; ++i) {
    if (at + i == bytes.size()) return {i, false};
    const auto byte = static_cast<unsigned char>(bytes[at + i]);
    const bool ok = i == 1 ? next.low <= byte && byte <= next.high : (byte & 0xc0) == 0x80;
    if (!ok) return {i, false};
  }
  return {next.size, true};
}

// How many bytes at the begin are valid.
size_t valid_prefix(std::string_view bytes) {
  size_t at = 0;
  while (at < bytes.size()) {
    if (static_cast<int8_t>(bytes[at]) >= 0) {
      ++at;
      continue;
    }
    const Sequence s = sequence_at(bytes, at);
    if (!s.valid) break;
    at += s.size;
  }
  return at;
}

}  // namespace

bool is_valid_utf8(std::string_view bytes) { return valid_prefix(bytes) == bytes.size(); }

std::string valid_utf8(std::string_view bytes) {
  std::string out;
  while (true) {
    const size_t valid = valid_prefix(bytes);
    out += bytes.substr(0, valid);
    bytes.remove_prefix(valid);
    if (bytes.empty()) return out;
    append_utf8(out, 0xfffd);
    bytes.remove_prefix(sequence_at(bytes, 0).size);
  }
}

CodePoint code_point_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const auto tail = [&](size_t i) { return static_cast<char32_t>(byte(i) & 0x3f); };
  const size_t size = utf8_size(text[at]);
  switch (size) {
    case 1: return {byte(0), 1};
    case 2: return {(byte(0) & 0x1fu) << 6 | tail(1), 2};
    case 3: return {(byte(0) & 0xfu) << 12 | tail(1) << 6 | tail(2), 3};
    default: return {(byte(0) & 7u) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3), 4};
  }
}

void append_utf8(std::string& text, char32_t c) {
  const auto tail = [&](int shift) { text += static_cast<char>(0x80 | ((c >> shift) & 0x3f)); };
  if (c < 0x80) {
    text += static_cast<char>(c);
  } else if (c < 0x800) {
    text += static_cast<char>(0xc0 | c >> 6);
    tail(0);
  } else if (c < 0x10000) {
    text += static_cast<char>(0xe0 | c >> 12);
    tail(6), tail(0);
  } else {
    text += static_cast<char>(0xf0 | c >> 18);
    tail(12), tail(6), tail(0);
  }
}

bool is_white_space(char32_t c) {
  if (c < 0x80) return c == ' ' || is_between(c, '\t', '\r');
  return c == 0x85 || c == 0xa0 || c == 0x1680 || is_between(c, 0x2000, 0x200a) || c == 0x2028 ||
         c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

// As google-research/bert's tokenization.py lists them, but for U+2B820 to U+2B91F, which the
// library `tokenizers` leaves out.
bool is_han_ideograph(char32_t c) {
  return is_between(c, 0x4e00, 0x9fff) || is_between(c, 0x3400, 0x4dbf) ||
         is_between(c, 0x20000, 0x2a6df) || is_between(c, 0x2a700, 0x2b81f) ||
         is_between(c, 0x2b920, 0x2ceaf) || is_between(c, 0xf900, 0xfaff) ||
         is_between(c, 0x2f800, 0x2fa1f);
}

std::string lower_case(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for_each_code_point(text, [&](char32_t c, size_t, size_t) { append_lower_case(out, c); });
  return out;
}

#if TINY_HAS_UTF8PROC

namespace {

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

constexpr bool is_ascii_alphanumeric(char32_t c) {
  return is_between(c, '0', '9') || is_between(c | 0x20, 'a', 'z');
}

}  // namespace

bool is_word(char32_t c) {
  if (c < 0x80) return is_ascii_alphanumeric(c) || c == '_';
  // Letters that are symbols to the general category: Other_Alphabetic of PropList.txt.
  if (is_between(c, 0x24b6, 0x24e9) || is_between(c, 0x1f130, 0x1f149) ||
      is_between(c, 0x1f150, 0x1f169) || is_between(c, 0x1f170, 0x1f189) || c == 0x200c ||
      c == 0x200d)
    return true;
  const auto kind = category(c);
  return (kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_NL) ||
         kind == UTF8PROC_CATEGORY_PC;
}

bool is_numeric(char32_t c) {
  if (c < 0x80) return is_between(c, '0', '9');
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_ND && kind <= UTF8PROC_CATEGORY_NO;
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) return is_between(c, '!', '~') && !is_ascii_alphanumeric(c);
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_PC && kind <= UTF8PROC_CATEGORY_PO;
}

bool is_mark(char32_t c) {
  if (c < 0x80) return false;
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_MN && kind <= UTF8PROC_CATEGORY_ME;
}

bool is_nonspacing_mark(char32_t c) { return c >= 0x80 && category(c) == UTF8PROC_CATEGORY_MN; }

bool is_control_or_format(char32_t c) {
  if (c < 0x80) return c < ' ' || c == 0x7f;
  const auto kind = category(c);
  return kind == UTF8PROC_CATEGORY_CC || kind == UTF8PROC_CATEGORY_CF ||
         kind == UTF8PROC_CATEGORY_CO;
}

void append_lower_case(std::string& text, char32_t c) {
  if (c < 0x80) {
    text += static_cast<char>(is_between(c, 'A', 'Z') ? c + 32 : c);
  } else if (c == 0x130) {  // the one code point whose lower case is two: SpecialCasing.txt
    text += "i\u0307";
  } else {
    append_utf8(text, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
  }
}

std::string normal_form(std::string_view text, NormalForm form) {
  if (is_ascii(text)) return std::string(text);
  const bool composed = form == NormalForm::C || form == NormalForm::KC,
             compatible = form == NormalForm::KC || form == NormalForm::KD;
  const auto options = static_cast<utf8proc_option_t>(
      UTF8PROC_STABLE | (composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
      (compatible ? UTF8PROC_COMPAT : 0));
  utf8proc_uint8_t* result = nullptr;
  const auto size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                 static_cast<utf8proc_ssize_t>(text.size()), &result, options);
  check(size >= 0, "text of ", text.size(),
        " bytes cannot be normalized: ", size < 0 ? utf8proc_errmsg(size) : "");
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(result, std::free);
  return std::string(reinterpret_cast<const char*>(result), static_cast<size_t>(size));
}

std::vector<size_t> grapheme_ends(std::string_view text) {
  std::vector<size_t> ends;
  utf8proc_int32_t state = 0, before = -1;
  for_each_code_point(text, [&](char32_t c, size_t at, size_t) {
    const auto code = static_cast<utf8proc_int32_t>(c);
    if (before >= 0 && utf8proc_grapheme_break_stateful(before, code, &state)) ends.push_back(at);
    before = code;
  });
  if (!text.empty()) ends.push_back(text.size());
  return ends;
}

#else

namespace {

[[noreturn]] void lacks_utf8proc() {
  throw Error(
      "this build knows no properties of Unicode: utf8proc.h (package libutf8proc-dev) "
      "was missing");
}

}  // namespace

bool is_word(char32_t) { lacks_utf8proc(); }
bool is_numeric(char32_t) { lacks_utf8proc(); }
bool is_punctuation(char32_t) { lacks_utf8proc(); }
bool is_mark(char32_t) { lacks_utf8proc(); }
bool is_nonspacing_mark(char32_t) { lacks_utf8proc(); }
bool is_control_or_format(char32_t) { lacks_utf8proc(); }
void append_lower_case(std::string&, char32_t) { lacks_utf8proc(); }
std::string normal_form(std::string_view, NormalForm) { lacks_utf8proc(); }
std::vector<size_t> grapheme_ends(std::string_view) { lacks_utf8proc(); }

#endif

}  // namespace tiny::models::tokenizers
