#include "tiny/models/sampling_graph.h"

#include <cmath>
#include <cstdint>

namespace tiny::models {

namespace {

enum Number { kTemperature, kTopK, kTopP, kMinP, kPenalty };

Tensor number(const SamplingInputs& in, Number which) { return in.numbers.select(0, which); }

// i32 that are in the order of the floats; both zeros are the same.
Tensor ordered_keys(const Tensor& x) {
  const Tensor bits = where(x == 0, 0, x).bitcast(kI32);
  return where(bits < 0, bits ^ bits.full_like(INT32_MAX), bits);
}

Tensor sum_where(const Tensor& mask, const Tensor& weights) {
  return where(mask, weights, weights.full_like(0)).sum(-1, true);
}

// Marks of the best elements of rows (B, vocab), the first of equals first: as many as it takes
// until their weights, which are the same for the same key and at least 0, add up to `wanted`
// (B, 1) or (1), which is above 0.
Tensor best_until(const Tensor& keys, const Tensor& weights, const Tensor& wanted) {
  // The largest t where keys >= t add up to that, found digit by digit. Where it is and how far the
  // next digit reaches are values in memory, so that one set of kernels finds all of them.
  constexpr int kBits = 4;
  const int64_t batch = keys.size(0);
  const Tensor digits = Tensor::arange(1, 1 << kBits, 1, kI32).reshape({1, -1, 1});
  const Tensor all_keys = keys.unsqueeze(1), all_weights = weights.unsqueeze(1);
  Tensor state = Tensor::cat({Tensor::full({batch, 1}, INT32_MIN, kI32),
                              Tensor::full({batch, 1}, 1 << (32 - kBits), kI32)},
                             1)
                     .contiguous();  // (B, 2)
  for (int bit = 0; bit < 32; bit += kBits) {
    const Tensor t = state.narrow(1, 0, 1), step = state.narrow(1, 1, 1);
    const Tensor next = t.unsqueeze(2) + digits * step.unsqueeze(2);  // (B, digits, 1)
    const Tensor sums = sum_where(all_keys >= next, all_weights).squeeze(2);
    const Tensor digit = (sums >= wanted).to(kI32).sum(1, true).to(kI32);
    state = Tensor::cat({t + digit * step, step >> kBits}, 1).contiguous();
  }
  const Tensor least = state.narrow(1, 0, 1);
  const Tensor above = keys > least, equal = keys == least;
  const Tensor before = equal.to(kI32).cumsum(1) - 1;
  const Tensor sum = sum_where(above, weights) + before.to(kF64) * weights;
  return logical_or(above, logical_and(equal, sum < wanted));
}

// A draw in the order of tokens among those that are left, i64 (B).
Tensor draw(const SamplingInputs& in, const SamplingParts& parts, const Tensor& logits,
            const Tensor& largest) {
  const Tensor scaled = (logits.to(kF64) - largest.to(kF64)) / number(in, kTemperature);
  Tensor weights = scaled.exp().contiguous();
  const auto keep = [&](const Tensor& mask) {
    weights = where(mask, weights, weights.full_like(0)).contiguous();
  };
  const Tensor keys = parts.top_k || parts.top_p ? ordered_keys(logits).contiguous() : Tensor();
  if (parts.top_k) {
    const Tensor one = Tensor::full({}, 1, kF64).expand(to_shape(weights.shape()));
    keep(best_until(keys, one, number(in, kTopK)));
  }
  if (parts.top_p) keep(best_until(keys, weights, weights.sum(1, true) * number(in, kTopP)));
  if (parts.min_p) keep(weights >= number(in, kMinP));
  const Tensor sums = weights.cumsum(1).contiguous();
  const Tensor total = sums.narrow(1, sums.size(1) - 1, 1);
  const Tensor token = (sums <= total * in.random.unsqueeze(1)).to(kI64).sum(1);
  return where(token == logits.size(1), logits.argmax(1), token);
}

}  // namespace

SamplingParts::SamplingParts(const SamplingOptions& o)
    : penalty(o.repetition_penalty != 1),
      draw(o.temperature > 0),
      top_k(draw && o.top_k > 0),
      top_p(draw && o.top_p < 1),
      min_p(draw && o.min_p > 0) {}

std::vector<double> sampling_numbers(const SamplingOptions& o) {
  return {o.temperature, static_cast<double>(o.top_k), o.top_p, o.min_p, o.repetition_penalty};
}

void check_sampled(int64_t token) {
  check(token != kNanLogit, "generate: a logit is NaN");
  check(token != kNoFiniteLogit, "generate: no logit is finite");
}

Sampled sample(const SamplingInputs& in, const SamplingParts& parts) {
  LabelScope label("sample");
  Tensor logits = in.logits;
  if (parts.penalty) {
    const Tensor x = logits.to(kF64), penalty = number(in, kPenalty);
    logits = where(in.seen, where(x < 0, x * penalty, x / penalty), x).to(kF32).contiguous();
  }
  const Tensor largest = logits.max(1, true).contiguous();
  Tensor token = parts.draw ? draw(in, parts, logits, largest) : logits.argmax(1);
  token = where(largest.squeeze(1).abs() < INFINITY, token, kNoFiniteLogit);
  token = where(logits.isnan().any(1), kNanLogit, token);
  const Tensor at = Tensor::arange(logits.size(1)).unsqueeze(0);
  return {token, logical_or(in.seen, at == token.unsqueeze(1))};
}

}  // namespace tiny::models
