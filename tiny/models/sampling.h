// Choosing the next token from its logits, as transformers does: repetition penalty, temperature,
// top-k, top-p, min-p, in this order, and a draw from what is left.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "tiny/base/splitmix.h"

namespace tiny::models {

struct SamplingOptions {
  double temperature = 0;  // 0: the most probable token, whatever the next three say
  int64_t top_k = 0;       // of the most probable tokens; 0: all
  double top_p = 1;        // of the most probable tokens, the fewest that add up to this
  double min_p = 0;        // a token is at least so probable, beside the most probable one
  // Logits of tokens that were there are divided by it, multiplied where they are negative
  // (N. Keskar et al., "CTRL", arXiv 1909.05858).
  double repetition_penalty = 1;
  uint64_t seed = 0;
};

// Throws Error, with the value, for one out of range.
void check_sampling(const SamplingOptions& options);

// Draws tokens of one sequence.
class Sampler {
 public:
  // `sequence`: its number in the batch.
  Sampler(const SamplingOptions& options, uint64_t sequence);

  // logits of all tokens, which change; `seen`: the tokens of prompt and answer. Error where a
  // logit is NaN, or none is finite.
  int64_t next(std::span<float> logits, std::span<const int64_t> seen);

  double random();  // the next number of its stream, at least 0 and below 1

 private:
  SamplingOptions options_;
  SplitMix64 random_;
};

}  // namespace tiny::models
