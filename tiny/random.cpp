#include "tiny/random.h"

#include <cmath>
#include <mutex>

#include "tiny/env.h"
#include "tiny/tensor_detail.h"

namespace tiny {

namespace {

struct Stream {
  std::mutex mutex;
  uint64_t key = static_cast<uint64_t>(env_int("SEED")), counter = 0;
};

Stream& stream() {
  static Stream* s = new Stream;
  return *s;
}

Tensor rotate_left(const Tensor& x, int amount) { return (x << amount) | (x >> (32 - amount)); }

uint32_t low_word(uint64_t v) { return static_cast<uint32_t>(v); }
uint32_t high_word(uint64_t v) { return static_cast<uint32_t>(v >> 32); }

// Key and counter of the next `blocks` blocks, u32 [4].
Tensor take_state(int64_t blocks) {
  check(blocks < (int64_t{1} << 32), "random: ", blocks, " blocks at once; there may be 2^32 - 1");
  Stream& s = stream();
  std::lock_guard lock(s.mutex);
  const std::vector<uint32_t> state{low_word(s.key), high_word(s.key), low_word(s.counter),
                                    high_word(s.counter)};
  s.counter += static_cast<uint64_t>(blocks);
  return Tensor::from(state);
}

RandomWords blocks_at(const Tensor& state, const Tensor& block) {
  const Tensor low = state.narrow(0, 2, 1) + block;  // wraps around, and then carries
  const Tensor carry = (low < block).to(kU32);
  return threefry2x32(state.narrow(0, 0, 1), state.narrow(0, 1, 1), low,
                      state.narrow(0, 3, 1) + carry);
}

// The upper `bits` bits of each word as a number in [0, 1), exact in a float with that many.
Tensor to_unit(const Tensor& words, int bits, DType dtype) {
  const Tensor top = (words >> (32 - bits)).to(kI32);
  return top.to(dtype) * std::ldexp(1.0, -bits);
}

// [n] in [0, 1), f32 or f64; f16 and bf16 have as many different values as their mantissa holds.
Tensor unit_interval(int64_t n, DType dtype) {
  if (dtype == kF64) {
    const RandomWords w = random_blocks(n);
    const Tensor high = (w.first >> 5).to(kF64), low = (w.second >> 6).to(kF64);
    return (high * 0x1p26 + low) * 0x1p-53;
  }
  const int bits = dtype == kF16 ? 11 : dtype == kBF16 ? 8 : 24;
  return to_unit(random_words(n), bits, kF32).to(dtype);
}

struct Fans {
  double in, out;
};

// Inputs and outputs that an element of a weight (out, in, kernel...) takes part in.
Fans fans_of(const char* what, const Shape& shape) {
  check(shape.size() >= 2, what, ": a weight is (out, in, kernel...) and not ", to_text(shape));
  double kernel = 1;
  for (size_t i = 2; i < shape.size(); ++i) kernel *= static_cast<double>(shape[i]);
  return {static_cast<double>(shape[1]) * kernel, static_cast<double>(shape[0]) * kernel};
}

}  // namespace

void manual_seed(uint64_t seed) {
  std::lock_guard lock(stream().mutex);
  stream().key = seed;
  stream().counter = 0;
}

RandomWords threefry2x32(const Tensor& key0, const Tensor& key1, const Tensor& counter0,
                         const Tensor& counter1) {
  constexpr int kRotations[8] = {13, 15, 26, 6, 17, 29, 16, 24};
  const Tensor keys[3] = {key0, key1, key0 ^ key1 ^ Tensor::full({}, 0x1BD11BDA, kU32)};
  Tensor x = counter0 + key0, y = counter1 + key1;
  for (int round = 0; round < 20; ++round) {
    x = x + y;
    y = rotate_left(y, kRotations[round % 8]) ^ x;
    if (round % 4 != 3) continue;
    const int injection = round / 4 + 1;
    x = x + keys[injection % 3];
    y = y + keys[(injection + 1) % 3] + injection;
  }
  return {x, y};
}

RandomWords random_blocks(int64_t n) {
  if (n == 0) return {Tensor::zeros({0}, kU32), Tensor::zeros({0}, kU32)};
  return blocks_at(take_state(n), Tensor(build::iota(n, kU32)));
}

Tensor random_words(int64_t n) {
  if (n == 0) return Tensor::zeros({0}, kU32);
  const int64_t blocks = (n + 1) / 2;
  const Tensor i(build::iota(n, kU32)), in_first = i < blocks;
  const RandomWords w = blocks_at(take_state(blocks), where(in_first, i, i - blocks));
  return where(in_first, w.first, w.second);
}

// --- Distributions ------------------------------------------------------------------------------

Tensor Tensor::rand(const Shape& shape, DType dtype) {
  LabelScope label("rand");
  detail::require_shape("rand", shape);
  detail::require_float("rand", dtype);
  return unit_interval(tiny::numel(shape), dtype).reshape(shape);
}

Tensor Tensor::uniform(const Shape& shape, double low, double high, DType dtype) {
  LabelScope label("uniform");
  check(low <= high, "uniform: from ", low, " to ", high);
  return rand(shape, dtype) * (high - low) + low;
}

Tensor Tensor::randn(const Shape& shape, DType dtype) {
  LabelScope label("randn");
  detail::require_shape("randn", shape);
  detail::require_float("randn", dtype);
  const int64_t n = tiny::numel(shape);
  const DType wide = detail::compute_dtype(dtype);
  // G. Box, M. Muller, "A note on the generation of random normal deviates" (1958). The radius
  // takes 1 - u, which is never 0.
  Tensor u, v;
  if (wide == kF64) {
    u = unit_interval(n, kF64);
    v = unit_interval(n, kF64);
  } else {
    const RandomWords w = random_blocks(n);
    u = to_unit(w.first, 24, kF32);
    v = to_unit(w.second, 24, kF32);
  }
  const Tensor radius = ((1 - u).log() * -2).sqrt();
  return (radius * (v * (2 * M_PI)).cos()).to(dtype).reshape(shape);
}

Tensor Tensor::normal(const Shape& shape, double mean, double std, DType dtype) {
  LabelScope label("normal");
  check(std >= 0, "normal: standard deviation ", std, " is negative");
  return randn(shape, dtype) * std + mean;
}

Tensor Tensor::randint(int64_t low, int64_t high, const Shape& shape, DType dtype) {
  LabelScope label("randint");
  detail::require_shape("randint", shape);
  check(low < high, "randint: no integers from ", low, " up to but not including ", high);
  const auto span = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  const int64_t n = tiny::numel(shape);
  Tensor offset;
  if (span <= (uint64_t{1} << 32)) {  // the upper word of the product: no division
    offset = (random_words(n).to(kU64) * span) >> 32;
  } else {
    const RandomWords w = random_blocks(n);
    offset = mod((w.first.to(kU64) << 32) | w.second.to(kU64), full({}, span, kU64));
  }
  return (offset.to(kI64) + low).to(dtype).reshape(shape);
}

Tensor Tensor::bernoulli() const {
  LabelScope label("bernoulli");
  detail::require_float("bernoulli", dtype());
  const DType wide = detail::compute_dtype(dtype());
  return (rand(to_shape(shape()), wide) < detach().to(wide)).to(dtype());
}

Tensor Tensor::randperm(int64_t n) {
  LabelScope label("randperm");
  check(n >= 0, "randperm: ", n, " elements");
  return random_words(n).argsort(0);
}

Tensor Tensor::multinomial(int64_t count, bool replacement) const {
  LabelScope label("multinomial");
  detail::require_float("multinomial", dtype());
  check(rank() == 1 || rank() == 2, "multinomial: takes weights (n) or (m, n) and not ",
        to_text(shape()));
  check(count >= 1 && (replacement || count <= shape().back()), "multinomial: ", count, " of ",
        shape().back(), " classes without replacement");
  const Tensor w = detach().to(kF32);
  if (!replacement) {
    // The order of exponential waiting times with the weights as rates.
    const Tensor waiting = (1 - rand(to_shape(shape()))).log().neg() / w;
    return waiting.topk(count, -1, false).indices;
  }
  const Tensor cumulated = w.cumsum(-1).unsqueeze(-2);  // (..., 1, n)
  Shape draws = to_shape(shape());
  draws.back() = count;
  const Tensor target = rand(draws).unsqueeze(-1) * cumulated.narrow(-1, shape().back() - 1, 1);
  const Tensor below = (cumulated <= target).sum(-1);
  return minimum(below, shape().back() - 1);
}

Tensor Tensor::kaiming_uniform(const Shape& shape, double a, DType dtype) {
  LabelScope label("kaiming_uniform");
  const double bound = std::sqrt(6 / ((1 + a * a) * fans_of("kaiming_uniform", shape).in));
  return uniform(shape, -bound, bound, dtype);
}

Tensor Tensor::glorot_uniform(const Shape& shape, DType dtype) {
  LabelScope label("glorot_uniform");
  const Fans fans = fans_of("glorot_uniform", shape);
  const double bound = std::sqrt(6 / (fans.in + fans.out));
  return uniform(shape, -bound, bound, dtype);
}

}  // namespace tiny
