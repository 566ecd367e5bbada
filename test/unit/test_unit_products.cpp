#include "runtime/rewrites/unit_products.h"

#include <doctest/doctest.h>

#include <cmath>

#include "codegen/heuristics/heuristics.h"
#include "codegen/lower.h"
#include "runtime/analysis/views.h"
#include "test/unit/kernels.h"
#include "test/unit/schedules.h"
#include "tiny/base/env.h"
#include "tiny/nn/functional.h"
#include "tiny/nn/layers.h"
#include "tiny/run/jit.h"
#include "tiny/train/mixed_precision.h"

using namespace tiny;
using namespace tiny::test;

namespace {

constexpr const char* kHopper = "EMU:CUDA:sm_90a";

Tensor parameter(const Shape& shape) {
  Tensor t = Tensor::from(std::vector<float>(static_cast<size_t>(numel(shape))), shape, "CPU");
  t.requires_grad_();
  return t;
}

// Kernels of products for the units of a warpgroup, of chains, others; and those that do more sums
// than the product's.
struct Products {
  int units = 0, chains = 0, others = 0, merged = 0;
};
Products products_of(const std::vector<Tensor>& tensors) {
  const Target target = find_device(kHopper).target();
  Products out;
  for (const Step& step : schedule_on(kHopper, tensors)->steps) {
    Node kernel = step.kernel.get();
    if (!kernel) continue;
    int sums = 0, products = 0;
    for (Node n : topological(kernel)) {
      sums += n->op == Op::ReduceAxis;
      products += n->op == Op::ReduceAxis && is_product(n);
    }
    if (products == 0) continue;
    const std::string choice = to_text(lower(kernel, step.name, target).choice);
    if (choice.find("fragments r") != std::string::npos ||
        choice.find("warpgroups r") != std::string::npos) {
      ++out.chains;
      continue;
    }
    const bool unit = choice.find("matrix r") != std::string::npos;
    ++(unit ? out.units : out.others);
    out.merged += sums > 1;
    if (!unit) MESSAGE(step.name << ": " << choice);
  }
  return out;
}

}  // namespace

TEST_CASE("every product of a block with strided convolutions is for the units of a warpgroup") {
  Tensor x = parameter({32, 256, 28, 28});
  std::vector<Tensor> wanted{x};
  const auto weight = [&](const Shape& shape) { return wanted.emplace_back(parameter(shape)); };
  const Autocast half(kBF16);
  const auto conv = [&](const Tensor& t, int64_t to, int64_t from, int64_t size, int64_t stride) {
    return conv2d(t, weight({to, from, size, size}), Tensor(),
                  {.stride = stride, .padding = size / 2});
  };
  const Tensor h = conv(x, 256, 256, 1, 1).relu();
  const Tensor y = conv(conv(h, 128, 256, 3, 2).relu(), 512, 128, 1, 1);
  const Tensor shortcut = conv(h, 512, 256, 1, 2);
  (y + shortcut).relu().mean({2, 3}).square().mean().backward();
  std::vector<Tensor> gradients;
  for (Tensor& t : wanted) gradients.push_back(t.grad());
  const Products found = products_of(gradients);
  CHECK(found.units >= 12);  // four, and two gradients of each
  CHECK(found.others == 0);
}

TEST_CASE("operands that skip rows are read as they lie; others are copied in 16 bits") {
  const auto given = [](const Shape& shape) { return parameter(shape).to(kBF16).realize(); };
  const auto kernels_of = [&](const Shape& shape, const auto& view) {
    const Tensor product = view(given(shape)).matmul(given({512, 512}));
    const Products found = products_of({product});
    CHECK(found.units == 1);
    CHECK(found.others == 0);
    int kernels = 0;
    for (const Step& step : schedule_on(kHopper, {product})->steps)
      kernels += step.kernel.get() != nullptr;
    return kernels;
  };
  CHECK(kernels_of({1024, 512}, [](const Tensor& x) { return x.slice({0}, {1024}, {2}); }) == 1);
  CHECK(kernels_of({512, 1024}, [](const Tensor& x) {
          return x.slice({0, 0}, {512, 1024}, {1, 2});
        }) == 2);
  CHECK(kernels_of({512, 512}, [](const Tensor& x) { return x.flip({0}); }) == 2);
}

TEST_CASE("results in f32 that are added to what an epilogue reads are read and written in rows") {
  const auto wide = [](const Tensor& t) {
    const auto schedule = schedule_on(kHopper, {t});
    const Step& last = schedule->steps.back();
    const Target target = find_device(kHopper).target();
    return to_text(lower(last.kernel.get(), last.name, target).choice).find(" wide") !=
           std::string::npos;
  };
  const auto wide_float = [](const Shape& shape) {
    return parameter(shape).to(kBF16).realize().to(kF32);
  };
  const Tensor product = wide_float({2048, 1024}).matmul(wide_float({1024, 2048}));
  CHECK(!wide(product));
  CHECK(wide(parameter({2048, 2048}).realize() - product * 0.1));
}

TEST_CASE("every product of a transformer's training step is for the units of a warpgroup") {
  constexpr int64_t kBatch = 8, kLength = 512, kWidth = 512, kHeads = 8;
  for (bool causal : {false, true}) {
    Tensor x = parameter({kBatch, kLength, kWidth});
    std::vector<Tensor> wanted{x};
    const auto weight = [&](int64_t to, int64_t from) {
      return wanted.emplace_back(parameter({to, from}));
    };
    const Autocast half(kBF16);
    const auto heads = [&](const Tensor& t) {
      return t.reshape({kBatch, kLength, kHeads, kWidth / kHeads}).transpose(1, 2);
    };
    Tensor q = heads(x.linear(weight(kWidth, kWidth))), k = heads(x.linear(weight(kWidth, kWidth)));
    const Tensor v = heads(x.linear(weight(kWidth, kWidth)));
    const Tensor seen = scaled_dot_product_attention(q, k, v, {.is_causal = causal})
                            .transpose(1, 2)
                            .reshape({kBatch, kLength, kWidth});
    const Tensor y = layer_norm(x + seen.linear(weight(kWidth, kWidth)), {kWidth});
    const Tensor z =
        y + y.linear(weight(4 * kWidth, kWidth)).gelu().linear(weight(kWidth, 4 * kWidth));
    std::vector<Tensor> roots = Tensor::gradient(z.to(kF32).square().sum(), wanted);
    roots.push_back(z);
    const Products chained = products_of(roots);  // attention: forward, and two for its gradients
    CHECK(chained.chains == 3);
    CHECK(chained.others == 0);
    CHECK(chained.units == 3 + 1 + 2 + 3 * 2 + 2 + 4);
    const EnvOverride apart("CHAIN", "0");
    const Products p = products_of(roots);
    CHECK(p.others == 2);  // by the weights, each of which is computed where it is read once
    CHECK(p.merged == 0);
    CHECK(p.units == 3 + 1 + 1 + 2 + 3 * 2 + 4 + 2 + 3);
  }
}

TEST_CASE("less than eight rows, columns and terms are padded to a tile, and the result is cut") {
  const auto numbers = [](const Shape& shape, const std::string& on) {
    std::vector<float> x(static_cast<size_t>(numel(shape)));
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>((i * 7 + i / 13) % 11) - 5;
    return Tensor::from(x, shape, on).to(kBF16).realize();
  };
  struct Sizes {
    int64_t rows, columns, terms;
  };
  for (const Sizes& s : {Sizes{5, 4096, 4096}, Sizes{4096, 4, 4096}, Sizes{2048, 2048, 3}}) {
    CAPTURE(s.rows);
    CAPTURE(s.terms);
    const auto product = [&](const std::string& on) {
      return numbers({s.rows, s.terms}, on).matmul(numbers({s.columns, s.terms}, on).t());
    };
    const Products p = products_of({product(kHopper) + 1});
    CHECK(p.units == 1);
    CHECK(p.others == 0);
    // Rounded to bf16 once on either device, of sums that are exact.
    CHECK((product(kHopper) + 1).to(kF32).to_vector<float>() ==
          (product("CPU") + 1).to(kF32).to_vector<float>());
  }
}

TEST_CASE("a vocabulary of odd size is computed in aligned rows") {
  constexpr int64_t kRows = 4096, kWords = 2051, kWidth = 64;
  Tensor x = parameter({4, kRows / 4, kWidth}), words = parameter({kWords, kWidth});
  const Tensor target = Tensor::from(std::vector<int32_t>(kRows), {kRows}, "CPU");
  Tensor loss;
  {
    const Autocast half(kBF16);
    loss = cross_entropy(x.linear(words).flatten(0, 1), target);
  }
  std::vector<Tensor> roots = Tensor::gradient(loss, {x, words});
  roots.push_back(loss);
  CHECK(products_of(roots).others == 0);
  int odd = 0;
  for (const Step& step : schedule_on(kHopper, roots)->steps)
    for (Node store : step.kernel.get()->srcs())
      odd += numel(store->src(1)->shape()) == kRows * kWords;
  CHECK(odd == 0);
}

TEST_CASE("aligned rows, joined sums and several products give the values of a CPU") {
  constexpr int64_t kRows = 1024, kWords = 4099, kWidth = 16;
  const Tensor x = Tensor::randn({2, kRows / 2, kWidth}).realize();
  const Tensor words = Tensor::randn({kWords, kWidth}).realize();
  const Tensor target = (Tensor::rand({kRows}) * kWords).to(kI32).realize();
  const auto values = [&](const char* device) {
    Tensor a = x.to(device).realize(), b = words.to(device).realize();
    a.requires_grad_();
    b.requires_grad_();
    Tensor loss;
    {
      const Autocast half(kBF16);
      loss = cross_entropy(a.linear(b).flatten(0, 1), target.to(device));
    }
    std::vector<std::vector<float>> out{loss.to("CPU").to_vector<float>()};
    for (const Tensor& g : Tensor::gradient(loss, {a, b}))
      out.push_back(g.to("CPU").to_vector<float>());
    return out;
  };
  const auto got = values(kHopper), wanted = values("CPU");
  for (size_t i = 0; i < wanted.size(); ++i) {
    double most = 0, worst = 0;
    for (size_t j = 0; j < wanted[i].size(); ++j) {
      most = std::max(most, std::abs(static_cast<double>(wanted[i][j])));
      worst = std::max(worst, std::abs(static_cast<double>(got[i][j]) - wanted[i][j]));
    }
    CAPTURE(i);
    CHECK(most > 0);
    CHECK(worst < 0.02 * most);
  }
}

TEST_CASE("random masks are bytes of kernels of their own beside long products") {
  Tensor x = parameter({8, 512, 512}), w = parameter({512, 512});
  const Autocast half(kBF16);
  const Tensor y = dropout(x.linear(w), 0.1) + x;
  std::vector<Tensor> roots = Tensor::gradient(y.square().sum(), {x, w});
  roots.push_back(y);
  int masks = 0;
  for (const Step& step : schedule_on(kHopper, roots)->steps) {
    if (!step.kernel.get()) continue;
    bool is_product_kernel = false, is_random = false;
    for (Node n : topological(step.kernel.get())) {
      is_product_kernel |= n->op == Op::ReduceAxis && is_product(n);
      is_random |= n->op == Op::Xor;
    }
    CHECK(!(is_product_kernel && is_random));
    for (Node store : step.kernel.get()->srcs()) {
      if (numel(store->src(1)->shape()) != x.numel() || !is_random) continue;
      ++masks;
      CHECK(store->src(1)->dtype == kBool);
    }
  }
  CHECK(masks == 1);
}

TEST_CASE("an optimizer with two averages is no epilogue of a large product") {
  Tensor x = parameter({2048, 1024}), w = parameter({2048, 1024});
  std::vector<Tensor> state;
  for (int i = 0; i < 3; ++i)
    state.push_back(Tensor::from(std::vector<float>(2048 * 1024), {2048, 1024}, "CPU"));
  const Tensor inputs = Tensor::from(std::vector<float>(2048 * 2048), {2048, 2048}, "CPU");
  Tensor loss;
  {
    const Autocast half(kBF16);
    loss = inputs.matmul(w).sum();
  }
  const Tensor g = Tensor::gradient(loss, {w})[0];
  Tensor &m = state[0], &v = state[1], &p = state[2];
  m.assign(m * 0.9 + g * 0.1);
  v.assign(v * 0.95 + g * g * 0.05);
  p.assign(p * 0.9999 - m / (v.sqrt() + 1e-8) * 3e-4);
  for (const Step& step : schedule_on(kHopper, {m, v, p})->steps) {
    if (!step.kernel.get()) continue;
    const auto nodes = topological(step.kernel.get());
    const bool has_product = std::any_of(nodes.begin(), nodes.end(), [](Node n) {
      return n->op == Op::ReduceAxis && is_product(n);
    });
    if (has_product) CHECK(step.kernel.get()->num_src <= 2);
  }
}

TEST_CASE("a sum over all of a matrix is shared out whatever divides its rows") {
  // 3053 = 43 * 71 rows.
  const Tensor x = Tensor::from(std::vector<float>(3053 * 1024), {3053, 1024}, "CPU");
  const auto steps = schedule_on(kHopper, {x.square().sum()})->steps;
  REQUIRE(steps.size() == 2);
  CHECK(numel(steps[0].kernel.get()->src(0)->src(1)->shape()) >= 256);
  const Tensor y = Tensor::randn({1021, 1030}).realize();
  const double wanted = y.to(kF64).square().sum().item<double>();
  CHECK(y.to(kHopper).square().sum().to("CPU").item<float>() == doctest::Approx(wanted));
}
