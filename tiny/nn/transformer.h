// A transformer's layer and rotary positions, with PyTorch's names and arguments. Whole language
// models are in tiny/models.
//
//   nn::Sequential encoder(nn::TransformerEncoderLayer(64, 4, {.batch_first = true}),
//                          nn::TransformerEncoderLayer(64, 4, {.batch_first = true}));
//   Tensor y = encoder(x);  // (N, L, 64)
#pragma once
#include "tiny/nn/layers.h"

namespace tiny::nn {

enum class Activation { Relu, Gelu };

struct TransformerEncoderLayerOptions {
  int64_t dim_feedforward = 2048;
  double dropout =
      0.1;  // in training: of both results, of the hidden layer, of attention's weights
  Activation activation = Activation::Relu;
  double layer_norm_eps = 1e-5;
  bool batch_first = false;  // (N, L, E) instead of (L, N, E)
  bool norm_first =
      false;             // before attention and feed-forward; else after the sum with their input
  bool has_bias = true;  // of products and norms
};

// Attention and two products, each with a norm and a sum with its input (A. Vaswani et al.,
// "Attention is all you need", arXiv 1706.03762): "self_attn.in_proj_weight", ...,
// "linear1.weight", "linear2.weight", "norm1.weight", "norm2.weight" and their biases. Error for a
// d_model that is no multiple of nhead, and a dropout outside [0, 1].
class TransformerEncoderLayer : public Module {
 public:
  TransformerEncoderLayer(int64_t d_model, int64_t nhead,
                          const TransformerEncoderLayerOptions& options = {}, DType dtype = kF32);
  Tensor forward(const Tensor& x) override { return forward(x, {}); }
  // x (L, N, d_model) to the same. Of `attention` the mask, which broadcasts to (N, nhead, L, L)
  // and where true takes part (PyTorch's src_mask is the opposite), and is_causal count.
  Tensor forward(const Tensor& x, const AttentionOptions& attention);
  Children children() override;

  MultiheadAttention self_attn;
  Linear linear1, linear2;
  LayerNorm norm1, norm2;
  TransformerEncoderLayerOptions options;

 private:
  Tensor attend(const Tensor& x, const AttentionOptions& attention);
  Tensor feed(const Tensor& x);
};

struct RotaryOptions {
  double theta = 10000;
  bool interleaved = false;  // pairs are elements 2i and 2i + 1, not i and i + dims / 2
};

// Rotates pairs of elements of queries and keys by angles that grow with their position: pair i by
// position theta^(-2 i / dims) (J. Su et al., "RoFormer", arXiv 2104.09864). Keeps no tensors.
// Error for `dims` that are odd or below 2.
class RotaryEmbedding : public Module {
 public:
  explicit RotaryEmbedding(int64_t dims, const RotaryOptions& options = {});
  // x (..., L, E) at the positions 0 to L - 1. Elements after the first dims stay; Error where
  // there are fewer.
  Tensor forward(const Tensor& x) override;
  // The same at these positions, integers that broadcast to (..., L).
  Tensor forward(const Tensor& x, const Tensor& positions);

  int64_t dims;
  RotaryOptions options;
};

}  // namespace tiny::nn
