// Convolutions of many geometries against their definitions, written as loops over the products.
#include <doctest/doctest.h>

#include <functional>
#include <random>

#include "test/reference.h"
#include "tiny/base/error.h"
#include "tiny/nn/functional.h"

using namespace tiny;

namespace {

using Numbers = std::vector<double>;

Numbers numbers(const Tensor& t) { return evaluate(t.node()).numbers(); }

class Random {
 public:
  int64_t from(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  Shape shape(int axes, int64_t low, int64_t high) {
    Shape out;
    for (int i = 0; i < axes; ++i) out.push_back(from(low, high));
    return out;
  }
  Numbers numbers(const Shape& shape) {  // small integers: sums are exact
    Numbers out(static_cast<size_t>(numel(shape)));
    for (double& v : out) v = static_cast<double>(from(-3, 3));
    return out;
  }

 private:
  std::mt19937 engine_{1};
};

// Constants of values, without memory on any device.
Tensor constants(const Numbers& values, const Shape& shape) {
  std::vector<Tensor> parts;
  for (double v : values) parts.push_back(Tensor::full({1}, v, kF32));
  return Tensor::cat(parts).reshape(shape);
}

// Place i of the short side and element k of the kernel meet at place i * stride + k * dilation -
// padding of the long side: both directions of a convolution are sums over these meetings.
struct Geometry {
  int64_t batch, groups, short_channels, long_channels;  // channels of a group
  Shape short_size, long_size, kernel, stride, padding, dilation;

  int axes() const { return static_cast<int>(kernel.size()); }
  Shape sized(Shape front, const Shape& sizes) const {
    front.insert(front.end(), sizes.begin(), sizes.end());
    return front;
  }
  Shape short_shape() const { return sized({batch, groups * short_channels}, short_size); }
  Shape long_shape() const { return sized({batch, groups * long_channels}, long_size); }
  // (channels of the short side, those of a group of the long one, kernel...)
  Shape weight_shape() const { return sized({groups * short_channels, long_channels}, kernel); }

  // f(element of the short side, of the long side, of the weight)
  void for_each(const std::function<void(int64_t, int64_t, int64_t)>& f) const {
    for (int64_t n = 0; n < batch; ++n)
      for (int64_t a = 0; a < groups * short_channels; ++a)
        for (int64_t b = 0; b < long_channels; ++b) {
          const int64_t to = a / short_channels * long_channels + b;
          meet(0, n * groups * short_channels + a, n * groups * long_channels + to,
               a * long_channels + b, f);
        }
  }

 private:
  void meet(int axis, int64_t s, int64_t l, int64_t w,
            const std::function<void(int64_t, int64_t, int64_t)>& f) const {
    if (axis == axes()) return f(s, l, w);
    for (int64_t i = 0; i < short_size[axis]; ++i)
      for (int64_t k = 0; k < kernel[axis]; ++k) {
        const int64_t at = i * stride[axis] + k * dilation[axis] - padding[axis];
        if (at < 0 || at >= long_size[axis]) continue;
        meet(axis + 1, s * short_size[axis] + i, l * long_size[axis] + at, w * kernel[axis] + k, f);
      }
  }
};

Geometry random_geometry(Random& random) {
  const int axes = static_cast<int>(random.from(1, 3));
  const int64_t most = axes == 1 ? 6 : axes == 2 ? 4 : 2;
  Geometry g{random.from(1, 2),
             random.from(1, 2),
             random.from(1, 2),
             random.from(1, 2),
             {},
             {},
             {},
             {},
             {},
             {}};
  g.short_size = random.shape(axes, 1, most);
  g.kernel = random.shape(axes, 1, most);
  g.stride = random.shape(axes, 1, 4);
  g.dilation = random.shape(axes, 1, 3);
  g.padding = random.shape(axes, 0, 3);
  return g;
}

std::string described(const Geometry& g) {
  return cat("short ", to_text(g.short_shape()), ", long ", to_text(g.long_shape()), ", weight ",
             to_text(g.weight_shape()), ", stride ", to_text(g.stride), ", padding ",
             to_text(g.padding), ", dilation ", to_text(g.dilation), ", groups ", g.groups);
}

}  // namespace

TEST_CASE("conv_transpose and its gradients are the sums of their definition") {
  Random random;
  for (int turn = 0; turn < 150;) {
    Geometry g = random_geometry(random);
    Shape extra;
    bool fits = true;
    for (int i = 0; i < g.axes(); ++i) {
      extra.push_back(random.from(0, std::max(g.stride[i], g.dilation[i]) - 1));
      g.long_size.push_back((g.short_size[i] - 1) * g.stride[i] +
                            g.dilation[i] * (g.kernel[i] - 1) + 1 - 2 * g.padding[i] + extra[i]);
      fits &= g.long_size[i] > 0;
    }
    if (!fits || numel(g.long_shape()) > 600) continue;
    ++turn;
    CAPTURE(described(g));
    const Numbers x = random.numbers(g.short_shape()), w = random.numbers(g.weight_shape());
    const Numbers back = random.numbers(g.long_shape());
    Numbers y(back.size()), dx(x.size()), dw(w.size());
    g.for_each([&](int64_t s, int64_t l, int64_t k) {
      y[l] += x[s] * w[k];
      dx[s] += back[l] * w[k];
      dw[k] += back[l] * x[s];
    });
    const Tensor tx = constants(x, g.short_shape()).requires_grad_();
    const Tensor tw = constants(w, g.weight_shape()).requires_grad_();
    const auto f = g.axes() == 1   ? conv_transpose1d
                   : g.axes() == 2 ? conv_transpose2d
                                   : conv_transpose3d;
    const Tensor ty = f(tx, tw, Tensor(),
                        {.stride = g.stride,
                         .padding = g.padding,
                         .output_padding = extra,
                         .dilation = g.dilation,
                         .groups = g.groups});
    REQUIRE(same(ty.shape(), g.long_shape()));
    CHECK(numbers(ty) == y);
    const auto grads = Tensor::gradient((ty * constants(back, g.long_shape())).sum(), {tx, tw});
    CHECK(numbers(grads[0]) == dx);
    CHECK(numbers(grads[1]) == dw);
  }
}

TEST_CASE("conv and its gradients are the sums of their definition") {
  Random random;
  for (int turn = 0; turn < 150;) {
    Geometry g = random_geometry(random);
    for (int i = 0; i < g.axes(); ++i) {
      const int64_t rest = random.from(0, g.stride[i] - 1);  // of the input, in no window
      g.long_size.push_back((g.short_size[i] - 1) * g.stride[i] +
                            g.dilation[i] * (g.kernel[i] - 1) + 1 - 2 * g.padding[i] + rest);
    }
    if (*std::min_element(g.long_size.begin(), g.long_size.end()) < 1) continue;
    if (numel(g.long_shape()) > 600) continue;
    ++turn;
    CAPTURE(described(g));
    const Numbers x = random.numbers(g.long_shape()), w = random.numbers(g.weight_shape());
    const Numbers back = random.numbers(g.short_shape());
    Numbers y(back.size()), dx(x.size()), dw(w.size());
    g.for_each([&](int64_t s, int64_t l, int64_t k) {
      y[s] += x[l] * w[k];
      dx[l] += back[s] * w[k];
      dw[k] += back[s] * x[l];
    });
    const Tensor tx = constants(x, g.long_shape()).requires_grad_();
    const Tensor tw = constants(w, g.weight_shape()).requires_grad_();
    const auto f = g.axes() == 1 ? conv1d : g.axes() == 2 ? conv2d : conv3d;
    const Tensor ty =
        f(tx, tw, Tensor(),
          {.stride = g.stride, .padding = g.padding, .dilation = g.dilation, .groups = g.groups});
    REQUIRE(same(ty.shape(), g.short_shape()));
    CHECK(numbers(ty) == y);
    const auto grads = Tensor::gradient((ty * constants(back, g.short_shape())).sum(), {tx, tw});
    CHECK(numbers(grads[0]) == dx);
    CHECK(numbers(grads[1]) == dw);
  }
}

TEST_CASE("no zeros are multiplied in a transposed convolution whose kernel the stride divides") {
  const Tensor x = Tensor::ones({1, 8, 5, 5}), w = Tensor::ones({8, 4, 4, 4});
  const Tensor y = conv_transpose2d(x, w, {}, {.stride = 2, .padding = 1});
  for (Node n : topological(y.node())) {
    if (n->op != Op::ReduceAxis) continue;
    // 6 x 6 windows with 2 x 2 results each, of 8 channels and 2 x 2 taps.
    CHECK(numel(n->src(0)->shape()) == 4 * (6 * 6) * (2 * 2) * 8 * (2 * 2));
  }
}

TEST_CASE("no zeros are multiplied in a transposed convolution with a dilation and a stride") {
  const Tensor x = Tensor::ones({1, 8, 5, 6}), w = Tensor::ones({8, 4, 3, 4});
  const Tensor y = conv_transpose2d(x, w, {}, {.stride = Shape{5, 3}, .dilation = 2});
  int64_t products = 0;
  for (Node n : topological(y.node()))
    if (n->op == Op::ReduceAxis && n->shape()[1] == 1)
      products = std::max(products, numel(n->src(0)->shape()));
  // 5 x 8 windows with 3 x 3 results each, of 8 channels and 1 x 2 taps, for each of 4 channels.
  CHECK(products <= 4 * (5 * 8) * (3 * 3) * 8 * 2);
  CHECK(products > 0);
}

TEST_CASE("the gradient of a strided convolution's input is one reduction of its own size") {
  const Tensor x = Tensor::ones({2, 3, 8, 8}).requires_grad_(), w = Tensor::ones({4, 3, 3, 3});
  const Tensor y = conv2d(x, w, {}, {.stride = 2, .padding = 1});
  const Tensor g = Tensor::gradient(y.sum(), {x})[0];
  int reductions = 0;
  for (Node n : topological(g.node())) {
    if (n->op != Op::ReduceAxis) continue;
    ++reductions;
    CHECK(numel(n->shape()) == numel(x.shape()));
    CHECK(numel(n->src(0)->shape()) == numel(x.shape()) * 4 * (2 * 2));
  }
  CHECK(reductions == 1);
}
