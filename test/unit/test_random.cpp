#include "tiny/random.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "test/reference.h"

using namespace tiny;

namespace {

std::vector<double> numbers(const Tensor& t) { return evaluate(t.node()).numbers(); }

struct Moments {
  double mean, variance;
};

Moments moments(const std::vector<double>& x) {
  double sum = 0, squares = 0;
  for (double v : x) sum += v;
  const double mean = sum / static_cast<double>(x.size());
  for (double v : x) squares += (v - mean) * (v - mean);
  return {mean, squares / static_cast<double>(x.size())};
}

std::vector<int64_t> block(int64_t counter0, int64_t counter1, int64_t key0, int64_t key1) {
  const auto word = [](int64_t v) { return Tensor::full({}, v, kU32); };
  const RandomWords w = threefry2x32(word(key0), word(key1), word(counter0), word(counter1));
  return {evaluate(w.first.node()).integers()[0], evaluate(w.second.node()).integers()[0]};
}

}  // namespace

// Random123's file kat_vectors, lines "threefry2x32 20".
TEST_CASE("the generator gives the published known answers") {
  CHECK(block(0, 0, 0, 0) == std::vector<int64_t>{0x6b200159, 0x99ba4efe});
  CHECK(block(0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff) ==
        std::vector<int64_t>{0x1cb996fc, 0xbb002be7});
  CHECK(block(0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344) ==
        std::vector<int64_t>{0xc4923a9c, 0x483df7a0});
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

TEST_CASE("distributions have their moments") {
  manual_seed(1);
  const int64_t n = 40000;
  const Moments uniform = moments(numbers(Tensor::rand({n})));
  CHECK(std::abs(uniform.mean - 0.5) < 0.01);
  CHECK(std::abs(uniform.variance - 1.0 / 12) < 0.002);
  const Moments normal = moments(numbers(Tensor::normal({n}, 3, 2)));
  CHECK(std::abs(normal.mean - 3) < 0.05);
  CHECK(std::abs(normal.variance - 4) < 0.15);
  const Moments coin = moments(numbers(Tensor::full({n}, 0.25).bernoulli()));
  CHECK(std::abs(coin.mean - 0.25) < 0.01);
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
