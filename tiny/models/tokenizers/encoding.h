// What a tokenizer is asked for and what it gives.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

namespace tiny::models {

enum class Side { Left, Right };

struct TokenBatchOptions {
  bool add_special_tokens = true;
  std::optional<int64_t> max_length = {};  // longer texts are cut; else as the file says
  Side truncation_side = Side::Right;
  int64_t length = 0;                      // rows have at least so many ids
  int64_t multiple_of = 1;                 // rounded up to
  std::optional<Side> padding_side = {};   // else as the file says, right where it says nothing
  std::optional<int32_t> padding_id = {};  // else the file's, the padding token's, eos, or 0
};

// Row-major, shape (rows, length) each.
struct TokenBatch {
  int64_t rows = 0, length = 0;
  std::vector<int32_t> ids, attention_mask, types;  // mask: 1 for ids, 0 for padding
};

// The ids of tokens that mean something to a model, where the vocabulary has them.
struct SpecialIds {
  std::optional<int32_t> bos, eos, unknown, padding, cls, separator, mask;
};

}  // namespace tiny::models
