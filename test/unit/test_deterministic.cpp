#include "runtime/rewrites/deterministic.h"

#include <doctest/doctest.h>

#include <cmath>

#include "runtime/realize/realize.h"
#include "runtime/schedule/schedule.h"
#include "test/reference.h"
#include "tiny/base/env.h"
#include "tiny/ir/build.h"
#include "tiny/nn/layers.h"
#include "tiny/tensor/random.h"

using namespace tiny;

namespace {

using Numbers = std::vector<double>;

Numbers numbers(Tensor t, const char* deterministic) {
  const EnvOverride setting("DETERMINISTIC", deterministic);
  return t.detach().contiguous().to(kF64).to_vector<double>();
}

// The same values with and without, to a relative tolerance; none: to the bit.
void check_same(const Tensor& t, double tolerance = 0) {
  const Numbers plain = numbers(t, "0"), ordered = numbers(t, "1");
  REQUIRE(plain.size() == ordered.size());
  for (size_t i = 0; i < plain.size(); ++i)
    CHECK_MESSAGE(std::abs(plain[i] - ordered[i]) <= tolerance * (1 + std::abs(plain[i])),
                  "element ", i, ": ", ordered[i], " and not ", plain[i]);
}

// Scatters of the graph in which several values may meet.
int open_scatters(const Tensor& t) {
  Node root = t.node();
  const std::vector<Node> roots = with_ordered_scatters(normalize({&root, 1}).roots);
  int count = 0;
  for (Node n : topological(roots)) count += n->op == Op::Scatter && !n->arg<ScatterArg>().unique;
  return count;
}

Tensor random_index(int64_t n, const Shape& shape) {
  return Tensor::randint(0, n, shape).realize();
}

// Small whole numbers: their sums are exact in any order.
Tensor whole(const Shape& shape, DType t = kF32) {
  return Tensor::randint(-4, 5, shape).to(t).realize();
}

}  // namespace

TEST_CASE("ordered scatters add what the plain ones add") {
  manual_seed(1);
  for (DType t : {kF32, kF64, kF16}) {
    const Tensor x = whole({7, 5}, t);
    check_same(x.scatter_add(0, random_index(7, {40, 5}), whole({40, 5}, t)));
    check_same(x.scatter_add(1, random_index(5, {7, 300}), whole({7, 300}, t)));
    check_same(x.index_add(0, random_index(7, {100}), whole({100, 5}, t)));
    check_same(x.index_add(1, random_index(5, {33}), whole({7, 33}, t)));
    check_same(x.index_put({random_index(7, {50}), random_index(5, {50})}, whole({50}, t), true));
    check_same(x.index_put({Slice{1, 6, 2}, random_index(5, {50})}, whole({3, 50}, t), true));
  }
}

TEST_CASE("ordered scatters of every length fold their segments") {
  manual_seed(2);
  for (int64_t n : {1, 2, 15, 16, 17, 255, 256, 257, 3000})
    for (int64_t rows : {1, 3, 100}) {
      CAPTURE(n);
      CAPTURE(rows);
      check_same(Tensor::zeros({rows}).scatter_add(0, random_index(rows, {n}), whole({n})));
    }
}

TEST_CASE("floats that round agree with the plain sum to rounding, and runs agree to the bit") {
  manual_seed(3);
  const Tensor sum =
      Tensor::zeros({10}).scatter_add(0, random_index(10, {5000}), Tensor::randn({5000}).realize());
  check_same(sum, 2e-6);
  const Numbers first = numbers(sum, "1");
  for (const char* threads : {"1", "2", "3"}) {
    const EnvOverride setting("THREADS", threads);
    CHECK(numbers(sum, "1") == first);
  }
}

TEST_CASE("an infinity or NaN stays in its own segment") {
  const Tensor at = Tensor::from<int64_t>({2, 0, 2, 1, 0});
  const Tensor v = Tensor::from<float>({1, INFINITY, 2, NAN, 1});
  const Numbers y = numbers(Tensor::zeros({3}).scatter_add(0, at, v), "1");
  CHECK(std::isinf(y[0]));
  CHECK(std::isnan(y[1]));
  CHECK(y[2] == 3);
}

TEST_CASE("products, and the last of several values, are those of the plain scatter") {
  manual_seed(4);
  const Tensor at = random_index(6, {50}), x = whole({6});
  check_same(x.scatter_reduce(0, at, Tensor::randint(1, 3, {50}).to(kF32).realize(), "prod"));
  check_same(x.scatter(0, at, whole({50})));
  check_same(x.to(kI32).scatter(0, at, whole({50}, kI32)));
  check_same(x.scatter_reduce(0, at, whole({50}), "mean", false), 1e-6);
}

TEST_CASE("elements outside are dropped, and empty scatters do nothing") {
  const Tensor at = Tensor::from<int64_t>({5, -1, 1, 3, 1, 9});
  const Node index = at.node();
  const Tensor values = Tensor::arange(1, 7, 1, kF32);
  for (Op op : {Op::Add, Op::Assign})
    check_same(
        Tensor(build::scatter(Tensor::zeros({3}).node(), values.node(), {&index, 1}, {op, false})));
  check_same(
      Tensor::zeros({0, 3}).scatter_add(0, Tensor::zeros({0, 3}, kI64), Tensor::zeros({0, 3})));
}

TEST_CASE("gradients of embeddings, gathers and windows are ordered too") {
  manual_seed(5);
  nn::Embedding table(9, 4, 2);
  const Tensor at = random_index(9, {6, 7}), weight = whole({6, 7, 4});
  check_same(Tensor::gradient((table(at) * weight).sum(), {table.weight})[0]);
  Tensor x = whole({5, 8}).contiguous().requires_grad_();
  const Tensor g = (x.gather(1, random_index(8, {5, 20})) * whole({5, 20})).sum();
  check_same(Tensor::gradient(g, {x})[0]);
  const Tensor picked = x.index({random_index(5, {3, 1}), random_index(8, {4})});
  check_same(Tensor::gradient((picked * whole({3, 4})).sum(), {x})[0]);
}

TEST_CASE("only what depends on the order of writes is sorted") {
  const Tensor at = Tensor::from<int64_t>({0, 1, 1}), v = Tensor::ones({3}).contiguous();
  CHECK(open_scatters(v.scatter_add(0, at, v)) == 0);
  CHECK(open_scatters(v.scatter(0, at, v)) == 0);
  CHECK(open_scatters(v.scatter_reduce(0, at, v, "amax")) == 1);
  CHECK(open_scatters(v.to(kI64).scatter_add(0, at, v.to(kI64))) == 1);
  // An index for each row of the source: the rows are sorted, not their elements.
  const Tensor rows = Tensor::zeros({4, 1000}).index_add(0, at, Tensor::ones({3, 1000}));
  Node root = rows.node();
  int64_t sorted = 0;
  for (Node n : topological(with_ordered_scatters(normalize({&root, 1}).roots)))
    if (n->op == Op::ReduceAxis && std::string_view(n->label) == "index_add")
      sorted = std::max(sorted, numel(n->src(0)->shape()));
  CHECK(sorted <= 3 * 3 * 1000);
}

TEST_CASE(
    "sorting for an ordered scatter takes a number of kernels that grows with the logarithm") {
  const auto kernels = [](int64_t n) {
    const EnvOverride setting("DETERMINISTIC", "1");
    const Tensor at = Tensor::zeros({n}, kI64).contiguous().realize();
    const Tensor y = Tensor::zeros({8}).scatter_add(0, at, at.to(kF32));
    Node root = y.node();
    const Normalized graph = normalize({&root, 1});
    return schedule(graph, {device_id("CPU")}, device_id("CPU"))->steps.size();
  };
  const size_t small = kernels(1 << 10), large = kernels(1 << 16);
  CHECK(small < 30);
  CHECK(large <= small + 6 * 2 + 6);
}
