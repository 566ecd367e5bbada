#include "tiny/tensor/tensor.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "test/error_of.h"
#include "test/reference.h"

using namespace tiny;

namespace {

using Numbers = std::vector<double>;

Tensor zeros(const Shape& shape, DType dtype = kF32) { return Tensor::zeros(shape, dtype); }

Numbers numbers(const Tensor& t) { return evaluate(t.node()).numbers(); }

bool has_shape(const Tensor& t, const Shape& shape) { return same(t.shape(), shape); }

}  // namespace

// --- Promotion -----------------------------------------------------------------------------------

TEST_CASE("tensors with axes promote to the dtype that holds both") {
  CHECK((zeros({2}, kU8) + zeros({2}, kI8)).dtype() == kI16);
  CHECK((zeros({2}, kF16) + zeros({2}, kBF16)).dtype() == kF32);
  CHECK((zeros({2}, kI64) + zeros({2}, kF16)).dtype() == kF16);
  CHECK((zeros({2}, kBool) + zeros({2}, kBool)).dtype() == kBool);
}

TEST_CASE("a 0-d tensor only matters by its kind") {
  CHECK((zeros({2}, kF32) + zeros({}, kF64)).dtype() == kF32);
  CHECK((zeros({2}, kI32) + zeros({}, kF64)).dtype() == kF64);
  CHECK((zeros({2}, kI32) + zeros({}, kI64)).dtype() == kI32);
  CHECK((zeros({2}, kBool) + zeros({}, kI32)).dtype() == kI32);
  CHECK((zeros({}, kF32) + zeros({}, kF64)).dtype() == kF64);
}

TEST_CASE("a number only matters by its kind") {
  CHECK((zeros({2}, kF16) * 2.0).dtype() == kF16);
  CHECK((zeros({}, kF16) * 2.0).dtype() == kF16);
  CHECK((1 - zeros({2}, kI8)).dtype() == kI8);
  CHECK((zeros({2}, kI64) * 0.5).dtype() == kF32);
  CHECK((zeros({2}, kBool) + 1).dtype() == kI64);
  CHECK((zeros({2}, kI32) / 2).dtype() == kF32);
}

TEST_CASE("hyperbolic functions of f64 keep their digits where series end") {
  std::vector<double> x;
  for (int i = 1; i <= 512; ++i) x.insert(x.end(), {i / 1024.0, -i / 1024.0});
  const std::vector<double> tanh = Tensor::from(x).tanh().to_vector<double>();
  const std::vector<double> sinh = Tensor::from(x).sinh().to_vector<double>();
  for (size_t i = 0; i < x.size(); ++i) {
    INFO(x[i]);
    CHECK(std::abs(tanh[i] / std::tanh(x[i]) - 1) < 3e-15);
    CHECK(std::abs(sinh[i] / std::sinh(x[i]) - 1) < 3e-15);
  }
}

TEST_CASE("functions of real numbers turn integers into f32 and keep halves") {
  CHECK(zeros({2}, kI64).exp().dtype() == kF32);
  CHECK(zeros({2}, kBF16).sigmoid().dtype() == kBF16);
  CHECK(zeros({2}, kF64).sin().dtype() == kF64);
}

TEST_CASE("sums and products of integers are i64") {
  CHECK(zeros({2}, kBool).sum().dtype() == kI64);
  CHECK(zeros({2}, kI8).prod().dtype() == kI64);
  CHECK(zeros({2}, kF16).sum().dtype() == kF16);
  CHECK(zeros({2}, kI32).max().dtype() == kI32);
}

// --- Shapes --------------------------------------------------------------------------------------

TEST_CASE("operands broadcast as NumPy's do") {
  CHECK(has_shape(zeros({3, 1}) + zeros({4}), {3, 4}));
  CHECK(has_shape(where(zeros({2, 1}, kBool), zeros({3}), 1.0), {2, 3}));
}

TEST_CASE("movement gives the shapes that it promises") {
  const Tensor x = zeros({2, 3, 4});
  CHECK(has_shape(x.reshape({4, -1}), {4, 6}));
  CHECK(has_shape(x.permute({2, 0, -2}), {4, 2, 3}));
  CHECK(has_shape(x.transpose(0, -1), {4, 3, 2}));
  CHECK(has_shape(x.unsqueeze(-1), {2, 3, 4, 1}));
  CHECK(has_shape(zeros({1, 3, 1}).squeeze(), {3}));
  CHECK(has_shape(zeros({1, 3, 1}).squeeze({0, 1}), {3, 1}));
  CHECK(has_shape(x.flatten(1), {2, 12}));
  CHECK(has_shape(x.unflatten(2, {2, -1}), {2, 3, 2, 2}));
  CHECK(has_shape(zeros({3, 1}).expand({2, -1, 5}), {2, 3, 5}));
  CHECK(has_shape(x.slice({{}, 1, -3}, {{}, 100, -1}, {1, 1, 2}), {2, 2, 1}));
  CHECK(has_shape(x.diagonal(1, 1, 2), {2, 3}));
  CHECK(has_shape(x.unfold(2, 3, 1), {2, 3, 2, 3}));
  CHECK(has_shape(x.pad({{1, -1}, {0, 2}, {-2, 0}}), {2, 5, 2}));
  CHECK(has_shape(x.repeat({2, 1, 1, 3}), {2, 2, 3, 12}));
  CHECK(has_shape(Tensor::cat({x, zeros({2, 0, 4}), x}, 1), {2, 6, 4}));
  CHECK(has_shape(Tensor::stack({x, x}, -1), {2, 3, 4, 2}));
  CHECK(x.split(2, 1).size() == 2);
  CHECK(has_shape(x.chunk(3, 2)[1], {2, 3, 2}));
  CHECK(Tensor::zeros({2, 0}).chunk(3, 1).size() == 3);  // as in PyTorch, each of them empty
}

TEST_CASE("reductions drop their axes or keep them with size one") {
  const Tensor x = zeros({2, 3, 4});
  CHECK(has_shape(x.sum(), {}));
  CHECK(has_shape(x.sum({0, -1}), {3}));
  CHECK(has_shape(x.mean(1, true), {2, 1, 4}));
  CHECK(has_shape(x.argmax(1), {2, 4}));
  CHECK(has_shape(x.argmax({}, true), {1, 1, 1}));
  CHECK(has_shape(zeros({}).sum(-1), {}));
}

TEST_CASE("matmul takes operands of every rank") {
  CHECK(has_shape(zeros({3}).matmul(zeros({3})), {}));
  CHECK(has_shape(zeros({3}).matmul(zeros({3, 4})), {4}));
  CHECK(has_shape(zeros({2, 3}).matmul(zeros({3})), {2}));
  CHECK(has_shape(zeros({5, 1, 2, 3}).matmul(zeros({6, 3, 4})), {5, 6, 2, 4}));
}

TEST_CASE("index tensors apart from each other put their axes in front") {
  const Tensor x = zeros({3, 4, 5}), i = zeros({2, 6}, kI64);
  CHECK(has_shape(x.index({i, kEllipsis}), {2, 6, 4, 5}));
  CHECK(has_shape(x.index({Slice{}, i}), {3, 2, 6, 5}));
  CHECK(has_shape(x.index({i, Slice{0, 2}, i}), {2, 6, 2}));
  CHECK(has_shape(x.index({-1, kNewAxis, kEllipsis, Slice{{}, {}, 2}}), {1, 4, 3}));
}

// --- Graphs --------------------------------------------------------------------------------------

TEST_CASE("the same expression is the same node") {
  const Tensor x = Tensor::arange(6);
  CHECK((x + 1).node() == (x + 1).node());
  CHECK(x.reshape({2, 3}).reshape({6}).node() == x.node());
}

TEST_CASE("nodes carry the name of the outermost operation") {
  const Tensor x = Tensor::arange(6, 12).to(kF32).reshape({2, 3});
  const Tensor y = x.softmax(1);
  CHECK(std::string(y.node()->label) == "softmax");
  CHECK(std::string(y.node()->src(0)->label) == "softmax");
}

TEST_CASE("assign keeps old readers on the old value") {
  Tensor x = Tensor::from({1.0f, 2.0f});
  const Tensor before = x * 10;
  x.assign(x + 1);
  CHECK(x.node()->op == Op::Assign);
  CHECK(numbers(before) == Numbers{10, 20});
  CHECK(numbers(x) == Numbers{2, 3});
}

TEST_CASE("a tensor whose gradient is wanted stays one when it is assigned") {
  Tensor w = Tensor::from({1.0f, 2.0f}).requires_grad_();
  const int64_t id = w.node()->int_value();
  w.assign(w * 2);
  CHECK(w.node()->op == Op::Leaf);
  CHECK(w.node()->int_value() == id);
  (w * 3).sum().backward();
  CHECK(numbers(w.grad()) == Numbers{3, 3});
}

// --- Values --------------------------------------------------------------------------------------

TEST_CASE("scans agree with their definition across blocks") {
  const Tensor x = mod(Tensor::arange(2000), 7);
  int64_t sum = 0;
  const auto got = evaluate(x.cumsum(0).node()).integers();
  for (int64_t i = 0; i < 2000; ++i) CHECK_MESSAGE(got[i] == (sum += i % 7), "at ", i);
}

TEST_CASE("index_put writes at slices beside tensors and drops what lies outside") {
  const Tensor x = Tensor::zeros({2, 3, 4}), v = Tensor::arange(1, 5, 1, kF32).reshape({2, 2});
  const Tensor at = Tensor::arange(2) * -2 + 2;  // 2, 0
  const Tensor y = x.index_put({Slice{}, at, Slice{1, {}, 2}}, v);
  CHECK(numbers(y.select(0, 1)) == Numbers{0, 3, 0, 4, 0, 0, 0, 0, 0, 1, 0, 2});
  CHECK(numbers(y.select(0, 0)) == numbers(y.select(0, 1)));
  CHECK(numbers(Tensor::zeros({}).index_put({kNewAxis}, Tensor::ones({1}))) == Numbers{1});
  const Tensor far = Tensor::arange(2) + 3;  // 3, 4: the line has no 4
  CHECK(numbers(Tensor::zeros({4}).index_put({far}, Tensor::ones({2}))) == Numbers{0, 0, 0, 1});
}

TEST_CASE("sort is stable and puts NaN last") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor x = Tensor::from({2.0f, nan, -0.0f, 2.0f, 0.0f, -1.0f});
  CHECK(numbers(x.argsort()) == Numbers{5, 2, 4, 0, 3, 1});
  CHECK(numbers(x.argsort(0, true)) == Numbers{1, 0, 3, 2, 4, 5});
}

TEST_CASE("sort needs a number of stages that grows with the logarithm") {
  const Tensor x = Tensor::arange(1 << 12).to(kF32);
  int stages = 0;
  for (Node n : topological(x.argsort().node())) stages += n->op == Op::Contiguous;
  CHECK(stages <= 24);
}

TEST_CASE("the latest of equals is the running extremum, and NaN from where it appears") {
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              inf = std::numeric_limits<float>::infinity();
  const Tensor x = Tensor::from({-inf, -0.0f, 0.0f, -1.0f, 0.0f, nan, 7.0f, nan});
  CHECK(numbers(x.cummax(0).indices) == Numbers{0, 1, 2, 2, 4, 5, 5, 7});
  CHECK(numbers(x.narrow(0, 1, 7).cummin(0).indices) == Numbers{0, 1, 2, 2, 4, 4, 6});
  CHECK(numbers(x.cummax(0).values.isnan()) == Numbers{0, 0, 0, 0, 0, 1, 1, 1});
  CHECK(numbers(x.cummin(0).values.isnan()) == Numbers{0, 0, 0, 0, 0, 1, 1, 1});
  const Tensor y = mod(Tensor::arange(50) * 17, 23) - 11;
  CHECK(numbers(y.cummin(0).values) == numbers(y.to(kF64).cummin(0).values));
  CHECK(numbers(y.cummax(0).indices) == numbers(y.to(kI8).cummax(0).indices));
}

// [2, n, 2] with ties and, for floats, every special value.
Tensor crowded(int64_t n, DType t) {
  std::vector<float> v;
  for (int64_t i = 0; i < 4 * n; ++i) v.push_back(static_cast<float>(i * 7919 % 263 % 90));
  if (t.is_float())
    for (size_t i = 3; i < v.size(); i += 5) {
      using Limits = std::numeric_limits<float>;
      const float special[] = {Limits::quiet_NaN(), -0.0f, -Limits::infinity()};
      v[i] = i % 4 == 0 ? special[i % 3] : -v[i];
    }
  return Tensor::from(v, {2, n, 2}).to(t);
}

TEST_CASE("topk equals the head of a sort") {
  for (DType t : {kF32, kBF16, kF64, kI32, kU8, kI64})
    for (int64_t n : {20, 300})
      for (bool largest : {false, true}) {
        INFO(t, " ", n, " ", largest);
        const Tensor x = crowded(n, t);
        const Numbers all = numbers(x.sort(1, largest).indices.narrow(1, 0, 7));
        CHECK(numbers(x.topk(7, 1, largest).indices) == all);
        const Tensor line = x.reshape({-1});
        const Numbers head = numbers(line.sort(0, largest).indices.narrow(0, 0, 16));
        CHECK(numbers(line.topk(16, 0, largest).indices) == head);
      }
}

TEST_CASE("a few of the best are found without sorting") {
  int stages = 0;
  const Tensor best = Tensor::arange(1 << 20).to(kF32).topk(10).indices;
  for (Node n : topological(best.node())) stages += n->op == Op::Contiguous;
  CHECK(stages <= 3);
}

TEST_CASE("median is the middle of a sort") {
  for (DType t : {kF32, kF16, kF64, kI8, kU8, kI32, kU32, kI64, kU64, kBool})
    for (int64_t n : {7, 65, 130}) {
      INFO(t, " ", n);
      const Tensor all = crowded(n, t), x = t.is_float() ? where(all.isnan(), 1, all) : all;
      const Tensor middle = x.sort(1).values.narrow(1, (n - 1) / 2, 1);
      CHECK(numbers(x.median(1, true)) == numbers(middle));
      const Tensor line = x.reshape({-1}).sort(0).values;
      CHECK(numbers(x.median()) == numbers(line.narrow(0, (4 * n - 1) / 2, 1)));
    }
}

TEST_CASE("the gradient of a median goes to one of equals") {
  Tensor x = Tensor::full({1, 101}, 4.0f);
  x = where(mod(Tensor::arange(101), 2) == 0, Tensor::full({1, 101}, 3.0f), x);  // 51 threes
  CHECK(numbers(x.median(1)) == Numbers{3});
  x = x.detach().requires_grad_();
  x.median(1).sum().backward();
  Numbers expected(101, 0);
  expected[100] = 1;  // the last three, where a stable sort has its middle
  CHECK(numbers(x.grad()) == expected);
}

// --- Errors --------------------------------------------------------------------------------------

TEST_CASE("errors name the operation, the values and what would work") {
  const Tensor x = zeros({2, 3});
  CHECK(error_of([&] {
          x.reshape({4, 2});
        }) == "reshape: cannot view (2,3) as (4,2): 6 elements against 8");
  CHECK(error_of([&] { x.sum(2); }) ==
        "sum: axis 2 is out of range for 2 axes: it must lie in [-2, 1]");
  CHECK(error_of([&] { x.sum({0, -2}); }) == "sum: axis 0 is named twice in (0,-2)");
  CHECK(error_of([&] { x + zeros({2}); }) ==
        "add: shapes (2,3) and (2) do not broadcast: sizes 3 and 2 of axis -1 differ and neither "
        "is 1");
  CHECK(error_of([&] {
          x.matmul(zeros({2, 3}));
        }) ==
        "matmul: cannot multiply (2,3) by (2,3): the last axis of the first has 3 elements and "
        "the axis it meets 2");
  CHECK(error_of([&] {
          x.expand({4, 3});
        }) == "expand: cannot expand (2,3) to (4,3): size 2 of axis 0 is not 1");
  CHECK(error_of([&] { x.select(1, 3); }) == "select: index 3 is out of range for axis 1 of (2,3)");
}

TEST_CASE("a dtype that an operation does not take is an error") {
  const Tensor i = zeros({2}, kI64), b = zeros({2}, kBool), f = zeros({2});
  CHECK(error_of([&] { i.mean(); }) == "mean: takes floats and not i64: convert it with to(kF32)");
  CHECK(error_of([&] { f& f; }) == "bitwise_and: takes integers and bool and not f32");
  CHECK(error_of([&] { b - b; }) == "sub: two bools have no difference: use ^ or logical_xor");
  CHECK(error_of([&] { where(f, f, f); }) == "where: the condition is bool and not f32");
  CHECK(error_of([&] { f.index_select(0, f); }) ==
        "index_select: indices are integers and not f32");
  CHECK(error_of([&] { f.bitcast(kI64); }) == "bitcast: f32 has 4 bytes and i64 has 8");
}

TEST_CASE("values are read as the dtype that they have") {
  CHECK(error_of([] { zeros({1}).item<double>(); }) ==
        "to_vector: the tensor is f32 and not f64: convert it with to()");
  CHECK(error_of([] { zeros({0}).item<float>(); }) == "item: shape (0) has 0 elements and not one");
  CHECK(error_of([] {
          Tensor::from({1.0f, 2.0f}, {3});
        }) == "from: 2 values do not fill the shape (3)");
  CHECK(zeros({0}).to_vector<float>().empty());
}

TEST_CASE("an extremum of no elements is an error and a sum is not") {
  CHECK(error_of([] { zeros({2, 0}).max(1); }) == "max: no elements to choose from in shape (2,0)");
  CHECK(numbers(zeros({2, 0}).sum(1)) == Numbers{0, 0});
}

TEST_CASE("positions and medians along an axis need elements of that axis alone") {
  const Tensor x = zeros({0, 70});
  for (const Tensor& y : {x.argmax(1), x.argmin(1), x.median(1), zeros({3, 0}).median(0)}) {
    CHECK(to_shape(y.shape()) == Shape{0});
    CHECK(numbers(y).empty());
  }
  CHECK(error_of([&] { x.argmax(0); }) == "argmax: no elements to choose from in shape (0,70)");
  CHECK(error_of([&] { x.argmin(); }) == "argmin: no elements to choose from in shape (0,70)");
  CHECK(error_of([&] { x.median(0); }) == "median: no elements in shape (0,70)");
}

TEST_CASE("einsum names what is wrong in an equation") {
  const Tensor x = zeros({2, 3});
  CHECK(error_of([&] { Tensor::einsum("ij", {x}); }) == "einsum: no '->' in \"ij\"");
  CHECK(error_of([&] { Tensor::einsum("i->i", {x}); }) ==
        "einsum: \"i\" does not name the axes of (2,3)");
  CHECK(error_of([&] { Tensor::einsum("ij->k", {x}); }) ==
        "einsum: 'k' of the output of \"ij->k\" is repeated or in no operand");
}

TEST_CASE("gelu of f32 is within a few units, also where 1 + erf cancels") {
  constexpr int kCount = 20000;
  std::vector<float> x(kCount);
  for (int i = 0; i < kCount; ++i) x[static_cast<size_t>(i)] = -6 + 12 * (i + 0.5f) / kCount;
  const std::vector<float> y = Tensor::from(x).gelu().to_vector<float>();
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double v = x[i], exact = v / 2 * std::erfc(-v / std::sqrt(2));
    worst = std::max(worst, std::abs(y[i] - exact) / std::abs(exact));
  }
  CHECK(worst < 1e-5);
}

TEST_CASE("using a tensor that is not defined is an error") {
  const std::string text =
      "a tensor that is not defined: it was made by Tensor() and never given a value, was moved "
      "from, or is a grad() that no backward() has left";
  Tensor none, weight = Tensor::ones({2}).requires_grad_();
  CHECK_THROWS_WITH_AS(none + 1, text.c_str(), Error);
  CHECK_THROWS_WITH_AS(none.shape(), text.c_str(), Error);
  CHECK_THROWS_WITH_AS(none.realize(), text.c_str(), Error);
  CHECK_THROWS_WITH_AS(none.item<float>(), text.c_str(), Error);
  CHECK_THROWS_WITH_AS(Tensor::cat({Tensor::ones({2}), none}, 0), text.c_str(), Error);
  CHECK_THROWS_WITH_AS(weight.grad().sum(), text.c_str(), Error);
  CHECK_THROWS_WITH_AS(none.requires_grad_(), text.c_str(), Error);
  CHECK_THROWS_WITH_AS(none.to(kF16), text.c_str(), Error);
  CHECK_THROWS_WITH_AS(none.assign(Tensor::ones({2})), text.c_str(), Error);
  CHECK_THROWS_WITH_AS(weight.matmul(none), text.c_str(), Error);
}

TEST_CASE("bounds of clamp promote as operands do: one without axes only by its kind") {
  const Tensor x = Tensor::from({1.0f, 2.0f}), n = Tensor::from<int32_t>({1, 2});
  const Tensor half = Tensor::full({}, 1.5, kF64), halves = Tensor::full({2}, 1.5, kF64);
  CHECK(x.clamp(half, {}).dtype() == kF32);
  CHECK(x.to(kF16).clamp({}, Tensor(1.5f)).dtype() == kF16);
  CHECK(x.clamp(half, halves).dtype() == kF64);
  CHECK(x.select(0, 0).clamp(half, {}).dtype() == kF64);
  CHECK(n.clamp(Tensor(int64_t{1}), {}).dtype() == kI32);
  CHECK(n.clamp({}, half).dtype() == kF64);
  CHECK(n.clamp(0.5, {}).dtype() == kI32);  // a number never changes the dtype
}

TEST_CASE("a bound that is NaN makes all of clamp NaN") {
  const float nan = std::nanf("");
  const Tensor x = Tensor::from({1.0f, nan, -3.0f});
  for (const Tensor& y : {x.clamp(nan, 2), x.clamp({}, nan), x.clamp(Tensor(nan), {})})
    for (float f : y.to_vector<float>()) CHECK(std::isnan(f));
  const std::vector<float> part =
      x.clamp(Tensor::from({2.0f, 0.0f, nan}), Tensor::from({3.0f, 3.0f, 0.0f})).to_vector<float>();
  CHECK(part[0] == 2);
  CHECK(std::isnan(part[1]));
  CHECK(std::isnan(part[2]));
}

TEST_CASE("casts to bf16 keep subnormal numbers") {
  for (float v : {9.2e-41f, -1.1e-38f, 4.7e-41f, 1e-45f}) {
    const Tensor x = Tensor::from(std::vector<float>(64, v)).realize();
    const float expected = bf16_to_f32(f32_to_bf16(v));
    CHECK(x.to(kBF16).to(kF32).contiguous().to_vector<float>() == std::vector<float>(64, expected));
    CHECK(Tensor(x.to(kBF16)).realize().to(kF32).to_vector<float>()[63] == expected);
  }
}

TEST_CASE("powers and acosh of infinities, NaN and large numbers") {
  const float inf = INFINITY, nan = std::nanf("");
  const Tensor x = Tensor::from({-inf, -inf, -inf, 0.0f, 0.0f, 1.0f, nan, inf, 0.0f, -1.0f});
  const Tensor y = Tensor::from({1.5f, -0.5f, 3.0f, nan, 0.0f, nan, 0.0f, 0.0f, -1.0f, inf});
  const std::vector<float> power = pow(x, y).to_vector<float>();
  for (size_t i = 0; i < power.size(); ++i) {
    CAPTURE(i);
    const float expected = std::pow(x.to_vector<float>()[i], y.to_vector<float>()[i]);
    CHECK((power[i] == expected || (std::isnan(power[i]) && std::isnan(expected))));
  }
  for (float low : {0.5f, -1.0f, -100.0f, -1e20f, -1e30f, -inf})
    CHECK(std::isnan(Tensor(low).acosh().item<float>()));
}

TEST_CASE("a float beyond the range of an integer is its nearest end, in constants as in memory") {
  const std::vector<double> values{300.7, -300.7, -8.8, 65536, -65504,   3e9,      -3e9,
                                   1e19,  -1e19,  1e30, NAN,   INFINITY, -INFINITY};
  const Tensor x = Tensor::from(values).realize();
  std::vector<Tensor> constants;
  for (double v : values) constants.push_back(Tensor::full({1}, v, kF64));
  for (DType t : {kI8, kI16, kI32, kI64, kU8, kU16, kU32, kU64}) {
    CAPTURE(t);
    std::vector<Tensor> cast;
    for (const Tensor& c : constants) cast.push_back(c.to(t));
    const auto bits = [](const Tensor& y) { return y.to(kI64).to_vector<int64_t>(); };
    CHECK(bits(Tensor::cat(cast)) == bits(x.to(t)));
    CHECK(numbers(Tensor::cat(cast)) == numbers(x.to(t)));
  }
  CHECK(x.to(kU8).to_vector<uint8_t>()[0] == 255);
  CHECK(x.to(kI16).to_vector<int16_t>()[4] == INT16_MIN);
  CHECK(x.to(kU64).to_vector<uint64_t>()[9] == UINT64_MAX);
}

TEST_CASE("u64 above the largest i64 is larger, and its powers are of all bits") {
  constexpr uint64_t top = uint64_t{1} << 63;
  using Words = std::vector<uint64_t>;
  const Tensor x = Tensor::from<uint64_t>({top + 3, 5, UINT64_MAX}).realize();
  CHECK(maximum(x, INT64_MAX).to_vector<uint64_t>() == Words{top + 3, top - 1, UINT64_MAX});
  CHECK(minimum(INT64_MAX, x).to_vector<uint64_t>() == Words{top - 1, 5, top - 1});
  CHECK(pow(Tensor::from<uint64_t>({2, 3, 1}), Tensor::from<uint64_t>({top, top, top + 1}))
            .to_vector<uint64_t>() == Words{0, 1, 1});
  const Tensor least = x.scatter_reduce(0, Tensor::from<int64_t>({0}),
                                        Tensor::from<uint64_t>({top + 9}), "amin", false);
  CHECK(least.to_vector<uint64_t>() == Words{top + 9, 5, UINT64_MAX});
}

TEST_CASE("the largest e4m3 is no infinity, and less than a larger number") {
  const Tensor x = Tensor::from({448.0f, -448.0f, 1.0f, NAN}).to(kF8E4M3).realize();
  using Flags = std::vector<bool>;
  CHECK(x.isinf().to_vector<bool>() == Flags{false, false, false, false});
  CHECK(x.isfinite().to_vector<bool>() == Flags{true, true, true, false});
  CHECK((x < 1000).to_vector<bool>() == Flags{true, true, true, false});
  CHECK((Tensor::from({INFINITY, 57344.0f}).to(kF8E5M2)).isinf().to_vector<bool>() ==
        Flags{true, false});
}

TEST_CASE("a number is rounded to the tensor's dtype before a division is") {
  const Tensor x = Tensor::from({3.0f}).to(kF16).realize(), y = Tensor::full({1}, 0.3, kF16);
  CHECK(trunc_div(x, 0.3).to(kF32).item<float>() == 9);  // 3 by 0.30005
  CHECK(trunc_div(x, y).to(kF32).item<float>() == 9);
}

TEST_CASE("a shift by more than the width is the machine's, of constants too") {
  const Tensor x = Tensor::from<uint16_t>({0x8001, 0x8001}).realize();
  const Tensor by = Tensor::from<uint16_t>({16, 17}).realize();
  const auto constant = [](int64_t v) { return Tensor::full({1}, v, kU16); };
  for (bool left : {true, false}) {
    const auto shifted = [&](const Tensor& a, const Tensor& b) { return left ? a << b : a >> b; };
    const Tensor folded = Tensor::cat(
        {shifted(constant(0x8001), constant(16)), shifted(constant(0x8001), constant(17))});
    CHECK(folded.to_vector<uint16_t>() == shifted(x, by).to_vector<uint16_t>());
  }
}
