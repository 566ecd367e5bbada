// A decoder of Llama 3's form (A. Grattafiori et al., "The Llama 3 herd of models", 2024) with
// random weights in bf16, tensor parallel: what it takes to generate one token after another.
#pragma once
#include <cmath>
#include <deque>
#include <string>
#include <vector>

#include "tiny/tiny.h"

namespace tiny::bench {

struct LlamaSizes {  // those of 8 billion parameters
  int64_t layers = 32, width = 4096, heads = 32, kv_heads = 8, hidden = 14336, words = 128256;
  int64_t positions = 1024;  // of the cache
};

// Each device has some of the heads, of the hidden units and of the words (M. Shoeybi et al.,
// "Megatron-LM", 2019): two all-reduces in a layer.
class Llama {
 public:
  Llama(const LlamaSizes& sizes, const std::vector<std::string>& devices);
  // The next token, i64 (1), of the one before it; its keys and values go into the caches.
  Tensor step();
  const Tensor& token() const { return token_; }

 private:
  struct Layer {
    Tensor before_attention, before_mlp;  // norms (width)
    Tensor q, k, v, out, gate, up, down;  // (out, in)
    Tensor keys, values;                  // (kv_heads, positions, head)
  };

  Tensor attention(Layer& l, const Tensor& x);
  Tensor rotated(const Tensor& x) const;
  int64_t head() const { return sizes_.width / sizes_.heads; }

  LlamaSizes sizes_;
  std::deque<Layer> layers_;
  Tensor words_, last_, scores_;  // (words, width), a norm, (words, width)
  Tensor angles_;                 // (positions, head / 2)
  Tensor token_, place_;          // i64 (1)
};

inline Llama::Llama(const LlamaSizes& s, const std::vector<std::string>& devices) : sizes_(s) {
  const auto weight = [&](int64_t out, int64_t in, int64_t axis) {
    Tensor t = (Tensor::randn({out, in}) / std::sqrt(static_cast<double>(in))).to(kBF16);
    return t.realize().shard_(devices, axis);
  };
  const auto norm = [&] { return Tensor::ones({s.width}).to(kBF16).shard(devices).realize(); };
  const auto cache = [&] {
    const Shape shape{s.kv_heads, s.positions, head()};
    return (Tensor::randn(shape) * 0).to(kBF16).realize().shard_(devices, 0);
  };
  for (int64_t i = 0; i < s.layers; ++i) {
    const int64_t kv = s.kv_heads * head();
    layers_.push_back({norm(), norm(), weight(s.width, s.width, 0), weight(kv, s.width, 0),
                       weight(kv, s.width, 0), weight(s.width, s.width, 1),
                       weight(s.hidden, s.width, 0), weight(s.hidden, s.width, 0),
                       weight(s.width, s.hidden, 1), cache(), cache()});
  }
  words_ = weight(s.words, s.width, 0);
  scores_ = weight(s.words, s.width, 0);
  last_ = norm();
  const Tensor frequencies =
      (Tensor::arange(head() / 2).to(kF32) * (-2 * std::log(500000.0) / head())).exp();
  angles_ =
      (Tensor::arange(s.positions).to(kF32).unsqueeze(1) * frequencies).realize().shard_(devices);
  token_ = Tensor::from(std::vector<int64_t>{1}).shard(devices).realize();
  place_ = Tensor::from(std::vector<int64_t>{0}).shard(devices).realize();
}

// x (heads, head), both halves of each turned by the angle of the position.
inline Tensor Llama::rotated(const Tensor& x) const {
  const Tensor angle = angles_.index_select(0, place_);
  const Tensor cos = angle.cos(), sin = angle.sin();
  const Tensor a = x.narrow(1, 0, head() / 2).to(kF32), b = x.narrow(1, head() / 2, head() / 2);
  return Tensor::cat({a * cos - b * sin, b * cos + a * sin}, 1).to(kBF16);
}

inline Tensor Llama::attention(Layer& l, const Tensor& x) {
  const int64_t group = sizes_.heads / sizes_.kv_heads;
  const auto heads = [&](const Tensor& w) { return x.linear(w).reshape({-1, head()}); };
  const Tensor here = (Tensor::arange(sizes_.positions) == place_).reshape({1, -1, 1});
  l.keys.assign(where(here, rotated(heads(l.k)).unsqueeze(1), l.keys));
  l.values.assign(where(here, heads(l.v).unsqueeze(1), l.values));
  const Tensor q = rotated(heads(l.q)).reshape({sizes_.kv_heads, group, head()});
  const Tensor seen = Tensor::arange(sizes_.positions) <= place_;
  const Tensor products = q.matmul(l.keys.transpose(1, 2)).to(kF32);
  const Tensor scores = where(seen, products / std::sqrt(static_cast<double>(head())), -1e30);
  return scores.softmax(-1).to(kBF16).matmul(l.values).reshape({1, -1}).linear(l.out);
}

inline Tensor Llama::step() {
  const NoGrad no_grad;
  Tensor x = words_.embedding(token_);
  const auto normed = [&](const Tensor& t, const Tensor& weight) {
    return rms_norm(t, {sizes_.width}, weight, 1e-5);
  };
  std::vector<Tensor*> kept{&token_, &place_};
  for (Layer& l : layers_) {
    x = x + attention(l, normed(x, l.before_attention));
    const Tensor y = normed(x, l.before_mlp);
    x = x + (y.linear(l.gate).silu() * y.linear(l.up)).linear(l.down);
    kept.insert(kept.end(), {&l.keys, &l.values});
  }
  token_.assign(normed(x, last_).linear(scores_).argmax(1));
  place_.assign(mod(place_ + 1, sizes_.positions));
  Tensor::realize(kept);
  return token_ * 1;
}

}  // namespace tiny::bench
