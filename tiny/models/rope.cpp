#include "tiny/models/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tiny::models {

namespace {

// The pair, as a real number, that turns so often in the texts of the first training (YaRN,
// section 3.2).
double pair_of_turns(const RopeConfig& c, double turns) {
  const double positions = static_cast<double>(c.original_positions);
  return static_cast<double>(c.dims) * std::log(positions / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(c.theta));
}

// Pairs that turn often keep their frequency, those that turn seldom are slowed down, and those
// between lie on a ramp.
void scale_yarn(const RopeConfig& c, std::vector<double>& frequencies) {
  double low = pair_of_turns(c, c.beta_fast), high = pair_of_turns(c, c.beta_slow);
  if (c.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(c.dims - 1));
  if (low == high) high += 0.001;  // as transformers does
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double slow = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] *= slow / c.factor + 1 - slow;
  }
}

// The same with a ramp over wavelengths.
void scale_llama3(const RopeConfig& c, std::vector<double>& frequencies) {
  for (double& f : frequencies) {
    const double turns = static_cast<double>(c.original_positions) * f / (2 * std::numbers::pi);
    const double keep = std::clamp(
        (turns - c.low_freq_factor) / (c.high_freq_factor - c.low_freq_factor), 0.0, 1.0);
    f *= (1 - keep) / c.factor + keep;
  }
}

double yarn_scale(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

}  // namespace

std::vector<double> inverse_frequencies(const RopeConfig& c) {
  std::vector<double> out;
  for (int64_t i = 0; i < c.dims; i += 2)
    out.push_back(std::pow(c.theta, -static_cast<double>(i) / static_cast<double>(c.dims)));
  if (c.kind == RopeKind::Linear)
    for (double& f : out) f /= c.factor;
  if (c.kind == RopeKind::Yarn) scale_yarn(c, out);
  if (c.kind == RopeKind::Llama3) scale_llama3(c, out);
  return out;
}

double attention_factor(const RopeConfig& c) {
  if (c.kind != RopeKind::Yarn) return 1;
  if (c.attention_factor) return *c.attention_factor;
  if (c.mscale != 0 && c.mscale_all_dim != 0)
    return yarn_scale(c.factor, c.mscale) / yarn_scale(c.factor, c.mscale_all_dim);
  return yarn_scale(c.factor, 1);
}

RotaryEmbedding::RotaryEmbedding(const RopeConfig& config) : config_(config) {
  check(config.dims >= 2 && config.dims % 2 == 0, "rotary positions: ", config.dims,
        " elements of a head are no pairs");
  const std::vector<double> wide = inverse_frequencies(config);
  frequencies_ = Tensor::from(std::vector<float>(wide.begin(), wide.end()));
}

// f32 (dims / 2). Of Dynamic, where theta grows with the text: theta (factor length / max - factor
// + 1)^(dims / (dims - 2)), in transformers' words "NTK-aware" scaling.
Tensor RotaryEmbedding::frequencies(const Tensor& positions, const Tensor& length) const {
  if (config_.kind != RopeKind::Dynamic) return frequencies_;
  const auto most = static_cast<double>(config_.max_positions);
  const Tensor tokens = length.defined() ? length.reshape({}) : positions.max() + 1;
  const Tensor stretch =
      tokens.to(kF32).clamp(most, {}) * (config_.factor / most) - (config_.factor - 1);
  // theta^(-i / dims) becomes that times stretch^(-i / (dims - 2)).
  const Tensor power =
      Tensor::arange(0, config_.dims, 2).to(kF32) * (-1.0 / static_cast<double>(config_.dims - 2));
  return frequencies_ * (stretch.log() * power).exp();
}

RopeTables RotaryEmbedding::tables(const Tensor& positions, const Tensor& length) const {
  const Tensor angles = positions.to(kF32).unsqueeze(-1) * frequencies(positions, length);
  const double scale = attention_factor(config_);
  if (scale == 1) return {angles.cos(), angles.sin()};
  return {angles.cos() * scale, angles.sin() * scale};
}

// Products and sums have the dtype of x where rotation goes by halves, and are f32 where it goes
// by pairs, as in transformers.
Tensor apply_rope(const Tensor& x, const RopeTables& tables, const RopeConfig& config) {
  const int64_t dims = config.dims, rest = x.size(-1) - dims;
  const DType dtype = config.interleaved ? kF32 : x.dtype();
  const Tensor part = (rest == 0 ? x : x.narrow(-1, 0, dims)).to(dtype);
  const Tensor cos = tables.cos.to(dtype), sin = tables.sin.to(dtype);
  const auto rotated = [&](const Tensor& a, const Tensor& b) {
    return std::vector<Tensor>{a * cos - b * sin, b * cos + a * sin};
  };
  Tensor y;
  if (config.interleaved) {
    const Tensor pairs = part.unflatten(-1, {dims / 2, 2});
    y = Tensor::stack(rotated(pairs.select(-1, 0), pairs.select(-1, 1)), -1)
            .flatten(-2)
            .to(x.dtype());
  } else {
    y = Tensor::cat(rotated(part.narrow(-1, 0, dims / 2), part.narrow(-1, dims / 2, dims / 2)), -1);
  }
  return rest == 0 ? y : Tensor::cat({y, x.narrow(-1, dims, rest)}, -1);
}

void RotaryEmbedding::to(const std::string& device) {
  if (!device.empty() && frequencies_.device() != device)
    frequencies_ = frequencies_.to(device).realize();
}

void RotaryEmbedding::round_to(DType dtype) {
  frequencies_ = frequencies_.to(dtype).to(kF32).realize();
}

}  // namespace tiny::models
