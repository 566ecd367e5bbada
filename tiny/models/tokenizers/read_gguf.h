// Tokenizers as GGUF files describe them.
#pragma once
#include "tiny/models/tokenizers/gguf_vocabulary.h"
#include "tiny/models/tokenizers/tokenizer_parts.h"

namespace tiny::models::tokenizers {

// Throws Error for a model or pre-tokenizer that is not supported, and for arrays that do not
// match.
TokenizerParts parts_of_gguf(const GgufVocabulary& vocabulary);

}  // namespace tiny::models::tokenizers
