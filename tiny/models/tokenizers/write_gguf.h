// The other way round: what a GGUF file calls the vocabulary of a tokenizer.json.
#pragma once
#include <string_view>

#include "tiny/models/tokenizers/gguf_vocabulary.h"
#include "tiny/models/tokenizers/tokenizer.h"

namespace tiny::models::tokenizers {

// `text`: the tokenizer.json of this tokenizer. BPE of bytes becomes "gpt2", with merges; BPE with
// a fallback to bytes becomes "llama", whose scores are the merges' order. Throws Error, with key
// and value, for other models, for patterns that llama.cpp has no name for, and for normalizers
// that change more than spaces.
GgufVocabulary gguf_vocabulary_of(std::string_view text, const Tokenizer& tokenizer);

}  // namespace tiny::models::tokenizers
