// Tokenizers that are made of a text, as the text of a tokenizer.json: bytes, and words.
#pragma once
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tiny/models.h"

namespace tiny::examples {

// A character of the Basic Multilingual Plane in JSON.
inline std::string json_character(int code) { return formatted("\\u%04x", code); }

// GPT-2's tokenizer without merges: a token for each of the 256 bytes, with the byte as its id.
// Bytes that are no letters are written as the characters from 256 on (its encoder.py, 2019).
inline std::string byte_tokenizer() {
  std::string vocabulary;
  for (int byte = 0, next = 256; byte < 256; ++byte) {
    const bool is_printed = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
    vocabulary += cat(byte ? ", \"" : "\"", json_character(is_printed ? byte : next), "\": ", byte);
    next += !is_printed;
  }
  return R"({"version": "1.0", "added_tokens": [], "normalizer": null, "post_processor": null,
 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
 "decoder": {"type": "ByteLevel"},
 "model": {"type": "BPE", "merges": [], "vocab": {)" +
         vocabulary + "}}}\n";
}

// Tokens of word_tokenizer() that stand for no text.
enum SpecialToken : int32_t { kPad, kUnknown, kClass, kSeparator, kMask, kFirstWord };

// The words of letters and digits in these texts, in lower case, those that occur most first.
inline std::vector<std::string> frequent_words(const std::vector<std::string>& texts) {
  std::map<std::string, int64_t> counts;
  for (const std::string& text : texts) {
    std::string word;
    for (size_t i = 0; i <= text.size(); ++i) {
      const bool is_inside = i < text.size() && (is_letter(text[i]) || is_digit(text[i]));
      if (is_inside) word += to_lower(text[i]);
      if (is_inside || word.empty()) continue;
      ++counts[word];
      word.clear();
    }
  }
  std::vector<std::pair<std::string, int64_t>> all(counts.begin(), counts.end());
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::vector<std::string> words;
  for (const auto& [word, count] : all) words.push_back(word);
  return words;
}

// BERT's tokenizer: the words that occur most, and ASCII's characters for the others. At most
// `most` tokens, of which some 200 are no words.
inline std::string word_tokenizer(const std::vector<std::string>& texts, size_t most) {
  std::vector<std::string> tokens{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
  std::string added;
  for (size_t id = 0; id < tokens.size(); ++id)
    added += cat(id ? ", " : "", R"({"id": )", id, R"(, "content": ")", tokens[id],
                 R"(", "single_word": false, "lstrip": false, "rstrip": false, )",
                 R"("normalized": false, "special": true})");
  for (int code = 33; code < 127; ++code) {
    tokens.push_back(json_character(code));
    if (is_letter(static_cast<char>(code)) || is_digit(static_cast<char>(code)))
      tokens.push_back("##" + json_character(code));
  }
  for (const std::string& word : frequent_words(texts))
    if (word.size() > 1 && tokens.size() < most) tokens.push_back(word);
  std::string vocabulary;
  for (size_t id = 0; id < tokens.size(); ++id)
    vocabulary += cat(id ? ", \"" : "\"", tokens[id], "\": ", id);
  return cat(R"({"version": "1.0", "added_tokens": [)", added, R"(],
 "normalizer": {"type": "BertNormalizer", "lowercase": true},
 "pre_tokenizer": {"type": "BertPreTokenizer"},
 "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", )",
             int{kSeparator}, R"(], "cls": ["[CLS]", )", int{kClass}, R"(]},
 "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
 "model": {"type": "WordPiece", "unk_token": "[UNK]", "vocab": {)",
             vocabulary, "}}}\n");
}

}  // namespace tiny::examples
