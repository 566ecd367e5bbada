// Sizes, positions and counts at the ends of int64: each is right, or an Error.
#include "tiny/ir/sizes.h"

#include <doctest/doctest.h>

#include <functional>
#include <utility>

#include "tiny/base/error.h"
#include "tiny/nn/functional.h"
#include "tiny/nn/layers.h"

using namespace tiny;

namespace {

using Make = std::function<Tensor(const Tensor&, int64_t)>;

Tensor ones(const Shape& shape) { return Tensor::ones(shape).contiguous().realize(); }

Tensor windows(const Tensor& pictures, int64_t size, int64_t step, int64_t dilation) {
  return pictures.unfold(3, size, step, dilation);
}

// Of a tensor (1, 1, 8, 8).
const std::vector<std::pair<const char*, Make>>& makers() {
  using T = const Tensor&;
  using I = int64_t;
  static const auto weight = [] { return Tensor::ones({1, 1, 3, 3}); };
  static const std::vector<std::pair<const char*, Make>> all = {
      {"zeros",
       [](T, I v) {
         return Tensor::zeros({v, 2});
       }},
      {"zeros of none",
       [](T, I v) {
         return Tensor::zeros({0, v, v});
       }},
      {"arange to", [](T, I v) { return Tensor::arange(v); }},
      {"arange from", [](T, I v) { return Tensor::arange(v, 10); }},
      {"arange by", [](T, I v) { return Tensor::arange(INT64_MIN, INT64_MAX, v); }},
      {"arange of floats", [](T, I v) { return Tensor::arange(0.0, v, 1.0); }},
      {"linspace", [](T, I v) { return Tensor::linspace(0, 1, v); }},
      {"eye", [](T, I v) { return Tensor::eye(2, v); }},
      {"rand", [](T, I v) { return Tensor::rand({v}); }},
      {"randint", [](T, I v) { return Tensor::randint(v, INT64_MAX, {3}); }},
      {"randperm", [](T, I v) { return Tensor::randperm(v); }},
      {"reshape",
       [](T x, I v) {
         return x.reshape({v, v, -1});
       }},
      {"expand",
       [](T x, I v) {
         return x.expand({v, v, 8, 8});
       }},
      {"unflatten",
       [](T x, I v) {
         return x.unflatten(3, {v, -1});
       }},
      {"slice", [](T x, I v) { return x.slice({v}, {{}}, {v}); }},
      {"slices",
       [](T x, I v) {
         return x.slice({}, {}, {1, 1, 2}).slice({}, {}, {1, 1, v}) + 1;
       }},
      {"slice_assign",
       [](T x, I v) {
         return x.slice_assign({}, {}, {1, 1, v}, ones({1, 8}));
       }},
      {"narrow from", [](T x, I v) { return x.narrow(3, v, 2); }},
      {"narrow", [](T x, I v) { return x.narrow(3, 1, v); }},
      {"select", [](T x, I v) { return x.select(3, v); }},
      {"diagonal", [](T x, I v) { return x.diagonal(v, 2, 3); }},
      {"unfold size", [](T x, I v) { return windows(x, v, 1, 1); }},
      {"unfold step", [](T x, I v) { return windows(x, 2, v, 1); }},
      {"unfold dilation", [](T x, I v) { return windows(x, 2, 1, v); }},
      {"unfold one", [](T x, I v) { return windows(x, 1, v, v); }},
      {"pad",
       [](T x, I v) {
         return x.pad({{}, {}, {v, 1}, {1, v}}, PadMode::Constant, 3);
       }},
      {"pads",
       [](T x, I v) {
         return x.pad({{}, {}, {v, 0}, {}}).pad({{}, {}, {v, 1}, {}});
       }},
      {"replicate",
       [](T x, I v) {
         return x.pad({{}, {}, {}, {v, v}}, PadMode::Replicate);
       }},
      {"roll", [](T x, I v) { return x.roll({v}, 3); }},
      {"repeat",
       [](T x, I v) {
         return x.repeat({v, 1, 1, v});
       }},
      {"repeat_interleave", [](T x, I v) { return x.repeat_interleave(v, 2); }},
      {"repeat_interleave by counts",
       [](T x, I v) {
         return x.select(3, 0).reshape({4, 2}).repeat_interleave(Shape{v, v}, 1);
       }},
      {"cat",
       [](T x, I v) {
         return Tensor::cat(std::vector(3, x.expand({v, 1, 8, 8})));
       }},
      {"split",
       [](T x, I v) {
         return x.split(Shape{1, v, 7}, 3)[0];
       }},
      {"chunk", [](T x, I v) { return x.chunk(v, 3)[0]; }},
      {"tril", [](T x, I v) { return x.tril(v); }},
      {"index",
       [](T x, I v) {
         return x.index({0, Slice{v, {}, 1}, Slice{0, v, 2}});
       }},
      {"gather", [](T x, I v) { return x.index_select(3, Tensor::full({2}, v).contiguous()); }},
      {"one_hot",
       [](T, I v) {
         return Tensor::from<int64_t>({1, 2}).one_hot(v);
       }},
      {"topk", [](T x, I v) { return x.topk(v).values; }},
      {"convolution", [](T x, I v) { return conv2d(x, weight(), {}, {.stride = v}); }},
      {"padding", [](T x, I v) { return conv2d(x, weight(), {}, {.padding = v}); }},
      {"dilation", [](T x, I v) { return conv2d(x, weight(), {}, {.dilation = v}); }},
      {"groups", [](T x, I v) { return conv2d(x, weight(), {}, {.groups = v}); }},
      {"transposed", [](T x, I v) { return conv_transpose2d(x, weight(), {}, {.stride = v}); }},
      {"pool", [](T x, I v) { return max_pool2d(x, v, {.stride = v, .padding = v / 2}); }},
      {"pool by", [](T x, I v) { return avg_pool2d(x, 3, {.stride = v, .ceil_mode = true}); }},
      {"adaptive pool",
       [](T x, I v) {
         return adaptive_avg_pool2d(x, PerAxis{v, 3});
       }},
      {"interpolate",
       [](T x, I v) {
         return interpolate(x, PerAxis{v, 3}, Resample::Linear);
       }},
      {"Conv2d", [](T, I v) { return nn::Conv2d(v, 2, 3).weight; }},
      {"LSTM", [](T, I v) { return nn::LSTM(2, v).weights[0].w_ih; }},
  };
  return all;
}

}  // namespace

TEST_CASE("sizes, positions, steps and counts at the ends of int64 are right or an Error") {
  const Tensor x = ones({1, 1, 8, 8});
  for (const auto& [name, make] : makers())
    for (int64_t v : {INT64_MAX, INT64_MAX - 1, INT64_MAX / 2, kMaxElements, kMaxElements - 1,
                      INT64_MIN, INT64_MIN + 1, int64_t{-1}, int64_t{0}}) {
      CAPTURE(name);
      CAPTURE(v);
      try {
        Tensor y = make(x, v);
        for (int64_t s : y.shape()) CHECK(s >= 0);
        if (y.numel() < 1000) y.realize();
      } catch (const Error&) {  // anything else fails
      }
    }
}

TEST_CASE("what lies beyond int64 is told with its numbers") {
  const Tensor x = ones({3, 4});
  CHECK_THROWS_WITH_AS(x.narrow(0, INT64_MAX, 2),
                       "narrow: 9223372036854775807 + 2 is beyond 2^62, the most elements of a "
                       "tensor",
                       Error);
  CHECK(to_text(x.slice({{}}, {{}}, {INT64_MAX}).shape()) == "(1,4)");
  CHECK(x.slice({1}, {{}}, {INT64_MAX}).to_vector<float>() == std::vector<float>(4, 1));
  CHECK_THROWS_AS(x.pad({{INT64_MIN, INT64_MIN}, {0, 0}}), Error);
  CHECK_THROWS_AS(x.pad({{INT64_MAX, 2}, {0, 0}}), Error);
  CHECK_THROWS_WITH_AS(ones({1}).reshape(Shape(33, 1)), "reshape: 33 axes; there may be 32", Error);
  CHECK(Tensor::arange(INT64_MAX - 2, INT64_MAX).to_vector<int64_t>() ==
        std::vector<int64_t>{INT64_MAX - 2, INT64_MAX - 1});
}

TEST_CASE(
    "a tensor of more bytes than there can be is an Error when it is computed, a part is not") {
  CHECK_THROWS_WITH_AS(Tensor::ones({kMaxElements - 1}).contiguous().realize(),
                       "memory: 4611686018427387903 elements of f32 take more than 2^58 bytes: "
                       "narrow the tensor before it is computed",
                       Error);
  const Tensor classes = Tensor::from<int64_t>({1, 2}).one_hot(int64_t{1} << 60);
  CHECK((classes.narrow(1, 1, 2) + 0).to_vector<int64_t>() == std::vector<int64_t>{1, 0, 0, 1});
}

TEST_CASE("division rounds up and multiples are found, up to the largest numbers") {
  CHECK(ceil_div(0, 4) == 0);
  CHECK(ceil_div(1, 4) == 1);
  CHECK(ceil_div(8, 4) == 2);
  CHECK(ceil_div(9, 4) == 3);
  CHECK(ceil_div(INT64_MAX, int64_t{2}) == (int64_t{1} << 62));
  CHECK(ceil_div(SIZE_MAX, size_t{2}) == (size_t{1} << 63));
  CHECK(round_up(0, 8) == 0);
  CHECK(round_up(8, 8) == 8);
  CHECK(round_up(9, 8) == 16);
  CHECK(round_up(size_t{65}, size_t{64}) == 128);
}
