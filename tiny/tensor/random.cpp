#include "tiny/tensor/random.h"

#include <cmath>
#include <mutex>
#include <utility>

#include "tiny/base/env.h"
#include "tiny/base/thread.h"
#include "tiny/ir/sizes.h"
#include "tiny/tensor/detail.h"

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

struct RandomDevice {
  std::string name;
};
std::string& random_device() { return of_thread<RandomDevice>().name; }

// next_random_state as a tensor.
Tensor take_state(int64_t blocks) {
  check(blocks < (int64_t{1} << 32), "random: ", blocks, " blocks at once; there may be 2^32 - 1");
  const Tensor state(runtime_seam::upload_random(blocks));
  return random_device().empty() ? state : state.to(random_device());
}

RandomWords blocks_at(const Tensor& state, const Tensor& block, int rounds = 20) {
  const Tensor low = state.narrow(0, 2, 1) + block;  // wraps around, and then carries
  const Tensor carry = (low < block).to(kU32);
  return threefry2x32(state.narrow(0, 0, 1), state.narrow(0, 1, 1), low,
                      state.narrow(0, 3, 1) + carry, rounds);
}

// --- Arithmetic that is the same to the bit on every device -------------------------------------

// Compilers may merge a product with a sum that follows it, which then rounds once and not twice,
// and devices have logarithms of their own. So products are rounded before they are added, and
// logarithm and sine are made of what IEEE 754 rounds alike everywhere.
class Exactly {
 public:
  // `state`: what take_state gave, for its zero.
  explicit Exactly(const Tensor& state) : zero_(state.select(0, 4)) {}

  // x, kept out of any sum: its bits pass through integers.
  Tensor rounded(const Tensor& x) const {
    const DType bits = x.dtype() == kF64 ? kU64 : kU32;
    return (x.bitcast(bits) ^ zero_.to(bits)).bitcast(x.dtype());
  }

  // c[0] + c[1] x + c[2] x^2 + ...
  Tensor series(const Tensor& x, const std::vector<double>& c) const {
    Tensor sum = x.full_like(c.back());
    for (size_t i = c.size() - 1; i-- > 0;) sum = rounded(sum * x) + c[i];
    return sum;
  }

  // ln x of positive normal numbers. x = 2^e m with m in [sqrt 1/2, sqrt 2): ln m = 2 atanh s with
  // s = (m - 1) / (m + 1), of which 6 terms are as good as f32 and 12 as f64.
  Tensor log(const Tensor& x) const {
    const bool wide = x.dtype() == kF64;
    const DType bits = wide ? kI64 : kI32;
    const int mantissa = wide ? 52 : 23;
    const int64_t sqrt_half = wide ? 0x3fe6a09e667f3bcd : 0x3f3504f3;
    const Tensor i = x.bitcast(bits) - sqrt_half, e = (i >> mantissa).to(x.dtype());
    const Tensor m = ((i & ((int64_t{1} << mantissa) - 1)) + sqrt_half).bitcast(x.dtype());
    const Tensor s = (m - 1) / (m + 1);
    std::vector<double> c;
    for (int k = 0; k < (wide ? 12 : 6); ++k) c.push_back(2.0 / (2 * k + 1));
    return rounded(s * series(s * s, c)) + rounded(e * M_LN2);
  }

  // sin(x pi / 2) for x in [0, 1]: Taylor's series.
  Tensor quarter_sine(const Tensor& x) const {
    std::vector<double> c{M_PI / 2};
    for (int k = 1; k < (x.dtype() == kF64 ? 13 : 7); ++k)
      c.push_back(c.back() * -(M_PI * M_PI / 4) / (2 * k * (2 * k + 1)));
    return x * series(x * x, c);
  }

 private:
  Tensor zero_;
};

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

detail::RandomOn::RandomOn(const std::string& device)
    : before_(std::exchange(random_device(), device)) {}
detail::RandomOn::~RandomOn() { random_device() = before_; }

void manual_seed(uint64_t seed) {
  runtime_seam::forbid_seed_in_capture();
  set_random_state({seed, 0});
}

RandomState random_state() {
  std::lock_guard lock(stream().mutex);
  return {stream().key, stream().counter};
}

void set_random_state(const RandomState& state) {
  std::lock_guard lock(stream().mutex);
  stream().key = state.key;
  stream().counter = state.counter;
}

// Key, counter and a zero that no compiler knows of.
std::vector<uint32_t> next_random_state(int64_t blocks) {
  Stream& s = stream();
  std::lock_guard lock(s.mutex);
  const std::vector<uint32_t> words{low_word(s.key), high_word(s.key), low_word(s.counter),
                                    high_word(s.counter), 0};
  s.counter += static_cast<uint64_t>(blocks);
  return words;
}

RandomWords threefry2x32(const Tensor& key0, const Tensor& key1, const Tensor& counter0,
                         const Tensor& counter1, int rounds) {
  constexpr int kRotations[8] = {13, 15, 26, 6, 17, 29, 16, 24};
  const Tensor keys[3] = {key0, key1, key0 ^ key1 ^ Tensor::full({}, 0x1BD11BDA, kU32)};
  Tensor x = counter0 + key0, y = counter1 + key1;
  for (int round = 0; round < rounds; ++round) {
    x = x + y;
    y = rotate_left(y, kRotations[round % 8]) ^ x;
    if (round % 4 != 3) continue;
    const int injection = round / 4 + 1;
    x = x + keys[injection % 3];
    y = y + keys[(injection + 1) % 3] + injection;
  }
  return {x, y};
}

namespace {

// Words that one call takes from the stream: n blocks, or n words.
struct Blocks {
  Tensor state;
  RandomWords words;
};

Blocks next_blocks(int64_t n) {
  const Tensor state = take_state(n);
  if (n == 0) return {state, {Tensor::zeros({0}, kU32), Tensor::zeros({0}, kU32)}};
  return {state, blocks_at(state, Tensor(build::iota(n, kU32)))};
}

struct Words {
  Tensor state, words;
};

Words next_words(int64_t n) {
  const int64_t blocks = ceil_div(n, 2);
  const Tensor state = take_state(blocks);
  if (n == 0) return {state, Tensor::zeros({0}, kU32)};
  const Tensor i(build::iota(n, kU32)), in_first = i < blocks;
  const RandomWords w = blocks_at(state, where(in_first, i, i - blocks));
  return {state, where(in_first, w.first, w.second)};
}

}  // namespace

RandomWords random_blocks(int64_t n) { return next_blocks(n).words; }
Tensor random_words(int64_t n) { return next_words(n).words; }

// The four of a block are those of elements x, x + 1, x + 8 and x + 9 of a row (x even, below 8
// modulo 16): what a thread has of a fragment of a matrix unit's results, vectors of two or more
// adjacent ones included, so that it computes each block once.
Tensor random_bools(const Shape& shape, double p) {
  check(p >= 0 && p <= 1, "random_bools: ", p, " is no probability");
  constexpr int64_t kTogether = 16;
  const int64_t n = numel(shape);
  if (n == 0) return Tensor::zeros(shape, kBool);
  const int64_t width = shape.empty() || shape.back() < kTogether ? n : shape.back();
  const int64_t rows = n / width, wide = round_up(width, kTogether), blocks = rows * wide / 4;
  const Shape own{rows, wide / kTogether, 1, 4, 1}, all{rows, wide / kTogether, 2, 4, 2};
  // The blocks of all elements: kernels compute one for each and find that some are the same.
  const Tensor block = Tensor(build::iota(blocks, kU32)).reshape(own).expand(all);
  const RandomWords w = blocks_at(take_state(blocks), block, 13);
  const Tensor word = where(Tensor::arange(2).reshape({2, 1, 1}) == 0, w.first, w.second);
  const Tensor number = (word >> Tensor::arange(2).to(kU32) * 16) & 0xffff;
  const Tensor drawn = number.reshape({rows, wide}).narrow(1, 0, width).reshape(shape);
  return drawn < static_cast<int64_t>(std::llround(std::ldexp(p, 16)));
}

// --- Distributions ------------------------------------------------------------------------------

namespace {

// Integers in [0, 2^bits) with which numbers of [0, 1) are made: as many bits as the dtype has.
struct Draws {
  Tensor integer;  // [n], i64 for f64, else i32
  int bits;
  Exactly exactly;

  // integer / 2^bits, or what is given in the place of the integer; no rounding.
  Tensor unit(const Tensor& i) const {
    return i.to(bits > 24 ? kF64 : kF32) * std::ldexp(1.0, -bits);
  }
  Tensor unit() const { return unit(integer); }
};

Draws draw(int64_t n, DType dtype) {
  if (dtype == kF64) {
    const Blocks b = next_blocks(n);
    const Tensor high = (b.words.first >> 5).to(kI64), low = (b.words.second >> 6).to(kI64);
    return {(high << 26) | low, 53, Exactly(b.state)};
  }
  const int bits = dtype == kF16 ? 11 : dtype == kBF16 ? 8 : 24;
  const Words w = next_words(n);
  return {(w.words >> (32 - bits)).to(kI32), bits, Exactly(w.state)};
}

// -ln(1 - u) of the drawn u.
Tensor waiting_time(const Draws& d) {
  return d.exactly.log(d.unit((int64_t{1} << d.bits) - d.integer)).neg();
}

// cos(2 pi u) of the drawn u, by quarters of a turn.
Tensor cosine(const Draws& d) {
  const int low = d.bits - 2;
  const Tensor quarter = d.integer >> low, rest = d.integer & ((int64_t{1} << low) - 1);
  const Tensor up = (quarter & 1) != 0;
  const Tensor angle = d.unit(where(up, rest, (int64_t{1} << low) - rest) << 2);
  const Tensor y = d.exactly.quarter_sine(angle);
  return where(((quarter + 1) & 2) != 0, y.neg(), y);
}

}  // namespace

Tensor Tensor::rand(const Shape& shape, DType dtype) {
  LabelScope label("rand");
  detail::require_shape("rand", shape);
  detail::require_float("rand", dtype);
  return draw(tiny::numel(shape), dtype).unit().to(dtype).reshape(shape);
}

Tensor Tensor::uniform(const Shape& shape, double low, double high, DType dtype) {
  LabelScope label("uniform");
  detail::require_shape("uniform", shape);
  detail::require_float("uniform", dtype);
  check(low <= high, "uniform: from ", low, " to ", high);
  const Draws d = draw(tiny::numel(shape), dtype);
  return (d.exactly.rounded(d.unit() * (high - low)) + low).to(dtype).reshape(shape);
}

namespace {

struct Normal {
  Tensor values;
  Exactly exactly;
};

// [n] in f32 or f64. G. Box, M. Muller, "A note on the generation of random normal deviates"
// (1958).
Normal normal_numbers(int64_t n, DType dtype) {
  const auto values = [](const Draws& radius, const Draws& angle) {
    return (waiting_time(radius) * 2).sqrt() * cosine(angle);
  };
  if (dtype == kF64) {
    const Draws radius = draw(n, kF64), angle = draw(n, kF64);
    return {values(radius, angle), radius.exactly};
  }
  const Blocks b = next_blocks(n);
  const Exactly exactly(b.state);
  const Draws radius{(b.words.first >> 8).to(kI32), 24, exactly};
  const Draws angle{(b.words.second >> 8).to(kI32), 24, exactly};
  return {values(radius, angle), exactly};
}

}  // namespace

Tensor Tensor::randn(const Shape& shape, DType dtype) {
  LabelScope label("randn");
  detail::require_shape("randn", shape);
  detail::require_float("randn", dtype);
  const Normal n = normal_numbers(tiny::numel(shape), detail::compute_dtype(dtype));
  return n.values.to(dtype).reshape(shape);
}

Tensor Tensor::normal(const Shape& shape, double mean, double std, DType dtype) {
  LabelScope label("normal");
  detail::require_shape("normal", shape);
  detail::require_float("normal", dtype);
  check(std >= 0, "normal: standard deviation ", std, " is negative");
  const Normal n = normal_numbers(tiny::numel(shape), detail::compute_dtype(dtype));
  return (n.exactly.rounded(n.values * std) + mean).to(dtype).reshape(shape);
}

Tensor Tensor::randint(int64_t low, int64_t high, const Shape& shape, DType dtype) {
  LabelScope label("randint");
  detail::require_shape("randint", shape);
  check(low < high, "randint: no integers from ", low, " up to but not including ", high);
  const auto span = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  const int64_t n = tiny::numel(shape);
  // Upper bits of a product with the span, without a division. Some numbers come more often than
  // others, by a part of at most span / 2^32 for one word and span / 2^64 for two.
  Tensor offset;
  if (span <= (uint64_t{1} << 16)) {
    offset = (random_words(n).to(kU64) * span) >> 32;
  } else {
    const RandomWords w = random_blocks(n);
    const Tensor first = w.first.to(kU64), second = w.second.to(kU64);
    offset = span <= (uint64_t{1} << 32) ? (first * span + ((second * span) >> 32)) >> 32
                                         : mod((first << 32) | second, full({}, span, kU64));
  }
  return (offset.to(kI64) + low).to(dtype).reshape(shape);
}

Tensor Tensor::bernoulli() const {
  LabelScope label("bernoulli");
  detail::require_float("bernoulli", dtype());
  const DType wide = detail::compute_dtype(dtype());
  const detail::RandomOn here(device());
  return (rand(to_shape(shape()), wide) < detach().to(wide)).to(dtype());
}

Tensor Tensor::randperm(int64_t n) {
  LabelScope label("randperm");
  check(n >= 0, "randperm: ", n, " elements");
  return random_words(n).argsort(0);
}

namespace {

// The first place of each ascending row of x (..., n) that is larger than `target` (..., count), by
// binary search; the last place where none is.
Tensor first_above(const Tensor& x, const Tensor& target) {
  const int64_t n = x.shape().back();
  Tensor low = Tensor::zeros(to_shape(target.shape()), kI64), high = low + (n - 1);
  for (int64_t width = n - 1; width > 0; width >>= 1) {
    const Tensor middle = (low + high) >> 1, above = x.gather(-1, middle) > target;
    low = where(above, low, minimum(middle + 1, high));
    high = where(above, middle, high);
  }
  return low;
}

}  // namespace

Tensor Tensor::multinomial(int64_t count, bool replacement) const {
  LabelScope label("multinomial");
  detail::require_float("multinomial", dtype());
  check(rank() == 1 || rank() == 2, "multinomial: takes weights (n) or (m, n) and not ",
        to_text(shape()));
  check(count >= 1 && (replacement || count <= shape().back()), "multinomial: ", count, " of ",
        shape().back(), " classes without replacement");
  const detail::RandomOn here(device());
  if (!replacement) {
    // The order of exponential waiting times with the weights as rates.
    const Tensor time = waiting_time(draw(numel(), kF32)).reshape(to_shape(shape()));
    return (time / detach().to(kF32)).topk(count, -1, false).indices;
  }
  const Tensor w = detach().to(kF64);
  // Sums of blocks are rounded otherwise than sums in a row; this way they ascend, and what weighs
  // nothing adds nothing.
  const Tensor cumulated = where(w > 0, w.cumsum(-1), 0).cummax(-1).values.contiguous();
  Shape draws = to_shape(shape());
  draws.back() = count;
  const Tensor target =
      (rand(draws).to(kF64) * cumulated.narrow(-1, shape().back() - 1, 1)).contiguous();
  return first_above(cumulated, target);
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
