// A transformer as its ModelConfig says: embeddings, layers, and a head that gives logits.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "tiny/models/config/config.h"
#include "tiny/models/layers.h"

namespace tiny::models {

// A batch of B sequences of L tokens.
struct Inputs {
  Tensor ids;        // integers (B, L)
  Tensor mask = {};  // (B, L): 0 where there is padding, on either side; not defined: none is
  Tensor token_types = {};  // integers (B, L); not defined: all 0
  // Integers (1, L) or (B, L); not defined: 0, 1, ... L - 1, padding counted, as transformers has
  // it outside of generation.
  Tensor positions = {};
};

// One step of generation: what is new, and where it goes in the caches of all layers.
struct CachedInputs {
  Tensor ids;        // i64 (B, L)
  Tensor positions;  // i64 (B, L)
  Tensor columns;    // i64 (L): positions in the longest sequence
  Tensor padding;    // i64 (B): columns of padding at the beginning of the cache
  Tensor length;     // i64 (1): tokens of the longest sequence
  CacheStep step;
};

// Its tensors have transformers' names: "model.layers.0.self_attn.q_proj.weight". All weights of a
// layer's experts are one tensor, as in transformers 5.
class Transformer : public nn::Module {
 public:
  // All weights are 0, and norms 1, until they are read or initialized.
  explicit Transformer(const ModelConfig& config);

  // Logits (B, L, vocab), of a classifier (B, labels); without a head the last layer's result (B,
  // L, hidden). Errors for shapes that do not fit, and more tokens than learned positions.
  Tensor forward(const Tensor& ids) override { return forward(Inputs{ids}); }
  Tensor forward(const Inputs& inputs);
  Tensor operator()(const Tensor& ids, const Tensor& mask = Tensor()) {
    return forward(Inputs{ids, mask});
  }
  // Mean cross entropy, 0-d: of the next token for a causal model, of the same for a masked one,
  // labels (B, L); of the class for a classifier, labels (B). Those that are -100 do not count.
  Tensor loss(const Inputs& inputs, const Tensor& labels);

  // Logits (B, vocab) of the last column. Caches get keys and values of this step.
  Tensor forward_cached(const CachedInputs& inputs, std::vector<LayerCache>& caches);

  // Rounds the frequencies of rotary positions as well, as PyTorch does, which costs digits in long
  // sequences: LoadOptions::dtype does not.
  void to(DType dtype) override;
  using nn::Module::to;

  // Weights from a normal distribution of the deviation that the configuration has, biases 0.
  void initialize();
  void state(StateDict& out, const std::string& prefix) override;
  const ModelConfig& config() const { return *config_; }
  // The matrices that may stay quantised: of products, the tokens' and the head's.
  QuantizedPlaces quantized_places();

 private:
  Tensor embed(const Inputs& inputs, const Tensor& positions) const;
  Tensor run(const Tensor& embedded, const Context& context, std::vector<LayerCache>* caches);
  RopeTables rope_tables(const Tensor& positions, const Tensor& length);
  Tensor last_hidden(const Inputs& inputs);
  Tensor logits(const Tensor& hidden);
  Tensor classify(const Tensor& hidden);
  Tensor before_head(const Tensor& hidden);  // what its product reads
  Tensor head(const Tensor& x) const;
  const Tensor& head_weight() const { return config_->tied ? embeddings_.tokens : head_.weight; }
  const QuantizedWeight* quantized_head() const;  // nullptr: it is not quantised
  void check_inputs(const Inputs& inputs) const;

  struct Embeddings {
    Tensor tokens, positions, token_types;
    Quantized quantized;  // tokens
    std::unique_ptr<nn::Module> norm;
  };
  struct HeadWeight {
    Tensor weight;  // where it is not the tokens'
    Quantized quantized;
  };
  struct MaskedHead {
    Projection dense;
    std::unique_ptr<nn::Module> norm;
    Tensor bias;
  };
  struct ClassifierHead {
    Projection pooler, classifier;
  };

  std::shared_ptr<const ModelConfig> config_;  // shared: layers refer to it
  std::unique_ptr<RotaryEmbedding> rotary_;
  Embeddings embeddings_;
  std::vector<Block> blocks_;
  std::unique_ptr<nn::Module> norm_;
  HeadWeight head_;
  std::unique_ptr<MaskedHead> masked_;
  std::unique_ptr<ClassifierHead> classifier_;
};

}  // namespace tiny::models
