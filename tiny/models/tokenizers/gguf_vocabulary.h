// The vocabulary of a GGUF file, as its metadata under tokenizer.ggml.* has it (llama.cpp's
// gguf-py/gguf/constants.py).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tiny::models {

struct GgufVocabulary {
  std::string model;  // "llama", "gpt2", "bert", "t5"
  std::string pre;    // pre-tokenizer of "gpt2": "llama-bpe", "qwen2", ...
  std::vector<std::string> tokens;
  std::vector<float> scores;  // of the tokens, needed by "llama" and "t5"
  // 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte; empty: all are normal
  std::vector<int32_t> token_types;
  std::vector<std::string> merges;  // of "gpt2": "left right"
  // *_token_id. What is missing is what llama.cpp assumes of the model.
  std::optional<int32_t> bos, eos, unknown, separator, padding, cls, mask;
  std::optional<bool> add_bos, add_eos, add_sep, add_space_prefix, remove_extra_whitespaces;
  std::string precompiled_charsmap;  // of "t5": bytes
};

}  // namespace tiny::models
