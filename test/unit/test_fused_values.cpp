// Fusion never changes values: programs whose kernels once did, each against FUSE=0.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>

#include "test/devices.h"
#include "tiny/base/env.h"
#include "tiny/nn/functional.h"
#include "tiny/tiny.h"

using namespace tiny;

namespace {

using Doubles = std::vector<double>;

Tensor wave(const Shape& shape, double phase) {
  return (Tensor::arange(0, numel(shape), 1, kF64) * 0.7 + phase).sin().reshape(shape);
}
Tensor leaf(const Shape& shape, double phase = 0.3) {
  return wave(shape, phase).contiguous().realize();
}
Tensor weighted(const Tensor& y, double phase) {
  return (y * wave(Shape(y.shape().begin(), y.shape().end()), phase)).sum();
}
Doubles gradient(const Tensor& loss, const Tensor& x) {
  return Tensor::gradient(loss, {x})[0].to_vector<double>();
}

void same_as_apart(const std::function<Doubles()>& run, double tolerance = 1e-12) {
  for (const std::string& device : test_devices()) {
    CAPTURE(device);
    const EnvOverride on("DEVICE", device);
    const Doubles fused = run();
    const EnvOverride apart("FUSE", "0");
    const Doubles plain = run();
    REQUIRE(fused.size() == plain.size());
    for (size_t i = 0; i < plain.size(); ++i)
      if (!(std::abs(fused[i] - plain[i]) <= tolerance * (1 + std::abs(plain[i]))))
        FAIL_CHECK("element ", i, " is ", fused[i], " and not ", plain[i]);
  }
}

}  // namespace

TEST_CASE("reductions over a broadcast axis keep each iteration when they share loops") {
  same_as_apart([] {
    const Tensor x = leaf({3, 2}), z = leaf({4, 3, 2});
    return (z - x.expand({2, 3, 2}).mean({0, 2}, true)).to_vector<double>();
  });
  same_as_apart([] {
    const Tensor x = leaf({1, 1, 2, 1}).requires_grad_(), z = leaf({5, 2, 6});
    return gradient(weighted(x.expand({2, 5, 2, 4}).max({}, true) - z, 1), x);
  });
  same_as_apart([] {
    const Tensor x = leaf({4, 3, 2}).requires_grad_(), w = leaf({2, 5});
    const Tensor sum = x.expand({3, 4, 3, 2}).logsumexp({0, 2, 3}, true);
    return gradient(weighted(x.matmul(w), 1) + weighted(sum, 2), x);
  });
}

TEST_CASE("an output lies in no memory that loops of a later output read") {
  for (const bool log : {false, true})
    same_as_apart([log] {
      const Tensor x = leaf({3, 2, 1}).requires_grad_(), w = leaf({4, 2});
      const Tensor m = x.square().mean({1, 2}, true);
      const Tensor y = x * (m + 0.5).rsqrt();
      Tensor last = m.reshape({3}).log_softmax(0);
      if (log) last = last.clamp(-1.0, 1.0);
      const Tensor product = w.matmul(y.expand({3, 2, 3}));
      return gradient(weighted(product, 1) + weighted(last, 2), x);
    });
}

// where(v < v, ...) is false, however each side is computed.
TEST_CASE("a value that a kernel computes twice has the same bits") {
  for (const bool product : {false, true})
    same_as_apart([product] {
      const Tensor x = leaf({5, 1, 13}).requires_grad_();
      const Tensor v = rms_norm(x, {13}), sum = v + x, flat = sum.reshape({5, 13});
      const Tensor chosen = where(sum < flat, sum, flat * 2);
      const Tensor other = product ? sum * v : maximum(sum, v);
      return gradient(weighted(chosen, 1) + weighted(other, 2), x);
    });
  for (const std::string compiler : {"llvm", "cc"}) {
    CAPTURE(compiler);
    const EnvOverride with("CPU_COMPILER", compiler);
    const Tensor a = leaf({40, 1}, 0.1), b = leaf({40, 1}, 0.2), c = leaf({40, 1}, 0.7);
    const Tensor v = a * b + c;
    const Tensor differs = (v != v.reshape({1, 40})).to(kF64);
    const Tensor wrong = (differs * Tensor::eye(40).to(kF64)).sum() + (a * b - v).sum() * 0;
    CHECK(wrong.item<double>() == 0);
  }
}

TEST_CASE("threads that lie apart combine what belongs to their column") {
  for (const Shape& shape : {Shape{32, 72}, Shape{300, 3}, Shape{64, 37}})
    same_as_apart([&shape] {
      const Tensor x = leaf(shape);
      Doubles out = x.sum({0}).to_vector<double>();
      const Tensor shares = x / (x.square().sum({0}, true) + 1);
      for (double v : shares.sum({0}).to_vector<double>()) out.push_back(v);
      const EnvOverride on("DEVICE", "CPU");  // the same way of summing on its own is no oracle
      const Doubles wanted = leaf(shape).sum({0}).to_vector<double>();
      for (size_t i = 0; i < wanted.size(); ++i) CHECK(out[i] == doctest::Approx(wanted[i]));
      return out;
    });
}

TEST_CASE("what one output reads a part of, another stores as a whole") {
  const Tensor x = Tensor::from({1.0f, 2.0f, 3.0f}).realize();
  Tensor copy = Tensor::zeros({3}).contiguous().realize();
  copy.assign(x);
  Tensor scaled = x.narrow(0, 0, 1) / (x * x + 1);
  std::vector<Tensor*> both{&scaled, &copy};
  Tensor::realize(both);
  CHECK(copy.to_vector<float>() == std::vector<float>{1, 2, 3});
  CHECK(scaled.to_vector<float>()[0] == doctest::Approx(0.5));
}

TEST_CASE("values made of constants belong to one device each") {
  const std::vector<std::string> two{"CPU", "CPU:1"};
  for (const bool cut : {false, true}) {
    Tensor x = Tensor::from({1.0f, 5.0f, 3.0f}).realize();
    x = (cut ? x.shard(two, 0) : x.shard(two)).requires_grad_();
    const Tensor m = x.max({}, true), e = m.expand({5});
    const auto weight = [](int64_t n, int phase) {
      return (Tensor::arange(0, n, 1, kF32) * 0.7 + phase).sin();
    };
    const Tensor loss = (e * weight(5, 1)).sum() + (m * weight(1, 2)).sum();
    const auto g = Tensor::gradient(loss, {x})[0].to_vector<float>();
    double wanted = std::sin(2.0);
    for (int i = 0; i < 5; ++i) wanted += std::sin(0.7 * i + 1);
    CHECK(g[0] == 0);
    CHECK(g[1] == doctest::Approx(wanted));
    CHECK(g[2] == 0);
  }
}

TEST_CASE("what a scatter adds for iterations that turn out to be alike counts as often") {
  same_as_apart([] {
    const Tensor x = leaf({1, 1, 1}).requires_grad_();
    const Doubles got = gradient(weighted(adaptive_avg_pool2d(adaptive_avg_pool2d(x, 3), 1), 1), x);
    CHECK(got[0] == doctest::Approx(std::sin(1)));
    return got;
  });
}

TEST_CASE("a copy of what a reduction reads is stored once, beside loops of other outputs") {
  same_as_apart([] {
    const Tensor x = leaf({3}).requires_grad_();
    Tensor copy = x.detach().contiguous(), rows = x.softmax(0);
    Tensor slope = Tensor::gradient(weighted(rows, 1), {x})[0];
    std::vector<Tensor*> all{&rows, &copy, &slope};
    Tensor::realize(all);
    Doubles out = rows.to_vector<double>();
    for (Tensor* t : {&copy, &slope})
      for (double v : t->to_vector<double>()) out.push_back(v);
    return out;
  });
  same_as_apart([] {
    const Tensor x = leaf({3}).requires_grad_(), y = leaf({3}, 2);
    Tensor w = y.detach(), rows = x.softmax(0);
    w.assign(x.detach());
    Tensor slope = Tensor::gradient(weighted(rows, 1), {x})[0];
    std::vector<Tensor*> all{&rows, &w, &slope};
    Tensor::realize(all);
    Doubles out = rows.to_vector<double>();
    for (Tensor* t : {&w, &slope})
      for (double v : t->to_vector<double>()) out.push_back(v);
    return out;
  });
}

TEST_CASE("a product is summed along an axis of each factor as well") {
  same_as_apart([] {
    const Tensor x = leaf({4, 4, 1, 4}), y = leaf({4, 4, 1, 4, 1}, 2);
    return (y * x).sum({1, 3, 4}).to_vector<double>();
  });
}

TEST_CASE("a store over what others read comes behind them where copies of a loop differ") {
  same_as_apart([] {
    const Tensor x = leaf({28, 1, 3}).requires_grad_(), y = leaf({10, 1, 3}, 2).requires_grad_();
    const Tensor all = x.slice_assign({3}, {23}, {2}, y);
    Tensor bent = all.tanh().expm1(), rows = all.softmax(0).softmax(1);
    std::vector<Tensor> slopes = Tensor::gradient(weighted(bent, 1) + weighted(rows, 2), {x, y});
    std::vector<Tensor*> together{&bent, &rows, &slopes[0], &slopes[1]};
    Tensor::realize(together);
    Doubles out;
    for (Tensor* t : together)
      for (double v : t->to_vector<double>()) out.push_back(v);
    return out;
  });
}

TEST_CASE("a sum over loops of a product is no matrix product where another closes one of them") {
  const auto run = [] {
    const Tensor x = leaf({1}).to(kF32).requires_grad_(), y = leaf({2, 2}, 2).to(kF32);
    Tensor product = x * y, sum = Tensor::arange(0, 2, 1, kI32) + x;
    Tensor slope = Tensor::gradient(weighted(product, 1).to(kF64) + weighted(sum, 2), {x})[0];
    std::vector<Tensor*> together{&product, &sum, &slope};
    Tensor::realize(together);
    Doubles out;
    for (Tensor* t : together)
      for (double v : t->to(kF64).to_vector<double>()) out.push_back(v);
    return out;
  };
  same_as_apart(run, 1e-5);
}

TEST_CASE("elements at places that a reduction finds along the same loop") {
  const auto run = [] {
    const Tensor x = leaf({1, 4}).to(kF32).contiguous().realize().requires_grad_();
    const Tensor y = (x - x.mean({0, 1}, true)) * (x.var({0, 1}, true, 0) + 0.3).rsqrt();
    Tensor least = y.cummin(0).values;
    const Tensor loss = (least * wave({1, 4}, 1).to(kF32)).sum().to(kF64);
    Tensor slope = Tensor::gradient(loss, {x})[0];
    std::vector<Tensor*> together{&least, &slope};
    Tensor::realize(together);
    Doubles out;
    for (Tensor* t : together)
      for (double v : t->to(kF64).to_vector<double>()) out.push_back(v);
    return out;
  };
  same_as_apart(run, 1e-5);
}
