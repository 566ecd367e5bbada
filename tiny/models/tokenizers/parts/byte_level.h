// The byte-level alphabet of GPT-2 (Radford et al. 2019, encoder.py): each byte is a character that
// prints, so that any bytes are text. Printable bytes of Latin-1 stand for themselves, the others
// for U+0100 and up.
#pragma once
#include <string>
#include <string_view>

namespace tiny::models::tokenizers {

void append_byte_level(std::string& out, std::string_view bytes);
std::string to_byte_level(std::string_view bytes);

// The bytes of a token; the token itself where it has a character that is not of the alphabet.
std::string from_byte_level(std::string_view token);

// The pattern that splits text into words before GPT-2's byte-level encoding.
inline constexpr char kGpt2Pattern[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace tiny::models::tokenizers
