#include "tiny/autograd/grad.h"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "test/reference.h"
#include "tiny/base/env.h"
#include "tiny/ir/build.h"
#include "tiny/nn/functional.h"
#include "tiny/tensor/random.h"
#include "tiny/tensor/tensor.h"

using namespace tiny;

namespace {

using Numbers = std::vector<double>;
constexpr double kInf = std::numeric_limits<double>::infinity();

Numbers numbers(const Tensor& t) { return evaluate(t.node()).numbers(); }

Tensor leaf(const Numbers& values, const Shape& shape) {
  return Tensor::from(values, shape).requires_grad_();
}

Tensor line(const Numbers& values) { return leaf(values, {static_cast<int64_t>(values.size())}); }

Numbers gradient_of(const Tensor& loss, const Tensor& x) {
  return numbers(Tensor::gradient(loss, {x})[0]);
}

// d f / d x by central differences.
Numbers differences(const std::function<Tensor(const Tensor&)>& f, const Numbers& x,
                    const Shape& shape) {
  Numbers out;
  const double step = 1e-6;
  for (size_t i = 0; i < x.size(); ++i) {
    Numbers up = x, down = x;
    up[i] += step;
    down[i] -= step;
    const double difference =
        numbers(f(Tensor::from(up, shape)))[0] - numbers(f(Tensor::from(down, shape)))[0];
    out.push_back(difference / (2 * step));
  }
  return out;
}

void check_gradient(const std::function<Tensor(const Tensor&)>& f, const Numbers& x,
                    const Shape& shape) {
  const Tensor t = leaf(x, shape);
  const Numbers got = gradient_of(f(t), t), expected = differences(f, x, shape);
  for (size_t i = 0; i < got.size(); ++i)
    CHECK_MESSAGE(std::abs(got[i] - expected[i]) < 1e-5, "element ", i, ": ", got[i], " against ",
                  expected[i]);
}

int count(const Tensor& t, Op op) {
  int found = 0;
  for (Node n : topological(t.node())) found += n->op == op;
  return found;
}

}  // namespace

TEST_CASE("element-wise functions have the gradients of their differences") {
  const Numbers x{-1.5, -0.3, 0.05, 0.4, 1.7};
  using F = Tensor (Tensor::*)() const;
  for (F f : {&Tensor::exp, &Tensor::expm1, &Tensor::sin, &Tensor::cos, &Tensor::tanh,
              &Tensor::atan, &Tensor::sinh, &Tensor::asinh, &Tensor::erf, &Tensor::sigmoid,
              &Tensor::logsigmoid, &Tensor::silu, &Tensor::mish, &Tensor::selu, &Tensor::square})
    check_gradient([f](const Tensor& t) { return (t.*f)().sum(); }, x, {5});
  check_gradient([](const Tensor& t) { return t.gelu().sum(); }, x, {5});
}

TEST_CASE("a derivative that is given is the gradient, and has one of its own") {
  const Numbers x{-1.5, -0.3, 0.05, 0.4, 1.7};
  const auto slope = [](const Tensor& t) {
    Tensor from = t.requires_grad() ? t : t.detach().requires_grad_();
    return Tensor::gradient(from.erf().sum(), {from})[0].sum();
  };
  check_gradient(slope, x, {5});
  const Tensor t = Tensor::from(std::vector<float>{0.5f}).requires_grad_();
  // One power of two: none of the two polynomials that erf has in f32.
  const Tensor g = Tensor::gradient(t.erf().sum(), {t})[0];
  CHECK(count(g, Op::Exp2) == 1);
  CHECK(count(g, Op::Where) == 0);
}

TEST_CASE("the maximum's gradient in f16: shared among equals, however many") {
  for (DType dtype : {kF16, kBF16})
    for (int64_t n : {17, 256, 1000}) {
      const Tensor x = Tensor::full({2, n}, 2, dtype).contiguous().realize().requires_grad_();
      const Tensor g = Tensor::gradient(x.max(1).to(kF32).sum(), {x})[0];
      bool in_f16 = true;  // the count is exact in f16
      for (Node node : topological(g.node()))
        in_f16 &= node->op != Op::ReduceAxis || node->dtype == dtype;
      CHECK(in_f16 == (n <= 256));
      const Tensor share = Tensor::full({2, n}, 1.0 / static_cast<double>(n), kF32).to(dtype);
      CHECK((g == share).all().item<bool>());
    }
}

TEST_CASE("gelu in f16 and its gradient are within a unit, for all of its numbers") {
  std::vector<uint16_t> bits;
  for (int b = 0; b < 0x7c00; ++b)
    for (int sign : {0, 0x8000}) bits.push_back(static_cast<uint16_t>(b | sign));
  const auto count = static_cast<int64_t>(bits.size());
  const Tensor x = Tensor::from_bytes(bits.data(), kF16, {count}, "CPU").requires_grad_();
  const Tensor y = x.gelu(), g = Tensor::gradient(y.to(kF32).sum(), {x})[0];
  const auto at = x.to(kF64).to_vector<double>(), got = y.to(kF64).to_vector<double>(),
             slope = g.to(kF64).to_vector<double>();
  const auto unit = [](double v) { return std::max(std::ldexp(std::abs(v), -10), 0x1p-24); };
  double worst = 0, worst_slope = 0;
  for (size_t i = 0; i < at.size(); ++i) {
    const double phi = std::exp(-at[i] * at[i] / 2) / std::sqrt(2 * M_PI);
    const double cumulated = std::erfc(-at[i] * M_SQRT1_2) / 2, value = at[i] * cumulated;
    worst = std::max(worst, std::abs(got[i] - value) / unit(value));
    // The slope passes zero: its terms cancel.
    const double exact = cumulated + at[i] * phi;
    worst_slope = std::max(worst_slope, std::abs(slope[i] - exact) / (unit(exact) + 1e-6));
  }
  CHECK(worst < 1.01);
  CHECK(worst > 0.4);
  CHECK(worst_slope < 1.01);
}

TEST_CASE("the gradient of a maximum of few elements keeps a bit of each") {
  for (const auto& [n, bits] : {std::pair{2, kU8}, {8, kU8}, {9, kU16}, {16, kU16}}) {
    CAPTURE(n);
    const Tensor x = Tensor::randn({5, n}).to(kF16).realize().requires_grad_();
    std::vector<Node> sums;
    for (Node node : topological(Tensor::gradient(x.max(1).sum(), {x})[0].node()))
      if (node->op == Op::ReduceAxis && node->arg<ReduceArg>().op == Op::Add &&
          !node->dtype.is_float())
        sums.push_back(node);
    REQUIRE(sums.size() == 1);
    CHECK(sums[0]->dtype == bits);
  }
  // Windows that overlap: an element is the largest of several of them.
  const Tensor image =
      Tensor::from({1.0f, 4.0f, 2.0f, 0.0f, 4.0f}, {1, 1, 5}).to(kF16).realize().requires_grad_();
  const Tensor pooled = max_pool1d(image, 3, {.stride = 1, .padding = 1});
  CHECK(Tensor::gradient(pooled.sum(), {image})[0].to(kF32).to_vector<float>() ==
        std::vector<float>{0, 3, 0, 0, 2});
}

TEST_CASE("the gradients of a batch norm need two sums over all elements") {
  const Tensor x = Tensor::randn({20, 3, 5, 5}).realize().requires_grad_();
  const Tensor w = Tensor::ones({3}).contiguous().realize().requires_grad_();
  const Tensor b = Tensor::zeros({3}).contiguous().realize().requires_grad_();
  const auto sums = [&](const std::vector<Tensor>& of) {
    std::vector<Node> roots;
    for (const Tensor& t : of) roots.push_back(t.node());
    int found = 0;
    for (Node n : topological(roots))
      found += n->op == Op::ReduceAxis && numel(n->src(0)->shape()) == x.numel();
    return found;
  };
  const Tensor y = batch_norm(x, w, b, {}, {}, {.training = true}).y;
  const Tensor weighed = (y * Tensor::randn({20, 3, 5, 5}).realize()).sum();
  CHECK(sums({y}) == 2);
  CHECK(sums(Tensor::gradient(weighed, {x, w, b})) == 4);
}

TEST_CASE("movement and reductions have the gradients of their differences") {
  Numbers x(24);
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(1.0 + 3.0 * static_cast<double>(i));
  const Shape shape{2, 3, 4};
  const auto weigh = [](const Tensor& t) {
    return (t * (Tensor::arange(t.numel()).to(kF64).sin()).reshape(to_shape(t.shape()))).sum();
  };
  const std::vector<std::function<Tensor(const Tensor&)>> functions{
      [](const Tensor& t) {
        return t.slice({1, {}, 0}, {}, {1, 1, 3});
      },
      [](const Tensor& t) {
        return t.pad({{1, 0}, {-1, 2}, {0, 1}}, PadMode::Constant, 3);
      },
      [](const Tensor& t) {
        return t.pad({{0, 0}, {2, 1}, {1, 1}}, PadMode::Reflect);
      },
      [](const Tensor& t) {
        return t.flip(1).permute({2, 0, 1}).repeat({2, 1, 1});
      },
      [](const Tensor& t) { return t.unfold(2, 3, 1).unfold(1, 2, 1); },
      [](const Tensor& t) { return t.diagonal(0, 1, 2); },
      [](const Tensor& t) {
        return t.prod({0, 2});
      },
      [](const Tensor& t) { return t.softmax(1); },
      [](const Tensor& t) {
        return t.logsumexp({1, 2});
      },
      [](const Tensor& t) { return t.std(2); },
      [](const Tensor& t) { return t.cumprod(1); },
      [](const Tensor& t) { return t.logcumsumexp(2); },
      [](const Tensor& t) { return t.sort(1).values; },
  };
  for (const auto& f : functions)
    check_gradient([&](const Tensor& t) { return weigh(f(t)); }, x, shape);
}

TEST_CASE("powers and angles have the gradients of their differences at 0 and at 1") {
  const auto check_both = [](Tensor (*f)(const Operand&, const Operand&), double u, double v) {
    CAPTURE(u);
    CAPTURE(v);
    const auto first = [&](const Tensor& x) { return f(x, Tensor::from({v})).sum(); };
    const auto second = [&](const Tensor& y) { return f(Tensor::from({u}), y).sum(); };
    check_gradient(first, {u}, {1});
    check_gradient(second, {v}, {1});
    check_gradient([&](const Tensor& x) { return f(x, v).sum(); }, {u}, {1});
    check_gradient([&](const Tensor& y) { return f(u, y).sum(); }, {v}, {1});
  };
  for (double base : {0.5, 1.0, 2.0, 3.0})
    for (double exponent : {-1.5, -1.0, 0.0, 0.5, 1.0, 2.0, 2.5}) check_both(pow, base, exponent);
  for (double y : {-2.0, -1.0, 0.0, 1.0, 2.0})
    for (double x : {-1.0, 0.0, 1.0, 2.0})
      if (y != 0 || x > 0) check_both(atan2, y, x);
  check_gradient([](const Tensor& x) { return pow(x, Tensor::from({1.0})).sum(); }, {0}, {1});
}

TEST_CASE("inverse functions have infinite derivatives at the ends of their ranges") {
  const Tensor x = line({-1, 0, 1});
  CHECK(gradient_of(x.asin().sum(), x) == Numbers{kInf, 1, kInf});
  CHECK(gradient_of(x.acos().sum(), x) == Numbers{-kInf, -1, -kInf});
  CHECK(gradient_of(x.atanh().sum(), x) == Numbers{kInf, 1, kInf});
  const Tensor one = line({1});
  CHECK(gradient_of(one.acosh().sum(), one) == Numbers{kInf});
  for (Tensor (Tensor::*f)() const : {&Tensor::asin, &Tensor::acos, &Tensor::atanh})
    check_gradient([f](const Tensor& t) { return (t.*f)().sum(); }, {-0.9, -0.3, 0.01, 0.7}, {4});
  check_gradient([](const Tensor& t) { return t.acosh().sum(); }, {1.1, 2, 30}, {3});
}

TEST_CASE("powers keep their gradients where a value is infinite, and have none where it is none") {
  const Tensor zero = line({0});
  CHECK(gradient_of(pow(zero, -2).sum(), zero) == Numbers{-kInf});
  CHECK(gradient_of(pow(zero, -3).sum(), zero) == Numbers{-kInf});
  // The value is above all floats; the derivative, 1.5 sqrt(x), is not.
  const Tensor large = Tensor::from(std::vector<float>{1e30f}).requires_grad_();
  const Tensor g = Tensor::gradient(pow(large, 1.5).sum(), {large})[0];
  CHECK(g.item<float>() == doctest::Approx(1.5e15));
  const Tensor negative = line({-2});
  CHECK(std::isnan(gradient_of(pow(negative, 1.5).sum(), negative)[0]));
  CHECK(std::isnan(gradient_of(pow(-2.0, negative).sum(), negative)[0]));
  CHECK(gradient_of(pow(negative, 3).sum(), negative) == Numbers{12});
}

TEST_CASE("a rest is exact, and the quotient below it: also where the rounded quotient is none") {
  std::mt19937_64 rng(8);
  std::uniform_real_distribution<double> quotient(-3, 51), divisor(-20, 20);
  Numbers u{1, 0.5, 1.5, -1, 5, -5, 5}, v{0.1, 0.1, 0.1, 0.1, kInf, kInf, -kInf};
  for (int i = 0; i < 3000; ++i) {
    const double q = std::exp2(quotient(rng)), y = std::exp2(divisor(rng)) * (i % 2 ? 1 : -1);
    u.push_back((i % 5 ? y : -y) * (i % 3 ? std::floor(q) : q));
    v.push_back(y);
  }
  for (DType t : {kF64, kF32}) {
    const Tensor x = Tensor::from(u).to(t), y = Tensor::from(v).to(t);
    const auto rounded = [&](double r) { return t == kF32 ? static_cast<float>(r) : r; };
    const auto of = [](const Tensor& r) { return r.to(kF64).to_vector<double>(); };
    const Numbers a = of(x), b = of(y), rest = of(mod(x, y)), below = of(floor_div(x, y));
    for (size_t i = 0; i < a.size(); ++i) {
      const double r = std::fmod(a[i], b[i]);
      const bool other = r != 0 && (r < 0) != (b[i] < 0);
      REQUIRE(rest[i] == rounded(other ? r + b[i] : r));
      REQUIRE(below[i] == rounded(std::round((a[i] - r) / b[i]) - other));
    }
  }
}

TEST_CASE("a quotient too large for a number is infinite when it is rounded down") {
  const Tensor u = Tensor::from(Numbers{1e300, -1e300, 1, kInf}), v = u.full_like(1e-300);
  const Numbers q = numbers(floor_div(u, v)), zero = numbers(mod(u, v * 0));
  CHECK(Numbers(q.begin(), q.begin() + 2) == Numbers{kInf, -kInf});
  CHECK(q[2] == doctest::Approx(1e300));
  CHECK(std::isnan(q[3]));  // as in PyTorch
  for (const double rest : zero) CHECK(std::isnan(rest));
}

TEST_CASE("a bias of attention has no gradient where a row's position hides all keys") {
  // Queries 3 and 4 see none of the two keys in a window of one key before.
  const Tensor q = Tensor::randn({5, 4}), k = Tensor::randn({2, 4}), v = Tensor::randn({2, 3});
  const Tensor bias = Tensor::zeros({2}).realize().requires_grad_();
  const Tensor out = scaled_dot_product_attention(q, k, v, {.mask = bias, .window = {{1, 0}}});
  CHECK(out.isnan().to(kI32).sum().item<int64_t>() == 6);
  const Tensor g = Tensor::gradient(out.sum(), {bias})[0];
  CHECK_FALSE(g.isnan().any().item<bool>());
}

TEST_CASE("attention to no keys at all is zero") {
  const Tensor q = leaf({1, 2, 3, 4}, {2, 2}), none = leaf({}, {0, 2});
  const Tensor y = scaled_dot_product_attention(q, none, none);
  CHECK(numbers(y) == Numbers{0, 0, 0, 0});
  CHECK(gradient_of(y.sum(), q) == Numbers{0, 0, 0, 0});
  CHECK(gradient_of(y.sum(), none).empty());
}

TEST_CASE("attention of 16-bit floats to one key alone has no gradient of queries and keys") {
  // Each query is 64 times a key: weights are 1 and, below exp(-800), 0.
  const Tensor k = Tensor::eye(8) * 64, v = Tensor::randn({8, 16}), seed = Tensor::randn({8, 16});
  for (const DType t : {kBF16, kF16}) {
    const Tensor q = k.to(t).realize().requires_grad_(), keys = k.to(t).realize().requires_grad_();
    const Tensor out = scaled_dot_product_attention(q, keys, v.to(t));
    for (const Tensor& g : Tensor::gradient((out * seed.to(t)).sum(), {q, keys}))
      CHECK(g.to(kF32).abs().max().item<float>() < 1e-3);
  }
}

TEST_CASE("attention whose weights are all dropped has no gradient, nor has that") {
  const Tensor q = leaf({1, 2}, {2, 1}), k = leaf({1, -1}, {2, 1}), v = leaf({3, 4}, {2, 1});
  const Tensor out = scaled_dot_product_attention(q, k, v, {.dropout_p = 1});
  const std::vector<Tensor> first = Tensor::gradient(out.sum(), {q, k, v});
  Tensor squares = out.sum();
  for (const Tensor& g : first) squares = squares + g.square().sum();
  for (const Tensor& g : Tensor::gradient(squares, {q, k, v})) CHECK(numbers(g) == Numbers{0, 0});
}

TEST_CASE("functions of two bounds have derivative 0 at both") {
  const Tensor x = line({-3, -1, 0, 1, 3, 6});
  CHECK(gradient_of(x.relu6().sum(), x) == Numbers{0, 0, 0, 1, 1, 0});
  CHECK(gradient_of(x.hardtanh(-1, 3).sum(), x) == Numbers{0, 0, 1, 1, 0, 0});
  const double slope = 1.0 / 6;
  CHECK(gradient_of(x.hardsigmoid().sum(), x) == Numbers{0, slope, slope, slope, 0, 0});
  CHECK(gradient_of(x.clamp(-1, 3).sum(), x) == Numbers{0, 1, 1, 1, 1, 0});  // as in PyTorch
  CHECK(gradient_of(x.hardswish().sum(), x)[0] == doctest::Approx(-0.5));
}

TEST_CASE("relu and abs have derivative 0 at 0") {
  const Tensor x = line({-1, 0, 2});
  CHECK(gradient_of(x.relu().sum(), x) == Numbers{0, 0, 1});
  CHECK(gradient_of(x.abs().sum(), x) == Numbers{-1, 0, 1});
}

TEST_CASE("a deviation and a norm have derivative 0 where they are 0") {
  const Tensor x = leaf({2, 2, 2, 4}, {2, 2});
  CHECK(gradient_of(x.std(1, false, 0).sum(), x) == Numbers{0, 0, -0.5, 0.5});
  CHECK(gradient_of((x - 2).norm(1).sum(), x) == Numbers{0, 0, 0, 1});
}

// Halves keep bits of few elements, f32 the elements.
TEST_CASE("few elements share the gradient of an extremum in every dtype, NaN gives it to none") {
  using Floats = std::vector<float>;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (DType dtype : {kF16, kBF16, kF32}) {
    CAPTURE(dtype.name());
    const Tensor x = Tensor::from(Floats{3, 1, 3, 3, 2, 5, 1, 0, 1, kNan, 2, 3}, {3, 4}).to(dtype);
    const Tensor leaf = x.contiguous().realize().requires_grad_();
    const Tensor weights = Tensor::from({6.0f, 2.0f, 4.0f}, {3}).to(dtype);
    for (const bool largest : {true, false}) {
      const Tensor extrema = largest ? leaf.max(1) : leaf.min(1);
      const Tensor g = Tensor::gradient((extrema * weights).sum(), {leaf})[0].to(kF32);
      CHECK(g.narrow(0, 0, 2).to_vector<float>() ==
            (largest ? Floats{2, 0, 2, 2, 0, 2, 0, 0} : Floats{0, 6, 0, 0, 0, 0, 0, 2}));
      CHECK(g.narrow(0, 2, 1).isnan().all().item<bool>());
    }
  }
}

TEST_CASE("ties share the gradient of an extremum") {
  const Tensor x = line({3, 1, 3}), y = line({3, 2, 1});
  CHECK(gradient_of(x.max(), x) == Numbers{0.5, 0, 0.5});
  CHECK(gradient_of(maximum(x, y).sum(), x) == Numbers{0.5, 0, 1});
}

// Sums of a hundred products are added in another order without the optimiser: recomputed, the
// elements are not those that the stored extremum was chosen from.
TEST_CASE("an extremum that was read early still knows the elements that it came from") {
  manual_seed(1);
  for (DType t : {kF32, kF16, kBF16}) {
    Tensor a = Tensor::randn({8, 12, 100}).to(t).realize().requires_grad_();
    const Tensor b = Tensor::randn({8, 12, 100}).to(t).realize();
    // The parts of the extrema's gradients, all 1, that arrive at rows of products.
    const auto parts = [&](const std::function<Tensor(const Tensor&)>& f) {
      a.zero_grad();
      Tensor y = f((a.to(kF32) * b.to(kF32)).sum(2).to(t));
      y.realize();
      const EnvOverride plain("OPT", "0");
      y.backward(y.ones_like());
      const Tensor wide = b.to(kF32);
      return (((a.grad().to(kF32) * wide).sum(2) / wide.square().sum(2)).sum()).item<float>();
    };
    CAPTURE(t.name());
    CHECK(parts([](const Tensor& x) { return x.max(1, true); }) == doctest::Approx(8));
    CHECK(parts([](const Tensor& x) { return x.min({}, true); }) == doctest::Approx(1));
    CHECK(parts([](const Tensor& x) {
            return x.reshape({4, 24}).unfold(1, 6, 6).max(2, true);
          }) == doctest::Approx(16));
    const Tensor index = floor_div(Tensor::arange(96), 32), low = Tensor::full({3}, -1e4, t);
    CHECK(parts([&](const Tensor& x) {
            return low.scatter_reduce(0, index, x.reshape({96}), "amax");
          }) == doctest::Approx(3));
  }
}

TEST_CASE("ties of 16-bit floats are counted beyond the whole numbers that f16 holds") {
  for (DType t : {kF16, kBF16}) {
    Tensor x = Tensor::zeros({70000}, t).contiguous().requires_grad_();
    (x.max() * 512).backward();
    CHECK(x.grad().to(kF32).sum().item<float>() == doctest::Approx(512).epsilon(0.01));
  }
}

TEST_CASE("a product has the right gradient next to zeros") {
  const Tensor one = line({2, 0, 5}), two = line({2, 0, 0});
  CHECK(gradient_of(one.prod(), one) == Numbers{0, 10, 0});
  CHECK(gradient_of(two.prod(), two) == Numbers{0, 0, 0});
}

TEST_CASE("the gradient of a long product takes no square of its length") {
  constexpr int64_t n = 700;  // several blocks and a part of one
  for (std::vector<size_t> zeros : {std::vector<size_t>{}, {3}, {699}, {64, 500}}) {
    CAPTURE(zeros.size());
    Numbers v(n);
    for (size_t i = 0; i < v.size(); ++i) v[i] = 1 + 0.02 * std::sin(static_cast<double>(i));
    double all = 1;
    for (double x : v) all *= x;
    const Numbers before = v;
    for (size_t z : zeros) v[z] = 0;
    const Tensor x = leaf(v, {1, n, 1}), g = Tensor::gradient(x.prod(1).sum(), {x})[0];
    for (Node node : topological(g.node())) CHECK(numel(node->shape()) < n * n / 4);
    const Numbers got = numbers(g);
    for (size_t i = 0; i < got.size(); ++i) {
      const bool counts = zeros.empty() || (zeros.size() == 1 && zeros[0] == i);
      double others = all / before[i];
      CHECK(got[i] == doctest::Approx(counts ? others : 0).epsilon(1e-12));
    }
  }
}

TEST_CASE("large arguments give finite gradients") {
  const Tensor x = line({-1e4, 1e4});
  CHECK(gradient_of(x.sigmoid().sum(), x) == Numbers{0, 0});
  CHECK(gradient_of(x.softplus().sum(), x) == Numbers{0, 1});
}

TEST_CASE("gather scatters its gradient and scatter gathers it") {
  const Tensor x = line({1, 2, 3}), rows = Tensor::from<int64_t>({2, 0, 2});
  CHECK(gradient_of((x.index_select(0, rows) * Tensor::from({1.0, 10.0, 100.0})).sum(), x) ==
        Numbers{10, 0, 101});
  const Tensor v = line({4, 5, 6});
  const Tensor weights = Tensor::from({1.0, 10.0, 100.0});
  CHECK(gradient_of((x.scatter_add(0, rows, v) * weights).sum(), v) == Numbers{100, 1, 100});
  CHECK(gradient_of((x.scatter(0, rows, v) * weights).sum(), x) == Numbers{0, 10, 0});
}

TEST_CASE("the gradient of a convolution's input is one reduction") {
  const Tensor x = leaf(Numbers(2 * 6, 1), {2, 6});  // channels, length
  const Tensor w = Tensor::from(Numbers(4 * 2 * 3, 2), {4, 2, 3});
  const Tensor windows = x.unfold(1, 3, 1);  // channels, places, taps
  const Tensor y = (windows * w.unsqueeze(2)).sum({1, 3});
  const Tensor g = Tensor::gradient((y * y.detach()).sum(), {x})[0];
  CHECK(count(g, Op::ReduceAxis) == 2);  // and the one of y itself
}

TEST_CASE("attention has the gradients of what it is made of, and those of its gradients") {
  std::mt19937 random(11);
  std::normal_distribution<double> normal;
  const auto drawn = [&](const Shape& shape) {
    Numbers x(static_cast<size_t>(numel(shape)));
    for (double& v : x) v = normal(random);
    return leaf(x, shape);
  };
  for (const bool causal : {false, true}) {
    const Tensor q = drawn({2, 3, 4}), k = drawn({1, 5, 4}), v = drawn({2, 5, 2});
    const Tensor bias = drawn({3, 5}), weight = drawn({2, 3, 2}).detach();
    const auto attention = [&](bool spelt_out) {
      if (!spelt_out)
        return scaled_dot_product_attention(q, k, v, {.mask = bias, .is_causal = causal});
      Tensor s = q.matmul(k.transpose(-1, -2)) * 0.5 + bias;
      if (causal) s = where(Tensor::ones({3, 5}, kBool).tril(), s, -kInf);
      return s.softmax(-1).matmul(v);
    };
    std::vector<std::vector<Numbers>> all;
    for (const bool spelt_out : {false, true}) {
      const std::vector<Tensor> inputs{q, k, v, bias};
      const std::vector<Tensor> first =
          Tensor::gradient((attention(spelt_out) * weight).sum(), inputs);
      Tensor squares;
      for (const Tensor& g : first)
        squares = squares.defined() ? squares + g.square().sum() : g.square().sum();
      std::vector<Numbers>& got = all.emplace_back();
      for (const auto& of : {first, Tensor::gradient(squares, inputs)})
        for (const Tensor& g : of) got.push_back(numbers(g));
    }
    for (size_t i = 0; i < all[0].size(); ++i) {
      CAPTURE(i);
      REQUIRE(all[0][i].size() == all[1][i].size());
      for (size_t j = 0; j < all[0][i].size(); ++j)
        CHECK(all[0][i][j] == doctest::Approx(all[1][i][j]).epsilon(1e-9));
    }
  }
}

TEST_CASE("backward adds to what is there and reaches every leaf once") {
  Tensor x = line({1, 2});
  const Tensor copy = x;
  (x * copy).sum().backward();
  CHECK(numbers(x.grad()) == Numbers{2, 4});
  (x * 3).sum().backward();
  CHECK(numbers(copy.grad()) == Numbers{5, 7});
  x.zero_grad();
  CHECK_FALSE(x.grad().defined());
}

TEST_CASE("detach and NoGrad stop gradients") {
  const Tensor x = line({1, 2});
  CHECK(gradient_of((x * x.detach()).sum(), x) == Numbers{1, 2});
  NoGrad scope;
  CHECK_FALSE((x * 2).requires_grad());
}

TEST_CASE("gradients have the dtype of their tensor and sum 16-bit floats in f32") {
  const Tensor x = Tensor::zeros({}, kF16).requires_grad_();
  const Tensor g = Tensor::gradient((x + Tensor::ones({4096}, kF16)).sum(), {x})[0];
  CHECK(g.dtype() == kF16);
  CHECK(numbers(g) == Numbers{4096});
}

TEST_CASE("what is rolled by nothing is no leaf, and what is assigned to it has no gradient") {
  const Tensor x = line({1, 2, 3});
  for (const int64_t shift : {0, 3, 1}) {
    Tensor y = x.roll({shift}, 0);
    y.assign({Slice{0, 2}}, 0);
    CHECK(gradient_of(y.sum(), x) == (shift == 1 ? Numbers{0, 1, 0} : Numbers{0, 0, 1}));
  }
}

TEST_CASE(
    "what is chosen of a single number is no leaf, and what is assigned to it has no gradient") {
  const Tensor x = Tensor(2.0f).contiguous().realize().requires_grad_();
  for (Tensor y : {x.sort(0).values, x.take_along_dim(Tensor::zeros({}, kI64), 0)}) {
    y.assign(y * 0 + 5);
    CHECK(gradient_of(y * 2, x) == Numbers{0});
  }
}

TEST_CASE("an input that a loss does not depend on has the gradient zero") {
  const Tensor x = line({1, 2}), y = line({3});
  CHECK(gradient_of(x.sum(), y) == Numbers{0});
}

TEST_CASE("three derivatives of tanh have the digits of their dtype, near zero and far from it") {
  const Numbers at{-60, -9, -1, -0.125, -0.05, -1e-8, 0, 1e-30, 1e-4, 0.0624, 0.126, 0.5, 2, 19};
  for (const auto& [dtype, error] : {std::pair(kF64, 1e-14), {kF32, 1e-5}}) {
    Tensor x = Tensor::from(at, {static_cast<int64_t>(at.size())}).to(dtype).realize();
    x.requires_grad_();
    const Tensor first = Tensor::gradient(x.tanh().sum(), {x})[0];
    const Tensor second = Tensor::gradient(first.sum(), {x})[0];
    const Numbers a = numbers(first), b = numbers(second);
    const Numbers c = numbers(Tensor::gradient(second.sum(), {x})[0]), places = numbers(x);
    for (size_t i = 0; i < at.size(); ++i) {
      const double t = std::tanh(places[i]), slope = 1 / std::pow(std::cosh(places[i]), 2);
      const auto is_near = [&](double got, double expected) {
        const double tiny = dtype == kF32 ? 1e-36 : 0;
        return std::abs(got - expected) <= error * std::abs(expected) + tiny;
      };
      CHECK_MESSAGE(is_near(a[i], slope), dtype, " first at ", places[i], ": ", a[i]);
      CHECK_MESSAGE(is_near(b[i], -2 * t * slope), dtype, " second at ", places[i], ": ", b[i]);
      CHECK_MESSAGE(is_near(c[i], slope * (6 * t * t - 2)), dtype, " third at ", places[i]);
    }
  }
}

TEST_CASE("gradients of scores that are also sorted along an axis of one are those of a sum") {
  const auto leaf = [](const Shape& shape) {
    return Tensor::arange(numel(shape)).to(kF32).sin().reshape(shape).realize().requires_grad_();
  };
  const Tensor a = leaf({1, 4, 1, 4}), b = leaf({4, 4});
  const Tensor scores = a.matmul(b), all = scores.logsumexp({1}, true);
  const auto loss = [&](const Tensor& x) { return (x * x).sum() + (all * all).sum(); };
  const auto got = Tensor::gradient(loss(scores.sort(2, true).values), {a, b});
  const auto expected = Tensor::gradient(loss(scores), {a, b});
  for (size_t i = 0; i < got.size(); ++i) {
    const Numbers x = numbers(got[i]), y = numbers(expected[i]);
    for (size_t j = 0; j < x.size(); ++j) CHECK(x[j] == doctest::Approx(y[j]).epsilon(1e-5));
  }
}

TEST_CASE("backward says what it needs") {
  const Tensor x = line({1, 2});
  CHECK_THROWS_WITH_AS(x.backward(),
                       "backward: the tensor has shape (2): only one element has a "
                       "gradient without a seed",
                       Error);
  CHECK_THROWS_WITH_AS(x.detach().sum().backward(),
                       "backward: nothing below this tensor wants a "
                       "gradient: call requires_grad_() on a tensor before it is used",
                       Error);
  CHECK_THROWS_WITH_AS(Tensor::zeros({1}, kI32).requires_grad_(),
                       "requires_grad_: takes floats "
                       "and not i32: convert it with to(kF32)",
                       Error);
}
