// Rotary positions and their scalings for long texts: inverse frequencies by the rules of
// transformers' rope types "default", "linear", "dynamic", "yarn" and "llama3".
#pragma once
#include <vector>

#include "tiny/models/config/config.h"
#include "tiny/tensor/tensor.h"

namespace tiny::models {

// Radians per position of each pair: dims / 2 numbers. Of Dynamic: those of a sequence that is no
// longer than max_positions.
std::vector<double> inverse_frequencies(const RopeConfig& config);

// What cosines and sines are multiplied by.
double attention_factor(const RopeConfig& config);

// cos and sin of positions (..., L), f32 (..., L, dims / 2).
struct RopeTables {
  Tensor cos = {}, sin = {};
};

// x (..., L, head) rotated by tables that broadcast against it. Elements after the first dims stay.
Tensor apply_rope(const Tensor& x, const RopeTables& tables, const RopeConfig& config);

// Makes tables. Keeps no parameters.
class RotaryEmbedding {
 public:
  explicit RotaryEmbedding(const RopeConfig& config);

  // positions: integers (..., L). `length`: i64 of one element, the longest sequence's number of
  // tokens, for Dynamic alone; without it the largest position plus 1.
  RopeTables tables(const Tensor& positions, const Tensor& length = Tensor()) const;
  void to(const std::string& device);
  void round_to(DType dtype);  // its frequencies

 private:
  Tensor frequencies(const Tensor& positions, const Tensor& length) const;

  RopeConfig config_;
  Tensor frequencies_;  // f32 (dims / 2)
};

}  // namespace tiny::models
