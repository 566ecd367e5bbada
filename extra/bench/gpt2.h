// GPT-2 (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019) with 124
// million parameters as a graph, for benchmarks of scheduling and memory. Nothing is trained.
#pragma once
#include <deque>
#include <vector>

#include "tiny/nn/functional.h"
#include "tiny/nn/layers.h"

namespace tiny::bench {

class Gpt2 {
 public:
  static constexpr int64_t kVocabulary = 50257, kPositions = 1024, kWidth = 768, kHeads = 12;
  static constexpr int kLayers = 12;

  Gpt2() : blocks_(kLayers) {}
  // Tokens (N, T), i64 or i32, T up to kPositions, to scores (N, T, kVocabulary).
  Tensor operator()(const Tensor& tokens);
  // All of them, computed: weights share memory with nothing else.
  std::vector<Tensor*> parameters();

 private:
  struct Block {
    nn::LayerNorm before_attention{kWidth}, before_mlp{kWidth};
    nn::Linear qkv{kWidth, 3 * kWidth}, out{kWidth, kWidth};
    nn::Linear up{kWidth, 4 * kWidth}, down{4 * kWidth, kWidth};
    Tensor operator()(const Tensor& x);
  };

  nn::Embedding words_{kVocabulary, kWidth}, places_{kPositions, kWidth};
  std::deque<Block> blocks_;
  nn::LayerNorm last_{kWidth};
};

inline Tensor Gpt2::Block::operator()(const Tensor& x) {
  const int64_t count = x.size(0), length = x.size(1);
  const std::vector<Tensor> parts = qkv(before_attention(x)).split(kWidth, 2);
  const auto heads = [&](const Tensor& t) {
    return t.reshape({count, length, kHeads, kWidth / kHeads}).transpose(1, 2);
  };
  const Tensor seen = scaled_dot_product_attention(heads(parts[0]), heads(parts[1]),
                                                   heads(parts[2]), {.is_causal = true});
  const Tensor y = x + out(seen.transpose(1, 2).reshape({count, length, kWidth}));
  return y + down(up(before_mlp(y)).gelu());
}

inline Tensor Gpt2::operator()(const Tensor& tokens) {
  Tensor x = words_(tokens) + places_.weight.narrow(0, 0, tokens.size(1));
  for (Block& b : blocks_) x = b(x);
  return last_(x).linear(words_.weight);
}

inline std::vector<Tensor*> Gpt2::parameters() {
  std::vector<Tensor*> all{&words_.weight, &places_.weight};
  const auto add = [&](auto&... modules) {
    (all.insert(all.end(), {&modules.weight, &modules.bias}), ...);
  };
  for (Block& b : blocks_) add(b.before_attention, b.before_mlp, b.qkv, b.out, b.up, b.down);
  add(last_);
  Tensor::realize(all);
  return all;
}

}  // namespace tiny::bench
