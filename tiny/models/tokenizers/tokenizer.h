// Text to token ids and back, as the tokenizer.json of a Hugging Face model or the vocabulary of a
// GGUF file says. Encodings are those of the library `tokenizers`.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tiny/models/tokenizers/encoding.h"
#include "tiny/models/tokenizers/gguf_vocabulary.h"
#include "tiny/models/tokenizers/parts/post_processor.h"

namespace tiny::models {

namespace tokenizers {
struct TokenizerParts;
}

// A copy shares all it holds. May be used by several threads at once.
class Tokenizer {
 public:
  // A tokenizer.json or the folder that it lies in, where tokenizer_config.json or
  // special_tokens_map.json says which tokens are bos, eos, and so on. Throws Error for files that
  // are missing or damaged, and for parts that are not supported, with their key and value.
  static Tokenizer load(const std::string& path);
  // The text of a tokenizer.json. Special tokens are known by the names that are common.
  static Tokenizer from_json(std::string_view text);
  // Throws Error for kinds of models and pre-tokenizers that are not supported.
  explicit Tokenizer(const GgufVocabulary& vocabulary);

  // The ids of a text, cut and padded where the file says so. Bytes that are no UTF-8 count as
  // U+FFFD. `add_special_tokens`: what the model expects around a text.
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens = true) const;
  // Two texts as one sequence, with the segment of each id (BERT's token_type_ids).
  TypedIds encode_pair(std::string_view first, std::string_view second,
                       bool add_special_tokens = true) const;
  // On all cores.
  TokenBatch encode_batch(std::span<const std::string> texts,
                          const TokenBatchOptions& options = {}) const;

  // Valid UTF-8. Ids that no token has are left out, as a model's vocabulary is often padded.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = true) const;

  // The number of tokens, and one more than the greatest id.
  int64_t size() const;
  int64_t id_end() const;
  std::optional<int32_t> id(const std::string& token) const;
  // As the vocabulary spells it. Throws Error for an id that no token has.
  std::string token(int32_t id) const;
  // Whether decoding may leave it out.
  bool is_special(int32_t id) const;
  const SpecialIds& special_ids() const;

 private:
  explicit Tokenizer(tokenizers::TokenizerParts parts);

  std::shared_ptr<const tokenizers::TokenizerParts> parts_;
};

// Text of ids that come one by one, as a model generates them. What it gives is whole characters;
// all of it together is what decoding all ids gives.
class DecodeStream {
 public:
  explicit DecodeStream(Tokenizer tokenizer, bool skip_special_tokens = true)
      : tokenizer_(std::move(tokenizer)), skip_special_tokens_(skip_special_tokens) {}
  // The text that the id completes: none while a character lacks bytes.
  std::string push(int32_t id);
  // What is left at the end: U+FFFD for a character that was not completed.
  std::string finish();

 private:
  std::string new_text() const;

  Tokenizer tokenizer_;
  bool skip_special_tokens_;
  // The ids whose text is not all given, after those that the next one's text depends on.
  std::vector<int32_t> ids_;
  size_t given_ids_ = 0;    // of ids_
  std::string given_text_;  // of these
};

}  // namespace tiny::models
