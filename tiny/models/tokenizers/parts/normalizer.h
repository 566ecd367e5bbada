// Normalizers: the first step of a tokenizer, from text to text. Both are valid UTF-8.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tiny/models/text/character_map.h"
#include "tiny/models/text/regex.h"
#include "tiny/models/text/unicode.h"

namespace tiny::models::tokenizers {

// May be called by several threads at once.
using Normalizer = std::function<std::string(std::string_view)>;

Normalizer normalize_in_sequence(std::vector<Normalizer> steps);
Normalizer normalize_to(NormalForm form);
Normalizer normalize_to_lower_case();
// Removes all marks.
Normalizer strip_accents();
// Removes White_Space at the ends.
Normalizer strip_white_space(bool left, bool right);
Normalizer replace_text(std::string pattern, std::string content);
Normalizer replace_regex(Regex pattern, std::string content);
// Puts a prefix before text that is not empty.
Normalizer prepend_text(std::string prefix);
// Bytes as the characters of the byte-level alphabet.
Normalizer map_bytes();
// SentencePiece's `nmt` rules: control characters away, kinds of white space to ' '.
Normalizer normalize_nmt();
// As the library `tokenizers` applies a character map.
Normalizer apply_character_map(CharacterMap map);

// Devlin et al. 2018, tokenization.py of google-research/bert.
struct BertNormalization {
  bool clean_text = true;            // no control characters, all white space as ' '
  bool handle_chinese_chars = true;  // ' ' around Han ideographs
  bool strip_accents = true;         // NFD without nonspacing marks
  bool lowercase = true;
};
Normalizer normalize_for_bert(const BertNormalization& options);

// All matches replaced by the content.
std::string replace_all(std::string_view text, const Regex& pattern, std::string_view content);
std::string replace_all(std::string_view text, std::string_view pattern, std::string_view content);

}  // namespace tiny::models::tokenizers
