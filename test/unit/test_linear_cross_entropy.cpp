// linear_cross_entropy against cross_entropy of a product: values, gradients, memory.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "test/error_of.h"
#include "test/unit/schedules.h"
#include "tiny/nn/functional.h"
#include "tiny/train/mixed_precision.h"

using namespace tiny;
using namespace tiny::test;

namespace {

struct Operands {
  Tensor x, weight, target, bias, class_weight;

  Operands(int64_t rows, int64_t width, int64_t classes, DType t) {
    const auto drawn = [&](const Shape& shape) {
      return (Tensor::rand(shape, kF64) * 2 - 1).to(t).realize();
    };
    x = drawn({rows, width});
    weight = drawn({classes, width});
    bias = drawn({classes});
    class_weight = (drawn({classes}).square() + 0.5).realize();
    const Tensor number = (Tensor::rand({rows}) * static_cast<double>(classes)).to(kI64);
    target = where(Tensor::rand({rows}) < 0.2, -100, number).realize();
    for (Tensor* p : {&x, &weight, &bias}) p->requires_grad_();
  }
};

// The loss and the gradients of x, weight and bias by it, as numbers.
std::vector<std::vector<double>> numbers_of(const Tensor& loss, const Operands& in) {
  const Tensor seed =
      (Tensor::arange(loss.numel()).to(kF64) * 0.25 + 1).reshape(to_shape(loss.shape()));
  std::vector<Tensor> all =
      Tensor::gradient((loss.to(kF64) * seed).sum(), {in.x, in.weight, in.bias});
  all.push_back(loss);
  std::vector<std::vector<double>> out;
  for (const Tensor& t : all) out.push_back(t.to(kF64).to_vector<double>());
  return out;
}

void check_alike(const std::vector<std::vector<double>>& got,
                 const std::vector<std::vector<double>>& wanted, double tolerance) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    REQUIRE(got[i].size() == wanted[i].size());
    double most = 0, worst = 0;
    for (size_t j = 0; j < wanted[i].size(); ++j) {
      most = std::max(most, std::abs(wanted[i][j]));
      worst = std::max(worst, std::abs(got[i][j] - wanted[i][j]));
    }
    CAPTURE(i);
    CHECK((most > 0 || wanted[i].empty()));
    CHECK(worst <= tolerance * most);
  }
}

// Bytes of the largest intermediate value of the tensors' schedule.
int64_t largest_value(const Schedule& s) {
  int64_t most = 0;
  for (size_t i = static_cast<size_t>(s.inputs); i < s.values.size(); ++i)
    if (s.memory.offset[i] >= 0)
      most = std::max(most, s.values[i].size * static_cast<int64_t>(s.values[i].dtype.size()));
  return most;
}

}  // namespace

TEST_CASE("linear_cross_entropy is cross_entropy of the product, with its gradients") {
  for (const auto& [t, tolerance] :
       {std::pair{kF64, 1e-12}, std::pair{kF32, 3e-6}, std::pair{kBF16, 0.03}})
    for (const Reduction reduction : {Reduction::Mean, Reduction::Sum, Reduction::None})
      for (const bool plain : {true, false}) {
        const Operands in(23, 7, 11, t);
        CrossEntropyOptions o{.reduction = reduction};
        if (!plain) o = {.weight = in.class_weight, .reduction = reduction, .label_smoothing = 0.1};
        const auto wanted =
            numbers_of(cross_entropy(in.x.linear(in.weight, in.bias), in.target, o), in);
        for (const int64_t rows : {1, 5, 40}) {
          CAPTURE(rows);
          const Tensor loss = linear_cross_entropy(
              in.x, in.weight, in.target, {.bias = in.bias, .loss = o, .batch_chunk_size = rows});
          CHECK(loss.dtype() == (t == kF64 ? kF64 : kF32));
          check_alike(numbers_of(loss, in), wanted, tolerance);
        }
      }
}

TEST_CASE(
    "linear_cross_entropy takes probabilities, rows of several axes and weights with a gradient") {
  const Operands in(24, 5, 9, kF64);
  const Tensor p = Tensor::rand({24, 9}, kF64).softmax(1).realize();
  const CrossEntropyOptions smooth{.label_smoothing = 0.2};
  check_alike(
      numbers_of(linear_cross_entropy(in.x, in.weight, p,
                                      {.bias = in.bias, .loss = smooth, .batch_chunk_size = 7}),
                 in),
      numbers_of(cross_entropy(in.x.linear(in.weight, in.bias), p, smooth), in), 1e-12);

  const auto wanted = numbers_of(cross_entropy(in.x.linear(in.weight, in.bias), in.target), in);
  const LinearCrossEntropyOptions options{.bias = in.bias, .batch_chunk_size = 4};
  check_alike(numbers_of(linear_cross_entropy(in.x.reshape({2, 12, 5}), in.weight,
                                              in.target.reshape({2, 12}), options),
                         in),
              wanted, 1e-12);

  const LinearCrossEntropyOptions alone{.loss = {.reduction = Reduction::None},
                                        .batch_chunk_size = 5};
  const Tensor each =
      linear_cross_entropy(in.x.reshape({2, 12, 5}), in.weight, in.target.reshape({2, 12}), alone);
  CHECK(same(each.shape(), Shape{2, 12}));
  const Tensor one_by_one = cross_entropy(in.x.linear(in.weight), in.target, alone.loss);
  check_alike({each.to_vector<double>()}, {one_by_one.to_vector<double>()}, 1e-12);

  Tensor w = in.class_weight.detach();
  w.requires_grad_();
  const Tensor whole = cross_entropy(in.x.linear(in.weight), in.target, {.weight = w});
  const Tensor parts = linear_cross_entropy(in.x, in.weight, in.target,
                                            {.loss = {.weight = w}, .batch_chunk_size = 5});
  check_alike({Tensor::gradient(parts, {w})[0].to_vector<double>()},
              {Tensor::gradient(whole, {w})[0].to_vector<double>()}, 1e-12);
}

TEST_CASE("linear_cross_entropy of rows that devices share stays on them") {
  const Operands in(24, 5, 9, kF64);
  const std::vector<std::string> devices{"CPU", "CPU:1"};
  const Tensor whole = cross_entropy(in.x.linear(in.weight), in.target);
  Tensor x = in.x.detach().reshape({4, 6, 5}).shard(devices, 0).realize();
  Tensor w = in.weight.detach().shard(devices).realize();
  for (Tensor* t : {&x, &w}) t->requires_grad_();
  const Tensor loss = linear_cross_entropy(x, w, in.target.reshape({4, 6}).shard(devices, 0),
                                           {.batch_chunk_size = 2});
  CHECK(loss.to("CPU").item<double>() == doctest::Approx(whole.item<double>()));
  const std::vector<Tensor> got = Tensor::gradient(loss, {x, w});
  const std::vector<Tensor> wanted = Tensor::gradient(whole, {in.x, in.weight});
  for (int i : {0, 1})
    check_alike({got[i].to("CPU").to_vector<double>()}, {wanted[i].to_vector<double>()}, 1e-12);
}

TEST_CASE("linear_cross_entropy of one row, of none, and of numbers of no class") {
  const Tensor w = Tensor::from(std::vector<float>{1, 0, 0, 1, 1, 1}, {3, 2});
  const Tensor row = Tensor::from(std::vector<float>{1, 2}, {2});
  const Tensor two = Tensor::from(std::vector<int64_t>{2}, Shape{});
  CHECK(linear_cross_entropy(row, w, two).item<float>() ==
        doctest::Approx(cross_entropy(row.linear(w), two).item<float>()));
  const Tensor none = Tensor::zeros({0, 2});
  CHECK(linear_cross_entropy(none, w, Tensor::zeros({0}, kI64),
                             {.loss = {.reduction = Reduction::Sum}})
            .item<float>() == 0);
  const Tensor rows = Tensor::ones({4, 2});
  const Tensor outside = Tensor::from(std::vector<int64_t>{0, 1, 3, 2});
  for (const int64_t chunk : {1, 4})
    CHECK(std::isnan(
        linear_cross_entropy(rows, w, outside, {.batch_chunk_size = chunk}).item<float>()));
}

TEST_CASE("linear_cross_entropy says what does not fit") {
  const Tensor x = Tensor::ones({4, 2}), w = Tensor::ones({3, 2}), t = Tensor::zeros({4}, kI64);
  CHECK(error_of([&] { linear_cross_entropy(x, w, Tensor::zeros({3}, kI64)); }) ==
        "linear_cross_entropy: a target of shape (3) for rows of shape (4,2): it is (4)");
  CHECK(error_of([&] {
          linear_cross_entropy(x, w, Tensor::zeros({4, 2}));
        }) == "linear_cross_entropy: a target of shape (4,2) for rows of shape (4,2): it is (4,3)");
  CHECK(error_of([&] {
          linear_cross_entropy(x, Tensor::ones({3, 5}), t);
        }) == "linear: (4,2) by a weight of (3,5): the last axis of both must agree");
  CHECK(error_of([&] { linear_cross_entropy(x, t, t); }) ==
        "linear_cross_entropy: takes rows (..., E) and a weight (C, E), not (4,2) and (4)");
  CHECK(error_of([&] { linear_cross_entropy(x, w, t, {.batch_chunk_size = -1}); }) ==
        "linear_cross_entropy: batch_chunk_size is -1");
  CHECK(error_of([&] { linear_cross_entropy(x, w, t, {.loss = {.label_smoothing = 2}}); }) ==
        "linear_cross_entropy: label_smoothing 2 is not in [0, 1]");
  CHECK(error_of([&] { linear_cross_entropy(x, w, t, {.loss = {.weight = Tensor::ones({4})}}); }) ==
        "linear_cross_entropy: a weight of (4) for 3 classes");
}

TEST_CASE("training stores no more than a chunk's logits and one sum of the weight's gradient") {
  constexpr int64_t kRows = 4096, kChunk = 512, kWidth = 64, kWords = 8192;
  for (const char* device : {"CPU", "EMU:CUDA:sm_90a"}) {
    CAPTURE(device);
    const auto zeros = [](const Shape& shape) {
      return Tensor::from(std::vector<float>(static_cast<size_t>(numel(shape))), shape, "CPU");
    };
    Tensor x = zeros({kRows, kWidth}), w = zeros({kWords, kWidth});
    for (Tensor* t : {&x, &w}) t->requires_grad_();
    const Tensor y = Tensor::from(std::vector<int32_t>(kRows), Shape{kRows}, "CPU");
    const auto plan = [&](const Tensor& loss) {
      std::vector<Tensor> all = Tensor::gradient(loss, {x, w});
      all.push_back(loss);
      return schedule_on(device, all);
    };
    const Autocast half(kBF16);
    const auto whole = plan(cross_entropy((x * 2).linear(w), y));
    const auto parts = plan(linear_cross_entropy(x * 2, w, y, {.batch_chunk_size = kChunk}));
    constexpr int64_t kLogits = kRows * kWords * 2, kOfChunk = kChunk * kWords * 2;
    CHECK(largest_value(*whole) >= kLogits);
    CHECK(largest_value(*parts) <= kOfChunk * 5 / 4);
    CHECK(whole->memory.peak - parts->memory.peak > kLogits * 3 / 4);
    // Each chunk's kernel adds to the sum of those before it, where that lies.
    int sums = 0, in_place = 0;
    for (const Value& v : parts->values)
      if (v.dtype == kF32 && v.size == kWords * kWidth) {
        ++sums;
        in_place += v.in_place >= 0;
      }
    CHECK(sums >= kRows / kChunk);
    CHECK(in_place >= kRows / kChunk - 1);
  }
}

TEST_CASE("evaluation stores no logits where their rows are reduced as they are computed") {
  const NoGrad no_grad;
  constexpr int64_t kRows = 4096, kWords = 2053;
  struct Case {
    const char* device;
    DType dtype;
    int64_t width;
  };
  for (const Case& c : {Case{"CPU", kF32, 64}, Case{"CPU", kF32, 200},
                        Case{"EMU:CUDA:sm_90a", kBF16, 64}, Case{"EMU:CUDA:sm_80", kBF16, 256}}) {
    CAPTURE(c.device);
    CAPTURE(c.width);
    const auto zeros = [&](const Shape& shape) {
      return Tensor::zeros(shape, c.dtype).to(c.device).contiguous().realize();
    };
    const Tensor x = zeros({kRows, c.width}), w = zeros({kWords, c.width}), b = zeros({kWords});
    const Tensor y = Tensor::zeros({kRows}, kI64).to(c.device).contiguous().realize();
    const std::vector<std::pair<const char*, Tensor>> all{
        {"linear_cross_entropy", linear_cross_entropy(x, w, y, {.bias = b})},
        {"cross_entropy of a product", cross_entropy(x.linear(w, b), y)},
        {"log-sum-exp of a product", x.matmul(w.t()).to(kF32).logsumexp(-1)}};
    for (const auto& [what, value] : all) {
      CAPTURE(what);
      CHECK(largest_value(*schedule_on(c.device, {value})) < kRows * kWords);
    }
  }
}

TEST_CASE("rows that are reduced as they are computed have the values of rows in memory") {
  const NoGrad no_grad;
  struct Case {
    const char* device;
    DType dtype;
    int64_t rows, width, words;  // 32769: more steps than one sum of a CPU has terms
  };
  for (const Case& c : {Case{"CPU", kF32, 37, 48, 8213}, Case{"CPU", kF32, 16, 64, 32769},
                        Case{"EMU:CUDA:sm_90a", kBF16, 300, 64, 1000},
                        Case{"EMU:HIP:gfx942", kBF16, 300, 48, 1001}}) {
    CAPTURE(c.device);
    CAPTURE(c.words);
    const auto drawn = [&](const Shape& shape) {
      return (Tensor::rand(shape) * 2 - 1).to(c.dtype).realize();
    };
    const Tensor x = drawn({c.rows, c.width}), w = drawn({c.words, c.width}), b = drawn({c.words});
    const Tensor number = (Tensor::rand({c.rows}) * static_cast<double>(c.words)).to(kI64);
    const Tensor y = where(Tensor::rand({c.rows}) < 0.2, -100, number).realize();
    const CrossEntropyOptions o{.reduction = Reduction::None};
    const Tensor wanted = cross_entropy(x.to(kF64).linear(w.to(kF64), b.to(kF64)), y, o);
    // Rounded to the operands' dtype in either.
    const Tensor stored = cross_entropy(x.linear(w, b).realize(), y, o);
    const auto on = [&](const Tensor& t) { return t.to(c.device).realize(); };
    const Tensor got =
        linear_cross_entropy(on(x), on(w), on(y), {.bias = on(b), .loss = o}).to("CPU");
    const double tolerance = c.dtype == kF32 ? 1e-6 : 0.01;
    for (const Tensor& t : {stored, wanted})
      check_alike({got.to(kF64).to_vector<double>()}, {t.to(kF64).to_vector<double>()}, tolerance);
  }
}
