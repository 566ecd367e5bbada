// The parts of a transformer's layer: products, attention, feed-forward parts and experts. Made of
// ordinary functions on tensors; what a ModelConfig says decides what each of them has.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "tiny/models/config/architectures.h"
#include "tiny/models/files/quantized_weight.h"
#include "tiny/models/rope.h"
#include "tiny/nn/layers.h"
#include "tiny/tensor/variable.h"

namespace tiny::models {

// Zeros that take no memory: values come from a file, or from Transformer::initialize().
Tensor zero_parameter(const Shape& shape);
// Appends a tensor unless it is not defined.
void add_tensor(StateDict& out, const std::string& name, Tensor& t);

Tensor activate(const Tensor& x, Activation activation);

// A quantised form of a weight (out, in), which stands for it as long as the weight is that form's
// values, not computed: whoever gives the weight others has products with those.
struct Quantized {
  std::shared_ptr<const QuantizedWeight> form;
  Tensor values;
  const QuantizedWeight* of(const Tensor& weight) const {  // nullptr: there is none
    return form && weight.node() == values.node() ? form.get() : nullptr;
  }
};
// Where forms go, by the weight's place in the module.
using QuantizedPlaces = std::map<const Tensor*, Quantized*>;

// x (..., in) times a weight (out, in), or (in, out) as GPT-2 has it, plus a bias: (..., out).
class Projection {
 public:
  Projection() = default;  // none
  Projection(int64_t in, int64_t out, bool has_bias, bool input_first);
  Tensor operator()(const Tensor& x) const;
  void state(StateDict& out, const std::string& prefix);
  void places(QuantizedPlaces& out);

  Tensor weight, bias;

 private:
  std::shared_ptr<nn::Adapter> adapter_ = nullptr;
  bool input_first_ = false;
  Quantized quantized_;
};

// Keys and values of the positions so far, (B, kv_heads, capacity, head_dim).
struct LayerCache {
  Tensor keys, values;
};

// Where the L positions of a step go in caches: columns `at` (L, i64). After it the first `length`
// columns count.
struct CacheStep {
  Tensor at;
  Variable length;
};

// What all layers share in a step: which positions there are and who sees whom. B is the batch or
// 1, L the queries, S the keys.
struct Context {
  Tensor queries = {};              // i64 (L): columns of the sequence, padding counted
  Tensor keys = {};                 // i64 (S): 0, 1, ...
  Tensor valid = {};                // bool (B, S): no padding; not defined: all are
  Tensor padding = {};              // i64 (B): columns of padding on the left; not defined: none
  Tensor columns = {};              // i64 (L) or (B, L): as temperatures count positions
  RopeTables rope = {};             // (B, 1, L, dims / 2)
  const CacheStep* step = nullptr;  // without one keys are those of the queries
};

// Heads of queries that share heads of keys and values.
class Attention {
 public:
  Attention(const ModelConfig& config, const TensorNames& names, size_t layer);
  // x (B, L, hidden) to the same. The cache gets the keys and values where there is one.
  Tensor forward(const Tensor& x, const Context& context, LayerCache* cache) const;
  void state(StateDict& out, const std::string& prefix);
  void places(QuantizedPlaces& out);

 private:
  struct Heads {
    Tensor q, k, v;  // (B, heads, L, head_dim)
  };
  Heads heads(const Tensor& x) const;
  Tensor split(const Tensor& x, int64_t count) const;
  void rotate(Heads& h, const Context& context) const;
  bool is_eager() const;
  Tensor allowed(const Context& context) const;
  Tensor attend(const Heads& h, const Context& context) const;

  struct Products {
    Projection q, k, v, qkv, out;  // qkv, or the first three
  };

  const ModelConfig& config_;
  const TensorNames& names_;
  size_t layer_;
  Products products_;
  std::unique_ptr<nn::RMSNorm> q_norm_, k_norm_;
};

// down(act(gate(x)) * up(x)), or down(act(up(x))).
class FeedForward {
 public:
  FeedForward(const ModelConfig& config, const TensorNames& names, int64_t width);
  Tensor forward(const Tensor& x) const;  // (..., hidden) to the same
  void state(StateDict& out, const std::string& prefix);
  void places(QuantizedPlaces& out);

 private:
  Activation activation_;
  const TensorNames& names_;
  Projection gate_, up_, down_;
};

// A router chooses a few of many feed-forward parts for each token. All weights of a kind are one
// tensor: gate_up_proj (experts, 2 ffn, hidden) with the gates first, down_proj (experts, hidden,
// ffn), or (experts, hidden, 2 ffn) and (experts, ffn, hidden) with input_first.
class Experts {
 public:
  Experts(const ModelConfig& config, const TensorNames& names, int64_t width);
  Tensor forward(const Tensor& x) const;  // (B, L, hidden) to the same
  void state(StateDict& out, const std::string& prefix);
  void places(QuantizedPlaces& out);

 private:
  struct Routes {
    Tensor experts, weights;  // i64 and float (T, active)
  };
  Routes route(const Tensor& tokens) const;
  Tensor all_experts(const Tensor& tokens, const Routes& routes) const;
  Tensor few_experts(const Tensor& tokens, const Routes& routes) const;
  Tensor run(const Tensor& x, const Tensor& gate_up, const Tensor& down) const;

  const ModelConfig& config_;
  const TensorNames& names_;
  Projection router_;
  Tensor gate_up_, down_;
  std::unique_ptr<FeedForward> shared_;
};

// A layer: attention and a feed-forward part, each with a norm and a sum with its input.
class Block {
 public:
  Block(const ModelConfig& config, const TensorNames& names, size_t layer);
  Tensor forward(const Tensor& x, const Context& context, LayerCache* cache) const;
  void state(StateDict& out, const std::string& prefix);
  void places(QuantizedPlaces& out);

 private:
  Tensor feed(const Tensor& x) const;

  const ModelConfig& config_;
  const TensorNames& names_;
  Attention attention_;
  std::unique_ptr<nn::Module> attention_norm_, ffn_norm_;
  std::unique_ptr<FeedForward> ffn_;
  std::unique_ptr<Experts> experts_;
};

// nn::LayerNorm or nn::RMSNorm over rows of the width.
std::unique_ptr<nn::Module> make_norm(const ModelConfig& config, int64_t width);

}  // namespace tiny::models
