// Pre-tokenizers: they cut text into pieces, words in the main, over which no token reaches.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tiny/models/text/regex.h"

namespace tiny::models::tokenizers {

// A text and the pieces of it that matter, from left to right.
struct Pieces {
  struct Span {
    size_t begin, end;  // bytes
    bool starts_text;   // of the text that the user gave
  };
  std::string text;
  std::vector<Span> spans;

  // The whole text as one piece.
  Pieces(std::string whole, bool starts_text)
      : text(std::move(whole)), spans{{0, text.size(), starts_text}} {}
  std::string_view piece(const Span& span) const {
    return std::string_view(text).substr(span.begin, span.end - span.begin);
  }
};

// May be called by several threads at once.
using PreTokenizer = std::function<void(Pieces&)>;

// Treatment of a match and of the text between matches.
enum class SplitBehavior {
  Removed,             // "a-b" at "-": a, b
  Isolated,            // a, -, b
  MergedWithPrevious,  // a-, b
  MergedWithNext,      // a, -b
  Contiguous,          // "a--b": a, --, b
};

// When Metaspace puts its character before a piece that does not begin with it.
enum class PrependScheme { First, Never, Always };

PreTokenizer pre_tokenize_in_sequence(std::vector<PreTokenizer> steps);
// `invert`: what lies between the matches is what counts as matches.
PreTokenizer split_at(Regex pattern, SplitBehavior behavior, bool invert);
// Splits at the characters that the predicate holds for, each a match of its own.
PreTokenizer split_at(std::function<bool(char32_t)> is_match, SplitBehavior behavior);
// Runs of word characters and runs of what is neither a word's nor white space.
PreTokenizer split_words();
PreTokenizer split_for_bert();
PreTokenizer split_every(size_t code_points);
// Pieces by GPT-2's pattern where `split`, then their bytes as characters of the byte-level
// alphabet.
PreTokenizer pre_tokenize_byte_level(bool add_prefix_space, bool split);
// ' ' becomes `replacement` (SentencePiece: U+2581), which begins pieces where `split`.
PreTokenizer pre_tokenize_metaspace(std::string replacement, PrependScheme scheme, bool split);

}  // namespace tiny::models::tokenizers
