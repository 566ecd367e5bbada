#include "tiny/train/optim.h"

#include <doctest/doctest.h>

#include <unistd.h>
#include <memory>

#include <cmath>
#include <filesystem>

#include "runtime/kernels/kernel.h"
#include "runtime/realize/realize.h"
#include "test/reference.h"
#include "tiny/nn/layers.h"
#include "tiny/run/jit.h"
#include "tiny/tensor/random.h"
#include "tiny/train/mixed_precision.h"

using namespace tiny;

namespace {

using Numbers = std::vector<double>;

Numbers numbers(const Tensor& t) { return evaluate(t.node()).numbers(); }

Tensor parameter(DType dtype = kF32) {
  return Tensor::from({1.0f, -2.0f}).to(dtype).requires_grad_();
}

// Three steps with fixed gradients from the parameter (1, -2).
const std::vector<std::vector<float>> kGradients = {{1, 2}, {-0.5, 1}, {0.25, 0}};

template <class Make>
void check_steps(Make make, const std::vector<Numbers>& expected, double tolerance = 1e-5) {
  Tensor p = parameter();
  auto optimizer = make(std::vector<Tensor*>{&p});
  for (size_t i = 0; i < kGradients.size(); ++i) {
    p.set_grad(Tensor::from(kGradients[i]));
    optimizer.step();
    CAPTURE(i);
    for (int j = 0; j < 2; ++j)
      CHECK(numbers(p)[j] == doctest::Approx(expected[i][j]).epsilon(tolerance));
  }
}

}  // namespace

// Expected values are those of PyTorch 1.13.

TEST_CASE("SGD steps are those of PyTorch") {
  check_steps([](const auto& t) { return SGD(t, 0.1); },
              {{0.9, -2.2}, {0.95, -2.3}, {0.925, -2.3}});
  const SgdOptions options{.momentum = 0.9, .nesterov = true, .weight_decay = 0.01};
  check_steps([&](const auto& t) { return SGD(t, 0.1, options); },
              {{0.8081, -2.3762}, {0.8197546, -2.7220652}, {0.7369135, -2.9403105}});
}

// Parameters and states of f64 keep all their digits: the learning rate is one of them.
TEST_CASE("steps of f64 parameters are those of PyTorch to the last digits") {
  const auto check_f64 = [](auto make, const std::vector<Numbers>& expected) {
    Tensor p = parameter(kF64);
    auto optimizer = make(std::vector<Tensor*>{&p});
    for (size_t i = 0; i < kGradients.size(); ++i) {
      p.set_grad(Tensor::from(kGradients[i]).to(kF64));
      optimizer.step();
      for (int j = 0; j < 2; ++j) CHECK(std::abs(numbers(p)[j] - expected[i][j]) < 2e-15);
    }
  };
  check_f64([](const auto& t) { return SGD(t, 0.1, {.weight_decay = 0.3}); },
            {{0.87, -2.14}, {0.8939, -2.1758}, {0.842083, -2.110526}});
  const SgdOptions dampened{.momentum = 0.9, .weight_decay = 0.01, .dampening = 0.5};
  check_f64([&](const auto& t) { return SGD(t, 0.1, dampened); },
            {{0.899, -2.198}, {0.8326505, -2.425101}, {0.76001962475, -2.6282793495}});
  const SgdOptions nesterov{.momentum = 0.9, .nesterov = true, .weight_decay = 0.01};
  check_f64([&](const auto& t) { return SGD(t, 0.1, nesterov); },
            {{0.8081, -2.3762}, {0.81975461, -2.72206522}, {0.736913515241, -2.940310574082}});
  check_f64([](const auto& t) { return Adam(t, 0.1, {.weight_decay = 0.01}); },
            {{0.900000000990099, -2.0999999994949494},
             {0.8722913059877673, -2.1930540809866406},
             {0.8370663978726315, -2.264346806037293}});
  check_f64([](const auto& t) { return AdamW(t, 0.1, {.weight_decay = 0.1}); },
            {{0.890000001, -2.0799999995},
             {0.8544662973609032, -2.15241796279649},
             {0.8118787200812375, -2.2029515388649896}});
}

TEST_CASE("the dampening of a parameter begins with its own second gradient") {
  Tensor early = parameter(), late = parameter();
  SGD optimizer({&early, &late}, 1, {.momentum = 0.5, .dampening = 0.5});
  early.set_grad(Tensor::ones({2}));
  optimizer.step();
  for (int i = 0; i < 2; ++i) {
    late.set_grad(Tensor::ones({2}));
    optimizer.step();
  }
  CHECK(numbers(early) == Numbers{0, -3});
  CHECK(numbers(late) == Numbers{-1, -4});
  CHECK_THROWS_WITH_AS(
      SGD({&early}, 1, {.momentum = 0.5, .nesterov = true, .dampening = 0.5}),
      "SGD: nesterov needs a momentum and no dampening; here momentum 0.5, dampening 0.5", Error);
}

TEST_CASE("Adam and AdamW steps are those of PyTorch") {
  check_steps([](const auto& t) { return Adam(t, 0.1, {.weight_decay = 0.01}); },
              {{0.9, -2.1}, {0.87229127, -2.19305396}, {0.83706635, -2.2643466}});
  check_steps([](const auto& t) { return AdamW(t, 0.1, {.weight_decay = 0.1}); },
              {{0.89, -2.08}, {0.85446638, -2.1524179}, {0.81187880, -2.20295143}});
}

TEST_CASE("the first LAMB step moves by the size of the parameter") {
  // Adam's first direction is (1, 1), of length sqrt 2; |p| = sqrt 5.
  const double move = 0.1 * std::sqrt(5.0 / 2);
  Tensor p = parameter();
  LAMB optimizer({&p}, 0.1, {.eps = 0});
  p.set_grad(Tensor::from(kGradients[0]));
  optimizer.step();
  CHECK(numbers(p)[0] == doctest::Approx(1 - move));
  CHECK(numbers(p)[1] == doctest::Approx(-2 - move));
}

TEST_CASE("LARS scales the gradient to a part of the parameter") {
  Tensor p = parameter();
  LARS optimizer({&p}, 1, {.momentum = 0, .weight_decay = 0, .trust = 0.1});
  p.set_grad(Tensor::from(kGradients[0]));  // |g| = |p|
  optimizer.step();
  CHECK(numbers(p)[0] == doctest::Approx(0.9));
  CHECK(numbers(p)[1] == doctest::Approx(-2.2));
}

// Algorithm 1 of arXiv 1708.03888: the learning rate is inside the momentum.
TEST_CASE("LARS keeps what earlier steps moved when the learning rate changes") {
  for (bool nesterov : {false, true}) {
    Tensor p = parameter();
    LARS optimizer({&p}, 0.5,
                   {.momentum = 0.9, .nesterov = nesterov, .weight_decay = 0.1, .trust = 0.2});
    double q[] = {1, -2}, m[] = {0, 0};
    for (size_t i = 0; i < kGradients.size(); ++i) {
      const double lr = i == 2 ? 0.05 : 0.5;
      optimizer.set_lr(lr);
      p.set_grad(Tensor::from(kGradients[i]));
      optimizer.step();
      const double size = std::hypot(q[0], q[1]);
      const double local =
          0.2 * size / (std::hypot(kGradients[i][0], kGradients[i][1]) + 0.1 * size);
      for (int j = 0; j < 2; ++j) {
        const double moved = lr * local * (kGradients[i][j] + 0.1 * q[j]);
        m[j] = 0.9 * m[j] + moved;
        q[j] -= nesterov ? moved + 0.9 * m[j] : m[j];
        CHECK(numbers(p)[j] == doctest::Approx(q[j]).epsilon(1e-5));
      }
    }
  }
}

// Algorithm 2 of arXiv 1904.00962, with phi the identity.
TEST_CASE("LAMB steps are those of its paper") {
  Tensor p = parameter();
  LAMB optimizer({&p}, 0.1, {.beta1 = 0.8, .beta2 = 0.9, .eps = 1e-6, .weight_decay = 0.05});
  double q[] = {1, -2}, m[] = {0, 0}, v[] = {0, 0};
  for (size_t i = 0; i < kGradients.size(); ++i) {
    p.set_grad(Tensor::from(kGradients[i]));
    optimizer.step();
    double r[2];
    for (int j = 0; j < 2; ++j) {
      const double g = kGradients[i][j], t = static_cast<double>(i + 1);
      m[j] = 0.8 * m[j] + 0.2 * g;
      v[j] = 0.9 * v[j] + 0.1 * g * g;
      r[j] = m[j] / (1 - std::pow(0.8, t)) / (std::sqrt(v[j] / (1 - std::pow(0.9, t))) + 1e-6);
      r[j] += 0.05 * q[j];
    }
    const double ratio = std::hypot(q[0], q[1]) / std::hypot(r[0], r[1]);
    for (int j = 0; j < 2; ++j) {
      q[j] -= 0.1 * ratio * r[j];
      CHECK(numbers(p)[j] == doctest::Approx(q[j]).epsilon(1e-5));
    }
  }
}

// One step of Newton-Schulz on [rows, columns], plainly.
Numbers iterate(const Numbers& x, int rows, int columns) {
  Numbers a(rows * rows), b(rows * rows), y(x.size());
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < rows; ++j)
      for (int k = 0; k < columns; ++k) a[i * rows + j] += x[i * columns + k] * x[j * columns + k];
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < rows; ++j) {
      b[i * rows + j] = -4.7750 * a[i * rows + j];
      for (int k = 0; k < rows; ++k) b[i * rows + j] += 2.0315 * a[i * rows + k] * a[k * rows + j];
    }
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < columns; ++j) {
      y[i * columns + j] = 3.4445 * x[i * columns + j];
      for (int k = 0; k < rows; ++k) y[i * columns + j] += b[i * rows + k] * x[k * columns + j];
    }
  return y;
}

TEST_CASE("Muon makes the momentum nearly orthogonal") {
  // Two steps on a wide weight of three axes and a tall one, on its transposed gradients.
  Tensor wide = Tensor::ones({2, 3, 1}).contiguous().requires_grad_();
  Tensor tall = Tensor::ones({3, 2}).contiguous().requires_grad_();
  Muon optimizer({&wide, &tall}, 0.1, {.momentum = 0.9, .weight_decay = 0.01});
  Numbers m(6), p(6, 1), q(6, 1);
  const std::vector<std::vector<float>> gradients = {{1, 2, -3, 0.5, 0, 2}, {0, 1, 1, -1, 4, 0.25}};
  for (const std::vector<float>& g : gradients) {
    wide.set_grad(Tensor::from(g, {2, 3, 1}));
    tall.set_grad(Tensor::from(g, {2, 3}).t());
    optimizer.step();
    Numbers y(6);
    double square = 0;
    for (int i = 0; i < 6; ++i) {
      m[i] = 0.9 * m[i] + g[i];
      y[i] = g[i] + 0.9 * m[i];
      square += y[i] * y[i];
    }
    for (double& v : y) v /= std::sqrt(square);
    for (int i = 0; i < 5; ++i) y = iterate(y, 2, 3);
    for (int i = 0; i < 6; ++i) {
      p[i] -= 0.1 * (y[i] + 0.01 * p[i]);
      q[i] -= 0.1 * (y[i] * std::sqrt(1.5) + 0.01 * q[i]);
      CHECK(numbers(wide)[i] == doctest::Approx(p[i]).epsilon(1e-5));
      CHECK(numbers(tall)[i % 3 * 2 + i / 3] == doctest::Approx(q[i]).epsilon(1e-5));
    }
  }
}

TEST_CASE("Muon can give a parameter rows of unit length before each step") {
  Tensor p = Tensor::full({2, 3, 1}, 5.0).contiguous().requires_grad_();
  Muon optimizer({&p}, 0.25, {.momentum = 0, .nesterov = false, .unit_rows = true});
  p.set_grad(Tensor::from({1.0f, 0.0f, 0.0f, 0.0f, 1.0f, 0.0f}, {2, 3, 1}));
  optimizer.step();
  // All elements become sqrt(2 / 6); the gradient's two singular values are equal.
  Numbers y{std::sqrt(0.5), 0, 0, 0, std::sqrt(0.5), 0};
  for (int i = 0; i < 5; ++i) y = iterate(y, 2, 3);
  for (int i = 0; i < 6; ++i)
    CHECK(numbers(p)[i] == doctest::Approx(std::sqrt(1.0 / 3) - 0.25 * y[i]).epsilon(1e-5));
}

TEST_CASE("Muon in bf16 moves nearly as in f32, and parameters stay f32") {
  manual_seed(2);
  const Tensor g = Tensor::randn({8, 20}).contiguous();
  const auto moved = [&](DType dtype) {
    Tensor p = Tensor::zeros({8, 20}).contiguous().requires_grad_();
    Muon optimizer({&p}, 1, {.steps = 3, .dtype = dtype});
    p.set_grad(g);
    optimizer.step();
    CHECK(p.dtype() == kF32);
    return numbers(p);
  };
  const Numbers exact = moved(kF32), half = moved(kBF16);
  CHECK(exact != half);
  for (size_t i = 0; i < exact.size(); ++i) CHECK(std::abs(exact[i] - half[i]) < 0.05);
}

TEST_CASE("Muon refuses a parameter that is no matrix") {
  Tensor p = parameter();
  CHECK_THROWS_WITH(
      Muon({&p}),
      "Muon: a parameter of shape (2): takes two axes or more; the others need another "
      "optimizer");
}

TEST_CASE("a step uses the gradients up and realizes what it is given") {
  Tensor p = parameter();
  SGD optimizer({&p}, 0.5);
  Tensor loss = (p * p).sum();
  loss.backward();
  CHECK(p.grad().defined());
  optimizer.step({&loss});
  CHECK_FALSE(p.grad().defined());
  CHECK(loss.item<float>() == 5);
  CHECK(numbers(p) == Numbers{0, 0});
}

TEST_CASE("a parameter without a gradient stays as it is") {
  Tensor used = parameter(), unused = parameter();
  Adam optimizer({&used, &unused}, 0.1);
  used.sum().backward();
  optimizer.step();
  CHECK(numbers(used)[0] == doctest::Approx(0.9));
  CHECK(numbers(unused) == Numbers{1, -2});
}

TEST_CASE("a parameter's first step with Adam is as long as the rate, whenever that is") {
  for (bool lamb : {false, true}) {
    Tensor early = parameter(), late = parameter();
    const std::vector<Tensor*> both{&early, &late};
    std::unique_ptr<Optimizer> optimizer = std::make_unique<Adam>(both, 0.1);
    if (lamb) optimizer = std::make_unique<LAMB>(both, 0.1);
    for (int i = 0; i < 5; ++i) {
      early.sum().backward();
      if (i == 4) late.sum().backward();
      optimizer->step();
      if (i == 0) CHECK(numbers(late) == Numbers{1, -2});
    }
    // LAMB scales the direction (1, 1), of length sqrt 2, to |p| = sqrt 5.
    const double length = lamb ? std::sqrt(2.5) : 1;
    CHECK(numbers(late)[0] == doctest::Approx(1 - 0.1 * length));
    CHECK(numbers(late)[1] == doctest::Approx(-2 - 0.1 * length));
  }
}

TEST_CASE("two parameters of the same shape keep moments of their own") {
  Tensor a = parameter(), b = parameter();
  SGD optimizer({&a, &b}, 1, {.momentum = 0.5});
  for (int i = 0; i < 2; ++i) {
    (a.sum() + b.sum() * 10).backward();
    optimizer.step();
  }
  CHECK(numbers(a) == Numbers{1 - 2.5, -2 - 2.5});
  CHECK(numbers(b) == Numbers{1 - 25, -2 - 25});
}

TEST_CASE("another learning rate holds from the next step on") {
  Tensor p = parameter();
  SGD optimizer({&p}, 1);
  optimizer.set_lr(0.25);
  CHECK(optimizer.lr() == 0.25);
  p.sum().backward();
  optimizer.step();
  CHECK(numbers(p) == Numbers{0.75, -2.25});
}

TEST_CASE("a learning rate can be computed on the device, step by step in a Jit") {
  Tensor p = parameter(), done = Tensor::from({0.0f});
  SGD optimizer({&p}, 1);
  Jit step([&] {
    p.sum().backward();
    optimizer.set_lr(1 - done * 0.25);
    done.assign(done + 1);
    optimizer.step({&done});
  });
  for (int i = 0; i < 4; ++i) step();
  CHECK(p.to_vector<float>() == std::vector<float>{1 - 2.5f, -2 - 2.5f});  // 1, 3/4, 1/2, 1/4
  CHECK_THROWS_WITH_AS(optimizer.set_lr(Tensor::ones({2})),
                       "set_lr: takes a tensor of one element and not (2)", Error);
}

TEST_CASE("a learning rate that one device computes is that of parameters on several") {
  Tensor p = parameter(), rate = Tensor::from({0.5f});
  p.shard_({"CPU:0", "CPU:1"});
  SGD optimizer({&p}, 1);
  p.sum().backward();
  optimizer.set_lr(rate * 0.5);
  optimizer.step();
  CHECK(p.to_vector<float>() == std::vector<float>{0.75f, -2.25f});
}

TEST_CASE("several optimizers step together, with one pass through the loss") {
  const Tensor x = Tensor::randn({4, 8}).contiguous();
  const auto trained = [&](bool together, size_t& kernels) {
    manual_seed(1);
    nn::Linear a(8, 8), b(8, 2);
    SGD first(a.tensors(), 0.1, {.momentum = 0.5});
    Adam second(b.tensors(), 0.1);
    Jit step([&] {
      Tensor loss = b(a(x).exp().contiguous()).square().sum();
      loss.backward();
      if (together) {
        Optimizer::step_all({&first, &second}, {&loss});
      } else {
        first.step();
        second.step({&loss});
      }
    });
    for (int i = 0; i < 3; ++i) step();
    kernels = step.statistics().kernels;
    return std::pair(a.weight.to_vector<float>(), b.weight.to_vector<float>());
  };
  size_t together = 0, apart = 0;
  const auto [a, b] = trained(true, together);
  const auto [c, d] = trained(false, apart);
  for (size_t i = 0; i < a.size(); ++i) CHECK(a[i] == doctest::Approx(c[i]).epsilon(1e-4));
  for (size_t i = 0; i < b.size(); ++i) CHECK(b[i] == doctest::Approx(d[i]).epsilon(1e-4));
  CHECK(together < apart);
}

TEST_CASE("an optimizer that is reset begins as a new one, in its memory") {
  Tensor p = parameter(), q = parameter();
  Adam used({&p}, 0.1), fresh({&q}, 0.1);
  SGD dampened({&p}, 0.1, {.momentum = 0.5, .dampening = 0.5});
  p.square().sum().backward();
  used.step();
  p.square().sum().backward();
  dampened.step();
  for (Optimizer* o : {static_cast<Optimizer*>(&used), static_cast<Optimizer*>(&dampened)})
    o->reset();
  for (const NamedTensor& t : dampened.state_dict())
    CHECK(numbers(*t.tensor)[0] == (t.name.ends_with("gain") ? 1 : 0));
  p.assign(q.detach()).realize();
  for (Adam* o : {&used, &fresh}) {
    Tensor& t = o == &used ? p : q;
    t.square().sum().backward();
    o->step();
  }
  CHECK(p.to_vector<float>() == q.to_vector<float>());
}

TEST_CASE("half parameters are updated in f32 and rounded") {
  Tensor p = parameter(kBF16);
  Adam optimizer({&p}, 0.25);
  (p * p).sum().backward();
  optimizer.step();
  CHECK(p.dtype() == kBF16);
  CHECK(numbers(p) == Numbers{0.75, -1.75});
}

TEST_CASE("gradients of several backward calls add up until a step or zero_grad") {
  Tensor p = parameter();
  SGD optimizer({&p}, 1);
  p.sum().backward();
  optimizer.zero_grad();
  p.sum().backward();
  p.sum().backward();
  optimizer.step();
  CHECK(numbers(p) == Numbers{-1, -4});
}

TEST_CASE("an optimizer's moments can be saved and loaded") {
  const std::string path =
      (std::filesystem::temp_directory_path() / cat("tiny_test_optim_", ::getpid())).string();
  const auto step = [](Tensor& p, Optimizer& optimizer) {
    (p * p).sum().backward();
    optimizer.step();
  };
  Tensor p = parameter();
  Adam first({&p}, 0.1);
  step(p, first);
  save(path, first.state_dict());
  Tensor q = Tensor::from(p.to_vector<float>()).requires_grad_();
  Adam second({&q}, 0.1);
  load(path, second.state_dict());
  std::filesystem::remove(path);
  step(p, first);
  step(q, second);
  CHECK(p.to_vector<float>() == q.to_vector<float>());
}

TEST_CASE("running statistics are realized with the step, and nothing piles up") {
  nn::Sequential model(nn::Linear(3, 4), nn::BatchNorm2d(4), nn::Linear(4, 1));
  SGD optimizer(model.tensors(), 0.01);
  nn::Training training;
  const Tensor x = Tensor::arange(0, 24, 1, kF32).reshape({8, 3});
  Live after[2];
  for (int i = 0; i < 6; ++i) {
    Tensor loss = model(x).square().mean();
    loss.backward();
    optimizer.step({&loss});
    if (i % 3 == 2) after[i / 3] = live();
  }
  CHECK(after[0].nodes == after[1].nodes);
  CHECK(after[0].buffers == after[1].buffers);
  CHECK(after[0].bytes == after[1].bytes);
}

TEST_CASE("an optimizer without a parameter is an error") {
  Tensor constant = Tensor::ones({2});
  CHECK_THROWS_WITH_AS(SGD({&constant}, 0.1), "optimizer: none of 1 tensors wants a gradient",
                       Error);
}

// Gradients (3, 0) and (0, 4): a norm of 5. Expected values are PyTorch's rule, with its 1e-6.
TEST_CASE("gradients are clipped to a norm of all of them together") {
  Tensor p = parameter(), q = parameter(kBF16), constant = Tensor::ones({2}), idle = parameter();
  const auto set = [&] {
    p.set_grad(Tensor::from({3.0f, 0.0f}));
    q.set_grad(Tensor::from({0.0f, 4.0f}).to(kBF16));
  };
  set();
  CHECK(clip_grad_norm_({&p, &constant, &idle, &q}, 2.5).item<float>() == 5);
  CHECK(numbers(p.grad())[0] == doctest::Approx(3 * 2.5 / 5.000001));
  CHECK(numbers(q.grad()) == Numbers{0, 2});
  CHECK(q.grad().dtype() == kBF16);
  set();
  CHECK(clip_grad_norm_({&p, &q}, 6).item<float>() == 5);
  CHECK(numbers(p.grad()) == Numbers{3, 0});
}

TEST_CASE("gradients of f64 are clipped in f64") {
  Tensor p = parameter(kF64);
  p.set_grad(Tensor::from({3.0, 4.0}));
  CHECK(clip_grad_norm_({&p}, 0.1).item<double>() == 5);
  CHECK(numbers(p.grad())[0] == doctest::Approx(3 * 0.1 / 5.000001).epsilon(1e-14));
}

TEST_CASE("gradients on several devices are clipped together") {
  const std::vector<std::string> both = {"CPU:0", "CPU:1"};
  Tensor p = Tensor::from({1.0f, -2.0f}), q = Tensor::from({5.0f}).to("CPU:1").requires_grad_();
  p.shard_(both);
  p.requires_grad_();
  const Tensor x = Tensor::from({3.0f, 0.0f, 3.0f, 0.0f}).reshape({2, 2}).shard(both, 0);
  (x * p).sum(1).mean().backward();
  q.set_grad(Tensor::from({4.0f}).to("CPU:1"));
  CHECK(clip_grad_norm_({&q, &p}, 2.5).item<float>() == 5);
  CHECK(p.grad().to_vector<float>()[0] == doctest::Approx(1.5));
  CHECK(q.grad().to_vector<float>()[0] == doctest::Approx(2));
}

TEST_CASE("a clipped norm is that of a step under a LossScaler, and Jit captures it") {
  Tensor p = parameter();
  SGD optimizer({&p}, 1);
  LossScaler scaler({&optimizer}, {.start = 1024});
  Jit step([&](const Tensor& x) {
    Tensor loss = (p * x).sum();
    scaler.scaled(loss).backward();
    Tensor norm = clip_grad_norm_({&p}, scaler.scaled(Tensor::full({}, 1.0))) /
                  scaler.scaled(Tensor::full({}, 1.0));
    scaler.step({&loss, &norm});
    return norm;
  });
  for (int i = 0; i < 4; ++i) {
    const Tensor norm = step(Tensor::from({3.0f, -4.0f}));
    CHECK(norm.item<float>() == doctest::Approx(5));
    CHECK(numbers(p)[0] == doctest::Approx(1 - 0.6 * (i + 1)));
    CHECK(numbers(p)[1] == doctest::Approx(-2 + 0.8 * (i + 1)));
  }
}

TEST_CASE("clipping without a gradient, or to no norm, is an error") {
  Tensor p = parameter();
  CHECK_THROWS_WITH_AS(clip_grad_norm_({&p}, 1.0),
                       "clip_grad_norm_: none of 1 tensors has a gradient", Error);
  CHECK_THROWS_WITH_AS(clip_grad_norm_({&p}, 0.0),
                       "clip_grad_norm_: a norm of at most 0: takes one above 0", Error);
}

TEST_CASE("what is not given of Adam's options stays the optimizer's own default") {
  const auto stepped = [](auto make) {
    Tensor p = Tensor::from({1.0f, -2.0f}).requires_grad_();
    auto optimizer = make(std::vector<Tensor*>{&p});
    (p * 1e-5).sum().backward();
    optimizer->step();
    return p.to_vector<float>();
  };
  using List = std::vector<Tensor*>;
  const auto adamw = [&](AdamOptions o) {
    return stepped([&](const List& p) { return std::make_unique<AdamW>(p, 0.1, o); });
  };
  CHECK(adamw({.beta2 = 0.9}) == adamw({.beta2 = 0.9, .weight_decay = 0.01}));
  CHECK(adamw({.beta2 = 0.9}) != adamw({.beta2 = 0.9, .weight_decay = 0}));
  const auto lamb = [&](AdamOptions o) {
    return stepped([&](const List& p) { return std::make_unique<LAMB>(p, 0.1, o); });
  };
  CHECK(lamb({.beta2 = 0.9}) == lamb({.beta2 = 0.9, .eps = 1e-6}));
  CHECK(lamb({.weight_decay = 0.1}) != lamb({.eps = 1e-3, .weight_decay = 0.1}));
}

TEST_CASE("a step has the same kernels for every parameter of one shape") {
  const auto kernels_of = [](int64_t layers) {
    clear_kernel_cache();
    nn::Sequential model;
    for (int64_t i = 0; i < layers; ++i) {
      model.append(nn::Linear(12, 12));
      model.append([](const Tensor& x) { return x.relu(); });
    }
    AdamW optimizer(model.parameters(), 1e-3);
    const Tensor x = Tensor::randn({4, 12}).realize();
    const size_t before = kernel_count();
    Tensor loss = model(x).square().sum();
    loss.backward();
    optimizer.step({&loss});
    return kernel_count() - before;
  };
  const size_t few = kernels_of(4);
  CHECK(few > 4);
  CHECK(kernels_of(9) == few);
}
