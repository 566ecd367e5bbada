// Unicode text in UTF-8: code points, their properties, normal forms and grapheme clusters, by the
// library utf8proc. All text is valid UTF-8 unless a comment says otherwise.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tiny::models::tokenizers {

// The text itself where it is valid; else each maximal part of an ill-formed sequence is replaced
// by U+FFFD (the Unicode Standard, section 3.9, "U+FFFD Substitution of Maximal Subparts").
std::string valid_utf8(std::string_view any_bytes);
bool is_valid_utf8(std::string_view any_bytes);

// The bytes of the character that begins with this byte.
constexpr size_t utf8_size(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

struct CodePoint {
  char32_t value;
  size_t size;  // in bytes
};
// The code point that begins at an offset within the text.
CodePoint code_point_at(std::string_view text, size_t at);
void append_utf8(std::string& text, char32_t code_point);

// Calls visit(code point, offset, bytes) for each of the text.
template <class Visit> void for_each_code_point(std::string_view text, const Visit& visit) {
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    visit(c.value, at, c.size);
    at += c.size;
  }
}

bool is_white_space(char32_t c);  // the property White_Space
// A word character of UTS #18, annex C: letters, marks, decimal digits, connectors, joiners.
bool is_word(char32_t c);
bool is_numeric(char32_t c);            // Nd, Nl, No
bool is_punctuation(char32_t c);        // P*, and the symbols of ASCII
bool is_mark(char32_t c);               // Mn, Mc, Me
bool is_nonspacing_mark(char32_t c);    // Mn
bool is_control_or_format(char32_t c);  // Cc, Cf, Co
bool is_han_ideograph(char32_t c);      // the blocks that BERT counts as Chinese

// Appends the lower case of one code point, whatever stands around it.
void append_lower_case(std::string& text, char32_t c);
std::string lower_case(std::string_view text);

enum class NormalForm { C, D, KC, KD };
std::string normal_form(std::string_view text, NormalForm form);

// Where the extended grapheme clusters of the text end (UAX #29).
std::vector<size_t> grapheme_ends(std::string_view text);

}  // namespace tiny::models::tokenizers
