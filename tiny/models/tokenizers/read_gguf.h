// Tokenizers as GGUF files describe them.
#pragma once
#include "tiny/models/tokenizers/gguf_vocabulary.h"
#include "tiny/models/tokenizers/tokenizer_parts.h"

namespace tiny::models::tokenizers {

// What tokenizer.ggml.token_type says of a token.
enum TokenType {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

// The name, tokenizer.ggml.pre, of a split by these patterns, one after the other; "": none has it.
std::string pre_tokenization_name(const std::vector<std::string>& patterns, bool ignore_merges);

// Throws Error for a model or pre-tokenizer that is not supported, and for arrays that do not
// match.
TokenizerParts parts_of_gguf(const GgufVocabulary& vocabulary);

}  // namespace tiny::models::tokenizers
