// Variable lengths beside what convolutions, pools, normalizations and index tensors work on, and
// along what index tensors read and write.
#include <doctest/doctest.h>

#include "test/error_of.h"
#include "test/unit/first_elements.h"
#include "tiny/nn/functional.h"
#include "tiny/tensor/variable.h"

using namespace tiny;
using test::check_close, test::Floats;

TEST_CASE("windows, groups and indices of the first n elements are compiled once for all n") {
  constexpr int64_t kMax = 13;
  const Tensor x = Tensor::randn({kMax, 11}).realize();
  const test::NamedFunctions<const Tensor&> functions{
      {"conv1d",
       [](const Tensor& t) {
         return conv1d(t.unsqueeze(1), Tensor::linspace(-1, 1, 12).reshape({4, 1, 3}),
                       Tensor::linspace(0, 1, 4), {.stride = 2, .padding = 1});
       }},
      {"conv2d in groups",
       [](const Tensor& t) {
         const Tensor w = Tensor::linspace(-1, 1, 16).reshape({4, 1, 2, 2});
         return conv2d(t.narrow(1, 1, 10).reshape({-1, 2, 1, 5}), w, Tensor(),
                       {.padding = 1, .groups = 2});
       }},
      {"conv_transpose1d",
       [](const Tensor& t) {
         return conv_transpose1d(t.unsqueeze(1), Tensor::linspace(-1, 1, 6).reshape({1, 2, 3}),
                                 Tensor(), {.stride = 2, .padding = 1});
       }},
      {"max_pool1d",
       [](const Tensor& t) { return max_pool1d(t.unsqueeze(1), 3, {.stride = 2, .padding = 1}); }},
      {"avg_pool1d",
       [](const Tensor& t) {
         return avg_pool1d(t.unsqueeze(1), 3, {.padding = 1, .count_include_pad = false});
       }},
      {"max_pool_with_indices",
       [](const Tensor& t) {
         return max_pool_with_indices(t.unsqueeze(1), 1, 3).indices.to(kF32);
       }},
      {"adaptive pools beside it",
       [](const Tensor& t) {
         return adaptive_avg_pool1d(t.unsqueeze(1), 4) + adaptive_max_pool1d(t.unsqueeze(1), 4);
       }},
      {"an average over it",
       [](const Tensor& t) { return adaptive_avg_pool1d(t.t().unsqueeze(0), 1); }},
      {"interpolate",
       [](const Tensor& t) {
         return interpolate(t.unsqueeze(1), 7) +
                interpolate(t.unsqueeze(1), 7, Resample::Linear, true);
       }},
      {"group_norm",
       [](const Tensor& t) {
         return group_norm(t.narrow(1, 1, 10).reshape({-1, 2, 5}), 2, Tensor::linspace(0, 1, 2));
       }},
      {"instance_norm",
       [](const Tensor& t) { return instance_norm(t.unsqueeze(1), Tensor(), Tensor(), 1.0); }},
      {"batch_norm in evaluation",
       [](const Tensor& t) {
         return batch_norm(t, Tensor(), Tensor(), Tensor::linspace(0, 1, 11), Tensor::ones({11})).y;
       }},
      {"einsum beside it",
       [](const Tensor& t) {
         return Tensor::einsum("ij,jk->ki", {t, Tensor::linspace(0, 1, 33).reshape({11, 3})});
       }},
      {"einsum over it",
       [](const Tensor& t) {
         return Tensor::einsum("ij,ik->jk", {t, t.exp()});
       }},
      {"einsum of one", [](const Tensor& t) { return Tensor::einsum("ij->j", {t}); }},
      {"gather from it",
       [](const Tensor& t) {
         return t.gather(0, Tensor::zeros({1, 11}, kI64)) + t.index_select(0, Tensor::full({1}, 0));
       }},
      {"gather beside it",
       [](const Tensor& t) {
         return t.gather(1, t.argmax(1, true)) + t.index_select(1, Tensor::arange(3));
       }},
      {"take_along_dim", [](const Tensor& t) { return t.take_along_dim(t.argsort(0), 0); }},
      {"rows of a permutation", [](const Tensor& t) { return t.index({t.sum(1).argsort()}); }},
      {"index from the end", [](const Tensor& t) { return t.index({Tensor::full({2}, -1)}); }},
      {"index beside it",
       [](const Tensor& t) {
         return t.index({Slice{}, Tensor::arange(3) * 2 - 1});
       }},
      {"index_add of its rows",
       [](const Tensor& t) {
         return Tensor::ones({11, 11}).index_add(0, t.argmax(1), t);
       }},
      {"index_add beside it",
       [](const Tensor& t) {
         return t.index_add(1, floor_div(Tensor::arange(3), 2), t.narrow(1, 2, 3));
       }},
      {"index_put of its rows",
       [](const Tensor& t) {
         return Tensor::zeros({11, 11}).index_put({t.argmax(1), t.argmin(1)}, t.select(1, 0), true);
       }},
      {"scatter_add", [](const Tensor& t) { return t.scatter_add(0, t.argsort(0), t.square()); }},
      {"scatter_reduce",
       [](const Tensor& t) {
         return t.scatter_reduce(1, (t > 0).to(kI64), t.exp(), "mean", false) +
                t.scatter_reduce(1, (t > 0).to(kI64), t.exp(), "amax");
       }},
      {"median", [](const Tensor& t) { return t.median(0); }},
      {"operands that broadcast",
       [](const Tensor& t) {
         return copysign(Tensor::linspace(1, 2, 11), t) + atan2(t.sum(0), t.sum(1, true)) +
                floor_div(t, 0.25) + mod(Tensor::linspace(1, 2, 11), t) + trunc_div(t, 0.5) +
                normalize(t, 3) + cosine_similarity(t, Tensor::linspace(1, 2, 11), 0);
       }},
      {"lstm",
       [](const Tensor& t) {
         const CellWeights w{Tensor::linspace(-1, 1, 8).reshape({8, 1}),
                             Tensor::linspace(-1, 1, 16).reshape({8, 2})};
         return lstm(t.unsqueeze(2), {}, {w}, {.batch_first = true}).y;
       }},
      {"median beside it", [](const Tensor& t) { return t.median(1, true); }},
  };
  test::check_values(functions, x, {12, 13, 7, 2, 1});
}

TEST_CASE("a leaf with a length has gradients of that length") {
  const Tensor values = Tensor::randn({6, 2}).realize();
  Variable n("n", 1, 6);
  n = 4;
  Tensor x = values.narrow(0, 0, n);
  x.requires_grad_();
  const Floats wanted = (values * 2).narrow(0, 0, 4).flatten().to_vector<float>();
  CHECK(Tensor::gradient(x.square().sum(), {x})[0].to_vector<float>() == wanted);
  Tensor y = x * 1;
  y.requires_grad_();  // of which nothing depends
  CHECK(Tensor::gradient(x.sum(), {y})[0].to_vector<float>() == Floats(8));
  x.square().backward(values.ones_like().narrow(0, 0, n));
  CHECK(x.grad().to_vector<float>() == wanted);
  x.set_grad(x.grad() * 0.5);
  CHECK(x.grad().to_vector<float>() == x.to_vector<float>());
  CHECK(has(error_of([&] { x.set_grad(values); }), "set_grad: axis 0"));
  CHECK(has(error_of([&] { x.square().backward(values); }), "backward: axis 0"));
}

TEST_CASE("second derivatives of a logcumsumexp with a length are those without one") {
  const Tensor values = Tensor::randn({9}, kF64).realize();
  Variable n("n", 1, 9);
  n = 4;
  const auto second = [&](auto length) {
    Tensor x = values * 1;
    x.requires_grad_();
    const Tensor y = x.narrow(0, 0, length).logcumsumexp(0).square().sum();
    const Tensor g = Tensor::gradient(y, {x})[0];
    return Tensor::gradient(g.square().sum(), {x})[0].to(kF32).to_vector<float>();
  };
  check_close(second(n), second(4), 1e-5);
}

TEST_CASE("gradients of windows, groups and indices reach the first n elements alone") {
  const test::NamedFunctions<const Tensor&, const Tensor&> functions{
      {"convolution and pool",
       [](const Tensor& x, const Tensor& w) {
         const Tensor y = conv1d(x.unsqueeze(1), w.reshape({2, 1, 2}), Tensor(), {.padding = 1});
         return max_pool1d(y, 2).square().mean() + avg_pool1d(y, 2, {.padding = 1}).exp().sum();
       }},
      {"conv_transpose1d",
       [](const Tensor& x, const Tensor& w) {
         return conv_transpose1d(x.unsqueeze(1), w.reshape({1, 2, 2}), Tensor(), {.stride = 2})
             .exp()
             .mean();
       }},
      {"batch_norm in training",
       [](const Tensor& x, const Tensor& w) {
         const auto y = batch_norm(x * 3 + 1, w, Tensor(), Tensor::zeros({4}), Tensor::ones({4}),
                                   {.training = true, .momentum = 0.5, .eps = 0.1});
         return (y.y.exp() * y.running_mean).sum() + (y.running_var * w).sum();
       }},
      {"group_norm",
       [](const Tensor& x, const Tensor& w) {
         return (group_norm(x.unsqueeze(2), 2, w, {}, 0.1)).exp().sum();
       }},
      {"einsum",
       [](const Tensor& x, const Tensor& w) {
         return Tensor::einsum("ij,j,ik->k", {x, w, x.exp()}).square().sum();
       }},
      {"gather",
       [](const Tensor& x, const Tensor& w) {
         const Tensor y = x.gather(0, x.argsort(0)) * w + x.gather(1, x.argmax(1, true));
         return (y * x.index_select(0, Tensor::from<int64_t>({1, 0, 1})).sum(0)).square().sum();
       }},
      {"index_add",
       [](const Tensor& x, const Tensor& w) {
         const Tensor y = w.outer(w).index_add(0, x.argmax(1), x);
         return y.square().sum() + x.index_add(1, Tensor::full({4}, 2), x).exp().sum();
       }},
      {"median", [](const Tensor& x, const Tensor& w) { return (x.median(0) * w).sum(); }},
  };
  test::check_gradients(functions);
}
