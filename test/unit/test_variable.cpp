#include "tiny/tensor/variable.h"

#include <doctest/doctest.h>

#include <cmath>

#include "codegen/lower.h"
#include "codegen/proof/prove.h"
#include "runtime/kernels/kernel.h"
#include "test/error_of.h"
#include "test/unit/first_elements.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/ir/build.h"
#include "tiny/nn/functional.h"
#include "tiny/nn/layers.h"
#include "tiny/run/jit.h"
#include "tiny/tensor/random.h"

using namespace tiny;
using test::check_close, test::Floats;

namespace {

using Function = std::function<Tensor(const Tensor& x, const Variable& n)>;

}  // namespace

TEST_CASE("a function of the first n elements is compiled once for all n") {
  constexpr int64_t kMax = 37;
  const Tensor x = Tensor::randn({kMax, 11}).realize();
  const test::NamedFunctions<const Tensor&> functions{
      {"element-wise", [](const Tensor& t) { return (t * 2 + 1).exp(); }},
      {"where", [](const Tensor& t) { return where(t > 0, t, t.square()); }},
      {"cast", [](const Tensor& t) { return (t > 0).to(kF32); }},
      {"sum over it", [](const Tensor& t) { return t.sum(0); }},
      {"sum beside it", [](const Tensor& t) { return t.sum(1); }},
      {"sum of all", [](const Tensor& t) { return t.sum(); }},
      {"prod", [](const Tensor& t) { return t.prod(0); }},
      {"mean", [](const Tensor& t) { return t.mean(0); }},
      {"mean of all", [](const Tensor& t) { return t.mean(); }},
      {"max", [](const Tensor& t) { return t.max(0); }},
      {"min of positive", [](const Tensor& t) { return t.square().min(0); }},
      {"max beside it", [](const Tensor& t) { return t.max(1, true); }},
      {"std", [](const Tensor& t) { return t.std(0, false, 0); }},
      {"var", [](const Tensor& t) { return t.var(0); }},
      {"logsumexp", [](const Tensor& t) { return t.logsumexp(0); }},
      {"norm", [](const Tensor& t) { return t.norm(0); }},
      {"softmax over it", [](const Tensor& t) { return t.softmax(0); }},
      {"softmax beside it", [](const Tensor& t) { return t.softmax(1); }},
      {"log_softmax", [](const Tensor& t) { return t.log_softmax(0); }},
      {"any", [](const Tensor& t) { return (t > 2).any(0).to(kF32); }},
      {"all", [](const Tensor& t) { return (t < 1).all(0).to(kF32); }},
      {"argmax", [](const Tensor& t) { return t.argmax(0).to(kF32); }},
      {"argmin beside it", [](const Tensor& t) { return t.argmin(1).to(kF32); }},
      {"normalized", [](const Tensor& t) { return (t - t.mean(0, true)) / t.std(0, true); }},
      {"transposed", [](const Tensor& t) { return t.t() * 3; }},
      {"outer", [](const Tensor& t) { return t.sum(1).unsqueeze(1) + t.sum(1).unsqueeze(0); }},
      {"sum twice", [](const Tensor& t) { return (t.sum(1, true) * t).sum(0); }},
      {"rows as windows",
       [](const Tensor& t) {
         return t.unflatten(1, {11, 1}).sum(2);
       }},
      {"M of a product", [](const Tensor& t) { return t.matmul(Tensor::eye(11) * 2); }},
      {"N of a product",
       [](const Tensor& t) {
         return Tensor::ones({5, 11}).matmul(t.t());
       }},
      {"K of a product", [](const Tensor& t) { return t.t().matmul(t); }},
      {"M and N", [](const Tensor& t) { return t.matmul(t.t()); }},
      {"a product of vectors", [](const Tensor& t) { return t.sum(1).dot(t.sum(1)); }},
      {"cumsum", [](const Tensor& t) { return t.cumsum(0); }},
      {"cumsum beside it", [](const Tensor& t) { return t.cumsum(1); }},
      {"sum of a cumsum", [](const Tensor& t) { return t.cumsum(0).sum(0); }},
      {"cumprod", [](const Tensor& t) { return t.cumprod(0); }},
      {"logcumsumexp", [](const Tensor& t) { return t.logcumsumexp(0); }},
      {"cummax", [](const Tensor& t) { return t.cummax(0).values; }},
      {"cummin", [](const Tensor& t) { return t.cummin(0).indices.to(kF32); }},
      {"sort", [](const Tensor& t) { return t.sort(0).values; }},
      {"sort beside it, descending", [](const Tensor& t) { return t.sort(1, true).values; }},
      {"argsort, descending", [](const Tensor& t) { return t.argsort(0, true).to(kF32); }},
      {"sort of i64", [](const Tensor& t) { return (t * 9).to(kI64).sort(0).values.to(kF32); }},
      {"topk", [](const Tensor& t) { return t.topk(1, 0).values; }},
      {"topk beside it", [](const Tensor& t) { return t.topk(3, 1, false).values; }},
      {"cat with a row before",
       [](const Tensor& t) {
         return Tensor::cat({Tensor::ones({1, 11}), t.exp()}, 0);
       }},
      {"cat with a row behind",
       [](const Tensor& t) {
         return Tensor::cat({t * 2, Tensor::ones({1, 11})}, 0);
       }},
      {"cat with itself",
       [](const Tensor& t) {
         return Tensor::cat({t, -t, t * 2}, 0);
       }},
      {"cat beside it",
       [](const Tensor& t) {
         return Tensor::cat({t, -t}, 1);
       }},
      {"stack",
       [](const Tensor& t) {
         return Tensor::stack({t, -t}, 1);
       }},
      {"softmax of a cat",
       [](const Tensor& t) {
         return Tensor::cat({t, Tensor::ones({2, 11}), -t}, 0).softmax(0);
       }},
      {"views beside it",
       [](const Tensor& t) {
         return t.index({Slice{}, Slice{1, 9, 2}, kNewAxis})
             .pad({{0, 0}, {1, 2}, {0, 1}}, PadMode::Constant, 3);
       }},
      {"parts beside it",
       [](const Tensor& t) {
         return t.split(4, 1)[2] - t.roll({2}, 1).shrink({{0, t.capacity()[0]}, {3, 6}});
       }},
      {"windows beside it",
       [](const Tensor& t) {
         return t.unfold(1, 3, 2).repeat({1, 2, 1});
       }},
      {"triangles beside it",
       [](const Tensor& t) {
         return t.unsqueeze(2).expand({-1, -1, 3}).tril(-1);
       }},
      {"slice_assign",
       [](const Tensor& t) {
         return t.slice_assign({0, 2}, {{}, 4}, {}, t.narrow(1, 7, 2));
       }},
      {"embedding", [](const Tensor& t) { return Tensor::eye(12, 3).embedding((t > 0).sum(1)); }},
      {"glu", [](const Tensor& t) { return glu(t.narrow(1, 1, 10)); }},
      {"prelu",
       [](const Tensor& t) {
         return prelu(t, Tensor::full({1}, 0.25)) + prelu(t, Tensor::linspace(0, 1, 11));
       }},
      {"isfinite of i64", [](const Tensor& t) { return t.to(kI64).isfinite().to(kF32); }},
      {"cross_entropy", [](const Tensor& t) { return cross_entropy(t, t.argmin(1)); }},
      {"nll_loss",
       [](const Tensor& t) {
         return nll_loss(t.log_softmax(1), t.argmin(1), {.reduction = Reduction::None});
       }},
      {"losses",
       [](const Tensor& t) {
         return mse_loss(t, t.sin()) + huber_loss(t, t * 2) +
                kl_div(t.log_softmax(1), t.softmax(1) * t.softmax(1), Reduction::BatchMean);
       }},
  };
  test::check_values(functions, x, {37, 32, 27, 22, 17, 12, 7, 2, 1});
}

TEST_CASE("gradients reach the first n elements alone") {
  const test::NamedFunctions<const Tensor&, const Tensor&> functions{
      {"mean", [](const Tensor& x, const Tensor&) { return x.square().mean(); }},
      {"softmax", [](const Tensor& x, const Tensor& w) { return (x.softmax(0) * w).sum(); }},
      {"max", [](const Tensor& x, const Tensor& w) { return (x.max(0) * w).sum(); }},
      {"prod", [](const Tensor& x, const Tensor& w) { return (x.prod(0) * w).sum(); }},
      {"std", [](const Tensor& x, const Tensor& w) { return (x.std(0) * w).sum(); }},
      {"rows of a product",
       [](const Tensor& x, const Tensor& w) { return x.matmul(w).exp().mean(); }},
      {"inner axis of a product",
       [](const Tensor& x, const Tensor& w) { return (x.t().matmul(x) * w).sum(); }},
      {"broadcast", [](const Tensor& x, const Tensor& w) { return (x * w).tanh().sum(); }},
      {"cumsum", [](const Tensor& x, const Tensor& w) { return (x.cumsum(0) * w).exp().sum(); }},
      {"cummax", [](const Tensor& x, const Tensor& w) { return (x.cummax(0).values * w).sum(); }},
      {"sort", [](const Tensor& x,
                  const Tensor& w) { return (x.sort(0).values * w).cumsum(0).square().sum(); }},
      {"cat",
       [](const Tensor& x, const Tensor& w) {
         return Tensor::cat({x.exp(), w.unsqueeze(0), x}, 0).softmax(0).square().sum();
       }},
      {"cross_entropy",
       [](const Tensor& x, const Tensor& w) {
         return cross_entropy(x, x.argmin(1), {.weight = w.exp(), .label_smoothing = 0.1});
       }},
      {"embedding",
       [](const Tensor& x, const Tensor& w) {
         return w.unsqueeze(1).embedding(x.argmax(1)).square().mean();
       }},
      {"glu", [](const Tensor& x, const Tensor& w) { return glu(x * w).square().sum(); }},
      {"pad",
       [](const Tensor& x, const Tensor& w) {
         return (x * w).pad({{0, 0}, {1, -2}}, PadMode::Constant, 2).exp().sum();
       }},
      {"attention of heads",
       [](const Tensor& x, const Tensor& w) {
         manual_seed(3);
         nn::MultiheadAttention layer(4, 2);
         return layer((x * w).unsqueeze(0)).square().sum();
       }},
  };
  test::check_gradients(functions);
}

TEST_CASE("results of a Jit that are constants keep their length") {
  const Tensor x = Tensor::randn({5, 3}).realize();
  Jit step([](const Tensor& t, const Variable& n) {
    const Tensor head = t.narrow(0, 0, n);
    return std::pair(head.zeros_like(), head.narrow(1, 0, 0));
  });
  Variable n("n", 1, 5);
  for (int64_t length : {5, 3, 1, 4}) {
    const auto [zeros, nothing] = step(x, n.bind(length));
    CHECK(zeros.current_shape() == Shape{length, 3});
    CHECK(zeros.to_vector<float>() == std::vector<float>(3 * length, 0));
    CHECK(nothing.current_shape() == Shape{length, 0});
  }
}

TEST_CASE("one capture of a Jit serves every value of a Variable") {
  constexpr int64_t kMax = 20;
  const Tensor x = Tensor::randn({kMax, 3}).realize();
  Jit step([](const Tensor& t, const Variable& n) {
    const Tensor head = t.narrow(0, 0, n);
    return std::pair(head.softmax(0), head.sum(0) / n.tensor());
  });
  Variable n("n", 1, kMax);
  size_t kernels = 0;
  std::vector<Tensor> kept;
  for (int64_t turn = 0; turn < 2 * kMax; ++turn) {
    const int64_t i = turn % kMax + 1;
    const auto [y, mean] = step(x, n.bind(i));
    if (turn == 1) kernels = kernel_count();
    if (turn > 1) CHECK(kernel_count() == kernels);
    CHECK(y.current_shape() == Shape{i, 3});
    CHECK(mean.to_vector<float>().size() == 3);
    kept.push_back(y);
  }
  CHECK(step.statistics().captures == 1);
  CHECK(step.statistics().replays == 2 * kMax - 2);
  // Results keep their length, and can be computed with.
  for (int64_t turn = 0; turn < 2 * kMax; ++turn) {
    const int64_t i = turn % kMax + 1;
    CHECK(kept[turn].current_shape() == Shape{i, 3});
    check_close(kept[turn].to_vector<float>(), x.narrow(0, 0, i).softmax(0).to_vector<float>());
    check_close(kept[turn].sum(0).to_vector<float>(), {1, 1, 1});
  }
  CHECK(has(error_of([&] { step(x, Variable("n", 1, kMax + 1).bind(3)); }),
            "argument 1 is a Variable in [1, 21]"));
  CHECK(has(error_of([&] { step(x, n.bind(21)); }), "the value 21 does not lie in [1, 20]"));
  CHECK(has(error_of([&] { step(x, n); }), "Variable n: it has no value"));
}

namespace {

// One step of attention with caches of keys and values (heads, positions, width).
struct Decoder {
  static constexpr int64_t kHeads = 2, kWidth = 4, kModel = kHeads * kWidth, kMax = 9;
  Tensor q = Tensor::randn({kModel, kModel}), k = Tensor::randn({kModel, kModel}),
         v = Tensor::randn({kModel, kModel}), positions = Tensor::randn({kMax, kModel});
  Tensor keys = Tensor::zeros({kHeads, kMax, kWidth}).contiguous();
  Tensor values = Tensor::zeros({kHeads, kMax, kWidth}).contiguous();

  Decoder() {
    for (Tensor* t : {&q, &k, &v, &positions, &keys, &values}) t->realize();
  }

  // x (model): `at` an integer or a Variable.
  template <class At> Tensor step(const Tensor& token, const At& at) {
    const Tensor x = token + positions.select(0, at);
    const auto heads = [&](const Tensor& w) { return x.matmul(w).reshape({kHeads, kWidth}); };
    keys.assign({Slice{}, at}, heads(k));
    values.assign({Slice{}, at}, heads(v));
    const Tensor y = scaled_dot_product_attention(heads(q).unsqueeze(1), keys.narrow(1, 0, at + 1),
                                                  values.narrow(1, 0, at + 1));
    return x + y.reshape({kModel}).tanh();
  }
};

}  // namespace

TEST_CASE("a decoder with a cache gives what static shapes give, at every position") {
  for (int round = 0; round < 2; ++round) {
    manual_seed(7);
    Decoder plain;
    manual_seed(7);
    Decoder replayed;
    Jit step([&](const Tensor& x, const Variable& at) { return replayed.step(x, at); });
    Variable at("at", 0, Decoder::kMax - 1);
    Tensor x = Tensor::randn({Decoder::kModel}).realize(), y = x * 1;
    y.realize();
    size_t kernels = 0;
    for (int64_t i = 0; i < Decoder::kMax; ++i) {
      if (i >= 2) kernels = kernel_count();
      y = step(y, at.bind(i));
      if (i >= 2) CHECK(kernel_count() == kernels);
      x = plain.step(x, i).realize();
      Tensor::realize(std::vector<Tensor*>{&plain.keys, &plain.values});
      check_close(y.to_vector<float>(), x.to_vector<float>(), 1e-4);
    }
    check_close(replayed.keys.to_vector<float>(), plain.keys.to_vector<float>(), 1e-4);
    CHECK(step.statistics().replays == Decoder::kMax - 2);
  }
}

TEST_CASE("the length of what is joined is the sum of the lengths") {
  const Tensor x = Tensor::randn({6, 3}).realize(), y = Tensor::randn({10, 3}).realize();
  Variable n("n", 0, 5), m("m", 1, 3);
  const auto joined = [&](const Tensor& a, const Tensor& b, const auto& i, const auto& j) {
    return Tensor::cat({a.narrow(0, 0, i), b.narrow(0, 0, j), a.narrow(0, 0, 1)}, 0);
  };
  Jit step([&](const Tensor& a, const Tensor& b, const Variable& i, const Variable& j) {
    return joined(a, b, i, j) * b.narrow(0, 0, i + j + 1);  // the same length
  });
  for (int64_t i = 0; i <= 5; ++i)
    for (int64_t j = 1; j <= 3; ++j) {
      const Tensor z = step(x, y, n.bind(i), m.bind(j));
      CHECK(z.current_shape() == Shape{i + j + 1, 3});
      const Tensor wanted = joined(x, y, i, j) * y.narrow(0, 0, i + j + 1);
      check_close(z.to_vector<float>(), wanted.to_vector<float>());
    }
  CHECK(step.statistics().captures == 1);
}

TEST_CASE("what is not finite is sorted where it is without a length") {
  const float nan = std::nan(""), inf = INFINITY;
  const Tensor x = Tensor::from<float>({inf, nan, 3, -inf, nan, 1, -2, nan});
  Variable n("n", 1, 8);
  for (int64_t i = 1; i <= 8; ++i)
    for (const bool descending : {false, true}) {
      n = i;
      const WithIndices got = x.narrow(0, 0, n).sort(0, descending);
      const WithIndices wanted = x.narrow(0, 0, i).sort(0, descending);
      check_close(got.values.to_vector<float>(), wanted.values.to_vector<float>());
      CHECK(got.indices.to_vector<int64_t>() == wanted.indices.to_vector<int64_t>());
      check_close(x.narrow(0, 0, n).cummin(0).values.to_vector<float>(),
                  x.narrow(0, 0, i).cummin(0).values.to_vector<float>());
    }
}

TEST_CASE("Variables are values: starts, indices, masks") {
  const Tensor x = Tensor::arange(24).reshape({6, 4}).to(kF32).realize();
  Variable n("n", 0, 3);
  for (int64_t i = 0; i <= 3; ++i) {
    n = i;
    check_close(x.narrow(0, n, 3).to_vector<float>(), x.narrow(0, i, 3).to_vector<float>());
    check_close(x.select(1, n).to_vector<float>(), x.select(1, i).to_vector<float>());
    check_close(x.index({n + 1}).to_vector<float>(), x.select(0, i + 1).to_vector<float>());
    check_close(where(Tensor::arange(4) < n.tensor(), x, 0).sum(1).to_vector<float>(),
                x.narrow(1, 0, i).sum(1).to_vector<float>());
    check_close((x * n.tensor()).to_vector<float>(), (x * i).to_vector<float>());
    Tensor a = x * 1, b = x * 1;
    a.assign({Slice{}, n}, -1);
    b.assign({Slice{}, i}, -1);
    check_close(a.to_vector<float>(), b.to_vector<float>());
    CHECK((n * 2 + n - 1).value() == 3 * i - 1);
    CHECK((n + 1).tensor().item<int64_t>() == i + 1);
  }
  // No element is a length too: sums are 0.
  n = 0;
  check_close(x.narrow(0, 0, n).sum(0).to_vector<float>(), {0, 0, 0, 0});
  CHECK(x.narrow(0, 0, n).to_vector<float>().empty());
}

TEST_CASE("what lies beyond a length does no harm") {
  const float nan = std::nan("");
  const Tensor x = Tensor::from<float>({1, 2, nan, nan}), ones = Tensor::ones({4});
  const Tensor zeros = Tensor::from<int64_t>({4, 2, 0, 0});
  Variable n("n", 1, 4);
  n = 2;
  const auto head = [&](const Tensor& t) { return t.narrow(0, 0, n); };
  CHECK(head(x).sum().item<float>() == 3);
  CHECK(head(x).max().item<float>() == 2);
  CHECK(head(x).argmax().item<int64_t>() == 1);
  CHECK(head(x).dot(head(ones)).item<float>() == 3);
  CHECK(floor_div(head(zeros * 3), head(zeros)).to_vector<int64_t>() == std::vector<int64_t>{3, 3});
  Tensor y = head(x).log().realize();
  check_close(y.exp().to_vector<float>(), {1, 2});
  CHECK((y * head(ones)).contiguous().realize().sum().item<float>() < 0.7f);
}

TEST_CASE("what a length cannot do is an error that says so") {
  const Tensor x = Tensor::zeros({8, 6}).contiguous().realize();
  Variable n("n", 1, 8), m("m", 1, 6), small("small", 0, 1);
  n = 3;
  m = 2;
  small = 1;
  const Tensor y = x.narrow(0, 0, n);
  const auto says = [](auto f, const char* part) {
    const std::string text = error_of(f);
    CAPTURE(text);
    CHECK(has(text, part));
  };
  says([&] { n.bind(9); }, "Variable n: the value 9 does not lie in [1, 8]");
  says([&] { Variable("k", 3, 2); }, "bounds 3 and 2");
  says([&] { Variable("k", 1, 2).tensor(); }, "it has no value: give it one with bind()");
  says([&] { x.narrow(1, 0, n); }, "the length n in [1, 8] does not fit axis 1 of (8,6)");
  says([&] { x.narrow(0, n, 3); }, "3 elements from n in [1, 8] do not lie in axis 0 of (8,6)");
  says([&] { x.narrow(0, 0, small); }, "at most 1");
  says([&] { x.index({n}); }, "an index in [1, 8] does not lie in an axis of 8");
  says([&] { y.shape(); }, "is a Variable");
  says([&] { y.size(0); }, "the length of axis 0, at most 8 in (8,6), is a Variable");
  CHECK(y.size(1) == 6);
  says([&] { y.numel(); }, "is a Variable");
  says([&] { y.reshape({48}); }, "cannot be split or merged");
  says([&] { y.flatten(); }, "cannot be split or merged");
  says([&] { y.unflatten(0, {2, 4}); }, "cannot be split or merged");
  says([&] { y.narrow(0, 0, 2); }, "is a Variable");
  says([&] { y.narrow(0, 0, n.bind(2)); }, "is a Variable");
  says([&] { y.flip(0); }, "no part of it can be cut, padded, reversed");
  says([&] { Tensor::cat({y, x.narrow(0, 0, n.bind(2))}, 1); }, "cat: axis 0 holds as many");
  says([&] { Tensor::cat({x, y}, 1); }, "cat: axis 0 holds as many");
  says([&] { y.split(1, 0); }, "is a Variable");
  says([&] { y + x; }, "narrow the other to it too");
  says([&] { y + x.narrow(0, 0, n.bind(4)); }, "different Variables");
  says([&] { y.matmul(x.narrow(1, 0, m).t().narrow(1, 0, 6)); }, "narrow the other to it too");
  says([&] { x.t().matmul(y); }, "narrow the other to it too");
  says([&] { y.topk(2, 0); }, "topk: 2 of 8 elements, or fewer: a Variable may be 1");
  says([&] { y.median(); }, "is a Variable");
  says([&] { x.narrow(0, 0, Variable("k", 0, 8).bind(1)).max(0); }, "a Variable may be 0");
  says([&] { y.item<float>(); }, "is a Variable");
  says([&] { y.gather(1, Tensor::zeros({1, 6}, kI64)); }, "does not go over all of them");
  says([&] { conv1d(y.t().unsqueeze(0), Tensor::ones({1, 6, 3})); }, "cannot be split or merged");
  says([&] { adaptive_avg_pool1d(y.t().unsqueeze(0), 2); }, "is a Variable");
  says(
      [&] {
        Tensor z = x * 1;
        z.assign(y);
      },
      "assign: axis 0");
  Jit bad([](const Tensor& t, const Variable& k) { return t * static_cast<float>(k.value()); });
  bad(x, n);
  says([&] { bad(x, n); }, "read on the host");
  Jit inner([](const Tensor& t) { return t.narrow(0, 0, Variable("k", 1, 8).bind(2)).sum(); });
  inner(x);
  says([&] { inner(x); }, "give the Jit the Variable as an argument");
  Jit outer([&](const Tensor& t) { return t.narrow(0, 0, n).sum(); });
  outer(x), outer(x);
  n = 5;
  says([&] { outer(x); }, "give it to the Jit as an argument");
  says([&] { Jit([](const Tensor& t) { return t; })(y); }, "no error");
}

namespace {

Node param(DType t, int slot, int64_t size) {
  const int64_t arg[] = {slot, size};
  return make(Op::Param, t, {}, Ints(arg));
}

// The verdict on a store at a place between the declared bounds, into 8 elements.
Proof proof_of_store(int64_t min, int64_t max) {
  const Node zero = constant(kI64, 0), value = make(Op::Load, kI64, {param(kI64, 1, 1), zero});
  const Node store = make(Op::Store, kVoid,
                          {param(kF32, 0, 8), build::bound(value, min, max), constant(kF32, 1.0)});
  ProofSettings settings;
  settings.scattered = 1;
  return prove(make(Op::Sink, kVoid, {store}), settings);
}

// The linear program of the sum of the first n of 4096 elements, of `bound` at most.
std::string sum_program(int64_t bound) {
  const Node n = build::bound(build::reshape(param(kI64, 2, 1), {}), 1, bound);
  const Node x = build::limit(param(kF32, 1, 4096), 0, n);
  const Node sum = build::reduce(Op::Add, x, 1);
  const Node plain = without_lengths(std::span(&sum, 1))[0];
  const Node kernel = make(Op::Sink, kVoid, {make(Op::Store, kVoid, {param(kF32, 0, 1), plain})});
  std::string text;
  lower(kernel, "k", find_device("CPU").target(), [&](const char* pass, const std::string& out) {
    if (std::string(pass) == "linearize") text = out;
  });
  return text;
}

}  // namespace

TEST_CASE("proofs rely on the bounds of Variables, and find bounds that are too wide") {
  CHECK(proof_of_store(0, 7).verdict == Verdict::Proved);
  CHECK(proof_of_store(0, 8).verdict == Verdict::Wrong);
  CHECK(proof_of_store(-1, 7).verdict == Verdict::Wrong);
}

TEST_CASE("a loop over the first n elements ends there") {
  const std::string text = sum_program(4096);
  CAPTURE(text);
  CHECK(has(text, "Bound("));
  // One loop at least, whose extent is a value that was computed before it.
  CHECK(has(text, " < v"));
}
