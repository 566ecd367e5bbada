// The steps of a tokenizer.json: its normalizer, pre-tokenizer, post-processor and decoder.
#pragma once
#include "tiny/models/tokenizers/json_value.h"
#include "tiny/models/tokenizers/parts/decoder.h"
#include "tiny/models/tokenizers/parts/normalizer.h"
#include "tiny/models/tokenizers/parts/post_processor.h"
#include "tiny/models/tokenizers/parts/pre_tokenizer.h"

namespace tiny::models::tokenizers {

// Of a value that is not null. All throw Error for what is not supported.
Normalizer read_normalizer(const JsonValue& value, int depth = 0);
PreTokenizer read_pre_tokenizer(const JsonValue& value, int depth = 0);
Decoder read_decoder(const JsonValue& value, int depth = 0);
std::vector<PostTemplate> read_post_processor(const JsonValue& value, int depth = 0);

inline constexpr int64_t kMaxTokenId = 1 << 30;

}  // namespace tiny::models::tokenizers
