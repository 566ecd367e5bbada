#include "tiny/tensor/random.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "runtime/kernels/kernel.h"
#include "test/devices.h"
#include "test/reference.h"
#include "tiny/base/env.h"
#include "tiny/nn/functional.h"

using namespace tiny;

namespace {

using Numbers = std::vector<double>;

Numbers numbers(const Tensor& t) { return evaluate(t.node()).numbers(); }

std::vector<int64_t> block(int64_t counter0, int64_t counter1, int64_t key0, int64_t key1,
                           int rounds = 20) {
  const auto word = [](int64_t v) { return Tensor::full({}, v, kU32); };
  const RandomWords w =
      threefry2x32(word(key0), word(key1), word(counter0), word(counter1), rounds);
  return {evaluate(w.first.node()).integers()[0], evaluate(w.second.node()).integers()[0]};
}

}  // namespace

// Random123's file kat_vectors, lines "threefry2x32 20" and "threefry2x32 13".
TEST_CASE("the generator gives the published known answers") {
  CHECK(block(0, 0, 0, 0) == std::vector<int64_t>{0x6b200159, 0x99ba4efe});
  CHECK(block(0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff) ==
        std::vector<int64_t>{0x1cb996fc, 0xbb002be7});
  CHECK(block(0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344) ==
        std::vector<int64_t>{0xc4923a9c, 0x483df7a0});
  CHECK(block(0, 0, 0, 0, 13) == std::vector<int64_t>{0x9d1c5ec6, 0x8bd50731});
  CHECK(block(0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 13) ==
        std::vector<int64_t>{0xfd36d048, 0x2d17272c});
  CHECK(block(0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 13) ==
        std::vector<int64_t>{0xba3e4725, 0xf27d669e});
}

TEST_CASE("the same seed gives the same numbers and another call gives others") {
  manual_seed(5);
  const auto a = numbers(Tensor::rand({64})), b = numbers(Tensor::rand({64}));
  manual_seed(5);
  CHECK(numbers(Tensor::rand({64})) == a);
  CHECK(a != b);
  manual_seed(6);
  CHECK(numbers(Tensor::rand({64})) != a);
}

TEST_CASE("two calls differ in their data and not in their graph") {
  const Tensor a = Tensor::rand({8}), b = Tensor::rand({8});
  CHECK(topological(a.node()).size() == topological(b.node()).size());
}

namespace {

// The sample sizes below are fixed and the seeds too: nothing here fails by chance. Limits are four
// to five standard errors.
constexpr int64_t kMany = 1 << 17;

Numbers sample(const Tensor& t) { return t.to(kF64).reshape({-1}).to_vector<double>(); }

struct Moments {
  double mean, deviation, skewness, kurtosis;
};

Moments moments(const Numbers& x) {
  const double n = static_cast<double>(x.size());
  double mean = 0, power[3] = {};
  for (double v : x) mean += v / n;
  for (double v : x)
    for (int k = 0; k < 3; ++k) power[k] += std::pow(v - mean, k + 2) / n;
  const double deviation = std::sqrt(power[0]);
  return {mean, deviation, power[1] / std::pow(deviation, 3), power[2] / (power[0] * power[0])};
}

struct Distribution {
  const char* name;
  Tensor tensor;
  Moments expected;
  double low, high;  // the range, both ends included
};

// Correlation of x[i] and y[i + lag].
double correlation(const Numbers& x, const Numbers& y, size_t lag = 0) {
  const Moments a = moments(x), b = moments(y);
  double sum = 0;
  for (size_t i = 0; i + lag < x.size(); ++i) sum += (x[i] - a.mean) * (y[i + lag] - b.mean);
  return sum / static_cast<double>(x.size() - lag) / (a.deviation * b.deviation);
}

// Sum of (count - expected)^2 / expected, in standard deviations above its mean.
double surprise(const Numbers& counts, const Numbers& expected) {
  double sum = 0;
  for (size_t i = 0; i < counts.size(); ++i)
    sum += (counts[i] - expected[i]) * (counts[i] - expected[i]) / expected[i];
  const double freedom = static_cast<double>(counts.size()) - 1;
  return (sum - freedom) / std::sqrt(2 * freedom);
}

// The greatest distance from a distribution function, in units of 1 / sqrt(n): Kolmogorov and
// Smirnov expect less than 1.95 in 999 of 1000 samples.
double distance(Numbers x, const std::function<double(double)>& cumulated) {
  std::sort(x.begin(), x.end());
  const double n = static_cast<double>(x.size());
  double most = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double p = cumulated(x[i]);
    most = std::max({most, p - static_cast<double>(i) / n, static_cast<double>(i + 1) / n - p});
  }
  return most * std::sqrt(n);
}

double normal_cumulated(double x) { return std::erfc(-x / std::sqrt(2)) / 2; }

}  // namespace

TEST_CASE("distributions have their moments and ranges") {
  manual_seed(1);
  const double third = std::sqrt(1.0 / 12);
  const Shape n{kMany};
  const Tensor ones = Tensor::ones(n);
  // A kaiming bound of sqrt(6 / (in kernel)), a glorot bound of sqrt(6 / (in + out)).
  const double he = std::sqrt(6.0 / (64 * 4)), glorot = std::sqrt(6.0 / (256 + 512));
  // A coin with probability p: skewness (1 - 2p) / s, kurtosis 3 + (1 - 6 s^2) / s^2.
  const double coin = std::sqrt(0.25 * 0.75), keep = std::sqrt(0.3 * 0.7);
  const Distribution table[] = {
      {"rand", Tensor::rand(n), {0.5, third, 0, 1.8}, 0, 1 - 0x1p-24},
      {"rand f64", Tensor::rand(n, kF64), {0.5, third, 0, 1.8}, 0, 1 - 0x1p-53},
      {"rand f16", Tensor::rand(n, kF16), {0.5, third, 0, 1.8}, 0, 1 - 0x1p-11},
      {"rand bf16", Tensor::rand(n, kBF16), {0.498, third, 0, 1.8}, 0, 1 - 0x1p-8},
      {"uniform", Tensor::uniform(n, -1, 3), {1, 4 * third, 0, 1.8}, -1, 3},
      {"uniform f64", Tensor::uniform(n, 5, 6, kF64), {5.5, third, 0, 1.8}, 5, 6},
      {"randn", Tensor::randn(n), {0, 1, 0, 3}, -5.8, 5.8},
      {"randn f64", Tensor::randn(n, kF64), {0, 1, 0, 3}, -8.6, 8.6},
      {"randn f16", Tensor::randn(n, kF16), {0, 1, 0, 3}, -5.8, 5.8},
      {"normal", Tensor::normal(n, 3, 2), {3, 2, 0, 3}, -9, 15},
      {"normal of no width", Tensor::normal(n, 3, 0) + Tensor::rand(n), {3.5, third, 0, 1.8}, 3, 4},
      {"randint", Tensor::randint(-2, 9, n), {3, std::sqrt(10), 0, 1.78}, -2, 8},
      {"randint i8", Tensor::randint(-128, 128, n, kI8), {-0.5, 256 * third, 0, 1.8}, -128, 127},
      {"bernoulli", (ones * 0.25).bernoulli(), {0.25, coin, 0.5 / coin, 2.3333}, 0, 1},
      {"dropout", dropout(ones, 0.3), {1, keep / 0.7, -0.4 / keep, 1.7619}, 0, 1 / 0.7 + 1e-7},
      {"kaiming", Tensor::kaiming_uniform({512, 64, 2, 2}), {0, he * 2 * third, 0, 1.8}, -he, he},
      {"glorot",
       Tensor::glorot_uniform({512, 256}),
       {0, glorot * 2 * third, 0, 1.8},
       -glorot,
       glorot},
  };
  const double error = 1 / std::sqrt(static_cast<double>(kMany));
  for (const Distribution& d : table) {
    CAPTURE(d.name);
    const Numbers x = sample(d.tensor);
    const Moments m = moments(x), &e = d.expected;
    CHECK(std::abs(m.mean - e.mean) < 5 * error * e.deviation);
    CHECK(std::abs(m.deviation / e.deviation - 1) < 5 * error);
    CHECK(std::abs(m.skewness - e.skewness) < 12 * error);
    CHECK(std::abs(m.kurtosis - e.kurtosis) < 25 * error);
    CHECK(*std::min_element(x.begin(), x.end()) >= d.low - 1e-6 * (d.low != 0));
    CHECK(*std::max_element(x.begin(), x.end()) <= d.high + 1e-6 * (d.high > 1));
  }
}

TEST_CASE("uniform and normal numbers have their distribution functions") {
  manual_seed(2);
  const auto linear = [](double x) { return std::clamp(x, 0.0, 1.0); };
  CHECK(distance(sample(Tensor::rand({kMany})), linear) < 1.95);
  CHECK(distance(sample(Tensor::rand({kMany}, kF64)), linear) < 1.95);
  CHECK(distance(sample(Tensor::randn({kMany})), normal_cumulated) < 1.95);
  CHECK(distance(sample(Tensor::randn({kMany}, kF64)), normal_cumulated) < 1.95);
  // The tails too: 63 of a million are beyond 4.
  const Numbers x = sample(Tensor::randn({1 << 20}).abs());
  const auto far = std::count_if(x.begin(), x.end(), [](double v) { return v > 4; });
  CHECK(std::abs(static_cast<double>(far) - 66.4) < 33);
  CHECK(distance(sample(Tensor::randint(0, 1'000'000'000, {kMany}) / 1e9), linear) < 1.95);
}

TEST_CASE("every bit of a word is one half of the time") {
  manual_seed(3);
  const Tensor words = random_words(kMany);
  for (int bit = 0; bit < 32; ++bit) {
    const double ones = ((words >> bit) & 1).to(kI64).sum().item<int64_t>();
    CHECK(std::abs(ones / kMany - 0.5) < 2.5 / std::sqrt(static_cast<double>(kMany)));
  }
}

TEST_CASE("bools are as often true as asked, whatever their neighbours are") {
  manual_seed(8);
  // Elements of a block, of the next one in a row, of the next row.
  const auto depend = [](const Numbers& x, double p, size_t lag) {
    double sum = 0;
    for (size_t i = lag; i < x.size(); ++i) sum += (x[i] - p) * (x[i - lag] - p);
    return std::abs(sum) / (static_cast<double>(x.size()) * p * (1 - p));
  };
  for (const Shape& shape : {Shape{kMany}, Shape{kMany / 48, 48}, Shape{kMany / 37, 37},
                             Shape{kMany / 16, 4, 4}, Shape{kMany / 3, 3}})
    for (const double p : {0.001, 0.1, 0.5, 0.8}) {
      CAPTURE(p);
      CAPTURE(shape.back());
      const Numbers x = sample(random_bools(shape, p).to(kF32).flatten());
      REQUIRE(x.size() == static_cast<size_t>(numel(shape)));
      const double error = 1 / std::sqrt(static_cast<double>(x.size()));
      const double mean = std::accumulate(x.begin(), x.end(), 0.0) * error * error;
      CHECK(std::abs(mean - p) < 4 * std::sqrt(p * (1 - p)) * error);
      for (const size_t lag : {1, 2, 7, 8, 9, 16, 37, 48, 64})
        CHECK(depend(x, p, lag) < 5 * error / std::sqrt(std::min(1.0, p * 100)));
    }
  CHECK(random_bools({5000}, 1).all().item<bool>());
  CHECK(!random_bools({5000}, 0).any().item<bool>());
  CHECK(random_bools({3, 0}, 0.5).numel() == 0);
  CHECK(sample(random_bools({64}, 0.5).to(kF32)) != sample(random_bools({64}, 0.5).to(kF32)));
  CHECK_THROWS_WITH(random_bools({4}, 1.5), "random_bools: 1.5 is no probability");
}

TEST_CASE("numbers do not depend on their neighbours, nor on other calls and seeds") {
  const double limit = 4 / std::sqrt(static_cast<double>(kMany));
  manual_seed(4);
  const Numbers a = sample(Tensor::rand({kMany})), b = sample(Tensor::rand({kMany}));
  const Numbers normal = sample(Tensor::randn({kMany}));
  manual_seed(5);
  const Numbers other = sample(Tensor::rand({kMany}));
  manual_seed(uint64_t{4} << 32);  // the other half of the key
  const Numbers high = sample(Tensor::rand({kMany}));
  for (size_t lag : {1, 2, 3, 4, 8, 16, 32, 64, 1024, 65535, 65536, 65537}) {
    CAPTURE(lag);
    CHECK(std::abs(correlation(a, a, lag)) < (lag < 65000 ? 1 : 1.5) * limit);
    CHECK(std::abs(correlation(normal, normal, lag)) < (lag < 65000 ? 1 : 1.5) * limit);
  }
  for (const Numbers* x : {&b, &other, &high, &normal}) {
    CHECK(std::abs(correlation(a, *x)) < limit);
    CHECK(std::abs(correlation(a, *x, 1)) < limit);
  }
  // Neighbours fill a square evenly.
  Numbers cells(256), expected(256, kMany / 2.0 / 256);
  for (size_t i = 0; i + 1 < a.size(); i += 2)
    ++cells[static_cast<size_t>(a[i] * 16) * 16 + static_cast<size_t>(a[i + 1] * 16)];
  CHECK(std::abs(surprise(cells, expected)) < 4);
}

TEST_CASE("a normal number's size says nothing about the next one's") {
  manual_seed(6);
  const Numbers size = sample(Tensor::randn({kMany}).abs());
  const double limit = 4 / std::sqrt(static_cast<double>(kMany));
  for (size_t lag : {1, 2, 3}) CHECK(std::abs(correlation(size, size, lag)) < limit);
}

TEST_CASE("every uniform dtype stays below one") {
  for (DType t : {kF16, kBF16, kF32, kF64}) {
    const auto x = numbers(Tensor::rand({5000}, t));
    CHECK(*std::max_element(x.begin(), x.end()) < 1);
    CHECK(*std::min_element(x.begin(), x.end()) >= 0);
  }
}

TEST_CASE("randint meets its bounds and every value between") {
  const auto x = numbers(Tensor::randint(-2, 3, {2000}));
  for (double v = -2; v < 3; ++v) CHECK(std::count(x.begin(), x.end(), v) > 300);
  CHECK(*std::max_element(x.begin(), x.end()) == 2);
  CHECK_THROWS_WITH_AS(Tensor::randint(3, 3, {1}),
                       "randint: no integers from 3 up to but not including 3", Error);
}

// Where a single word gave each of 3 * 2^30 numbers, every third came twice as often.
TEST_CASE("randint is even over large spans") {
  manual_seed(7);
  const Numbers x = sample(mod(Tensor::randint(0, int64_t{3} << 30, {kMany}), 3));
  Numbers counts(3), expected(3, kMany / 3.0);
  for (double v : x) ++counts[static_cast<size_t>(v)];
  CHECK(surprise(counts, expected) < 4);
  const int64_t low = INT64_MIN, high = INT64_MAX;
  const Numbers wide = sample(Tensor::randint(low, high, {kMany}));
  const Moments m = moments(wide);
  CHECK(std::abs(m.mean / 0x1p64) < 0.004);
  CHECK(m.deviation / 0x1p64 == doctest::Approx(std::sqrt(1.0 / 12)).epsilon(0.01));
}

TEST_CASE("every order of a permutation is as likely") {
  manual_seed(8);
  std::map<std::vector<int64_t>, double> counts;
  for (int i = 0; i < 720; ++i) ++counts[Tensor::randperm(4).to_vector<int64_t>()];
  CHECK(counts.size() == 24);
  Numbers seen, expected(24, 30);
  for (const auto& [order, count] : counts) seen.push_back(count);
  CHECK(surprise(seen, expected) < 4);
  const Numbers large = sample(Tensor::randperm(kMany)), places = sample(Tensor::arange(kMany));
  CHECK(std::abs(correlation(large, places)) < 4 / std::sqrt(static_cast<double>(kMany)));
  CHECK(std::abs(correlation(large, large, 1)) < 4 / std::sqrt(static_cast<double>(kMany)));
}

TEST_CASE("randperm is a permutation") {
  auto x = numbers(Tensor::randperm(100));
  CHECK_FALSE(std::is_sorted(x.begin(), x.end()));
  std::sort(x.begin(), x.end());
  for (size_t i = 0; i < x.size(); ++i) CHECK(x[i] == static_cast<double>(i));
}

TEST_CASE("multinomial never draws a class of weight zero") {
  const Tensor w = Tensor::from({1.0f, 0.0f, 3.0f, 4.0f});
  const auto once = numbers(w.multinomial(3)), often = numbers(w.multinomial(4000, true));
  CHECK(std::count(once.begin(), once.end(), 1) == 0);
  CHECK(std::count(often.begin(), often.end(), 1) == 0);
  CHECK(std::abs(std::count(often.begin(), often.end(), 0) - 500) < 100);
}

TEST_CASE("multinomial draws classes as often as they weigh") {
  manual_seed(9);
  const Numbers w{1, 0, 3, 4, 0.5, 1.5};
  const Tensor weights = Tensor::from(w).to(kF32);
  const Numbers often = sample(weights.multinomial(40000, true));
  Numbers counts(6), expected, seen;
  for (double v : often) ++counts[static_cast<size_t>(v)];
  CHECK(counts[1] == 0);
  for (size_t i = 0; i < w.size(); ++i)
    if (w[i] > 0) expected.push_back(w[i] * 4000), seen.push_back(counts[i]);
  CHECK(surprise(seen, expected) < 4);
  // Without replacement the second one is drawn from what the first one left.
  const auto pairs = weights.expand({40000, 6}).multinomial(2).to_vector<int64_t>();
  Numbers both(36), likely(36);
  for (size_t i = 0; i < pairs.size(); i += 2)
    ++both[static_cast<size_t>(pairs[i] * 6 + pairs[i + 1])];
  seen.clear(), expected.clear();
  for (size_t i = 0; i < 6; ++i)
    for (size_t j = 0; j < 6; ++j) {
      const double p = i == j ? 0 : w[i] / 10 * w[j] / (10 - w[i]);
      if (p == 0) CHECK(both[i * 6 + j] == 0);
      if (p > 0) expected.push_back(p * 40000), seen.push_back(both[i * 6 + j]);
    }
  CHECK(surprise(seen, expected) < 4);
}

TEST_CASE("multinomial finds one of many classes, and none that weighs nothing") {
  manual_seed(10);
  const int64_t n = 5000;
  const Tensor is_gemm = mod(Tensor::arange(n), 3) == 1;
  const Tensor w = where(is_gemm, Tensor::rand({n}) + 0.1f, 0).realize();
  const Tensor drawn = w.expand({3, n}).multinomial(20000, true).realize();
  CHECK(drawn.max().item<int64_t>() < n);
  CHECK(w.gather(0, drawn.reshape({-1})).min().item<float>() > 0);
  // Classes are drawn from the whole range: their mean weight place is the middle.
  CHECK(drawn.to(kF64).mean().item<double>() == doctest::Approx(n / 2.0).epsilon(0.01));
}

namespace {

std::vector<std::byte> bytes_of(const std::function<Tensor()>& make) {
  manual_seed(42);
  const Tensor t = make();
  std::vector<std::byte> out(static_cast<size_t>(t.numel()) * t.dtype().size());
  t.to_bytes(out.data());
  return out;
}

}  // namespace

TEST_CASE("a seed gives the same bits for every number of threads, compiler and device") {
  const auto weights = [] { return Tensor::from<float>({1, 0, 3, 4, 0.5f, 2}); };
  const std::vector<std::function<Tensor()>> all{
      [] {
        return Tensor::rand({90, 37});
      },
      [] { return Tensor::rand({3333}, kF64); },
      [] {
        return Tensor::randn({90, 37});
      },
      [] { return Tensor::randn({3333}, kF64); },
      [] { return Tensor::randn({3333}, kBF16); },
      [] { return Tensor::randint(-5, 1000, {3333}); },
      [] { return Tensor::randint(-5, 3'000'000'000, {3333}); },
      [] { return Tensor::uniform({3333}, -0.3, 1.7); },
      [] { return Tensor::uniform({3333}, -0.3, 1.7, kF64); },
      [] { return Tensor::normal({3333}, 3.1, 0.7); },
      [] { return Tensor::randperm(1000); },
      [] { return Tensor::full({3333}, 0.3).bernoulli(); },
      [] { return dropout(Tensor::ones({3333}), 0.3); },
      [] {
        return Tensor::kaiming_uniform({16, 8, 3, 3});
      },
      [] {
        return Tensor::glorot_uniform({64, 32});
      },
      [&] { return weights().multinomial(1000, true); },
      [&] {
        return weights().expand({500, 6}).multinomial(3);
      },
  };
  std::vector<std::pair<std::string, std::string>> settings{
      {"THREADS", "1"}, {"THREADS", "2"}, {"THREADS", "3"}, {"OPT", "0"}, {"FUSE", "0"}};
  for (const std::string& device : test_devices())
    if (device != "CPU") settings.emplace_back("DEVICE", device);
  std::vector<std::vector<std::byte>> expected;
  for (const auto& make : all) expected.push_back(bytes_of(make));
  for (size_t i = 0; i < all.size(); ++i) {
    for (const auto& [name, value] : settings) {
      CAPTURE(i);
      CAPTURE(name);
      CAPTURE(value);
      const EnvOverride setting(name, value);
      CHECK(bytes_of(all[i]) == expected[i]);
    }
  }
  const EnvOverride compiler("CPU_COMPILER", "cc");
  clear_kernel_cache();  // the compiler is no part of a kernel's key
  for (size_t i = 0; i < all.size(); ++i) CHECK(bytes_of(all[i]) == expected[i]);
  clear_kernel_cache();
}

TEST_CASE("bernoulli and multinomial draw where their tensor is") {
  manual_seed(3);
  const Tensor here = Tensor::full({64}, 0.5).contiguous().bernoulli().realize();
  const Tensor picked = Tensor::from({1.0f, 2.0f, 3.0f, 4.0f}).multinomial(3).realize();
  const Tensor again = Tensor::from({1.0f, 2.0f, 3.0f, 4.0f}).multinomial(9, true).realize();
  manual_seed(3);
  const Tensor weights = Tensor::from({1.0f, 2.0f, 3.0f, 4.0f}).to("CPU:1");
  const Tensor there = Tensor::full({64}, 0.5).contiguous().to("CPU:1").bernoulli();
  CHECK(there.to_vector<float>() == here.to_vector<float>());
  CHECK(there.device() == "CPU:1");
  CHECK(weights.multinomial(3).to_vector<int64_t>() == picked.to_vector<int64_t>());
  CHECK(weights.multinomial(9, true).to_vector<int64_t>() == again.to_vector<int64_t>());
}
