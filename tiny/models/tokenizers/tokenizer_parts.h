// What a tokenizer consists of, however its file says so.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "tiny/models/tokenizers/added_tokens.h"
#include "tiny/models/tokenizers/encoding.h"
#include "tiny/models/tokenizers/parts/decoder.h"
#include "tiny/models/tokenizers/parts/model.h"
#include "tiny/models/tokenizers/parts/normalizer.h"
#include "tiny/models/tokenizers/parts/post_processor.h"
#include "tiny/models/tokenizers/parts/pre_tokenizer.h"

namespace tiny::models::tokenizers {

// Which text of a pair gets shorter.
enum class TruncationStrategy { LongestFirst, OnlyFirst, OnlySecond };

struct Truncation {
  int64_t max_length;  // special tokens included
  Side side = Side::Right;
  TruncationStrategy strategy = TruncationStrategy::LongestFirst;
};

struct Padding {
  int64_t length = 0;       // at least so many ids
  int64_t multiple_of = 1;  // rounded up to
  Side side = Side::Right;
  int32_t id = 0;
  int32_t type = 0;
};

struct TokenizerParts {
  AddedTokens added;
  Normalizer normalizer;       // may be empty
  PreTokenizer pre_tokenizer;  // may be empty
  std::unique_ptr<Model> model;
  PostProcessor post_processor;
  Decoder decoder;  // empty: tokens with spaces between them
  std::optional<Truncation> truncation;
  std::optional<Padding> padding;
  SpecialIds special;
};

}  // namespace tiny::models::tokenizers
