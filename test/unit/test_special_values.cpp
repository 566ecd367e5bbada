// Functions at zeros of both signs, infinities, NaN and the largest number: values and gradients
// are those of IEEE 754 and PyTorch.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "tiny/tiny.h"

using namespace tiny;

namespace {

using Floats = std::vector<float>;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

Tensor line(const Floats& values) { return Tensor::from(values).requires_grad_(); }

Floats gradient_of(const Tensor& y, const Tensor& x) {
  return Tensor::gradient(y.sum(), {x})[0].to_vector<float>();
}

std::vector<bool> signs(const Tensor& y) {
  std::vector<bool> out;
  for (float v : y.to_vector<float>()) out.push_back(std::signbit(v));
  return out;
}

}  // namespace

TEST_CASE("odd functions of -0 are -0") {
  const Tensor x = Tensor::from(Floats{-0.0f, 0.0f});
  using F = Tensor (Tensor::*)() const;
  for (F f : {&Tensor::sin, &Tensor::tan, &Tensor::asin, &Tensor::atan, &Tensor::sinh,
              &Tensor::tanh, &Tensor::asinh, &Tensor::atanh, &Tensor::erf, &Tensor::expm1}) {
    CHECK(signs((x.*f)()) == std::vector<bool>{true, false});
    const Tensor leaf = line({-0.0f, 0.0f});
    CHECK(gradient_of((leaf.*f)(), leaf)[0] == doctest::Approx(f == &Tensor::erf ? M_2_SQRTPI : 1));
  }
  CHECK(std::signbit(Tensor::from(std::vector<double>{-0.0}).sin().item<double>()));
}

TEST_CASE("odd functions have their third derivative at zeros of both signs") {
  using F = Tensor (Tensor::*)() const;
  for (const auto& [f, expected] : {std::pair<F, float>{&Tensor::atan, -2.0f},
                                    {&Tensor::asinh, -1.0f},
                                    {&Tensor::asin, 1.0f},
                                    {&Tensor::atanh, 2.0f},
                                    {&Tensor::tan, 2.0f},
                                    {&Tensor::tanh, -2.0f},
                                    {&Tensor::sinh, 1.0f}}) {
    const Tensor x = line({-0.0f, 0.0f});
    Tensor y = (x.*f)();
    for (int i = 0; i < 2; ++i) y = Tensor::gradient(y.sum(), {x})[0];
    for (float v : gradient_of(y, x)) CHECK(v == doctest::Approx(expected));
  }
}

TEST_CASE("what is divided without a rest has one of its own sign") {
  const Tensor u = Tensor::from(Floats{-6, 6, -6, 6}), v = Tensor::from(Floats{3, 3, -3, -3});
  CHECK(signs(mod(u, v)) == std::vector<bool>{true, false, true, false});
}

TEST_CASE("a power of 1 is the number itself, and odd powers keep the sign of zero") {
  const Tensor x = Tensor::from(Floats{kLargest, -kLargest, -0.0f, -0.0f, -0.0f, 0.0f});
  const Tensor y = Tensor::from(Floats{1, 1, 3, -3, 2, -1});
  const Floats power = pow(x, y).to_vector<float>();
  CHECK(power == Floats{kLargest, -kLargest, 0, -kInf, 0, kInf});
  CHECK(std::signbit(power[2]));
  CHECK(!std::signbit(power[4]));
  // Derivatives of x^3: 3 x^2, 6 x, also at 0.
  const Tensor zero = line({0.0f}), three = Tensor::from(Floats{3});
  const Tensor slope = Tensor::gradient(pow(zero, three).sum(), {zero})[0];
  CHECK(slope.item<float>() == 0);
  CHECK(gradient_of(slope, zero) == Floats{0});
}

TEST_CASE("powers of 0, 1 and 2 have the second derivatives of powers") {
  for (double base : {0.5, 1.0, 3.0})
    for (double exponent : {-1.0, 0.0, 0.5, 1.0, 2.0, 3.0}) {
      CAPTURE(base);
      CAPTURE(exponent);
      const Tensor x = Tensor::from({base}).requires_grad_();
      const Tensor y = Tensor::from({exponent}).requires_grad_();
      const auto slopes = Tensor::gradient(pow(x, y), {x, y});
      const auto of_by_x = Tensor::gradient(slopes[0], {x, y});
      const auto of_by_y = Tensor::gradient(slopes[1], {x, y});
      const double log = std::log(base),
                   mixed = std::pow(base, exponent - 1) * (1 + exponent * log);
      const double by_xx = exponent * (exponent - 1) * std::pow(base, exponent - 2);
      CHECK(of_by_x[0].item<double>() == doctest::Approx(by_xx));
      CHECK(of_by_x[1].item<double>() == doctest::Approx(mixed));
      CHECK(of_by_y[0].item<double>() == doctest::Approx(mixed));
      CHECK(of_by_y[1].item<double>() == doctest::Approx(std::pow(base, exponent) * log * log));
    }
  const Tensor two = Tensor::from({2.0}).requires_grad_();  // to its own power
  Tensor slope = pow(two, two);
  for (int i = 0; i < 3; ++i) slope = Tensor::gradient(slope, {two})[0];
  CHECK(slope.item<double>() == doctest::Approx(28.57418402505315));
  const Tensor zero = line({0, 0}), y = line({2, 3});
  const auto slopes = Tensor::gradient(pow(zero, y).sum(), {zero, y});
  CHECK(gradient_of(slopes[0] + slopes[1], zero) == Floats{2, 0});
  CHECK(gradient_of(slopes[0] + slopes[1], y) == Floats{0, 0});
}

TEST_CASE("losses that are squares near 0 have the second derivative of a square there") {
  const Tensor x = line({0, 0.25f, 3}), target = Tensor::zeros({3});
  for (const Tensor& loss : {huber_loss(x, target, Reduction::Sum),
                             smooth_l1_loss(x, target, Reduction::Sum), mse_loss(x, target)}) {
    const Tensor slope = Tensor::gradient(loss, {x})[0];
    const Floats second = gradient_of(slope, x);
    CHECK(second[0] > 0.5f);
    CHECK(second[1] == second[0]);
  }
}

TEST_CASE("products at indices have second derivatives by and beside a factor of 0") {
  // One element is base * a * b * c, another is d of its own; a is 0.
  const auto slopes_of_slopes = [](bool include_self) {
    const Tensor base = line({2, 7}), x = line({0, 3, 5, 11});
    const Tensor at = Tensor::from<int64_t>({0, 0, 0, 1});
    const Tensor y = base.scatter_reduce(0, at, x, "prod", include_self);
    const Tensor by_x = Tensor::gradient(y.sum(), {x})[0];
    std::vector<Floats> out;
    for (int i = 0; i < 4; ++i) out.push_back(gradient_of(by_x.select(0, i), x));
    return out;
  };
  const std::vector<Floats> one{{0, 10, 6, 0}, {10, 0, 0, 0}, {6, 0, 0, 0}, {0, 0, 0, 0}};
  CHECK(slopes_of_slopes(true) == one);
  const std::vector<Floats> without{{0, 5, 3, 0}, {5, 0, 0, 0}, {3, 0, 0, 0}, {0, 0, 0, 0}};
  CHECK(slopes_of_slopes(false) == without);
}

TEST_CASE("the slope of hardswish is that of its piece, also at infinity") {
  const Tensor x = line({-kInf, kInf, -4, 3, 4});
  CHECK(x.hardswish().to_vector<float>() == Floats{0, kInf, 0, 3, 4});
  CHECK(gradient_of(x.hardswish(), x) == Floats{0, 1, 0, 1, 1});
}

TEST_CASE("beside NaN both operands of an extremum have the gradient, and no bound of clamp has") {
  const Tensor x = line({NAN, 1, 2}), y = line({1, NAN, 2});
  for (const Tensor& extremum : {maximum(x, y), minimum(x, y)}) {
    CHECK(gradient_of(extremum, x) == Floats{1, 1, 0.5});
    CHECK(gradient_of(extremum, y) == Floats{1, 1, 0.5});
  }
  const Tensor low = x.clamp(y, {}), both = x.clamp(0, 1.5);
  CHECK(std::isnan(low.to_vector<float>()[0]));
  CHECK(std::isnan(low.to_vector<float>()[1]));
  CHECK(std::isnan(both.to_vector<float>()[0]));
  CHECK(gradient_of(low, x) == Floats{0, 0, 1});
  CHECK(gradient_of(low, y) == Floats{0, 0, 0});
  CHECK(gradient_of(both, x) == Floats{0, 1, 0});
}

TEST_CASE("softplus, mish and tanh are exact to a few units in the last place, and so are slopes") {
  Floats values;
  for (int i = -40000; i <= 40000; ++i) values.push_back(static_cast<float>(i) * 0.0007f);
  for (int i = -30; i < 7; ++i)
    for (float s : {-1.3f, 1.1f}) values.push_back(std::ldexp(s, i));
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  const auto soft = [](double x) { return x > 20 ? x : std::log1p(std::exp(x)); };
  const auto check = [&](const Floats& got, const auto& wanted, double units) {
    double most = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const double want = wanted(static_cast<double>(values[i]));
      const double unit = std::max(std::abs(want) * 0x1p-23, 0x1p-126);
      most = std::max(most, std::abs(static_cast<double>(got[i]) - want) / unit);
    }
    CHECK(most < units);
  };
  const Tensor x = line(values);
  check(x.softplus().to_vector<float>(), soft, 2);
  check(
      gradient_of(x.softplus(), x), [&](double v) { return v > 20 ? 1 : sigmoid(v); }, 3);
  check((-x).logsigmoid().to_vector<float>(), [&](double v) { return -std::log1p(std::exp(v)); },
        2);
  check(
      x.mish().to_vector<float>(), [&](double v) { return v * std::tanh(soft(v)); }, 4);
  check(
      x.tanh().to_vector<float>(), [](double v) { return std::tanh(v); }, 3);
  const Tensor ends = line({-kLargest, kLargest});
  CHECK(ends.mish().to_vector<float>()[1] == kLargest);
  CHECK(gradient_of(ends.mish(), ends) == Floats{0, 1});
}
