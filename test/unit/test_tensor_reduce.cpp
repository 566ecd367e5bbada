// Reductions as numbers: what they accumulate in, what they survive, which dtype they give.
#include <doctest/doctest.h>

#include <cmath>

#include "tiny/nn/functional.h"
#include "tiny/tensor/random.h"

using namespace tiny;

namespace {

using Numbers = std::vector<double>;

Numbers numbers(const Tensor& t) { return t.detach().to(kF64).to_vector<double>(); }
double number(const Tensor& t) { return t.detach().to(kF64).item<double>(); }

Tensor ones(const Shape& shape, DType t) { return Tensor::ones(shape, t).contiguous().realize(); }

bool all_finite(const Tensor& t) { return t.isfinite().all().item<bool>(); }

}  // namespace

TEST_CASE("sums of 16 million ones are exact") {
  const int64_t n = 16'000'000;
  const Tensor x = ones({n}, kF32);
  CHECK(x.sum().item<float>() == n);
  CHECK(x.mean().item<float>() == 1);
  CHECK(x.reshape({4000, 4000}).sum().item<float>() == n);
  CHECK(x.reshape({2, n / 2}).sum(1).to_vector<float>() == std::vector<float>(2, n / 2));
  CHECK(x.reshape({n / 2, 2}).sum(0).to_vector<float>() == std::vector<float>(2, n / 2));
  CHECK(x.dot(x).item<float>() == n);
  CHECK(x.norm().item<float>() == 4000);
}

// Added in its own precision, f16 stops at 2048 and bf16 at 256.
TEST_CASE("16-bit floats are added in f32, wherever something is added") {
  for (DType t : {kF16, kBF16}) {
    CAPTURE(t.name());
    const int64_t n = 4096;
    const Tensor x = ones({n}, t), zeros = Tensor::zeros({2}, t), at = Tensor::zeros({n}, kI64);
    const Tensor sums[] = {
        x.sum(),
        x.reshape({64, 64}).sum({0, 1}),
        x.unsqueeze(1).expand({n, 3}).sum(0).select(0, 1),
        x.cumsum(0).select(0, n - 1),
        x.dot(x),
        x.reshape({1, n}).matmul(x.reshape({n, 1})).reshape({}),
        Tensor::einsum("i,i->", {x, x}),
        x.linear(x.reshape({1, n})).reshape({}),
        zeros.scatter_add(0, at, x).select(0, 0),
        zeros.index_add(0, at, x).select(0, 0),
        zeros.index_put({at}, x, true).select(0, 0),
        zeros.scatter_reduce(0, at, x, "sum").select(0, 0),
        conv1d(x.reshape({1, 1, n}), x.reshape({1, 1, n})).reshape({}),
    };
    for (const Tensor& sum : sums) {
      CHECK(sum.dtype() == t);
      CHECK(number(sum) == n);
    }
    CHECK(number(ones({70000}, t).mean()) == 1);  // the sum is more than an f16 holds
    CHECK(number(x.norm()) == 64);
    CHECK(number(x.std()) == 0);
    CHECK(number(avg_pool1d(x.reshape({1, 1, n}), n).reshape({})) == 1);
    CHECK(number(x.softmax(0).to(kF32).sum()) == doctest::Approx(1).epsilon(0.01));
    CHECK(number(zeros.scatter_reduce(0, at, x, "mean", false).select(0, 0)) == 1);
  }
}

TEST_CASE("gradients of 16-bit floats are added in f32") {
  for (DType t : {kF16, kBF16}) {
    CAPTURE(t.name());
    const int64_t n = 4096;
    Tensor row = ones({1, 2}, t).requires_grad_();
    const Tensor at = Tensor::zeros({n}, kI64);
    (row.expand({n, 2}) * 1).sum().backward();
    CHECK(numbers(row.grad()) == Numbers(2, n));
    row.zero_grad();
    row.index_select(0, at).sum().backward();
    CHECK(numbers(row.grad()) == Numbers(2, n));
    row.zero_grad();
    row.embedding(at).sum().backward();
    CHECK(numbers(row.grad()) == Numbers(2, n));
    row.zero_grad();
    ones({n, 1}, t).matmul(row).sum().backward();
    CHECK(numbers(row.grad()) == Numbers(2, n));
  }
}

TEST_CASE("softmax and its kin survive large numbers, with their gradients") {
  for (DType t : {kF64, kF32, kF16, kBF16}) {
    CAPTURE(t.name());
    const double most = t == kBF16 ? 9984 : 10000;  // a bf16 number
    Tensor x = Tensor::from<double>({most, -most, most, 0}).to(t).requires_grad_();
    const double half = std::log(2);
    CHECK(numbers(x.softmax(0)) == Numbers{0.5, 0, 0.5, 0});
    CHECK(numbers(x.neg().softmax(0)) == Numbers{0, 1, 0, 0});
    CHECK(number(x.log_softmax(0).select(0, 0)) == doctest::Approx(-half).epsilon(0.005));
    CHECK(number(x.log_softmax(0).select(0, 1)) == doctest::Approx(-2 * most).epsilon(0.005));
    CHECK(number(x.logsumexp()) == doctest::Approx(most + half).epsilon(1e-3));
    CHECK(number((x - most - most).logsumexp()) == doctest::Approx(-most + half).epsilon(1e-3));
    CHECK(number(x.logcumsumexp(0).select(0, 3)) == doctest::Approx(most + half).epsilon(1e-3));
    const Tensor target = Tensor::from<int64_t>({1});
    CHECK(number(cross_entropy(x.unsqueeze(0), target)) ==
          doctest::Approx(2 * most + half).epsilon(0.005));
    const Tensor all = x.softmax(0).sum() + x.log_softmax(0).sum() + x.logsumexp() +
                       x.logcumsumexp(0).sum() + cross_entropy(x.unsqueeze(0), target) +
                       x.sigmoid().sum() + x.logsigmoid().sum() + x.softplus().sum() +
                       x.tanh().sum();
    all.backward();
    CHECK(all_finite(all));
    CHECK(all_finite(x.grad()));
  }
}

TEST_CASE("rows that are all minus infinity are NaN in softmax and minus infinity in logsumexp") {
  const Tensor x = Tensor::full({1, 3}, -INFINITY);
  CHECK(std::isnan(numbers(x.softmax(1))[0]));
  CHECK(number(x.logsumexp(1)) == -INFINITY);
  CHECK(number(Tensor::full({3}, INFINITY).logsumexp()) == INFINITY);
}

TEST_CASE("reductions of integers and bools keep the rules of their dtypes") {
  for (DType t : {kBool, kU8, kI8, kI16, kU16, kI32, kU32, kI64}) {
    CAPTURE(t.name());
    const Tensor x = ones({3, 2}, t);
    CHECK(x.sum().dtype() == kI64);
    CHECK(x.prod(1).dtype() == kI64);
    CHECK(x.cumsum(0).dtype() == kI64);
    CHECK(x.cumprod(1).dtype() == kI64);
    CHECK(x.max().dtype() == t);
    CHECK(x.min(1).dtype() == t);
    CHECK(x.sort(0).values.dtype() == t);
    CHECK(x.cummax(0).values.dtype() == t);
    CHECK(x.argmax().dtype() == kI64);
    CHECK(x.any(0).dtype() == kBool);
    CHECK(x.all().dtype() == kBool);
    CHECK(x.sum().item<int64_t>() == 6);
    CHECK_THROWS_WITH_AS(x.mean(), doctest::Contains("mean: takes floats and not"), Error);
    CHECK_THROWS_AS(x.softmax(0), Error);
    CHECK_THROWS_AS(x.var(), Error);
  }
}

TEST_CASE("sums of integers do not wrap where their dtype would") {
  CHECK(Tensor::full({1000}, 255, kU8).contiguous().sum().item<int64_t>() == 255'000);
  CHECK(Tensor::full({1000}, -128, kI8).contiguous().sum().item<int64_t>() == -128'000);
  const Tensor large = Tensor::full({4}, 2'000'000'000, kI32).contiguous();
  CHECK(large.sum().item<int64_t>() == 8'000'000'000);
  CHECK(large.cumsum(0).to_vector<int64_t>().back() == 8'000'000'000);
  CHECK(large.narrow(0, 0, 2).prod().item<int64_t>() == 4'000'000'000'000'000'000);
  CHECK(Tensor::full({300}, true).contiguous().sum().item<int64_t>() == 300);
  const Tensor odd = Tensor::from<int64_t>({int64_t{1} << 60, 1, 1});  // no detour by a float
  CHECK(odd.sum().item<int64_t>() == (int64_t{1} << 60) + 2);
  CHECK(odd.max().item<int64_t>() == int64_t{1} << 60);
}

TEST_CASE("argmax of what has to be computed first is a position, and holds the maximum") {
  manual_seed(1);
  const Tensor a = Tensor::randn({50, 3, 40}).realize(), b = Tensor::randn({50, 3, 40}).realize();
  const Tensor x = (a * b).sum(1) * a.select(1, 0) + b.select(1, 1);
  for (int64_t dim : {0, 1}) {
    const Tensor at = x.argmax(dim, true);
    CHECK(at.max().item<int64_t>() < x.size(dim));
    CHECK(number((x.gather(dim, at) - x.max(dim, true)).abs().max()) < 1e-5);
  }
}

// Each compares elements with one that was chosen among them, and computes them for that only once.
TEST_CASE("sorts, running extrema and pools of what has to be computed first find places") {
  manual_seed(2);
  for (DType t : {kF32, kF64}) {
    const Tensor a = Tensor::randn({6, 3, 40}, t).realize(), b = Tensor::randn({6, 3, 40}, t);
    const Tensor x = (a * b).sum(1) * a.select(1, 0) + b.select(1, 1);
    const auto holds = [&](const Tensor& values, const Tensor& at) {
      CHECK(at.min().item<int64_t>() >= 0);
      CHECK(at.max().item<int64_t>() < 40);
      CHECK(number((x.gather(1, at) - values).abs().max()) < 1e-5);
    };
    const WithIndices top = x.topk(5), running = x.cummax(1), sorted = x.sort(1);
    holds(top.values, top.indices);
    holds(running.values, running.indices);
    holds(sorted.values, sorted.indices);
    CHECK((top.indices.sort(1).values.narrow(1, 1, 4) > top.indices.sort(1).values.narrow(1, 0, 4))
              .all()
              .item<bool>());
    const WithIndices pool = max_pool_with_indices(x.unsqueeze(1), 1, 4);
    holds(pool.values.squeeze(1), pool.indices.squeeze(1));
  }
}

TEST_CASE("the median of a row with NaN is NaN, and the gradient goes there") {
  for (int64_t n : {5, 200}) {  // sorted, and found by bisection
    CAPTURE(n);
    std::vector<float> x(static_cast<size_t>(2 * n));
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 7 % 11);
    x[2] = std::nanf("");
    const Tensor rows = Tensor::from(x, {2, n}).requires_grad_();
    const std::vector<float> medians = rows.median(1).to_vector<float>();
    CHECK(std::isnan(medians[0]));
    CHECK(std::isfinite(medians[1]));
    CHECK(std::isnan(rows.detach().median().item<float>()));
    CHECK(std::isnan(rows.detach().median(1).to_vector<float>()[0]));
    rows.median(1).sum().backward();
    const std::vector<float> grad = rows.grad().to_vector<float>();
    CHECK(grad[2] == 1);
    CHECK(grad[0] + grad[1] == 0);
  }
}
