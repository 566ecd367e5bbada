#include "tiny/nn/transformer.h"

#include <cmath>

namespace tiny::nn {

// --- TransformerEncoderLayer ---------------------------------------------------------------------

TransformerEncoderLayer::TransformerEncoderLayer(int64_t d_model, int64_t nhead,
                                                 const TransformerEncoderLayerOptions& given,
                                                 DType dtype)
    : self_attn(
          d_model, nhead,
          {.has_bias = given.has_bias, .batch_first = given.batch_first, .dropout = given.dropout},
          dtype),
      linear1(d_model, given.dim_feedforward, given.has_bias, dtype),
      linear2(given.dim_feedforward, d_model, given.has_bias, dtype),
      norm1(d_model, given.layer_norm_eps, dtype),
      norm2(d_model, given.layer_norm_eps, dtype),
      options(given) {
  if (!options.has_bias) norm1.bias = norm2.bias = Tensor();
}

Tensor TransformerEncoderLayer::attend(const Tensor& x, const AttentionOptions& attention) {
  return dropout(self_attn.forward(x, x, x, attention), options.dropout, is_training());
}

Tensor TransformerEncoderLayer::feed(const Tensor& x) {
  const Tensor wide = linear1(x);
  const Tensor hidden = options.activation == Activation::Relu ? wide.relu() : wide.gelu();
  const Tensor y = linear2(dropout(hidden, options.dropout, is_training()));
  return dropout(y, options.dropout, is_training());
}

Tensor TransformerEncoderLayer::forward(const Tensor& x, const AttentionOptions& attention) {
  if (options.norm_first) {
    const Tensor y = x + attend(norm1(x), attention);
    return y + feed(norm2(y));
  }
  const Tensor y = norm1(x + attend(x, attention));
  return norm2(y + feed(y));
}

Children TransformerEncoderLayer::children() {
  return {{"self_attn", &self_attn},
          {"linear1", &linear1},
          {"linear2", &linear2},
          {"norm1", &norm1},
          {"norm2", &norm2}};
}

// --- RotaryEmbedding -----------------------------------------------------------------------------

namespace {

// Elements 2i and 2i + 1 to i and i + half, and back.
Tensor pairs_to_halves(const Tensor& x) {
  return x.unflatten(-1, {-1, 2}).transpose(-1, -2).flatten(-2);
}
Tensor halves_to_pairs(const Tensor& x) {
  return x.unflatten(-1, {2, -1}).transpose(-1, -2).flatten(-2);
}

}  // namespace

RotaryEmbedding::RotaryEmbedding(int64_t size, const RotaryOptions& given)
    : dims(size), options(given) {
  check(dims >= 2 && dims % 2 == 0, "RotaryEmbedding: ", dims, " elements are no pairs");
  check(options.theta > 0, "RotaryEmbedding: theta ", options.theta, " is not positive");
}

Tensor RotaryEmbedding::forward(const Tensor& x) {
  check(x.rank() >= 2, "RotaryEmbedding: takes (..., length, elements) and not ",
        to_text(x.capacity()));
  return forward(x, Tensor::arange(x.size(-2)));
}

Tensor RotaryEmbedding::forward(const Tensor& x, const Tensor& positions) {
  check(x.rank() >= 2 && x.size(-1) >= dims, "RotaryEmbedding: ", dims,
        " elements are rotated, and the last axis of ", to_text(x.capacity()), " has fewer");
  check(positions.dtype().is_int(), "RotaryEmbedding: positions of ", positions.dtype(),
        ": takes integers");
  // In f64: the angle of a far position has few digits left in f32.
  const double step = -2 * std::log(options.theta) / static_cast<double>(dims);
  const Tensor frequencies = (Tensor::arange(0, dims / 2, 1, kF64) * step).exp();
  const Tensor angles = positions.to(kF64).unsqueeze(-1) * frequencies;
  const Tensor cos = angles.cos().to(kF32).contiguous(), sin = angles.sin().to(kF32).contiguous();
  const Tensor part = x.narrow(-1, 0, dims);
  const Tensor y = options.interleaved ? halves_to_pairs(rope(pairs_to_halves(part), cos, sin))
                                       : rope(part, cos, sin);
  const int64_t rest = x.size(-1) - dims;
  return rest == 0 ? y : Tensor::cat({y, x.narrow(-1, dims, rest)}, -1);
}

}  // namespace tiny::nn
