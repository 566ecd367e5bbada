// Tokenizers as the files of Hugging Face's library `tokenizers` describe them: tokenizer.json, and
// the special tokens of tokenizer_config.json and special_tokens_map.json.
#pragma once
#include <string_view>

#include "tiny/models/tokenizers/tokenizer_parts.h"

namespace tiny::models::tokenizers {

// All but the special ids. Throws Error, with the path of keys and the value, for text that is no
// JSON, for what is missing or of another type, and for what is not supported.
TokenizerParts parts_of_json(std::string_view tokenizer_json);

// Takes bos_token, eos_token, ... of one of the other two files over; `name` is for errors.
void read_special_ids(std::string_view json, std::string_view name, TokenizerParts& parts);

// Those of special added tokens that have common names: <s>, [CLS], <|endoftext|>, ...
SpecialIds common_special_ids(const TokenizerParts& parts);

}  // namespace tiny::models::tokenizers
