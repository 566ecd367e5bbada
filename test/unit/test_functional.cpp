#include "tiny/nn/functional.h"

#include <doctest/doctest.h>

#include <cmath>

#include "test/error_of.h"
#include "test/reference.h"
#include "tiny/tensor/random.h"

using namespace tiny;

namespace {

using Numbers = std::vector<double>;

Numbers numbers(const Tensor& t) { return evaluate(t.node()).numbers(); }

// Constants of values, without memory on any device: 0, 1, ... in this shape, shifted.
Tensor count(const Shape& shape, double first = 0) {
  return (Tensor::arange(0, numel(shape), 1, kF32) + first).reshape(shape);
}

Tensor values(const Numbers& list, const Shape& shape) {
  std::vector<Tensor> parts;
  for (double v : list) parts.push_back(Tensor::full({1}, v, kF32));
  return Tensor::cat(parts).reshape(shape);
}

// The numbers up to `tolerance`; says which one differs.
void check_near(const Tensor& actual, const Numbers& expected, double tolerance = 2e-6) {
  const Numbers found = numbers(actual);
  REQUIRE(found.size() == expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    CAPTURE(i);
    CHECK(found[i] == doctest::Approx(expected[i]).epsilon(tolerance));
  }
}

int count_reductions(const Tensor& t) {
  int found = 0;
  for (Node n : topological(t.node())) found += n->op == Op::ReduceAxis;
  return found;
}

}  // namespace

// Expected values here are those of PyTorch, or worked out by hand.

TEST_CASE("conv2d slides the kernel over the padded input") {
  const Tensor x = count({1, 1, 3, 3}), w = count({1, 1, 2, 2});
  CHECK(numbers(conv2d(x, w)) == Numbers{19, 25, 37, 43});
  CHECK(numbers(conv2d(x, w, {}, {.stride = 2, .padding = 1})) == Numbers{0, 8, 21, 43});
  CHECK(numbers(conv2d(x, w, {}, {.dilation = 2})) == Numbers{38});
  CHECK(numbers(conv2d(x, w, Tensor::full({1}, 0.5))) == Numbers{19.5, 25.5, 37.5, 43.5});
}

TEST_CASE("conv1d keeps its groups of channels apart") {
  const Tensor x = values({1, 2, 3, 10, 20, 30}, {1, 2, 3});
  const Tensor w = values({1, 1, 1, -1}, {2, 1, 2});
  CHECK(numbers(conv1d(x, w, {}, {.groups = 2})) == Numbers{3, 5, -10, -10});
}

TEST_CASE("a convolution is one reduction over the product of two views") {
  const Tensor y = conv2d(count({2, 4, 7, 7}), count({6, 2, 3, 3}), {},
                          {.stride = 2, .padding = 1, .groups = 2});
  CHECK(to_shape(y.shape()) == Shape{2, 6, 4, 4});
  CHECK(count_reductions(y) == 1);
}

TEST_CASE("conv_transpose spreads the input and adds what overlaps") {
  const Tensor x = values({0, 1, 3, 4}, {1, 1, 2, 2});
  CHECK(numbers(conv_transpose2d(x, count({1, 1, 2, 2}), {}, {.stride = 2})) ==
        Numbers{0, 0, 0, 1, 0, 0, 2, 3, 0, 3, 0, 4, 6, 9, 8, 12});
  const Tensor line = values({1, 2, 3}, {1, 1, 3}), w = values({1, 10, 100}, {1, 1, 3});
  CHECK(numbers(conv_transpose1d(line, w, {}, {.stride = 2, .padding = 1, .output_padding = 1})) ==
        Numbers{10, 102, 20, 203, 30, 300});
}

TEST_CASE("convolutions of 16-bit floats are rounded once") {
  // The sum 2048 + 1 + 1 would lose the ones in f16.
  const Tensor x = values({2048, 1, 1}, {1, 1, 3}).to(kF16);
  const Tensor y = conv1d(x, Tensor::ones({1, 1, 3}, kF16));
  CHECK(y.dtype() == kF16);
  CHECK(numbers(y) == Numbers{2050});
}

TEST_CASE("convolutions say which shapes do not fit") {
  const Tensor x = count({1, 3, 4, 4});
  CHECK(error_of([&] {
          conv2d(x, count({2, 2, 3, 3}));
        }) ==
        "conv2d: an input of (1,3,4,4) with a weight of (2,2,3,3) in 1 groups: the weight is "
        "(out, 3 / groups, kernel) with out a multiple of groups");
  CHECK(error_of([&] {
          conv2d(x, count({2, 3, 5, 5}));
        }) ==
        "conv2d: a kernel of (5,5) with dilation (1,1) does not fit the padded input (1,3,4,4)");
  CHECK(error_of([&] {
          conv1d(x, count({2, 3, 5}));
        }) ==
        "conv1d: takes an input and a weight with 1 spatial axes after two others and not "
        "(1,3,4,4) and (2,3,5)");
  CHECK(error_of([&] {
          conv2d(x, count({2, 3, 3, 3}), {}, {.stride = {1, 2, 3}});
        }) == "conv2d: stride (1,2,3) for 2 spatial axes");
}

TEST_CASE("pools follow ceil_mode and count padding as asked") {
  const Tensor x = count({1, 1, 6});
  const PoolOptions o{.stride = 2, .padding = 1, .ceil_mode = true};
  CHECK(numbers(max_pool1d(x, 3, o)) == Numbers{1, 3, 5, 5});
  check_near(avg_pool1d(x, 3, o), {1.0 / 3, 2, 4, 2.5});
  PoolOptions inside = o;
  inside.count_include_pad = false;
  CHECK(numbers(avg_pool1d(x, 3, inside)) == Numbers{0.5, 2, 4, 5});
  // One window that is longer than the input by less than a step.
  const PoolOptions whole{.stride = 3, .ceil_mode = true};
  CHECK(numbers(max_pool1d(count({1, 1, 2}), 4, whole)) == Numbers{1});
  CHECK(numbers(avg_pool1d(count({1, 1, 2}), 4, whole)) == Numbers{0.5});
  CHECK_THROWS_AS(max_pool1d(count({1, 1, 2}), 5, whole), Error);
}

TEST_CASE("max_pool2d takes the largest of each window, padding never") {
  CHECK(numbers(max_pool2d(count({1, 1, 4, 4}), 2)) == Numbers{5, 7, 13, 15});
  CHECK(numbers(max_pool2d(count({1, 1, 2, 2}, -9), 2, {.padding = 1})) == Numbers{-9, -8, -7, -6});
  CHECK(numbers(max_pool2d(count({1, 4, 4}), 2, {.stride = 1, .dilation = 2})) ==
        Numbers{10, 11, 14, 15});
}

TEST_CASE("a window of padding alone has the position -1") {
  const PoolOptions options{.stride = 1, .padding = 1, .dilation = 2};
  const WithIndices one = max_pool_with_indices(Tensor::ones({1, 1, 1}), 1, 2, options);
  CHECK(one.values.item<float>() == -INFINITY);
  CHECK(one.indices.item<int64_t>() == -1);
  const WithIndices r = max_pool_with_indices(Tensor::ones({1, 1, 2}), 1, 2, options);
  CHECK(r.indices.to_vector<int64_t>() == std::vector<int64_t>{1, 0});
}

TEST_CASE("max_pool_with_indices gives positions in the unpadded input, the first of equals") {
  const WithIndices r = max_pool_with_indices(Tensor::ones({1, 1, 4, 4}), 2, 2, {.padding = 1});
  CHECK(r.indices.dtype() == kI64);
  CHECK(numbers(r.indices) == Numbers{0, 1, 3, 4, 5, 7, 12, 13, 15});
}

TEST_CASE("pools refuse a kernel that does not fit and too much padding") {
  CHECK(error_of([] {
          max_pool1d(count({1, 1, 2}), 3);
        }) == "max_pool1d: a kernel of (3) does not fit the input (1,1,2) with padding (0)");
  CHECK(error_of([] {
          avg_pool1d(count({1, 1, 9}), 3, {.padding = 2});
        }) == "avg_pool1d: a padding of (2) is more than half of the kernel (3)");
}

TEST_CASE("adaptive pools overlap their windows where sizes do not divide") {
  const Tensor x = count({1, 1, 6});
  CHECK(numbers(adaptive_avg_pool1d(x, 4)) == Numbers{0.5, 1.5, 3.5, 4.5});
  CHECK(numbers(adaptive_max_pool1d(x, 4)) == Numbers{1, 2, 4, 5});
  CHECK(numbers(adaptive_avg_pool2d(count({1, 1, 4, 4}), {2, 1})) == Numbers{3.5, 11.5});
}

TEST_CASE("activations of neural networks are those of their formulas") {
  const Tensor x = values({-3, -0.25, 0.5, 1}, {2, 2});
  check_near(softsign(x), {-0.75, -0.2, 1 / 3.0, 0.5});
  check_near(tanhshrink(x),
             {-3 + std::tanh(3), -0.25 + std::tanh(0.25), 0.5 - std::tanh(0.5), 1 - std::tanh(1)});
  check_near(softshrink(x), {-2.5, 0, 0, 0.5});
  check_near(hardshrink(x), {-3, 0, 0, 1});
  check_near(threshold(x, 0.5, 7), {7, 7, 7, 1});
  check_near(prelu(x, values({2, 4}, {2})), {-6, -1, 0.5, 1});
  check_near(prelu(x, values({2}, {1})), {-6, -0.5, 0.5, 1});
  check_near(glu(x, 0), {-3 / (1 + std::exp(-0.5)), -0.25 / (1 + std::exp(-1))});
  CHECK(
      error_of([&] { prelu(x, count({3})); }) ==
      "prelu: a weight of (3) for an input of (2,2): it has one element, or one for each channel");
  CHECK(error_of([&] { glu(count({3})); }) == "glu: axis -1 of (3) has no two halves");
  CHECK(error_of([&] { softshrink(x, -1); }) == "softshrink: lambda -1 is negative");
}

TEST_CASE("pixel_shuffle and channel_shuffle move channels") {
  const Tensor x = count({1, 4, 1, 2});  // four channels of two elements
  CHECK(numbers(pixel_shuffle(x, 2)) == Numbers{0, 2, 1, 3, 4, 6, 5, 7});
  CHECK(numbers(channel_shuffle(x, 2)) == Numbers{0, 1, 4, 5, 2, 3, 6, 7});
  CHECK(error_of([&] { pixel_shuffle(x, 3); }) ==
        "pixel_shuffle: the channels of (1,4,1,2) are no multiple of 3 x 3");
  CHECK(error_of([&] { channel_shuffle(x, 3); }) ==
        "channel_shuffle: the channels of (1,4,1,2) are no multiple of 3 groups");
}

TEST_CASE("interpolate takes the nearest element or weighs two") {
  const Tensor six = count({1, 1, 6}), three = count({1, 1, 3});
  CHECK(numbers(interpolate(six, 4)) == Numbers{0, 1, 3, 4});
  CHECK(numbers(interpolate(three, 5)) == Numbers{0, 0, 1, 1, 2});
  CHECK(numbers(interpolate(six, 4, Resample::NearestExact)) == Numbers{0, 2, 3, 5});
  CHECK(numbers(interpolate(six, 3, Resample::NearestExact)) == Numbers{1, 3, 5});
  CHECK(numbers(interpolate(three, 6)) == Numbers{0, 0, 1, 1, 2, 2});
  check_near(interpolate(six, 4, Resample::Linear), {0.25, 1.75, 3.25, 4.75});
  check_near(interpolate(three, 5, Resample::Linear), {0, 0.4, 1, 1.6, 2});
  check_near(interpolate(six, 4, Resample::Linear, true), {0, 5.0 / 3, 10.0 / 3, 5});
}

TEST_CASE("batch_norm in training normalises by the batch and moves the running statistics") {
  const Tensor x = values({1, 2, 3, 6}, {2, 2});
  const BatchNormResult r =
      batch_norm(x, {}, {}, Tensor::zeros({2}), Tensor::ones({2}), {.training = true});
  check_near(r.y, {-0.999995, -0.99999875, 0.999995, 0.99999875});
  check_near(r.running_mean, {0.2, 0.4});
  check_near(r.running_var, {1.1, 1.7});  // 0.9 + 0.1 * {2, 8}
}

TEST_CASE("batch_norm over groups of the batch is that of each, with averages of the statistics") {
  const Tensor x = values({1, 2, 3, 6, 9, 1, 4, 0, 2, 5, 7, 7}, {6, 2, 1});
  const Tensor w = values({2, 3}, {2}), b = values({-1, 4}, {2});
  const Tensor mean = values({1, 2}, {2}), var = values({3, 5}, {2});
  for (const int64_t groups : {1, 2, 3}) {
    const auto norm = [&](const Tensor& part, int64_t count) {
      return batch_norm(part, w, b, mean, var, {.training = true, .groups = count});
    };
    std::vector<Tensor> y, means, vars;
    for (int64_t i = 0; i < groups; ++i) {
      const BatchNormResult r = norm(x.narrow(0, i * 6 / groups, 6 / groups), 1);
      y.push_back(r.y);
      means.push_back(r.running_mean);
      vars.push_back(r.running_var);
    }
    const BatchNormResult all = norm(x, groups);
    check_near(all.y, numbers(Tensor::cat(y, 0)));
    check_near(all.running_mean, numbers(Tensor::stack(means).mean(0)));
    check_near(all.running_var, numbers(Tensor::stack(vars).mean(0)));
  }
  const auto error = [&](int64_t groups, bool training) {
    return error_of([&] {
      batch_norm(x, {}, {}, training ? Tensor() : mean, var, {training, 0.1, 1e-5, groups});
    });
  };
  CHECK(error(4, true) == "batch_norm: 4 groups of 6 samples: their number has to be a multiple");
  CHECK(error(0, true) == "batch_norm: 0 groups of 6 samples: their number has to be a multiple");
  CHECK(error(6, true) ==
        "batch_norm: one value for each channel in each group of (6,2,1) has no variance to train "
        "with");
  const NoGrad none;  // running statistics know no groups
  CHECK(numbers(batch_norm(x, w, b, mean, var, {.groups = 4}).y) ==
        numbers(batch_norm(x, w, b, mean, var).y));
}

TEST_CASE("batch_norm in evaluation uses the running statistics and leaves them") {
  const Tensor mean = values({1, 2}, {2}), var = values({4, 16}, {2});
  const BatchNormResult r = batch_norm(values({3, 6}, {1, 2}), Tensor::full({2}, 10.0),
                                       Tensor::ones({2}), mean, var, {.eps = 0});
  check_near(r.y, {11, 11});
  CHECK(r.running_mean.node() == mean.node());
}

TEST_CASE("layer, group, instance and rms norm differ in what they normalise over") {
  const Tensor x = values({1, 3, 10, 30}, {1, 2, 2});
  check_near(layer_norm(x, {2}, {}, {}, 0), {-1, 1, -1, 1});
  check_near(instance_norm(x, {}, {}, 0), {-1, 1, -1, 1});
  check_near(group_norm(x, 2, values({1, 2}, {2}), values({0, 5}, {2}), 0), {-1, 1, 3, 7});
  check_near(rms_norm(x, {2}, {}, 0),
             {1 / std::sqrt(5), 3 / std::sqrt(5), 1 / std::sqrt(5), 3 / std::sqrt(5)});
  CHECK(error_of([&] { layer_norm(x, {3}); }) ==
        "layer_norm: the last axes of (1,2,2) are not (3)");
}

TEST_CASE("cross_entropy weighs, smooths and ignores classes") {
  const Tensor x = values({1, 2, 3, 1, 0, -1}, {2, 3});
  const Tensor t = values({2, 0}, {2}).to(kI64), w = count({3}, 1);
  check_near(cross_entropy(x, t), {0.407605946});
  check_near(cross_entropy(x, t, {.reduction = Reduction::None}), {0.407605946, 0.407605946});
  check_near(cross_entropy(x, t, {.weight = w, .label_smoothing = 0.1}), {0.507605946});
  check_near(cross_entropy(x, t, {.reduction = Reduction::Sum, .ignore_index = 0}), {0.407605946});
  check_near(cross_entropy(x, values({0.2, 0.3, 0.5, 1, 0, 0}, {2, 3})), {0.757605910});
  check_near(nll_loss(x, t), {-2});
}

TEST_CASE("cross_entropy counts more classes than its target's dtype has numbers") {
  const Tensor x = Tensor::zeros({1, 300});
  const Tensor t = Tensor::full({1}, 3, kU8);
  check_near(cross_entropy(x, t), {std::log(300.0)});
}

TEST_CASE("cross_entropy of one row reads it without a gather") {
  const Tensor loss = cross_entropy(count({4, 10}), Tensor::zeros({4}, kI64));
  for (Node n : topological(loss.node())) CHECK(n->op != Op::Gather);
}

TEST_CASE("nll_loss reads the target's element and never an ignored one") {
  Tensor x = values({1, 2, 3, 4, 5, 6}, {3, 2});
  const Tensor t = Tensor::from(std::vector<int64_t>{1, -100, 0}, {3}), w = values({2, 3}, {2});
  const CrossEntropyOptions kinds[] = {{},
                                       {.weight = w},
                                       {.weight = w, .reduction = Reduction::None},
                                       {.reduction = Reduction::Sum}};
  const std::vector<Numbers> expected = {{-3.5}, {-16.0 / 5}, {-6, 0, -10}, {-7}};
  for (int i = 0; i < 4; ++i) {
    CAPTURE(i);
    const Tensor read = nll_loss(x, t, kinds[i]);
    int gathers = 0;
    for (Node n : topological(read.node())) gathers += n->op == Op::Gather;
    CHECK(gathers > 0);
    check_near(read, expected[i]);
    // Where a gradient is wanted the whole row is read; the loss is the same.
    check_near(nll_loss(x.detach().requires_grad_(), t, kinds[i]), expected[i]);
  }
}

TEST_CASE("losses of two tensors are those of their formulas") {
  const Tensor x = values({0, 1, -2, 30}, {4}), t = values({1, 0, 1, 0}, {4});
  const auto none = Reduction::None;
  check_near(mse_loss(x, t), {(1 + 1 + 9 + 900) / 4.0});
  check_near(l1_loss(x, t, Reduction::Sum), {35});
  check_near(huber_loss(x, t, none, 2), {0.5, 0.5, 4, 58});
  check_near(smooth_l1_loss(x, t, none, 2), {0.25, 0.25, 2, 29});
  check_near(binary_cross_entropy_with_logits(x, t, {}, {}, none),
             {0.69314718, 1.31326163, 2.12692809, 30});
  check_near(binary_cross_entropy_with_logits(x, t, {}, Tensor::full({1}, 3.0), none),
             {2.07944155, 1.31326163, 6.38078403, 30});
  check_near(binary_cross_entropy(values({0, 1, 0.5, 0}, {4}), values({0, 1, 1, 1}, {4}), {}, none),
             {0, 0, 0.69314718, 100});
  check_near(kl_div(values({-1, -2}, {2}), values({0, 1}, {2}), none), {0, 2});
  CHECK(error_of([&] { mse_loss(x, count({3})); }) ==
        "mse_loss: an input of (4) and a target of (3): they must have one shape");
}

TEST_CASE("triplet_margin_loss compares two distances") {
  const Tensor a = values({0, 0, 1, 1}, {2, 2}), p = values({3, 4, 1, 1}, {2, 2});
  const Tensor n = values({0, 1, 4, 5}, {2, 2});
  const auto none = Reduction::None;
  check_near(triplet_margin_loss(a, p, n, {.eps = 0, .reduction = none}), {5 - 1 + 1, 0});
  check_near(triplet_margin_loss(a, p, n, {.margin = 6, .eps = 0}), {(10 + 1) / 2.0});
  check_near(triplet_margin_loss(a, p, n, {.p = 1, .eps = 0, .reduction = none}), {7, 0});
  const Tensor far = values({9, 0, 4, 5}, {2, 2}), near = values({9, 1, 1, 1}, {2, 2});
  check_near(triplet_margin_loss(a, near, far, {.margin = 0, .eps = 0, .reduction = none}),
             {std::sqrt(82) - 9, 0});
  check_near(
      triplet_margin_loss(a, near, far, {.margin = 0, .eps = 0, .swap = true, .reduction = none}),
      {std::sqrt(82) - 1, 0});
  CHECK(error_of([&] { triplet_margin_loss(a, p, Tensor(1.0f)); }) ==
        "triplet_margin_loss: takes vectors (N, E) and not a 0-d tensor");
}

TEST_CASE("normalize and cosine_similarity divide by norms that eps limits") {
  const Tensor x = values({3, 4, 0, 0}, {2, 2}), y = values({-4, 3, 1, 0}, {2, 2});
  check_near(normalize(x), {0.6, 0.8, 0, 0});
  check_near(normalize(x, 1, 0), {1, 1, 0, 0});
  check_near(normalize(x, 2, 1, 10), {0.3, 0.4, 0, 0});
  check_near(cosine_similarity(x, y), {0, 0});
  check_near(cosine_similarity(x, x), {1, 0});
  check_near(cosine_similarity(x, values({6, 8}, {1, 2}), 1, 10), {50 / 100.0, 0});
  // What is repeated along the axis is a vector of as many elements there.
  const double cosine = 14 / (5 * std::sqrt(8.0));
  check_near(cosine_similarity(x, values({2}, {1, 1})), {cosine, 0});
  check_near(cosine_similarity(Tensor::full({}, 2, kF32), x, -1), {cosine, 0});
}

TEST_CASE("attention is a weighted mean of the values") {
  const Tensor q = Tensor::zeros({1, 2, 4}), k = count({1, 3, 4}), v = count({1, 3, 1});
  check_near(scaled_dot_product_attention(q, k, v), {1, 1});
  check_near(scaled_dot_product_attention(q, k, v, {.is_causal = true}), {0, 0.5});
  const Tensor mask = values({1, 0, 1, 0, 1, 0}, {2, 3}).to(kBool);
  check_near(scaled_dot_product_attention(q, k, v, {.mask = mask}), {1, 1});
}

TEST_CASE("attention with windows, soft caps and dropped weights") {
  constexpr int64_t kLength = 6, kWidth = 4;
  manual_seed(3);
  const Tensor q = Tensor::randn({2, kLength, kWidth}).realize();
  const Tensor k = Tensor::randn({2, kLength, kWidth}).realize();
  const Tensor eye = Tensor::eye(kLength).expand({2, kLength, kLength});  // values: the weights
  const Tensor scores = q.matmul(k.transpose(-1, -2)) / 2;
  const Tensor at = Tensor::arange(kLength);
  const Tensor distance = at.unsqueeze(0) - at.unsqueeze(1);  // key - query
  const double none = -std::numeric_limits<double>::infinity();
  const auto weights = [&](const AttentionOptions& o) {
    return scaled_dot_product_attention(q, k, eye, o);
  };
  check_near(weights({.window = std::pair(2, 1)}),
             where((distance >= -2) & (distance <= 1), scores, none)
                 .softmax(-1)
                 .to(kF64)
                 .to_vector<double>(),
             1e-5);
  check_near(weights({.is_causal = true, .window = std::pair(1, 5)}),
             where((distance >= -1) & (distance <= 0), scores, none)
                 .softmax(-1)
                 .to(kF64)
                 .to_vector<double>(),
             1e-5);
  check_near(weights({.softcap = 0.5}),
             ((scores / 0.5).tanh() * 0.5).softmax(-1).to(kF64).to_vector<double>(), 1e-5);
  const std::vector<float> plain = weights({}).to_vector<float>();
  const std::vector<float> kept = weights({.dropout_p = 0.5}).to_vector<float>();
  int dropped = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    dropped += kept[i] == 0;
    if (kept[i] != 0) CHECK(kept[i] == doctest::Approx(2 * plain[i]).epsilon(1e-4));
  }
  CHECK(dropped > 12);
  CHECK(dropped < 60);
  check_near(weights({.dropout_p = 1}), Numbers(plain.size(), 0));
  const auto problem = [&](const AttentionOptions& o) { return error_of([&] { weights(o); }); };
  CHECK(has(problem({.dropout_p = 1.5}), "1.5 and no probability"));
  CHECK(has(problem({.window = std::pair(-1, 0)}), "-1 keys before"));
  CHECK(has(problem({.softcap = 0}), "softcap is 0"));
  CHECK(has(problem({.mask = Tensor::zeros({3, kLength})}), "(3,6)"));
  CHECK(has(problem({.mask = Tensor::zeros({kLength, kLength}, kI32)}), "i32"));
}

TEST_CASE("grouped-query attention repeats heads of keys and values") {
  const Tensor q = Tensor::zeros({4, 1, 2}), k = count({2, 2, 2});
  const Tensor v = values({1, 1, 5, 5}, {2, 2, 1});
  check_near(scaled_dot_product_attention(q, k, v, {.enable_gqa = true}), {1, 1, 5, 5});
}

TEST_CASE("rope rotates the two halves of the last axis") {
  const Tensor x = values({1, 2, 3, 4}, {1, 4});
  const Tensor cos = values({0, 1}, {2}), sin = values({1, 0}, {2});
  check_near(rope(x, cos, sin), {-3, 2, 1, 4});
}

TEST_CASE("recurrent cells with zero weights forget half of their state") {
  const Tensor x = Tensor::ones({1, 2}), h = Tensor::ones({1, 1});
  const LstmState s = lstm_cell(x, {h, h}, {Tensor::zeros({4, 2}), Tensor::zeros({4, 1})});
  check_near(s.c, {0.5});
  check_near(s.h, {0.5 * std::tanh(0.5)});
  check_near(gru_cell(x, h, {Tensor::zeros({3, 2}), Tensor::zeros({3, 1})}), {0.5});
}

TEST_CASE("dropout does nothing in evaluation and everything at probability 1") {
  const Tensor x = count({4}, 1);
  CHECK(dropout(x, 0.5, false).node() == x.node());
  CHECK(numbers(dropout(x, 1)) == Numbers{0, 0, 0, 0});
  CHECK(error_of([&] { dropout(x, 1.5); }) == "dropout: 1.5 is no probability");
}

TEST_CASE("dropout keeps the mean by scaling what is left") {
  const Numbers kept = numbers(dropout(Tensor::ones({10000}), 0.25));
  double sum = 0;
  for (double v : kept) {
    CHECK((v == 0 || v == doctest::Approx(1 / 0.75)));
    sum += v;
  }
  CHECK(sum / 10000 == doctest::Approx(1).epsilon(0.05));
}

TEST_CASE("the loss of a number that is no class is NaN, of one that is ignored nothing") {
  const Tensor x = values({1, 2, 3, 4}, {2, 2});
  for (int64_t wrong : {int64_t{2}, int64_t{-1}, int64_t{1} << 32}) {
    const Tensor y = Tensor::from<int64_t>({0, wrong});
    CAPTURE(wrong);
    for (auto loss : {cross_entropy, nll_loss}) {
      CHECK(loss(x, y, {}).isnan().item<bool>());
      const std::vector<double> each = numbers(loss(x, y, {.reduction = Reduction::None}));
      CHECK(std::isfinite(each[0]));
      CHECK(std::isnan(each[1]));
      CHECK(numbers(loss(x, y, {.ignore_index = wrong}))[0] == doctest::Approx(each[0]));
      const Tensor leaf = values({1, 2, 3, 4}, {2, 2}).requires_grad_();
      CHECK(loss(leaf, y, {}).isnan().item<bool>());
    }
  }
}

TEST_CASE("a normalisation without what it needs is an error") {
  const Tensor x = values({1, 2, 3, 4}, {2, 2});
  CHECK_THROWS_WITH_AS(batch_norm(x, {}, {}, Tensor::zeros({2}), {}),
                       "batch_norm: without training it takes the running mean and variance, and "
                       "one of them is not defined: give both, or set training to use the batch's",
                       Error);
  CHECK_THROWS_WITH_AS(instance_norm(x.reshape({2, 2, 1})),
                       "instance_norm: one value for each channel of a sample in (2,2,1) has no "
                       "variance: it takes more than one spatial element",
                       Error);
}
