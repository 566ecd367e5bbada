// The character map of a SentencePiece model: which strings are replaced by which when text is
// normalized, as a double-array trie (Aoe 1989, in the layout of the library darts-clone).
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tiny::models::tokenizers {

class CharacterMap {
 public:
  // `bytes`: the size of the trie in bytes, 4 bytes of little endian; the trie, units of 4 bytes;
  // then the replacements, each ended by a byte 0. Throws Error for anything else.
  explicit CharacterMap(std::string_view bytes);
  // The same, as base64.
  static CharacterMap from_base64(std::string_view text);

  // As SentencePiece does it: the longest string at each place is replaced.
  std::string replace_longest(std::string_view text) const;
  // As the library `tokenizers` does it: a grapheme cluster of fewer than six bytes is replaced as
  // a whole by what its shortest prefix becomes; else each of its code points by itself.
  std::string replace_graphemes(std::string_view text) const;

 private:
  struct Prefix {
    size_t size;  // 0: none
    std::string_view replacement;
  };
  Prefix find_prefix(std::string_view text, bool longest) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace tiny::models::tokenizers
