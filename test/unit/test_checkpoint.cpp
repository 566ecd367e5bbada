#include "tiny/tensor/checkpoint.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>

#include "runtime/schedule/schedule.h"
#include "test/devices.h"
#include "tiny/nn/functional.h"
#include "tiny/nn/layers.h"
#include "tiny/run/jit.h"
#include "tiny/tensor/random.h"
#include "tiny/train/optim.h"

using namespace tiny;

namespace {

using Floats = std::vector<float>;

struct Block {
  explicit Block(int64_t n) : first(n, 2 * n), norm({2 * n}), second(2 * n, n) {}
  Tensor operator()(const Tensor& x) {
    return x + dropout(second(norm(first(x)).gelu()), 0.25).tanh();
  }
  nn::Linear first;
  nn::LayerNorm norm;
  nn::Linear second;
};

enum class How { Plain, Checkpointed, Nested };

// Loss and gradients of a chain of blocks.
std::vector<Tensor> train(std::deque<Block>& blocks, const Tensor& x, How how) {
  manual_seed(5);
  const auto apply = [&](Block& b, const Tensor& in) {
    if (how == How::Plain) return b(in);
    return checkpoint([&](const Tensor& t) { return b(t); }, in);
  };
  Tensor y = x;
  for (size_t i = 0; i < blocks.size(); i += 2) {
    const auto two = [&](const Tensor& in) { return apply(blocks[i + 1], apply(blocks[i], in)); };
    y = how == How::Nested ? checkpoint(two, y) : two(y);
  }
  Tensor loss = y.square().mean();
  loss.backward();
  std::vector<Tensor> out{loss, x.grad()};
  x.zero_grad();
  for (Block& b : blocks)
    for (nn::Linear* l : {&b.first, &b.second})
      for (Tensor* t : l->tensors()) {
        out.push_back(t->grad());
        t->zero_grad();
      }
  return out;
}

std::vector<Floats> values(std::vector<Tensor> tensors) {
  std::vector<Tensor*> all;
  for (Tensor& t : tensors) all.push_back(&t);
  Tensor::realize(all);
  std::vector<Floats> out;
  for (const Tensor& t : tensors) out.push_back(t.to_vector<float>());
  return out;
}

double distance(const std::vector<Floats>& a, const std::vector<Floats>& b) {
  double out = 0;
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < a[i].size(); ++j)
      out = std::max(out, std::abs(static_cast<double>(a[i][j]) - b[i][j]));
  return out;
}

int64_t planned_peak(const std::vector<Tensor>& tensors) {
  std::vector<Node> roots;
  for (const Tensor& t : tensors) roots.push_back(t.node());
  const Normalized graph = normalize(roots);
  std::vector<int> devices;
  for (Node b : graph.buffers) devices.push_back(b->device);
  return schedule(graph, devices, device_id("CPU"))->memory.peak;
}

}  // namespace

TEST_CASE("checkpoints change no bit of values, gradients and random numbers") {
  for (const std::string& device : test_devices()) {
    CAPTURE(device);
    const EnvOverride on("DEVICE", device);
    const nn::Training training;
    std::deque<Block> blocks;
    for (int i = 0; i < (device == "CPU" ? 4 : 2); ++i) blocks.emplace_back(16);
    const Tensor x = Tensor::randn({8, 16}).realize().requires_grad_();
    const auto plain = values(train(blocks, x, How::Plain));
    for (const How how : {How::Checkpointed, How::Nested}) {
      const auto other = values(train(blocks, x, how));
      if (device == "CPU")
        CHECK(other == plain);
      else  // where other kernels are chosen for the second time, sums are contracted otherwise
        CHECK(distance(other, plain) < 1e-5);
    }
    CHECK(plain[1] != Floats(8 * 16, 0.0f));
  }
}

TEST_CASE("checkpoints of a deep network lower the planned peak") {
  const EnvOverride cpu("DEVICE", "CPU");
  const nn::Training training;
  std::deque<Block> blocks;
  for (int i = 0; i < 16; ++i) blocks.emplace_back(32);
  const Tensor x = Tensor::randn({1024, 32}).realize().requires_grad_();
  const int64_t plain = planned_peak(train(blocks, x, How::Plain));
  const int64_t less = planned_peak(train(blocks, x, How::Checkpointed));
  MESSAGE("16 blocks: planned peak " << plain << " bytes, " << less << " with checkpoints");
  CHECK(less * 2 < plain);
}

TEST_CASE("values behind a checkpoint are not taken for those of the first time") {
  const EnvOverride cpu("DEVICE", "CPU");
  const Tensor x = Tensor::randn({96, 96}).realize().requires_grad_();
  const Tensor w = Tensor::randn({96, 96}).realize();  // too wide for one kernel of both products
  const auto kernels = [&](bool again) {
    const auto f = [&](const Tensor& in) { return in.matmul(w).tanh().matmul(w).tanh(); };
    Tensor y = again ? checkpoint(f, x) : f(x);
    const Tensor g = Tensor::gradient(y.sum(), {x})[0];
    std::vector<Node> roots{y.node(), g.node()};
    const Normalized graph = normalize(roots);
    std::vector<int> devices;
    for (Node b : graph.buffers) devices.push_back(b->device);
    return schedule(graph, devices, device_id("CPU"))->steps.size();
  };
  CHECK(kernels(true) > kernels(false));
}

TEST_CASE("checkpoints work in a Jit, with several inputs and without a gradient") {
  const EnvOverride cpu("DEVICE", "CPU");
  Tensor w = Tensor::randn({4, 4}).realize().requires_grad_();
  const Tensor start = w.detach().contiguous().realize();
  const auto run = [&](bool again, bool jit) {
    w = start.contiguous().realize().requires_grad_();
    SGD sgd({&w}, 0.1);
    manual_seed(3);
    const nn::Training training;
    const auto f = [&](const Tensor& a, const Tensor& b) {
      return dropout((a.matmul(w) * b).tanh(), 0.5);
    };
    Jit step([&](const Tensor& a, const Tensor& b) {
      Tensor loss = (again ? checkpoint(f, a, b) : f(a, b)).square().sum();
      loss.backward();
      sgd.step({&loss});
      return loss;
    });
    const EnvOverride mode("JIT", jit ? "1" : "0");
    const Tensor a = Tensor::ones({3, 4}).contiguous().realize(),
                 b = Tensor::full({3, 4}, 0.5).contiguous().realize();
    Floats losses;
    for (int i = 0; i < 5; ++i) losses.push_back(step(a, b).item<float>());
    return losses;
  };
  const Floats plain = run(false, false);
  CHECK(run(true, false) == plain);
  CHECK(run(true, true) == plain);
  CHECK(run(false, true) == plain);
  const Tensor x = Tensor::ones({2});
  const auto twice = [](const Tensor& in) { return in * 2; };
  CHECK(checkpoint(twice, x).to_vector<float>() == Floats{2, 2});
  const auto same = [](const Tensor& in) { return in; };
  const Tensor y = Tensor::ones({2}).contiguous().realize().requires_grad_();
  (checkpoint(same, y) * 3).sum().backward();
  CHECK(y.grad().to_vector<float>() == Floats{3, 3});
  const auto unused = [&](const Tensor&) { return y * y; };
  y.zero_grad();
  checkpoint(unused, x).sum().backward();
  CHECK(y.grad().to_vector<float>() == Floats{2, 2});
}

TEST_CASE("checkpoints that compute the same again, one in another or beside it, add up once") {
  const auto leaf = [] {
    Tensor x = Tensor::from(Floats{0.5f, -1, 2}, {3});
    x.requires_grad_();
    return x;
  };
  SUBCASE("one in another, of values in memory") {
    Tensor x = leaf();
    Tensor twice = x * 2;
    Tensor inner = checkpointed(twice, {x}), outer = checkpointed(inner, {x});
    std::vector<Tensor*> all{&twice, &outer};
    Tensor::realize(all);
    CHECK(Tensor::gradient(outer.sum(), {x})[0].to_vector<float>() == Floats{2, 2, 2});
  }
  SUBCASE("of each other's values") {
    Tensor x = leaf();
    Tensor value = x * 2;
    Tensor inner = checkpointed(value, {value}), outer = checkpointed(inner, {value});
    std::vector<Tensor*> all{&value, &inner, &outer};
    Tensor::realize(all);
    CHECK(Tensor::gradient((outer * inner).sum(), {x})[0].to_vector<float>() == Floats{4, -8, 16});
  }
  SUBCASE("one in another, of a value in memory that is their input") {
    Tensor x = leaf();
    Tensor value = (x * 2).realize();
    const Tensor outer = checkpointed(checkpointed(value, {value}), {value});
    CHECK(Tensor::gradient((outer * outer.mean()).sum(), {x})[0].to_vector<float>() ==
          Floats{4, 4, 4});
  }
  SUBCASE("beside each other, with the same gradient") {
    Tensor x = leaf();
    Tensor square = x * x;
    Tensor a = checkpointed(square, {x}), b = checkpointed(square * 3, {x});
    CHECK(Tensor::gradient((a + b).sum(), {x})[0].to_vector<float>() == Floats{4, -8, 16});
  }
}

TEST_CASE("checkpoints in each other make no gradient anew") {
  const Tensor w = Tensor::from(Floats{1, 2, 3}, {3}).realize();
  const auto nodes = [&](int depth) {
    const Tensor x = Tensor::from(Floats{0.5f, -1, 2}, {3}).requires_grad_();
    const std::function<Tensor(const Tensor&, int)> nested = [&](const Tensor& in, int d) {
      if (d == 0) return (in * w).sin();
      return checkpoint([&](const Tensor& t) { return nested(nested(t, d - 1).cos(), d - 1); }, in);
    };
    return topological(Tensor::gradient(nested(x, depth).square().sum(), {x})[0].node()).size();
  };
  CHECK(nodes(3) < 3 * nodes(2));  // twice the operations, once more in another one
}

TEST_CASE(
    "a checkpoint of axes whose lengths are Variables has the gradients that it has without") {
  const Tensor x = Tensor::randn({2, 6, 3}).realize(), w = Tensor::randn({3, 3}).requires_grad_();
  const Tensor first = Tensor::randn({2, 1, 3}).requires_grad_();
  const auto attend = [&](const Tensor& t) {
    const Tensor keys = Tensor::cat({first, t}, 1);  // n + 1 of them
    return scaled_dot_product_attention(t.linear(w), keys, keys.softmax(1));
  };
  const auto gradients = [&](const Variable& n, bool again) {
    const Tensor y = x.narrow(1, 0, n).tanh();
    const Tensor loss = (again ? checkpoint(attend, y) : attend(y)).square().sum();
    return Tensor::gradient(loss, {w, first});
  };
  Jit step([&](const Variable& n) { return gradients(n, true); });
  Variable n("n", 1, 6);
  for (int64_t i : {3, 6, 1, 4}) {
    const std::vector<Tensor> wanted = gradients(n.bind(i), false), got = step(n.bind(i));
    for (size_t k = 0; k < 2; ++k) CHECK((got[k] - wanted[k]).abs().max().item<float>() < 1e-4f);
  }
  CHECK(step.statistics().captures == 1);
}
