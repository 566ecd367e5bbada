// Tokens that are found in the text before anything else happens to it: those that were added to a
// trained vocabulary, as <|im_start|>, special ones among them.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tiny/models/text/byte_trie.h"
#include "tiny/models/tokenizers/parts/model.h"
#include "tiny/models/tokenizers/parts/normalizer.h"

namespace tiny::models::tokenizers {

struct AddedToken {
  std::string content;
  bool single_word = false;  // not within a word
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and after it
  bool normalized = true;    // is looked for in normalized text
  bool special = false;      // decoding may leave it out
};

class AddedTokens {
 public:
  // A part of a text: a token, or text between tokens.
  struct Part {
    std::optional<int32_t> id;
    size_t begin, end;  // bytes
  };

  // A token that the vocabulary has keeps its id; others come after all that there are.
  void add(const AddedToken& token, const Vocabulary& vocabulary);
  // To be called once after the last `add`.
  void prepare(const Normalizer& normalizer);

  // The parts of a text, from left to right: the leftmost tokens, the longest at each place.
  std::vector<Part> split(std::string_view text, bool normalized) const;
  std::optional<int32_t> id(const std::string& token) const;
  // Null where no added token has the id.
  const std::string* token(int32_t id) const;
  bool is_special(const std::string& token) const { return special_.count(token) > 0; }
  const std::unordered_map<int32_t, AddedToken>& tokens() const { return tokens_; }

 private:
  std::unordered_map<std::string, int32_t> ids_;
  std::unordered_map<int32_t, AddedToken> tokens_;
  std::unordered_set<std::string> special_;
  ByteTrie plain_, normalized_;
  int32_t next_ = 0;  // the least id beyond all added tokens
};

}  // namespace tiny::models::tokenizers
