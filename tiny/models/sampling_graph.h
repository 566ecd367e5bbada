// What Sampler does, as a graph of tensors: the next tokens of a batch are drawn where the logits
// are, and nothing but they is copied. Without sorting: which of the most probable tokens are left
// is found bit by bit.
#pragma once
#include <compare>
#include <vector>

#include "tiny/models/sampling.h"
#include "tiny/tensor/tensor.h"

namespace tiny::models {

// Which parts of SamplingOptions there are; their numbers are arguments of the graph.
struct SamplingParts {
  explicit SamplingParts(const SamplingOptions& options);
  bool penalty, draw, top_k, top_p, min_p;  // without draw the most probable token is taken
  auto operator<=>(const SamplingParts&) const = default;
};

struct SamplingInputs {
  Tensor logits;   // f32 (B, vocab)
  Tensor seen;     // bool (B, vocab): the tokens of prompt and answer
  Tensor numbers;  // f64 (5): sampling_numbers()
  Tensor random;   // f64 (B): Sampler::random() of each sequence
};

// The numbers of the options: temperature, top_k, top_p, min_p, repetition_penalty.
std::vector<double> sampling_numbers(const SamplingOptions& options);

// What stands for a token where Sampler would throw.
constexpr int64_t kNanLogit = -1, kNoFiniteLogit = -2;
// Throws that Error for them.
void check_sampled(int64_t token);

struct Sampled {
  Tensor tokens;  // i64 (B)
  Tensor seen;    // bool (B, vocab), these included
};

Sampled sample(const SamplingInputs& inputs, const SamplingParts& parts);

}  // namespace tiny::models
