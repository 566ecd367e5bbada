// GPT-2 (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019) as a graph,
// with 124 million parameters or of other sizes, for benchmarks.
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tiny/tiny.h"

namespace tiny::bench {

struct Gpt2Sizes {
  int64_t vocabulary = 50257, positions = 1024, width = 768, heads = 12, layers = 12;
};

class Gpt2 {
 public:
  explicit Gpt2(const Gpt2Sizes& sizes = {});
  // Tokens (N, T), i64 or i32, T up to `positions`, to scores (N, T, vocabulary).
  Tensor operator()(const Tensor& tokens) { return last_hidden(tokens).linear(words_.weight); }
  // The mean cross entropy of the tokens that come next, (N, T): of so many rows of each text at a
  // time (LinearCrossEntropyOptions).
  Tensor loss(const Tensor& tokens, const Tensor& next, int64_t chunk = 0) {
    return linear_cross_entropy(last_hidden(tokens), words_.weight, next,
                                {.batch_chunk_size = chunk});
  }
  // All of them, computed: weights share memory with nothing else.
  std::vector<Tensor*> parameters();

 private:
  struct Block {
    explicit Block(const Gpt2Sizes& s)
        : before_attention(s.width),
          before_mlp(s.width),
          qkv(s.width, 3 * s.width),
          out(s.width, s.width),
          up(s.width, 4 * s.width),
          down(4 * s.width, s.width),
          head_count(s.heads) {}
    Tensor operator()(const Tensor& x);

    nn::LayerNorm before_attention, before_mlp;
    nn::Linear qkv, out, up, down;
    int64_t head_count;
  };

  Tensor last_hidden(const Tensor& tokens);  // (N, T, width)

  nn::Embedding words_, places_;
  std::deque<Block> blocks_;
  nn::LayerNorm last_;
};

inline Gpt2::Gpt2(const Gpt2Sizes& s)
    : words_(s.vocabulary, s.width), places_(s.positions, s.width), last_(s.width) {
  for (int64_t i = 0; i < s.layers; ++i) blocks_.emplace_back(s);
}

inline Tensor Gpt2::Block::operator()(const Tensor& x) {
  const int64_t count = x.size(0), length = x.size(1), width = x.size(2);
  const std::vector<Tensor> parts = qkv(before_attention(x)).split(width, 2);
  const auto heads = [&](const Tensor& t) {
    return t.reshape({count, length, head_count, width / head_count}).transpose(1, 2);
  };
  const Tensor seen = scaled_dot_product_attention(heads(parts[0]), heads(parts[1]),
                                                   heads(parts[2]), {.is_causal = true});
  const Tensor y = x + out(seen.transpose(1, 2).reshape({count, length, width}));
  return y + down(up(before_mlp(y)).gelu());
}

inline Tensor Gpt2::last_hidden(const Tensor& tokens) {
  Tensor x = words_(tokens) + places_.weight.narrow(0, 0, tokens.size(1));
  for (Block& b : blocks_) x = b(x);
  return last_(x);
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

struct Gpt2Training {
  std::function<Tensor()> step;         // on random tokens, to the loss
  std::vector<int64_t> gradient_bytes;  // of each parameter
};

struct Gpt2Placement {
  std::vector<std::string> devices;
  bool is_cut = false;     // each has a part of each weight, not all of it
  DType products = kBF16;  // from f32 weights
};

// GPT-2 trained with AdamW on so many texts, cut over the devices.
inline Gpt2Training gpt2_training(const Gpt2Sizes& s, int64_t batch, const Gpt2Placement& on) {
  const auto model = std::make_shared<Gpt2>(s);
  const std::vector<Tensor*> parameters = model->parameters();
  Gpt2Training out;
  if (on.is_cut) fully_shard(parameters, on.devices);
  for (Tensor* t : parameters) {
    if (!on.is_cut) t->shard_(on.devices);
    t->requires_grad_();
    out.gradient_bytes.push_back(t->numel() * static_cast<int64_t>(t->dtype().size()));
  }
  const auto optimizer =
      std::make_shared<AdamW>(parameters, 3e-4, AdamOptions{.beta2 = 0.95, .weight_decay = 0.1});
  const auto tokens = [&](const Shape& shape) {
    const Tensor drawn = Tensor::randint(0, s.vocabulary, shape).to(kI32).realize();
    return drawn.shard(on.devices, 0).realize();
  };
  const Tensor x = tokens({batch, s.positions}), y = tokens({batch, s.positions});
  out.step = [model, optimizer, x, y, products = on.products] {
    Tensor loss;
    {
      const Autocast narrow(products);
      loss = model->loss(x, y);
    }
    loss.backward();
    optimizer->step({&loss});
    return loss;
  };
  return out;
}

}  // namespace tiny::bench
