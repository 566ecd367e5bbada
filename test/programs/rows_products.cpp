// Rows of the table: matrix products, convolutions, pools, normalisations, losses, attention.
#include "test/programs/draw.h"

namespace tiny::programs {

namespace {

int real_of_rank(Draw& d, int least, int most) {
  return d.pick([&](const Known& v) {
    return is_real(v) && is_filled(v) && v.rank() >= least && v.rank() <= most;
  });
}

int64_t last(const Known& v, int from_end = 1) {
  return v.shape()[static_cast<size_t>(v.rank() - from_end)];
}

// A right operand: a value that fits, else a new leaf.
bool product(Draw& d, Step& s) {
  const int x = real_of_rank(d, 1, 5);
  if (x < 0) return false;
  const int64_t inner = last(d[x]);
  const DType dtype = d[x].dtype();
  const int known = d.pick([&](const Known& v) {
    return v.dtype() == dtype && v.rank() >= 1 && last(v, v.rank() == 1 ? 1 : 2) == inner;
  });
  s.in = {x, known >= 0 && d.chance(0.6) ? known : d.leaf({inner, d.between(1, 6)}, dtype)};
  return s.in[1] >= 0;
}

bool linear(Draw& d, Step& s) {
  const int x = real_of_rank(d, 1, 4);
  if (x < 0) return false;
  const int64_t out = d.between(1, 6);
  s.in = {x, d.of_shape({out, last(d[x])}, d[x].dtype()), d.of_shape({out}, d[x].dtype())};
  return s.in[1] >= 0 && s.in[2] >= 0;
}

bool outer(Draw& d, Step& s) {
  const int x = real_of_rank(d, 1, 1);
  if (x < 0) return false;
  const DType dtype = d[x].dtype();
  const int y = d.pick([&](const Known& v) { return v.dtype() == dtype && v.rank() == 1; });
  s.in = {x, y};
  return true;
}

bool einsum(Draw& d, Step& s) {
  const int x = real_of_rank(d, 3, 3);
  if (x < 0) return false;
  const Ints n = d[x].shape();
  s.in = {x, d.of_shape({n[0], n[2], d.between(1, 4)}, d[x].dtype())};
  return s.in[1] >= 0;
}

// x (N, C, sizes...) and a weight; a: stride, padding, dilation.
bool convolution(Draw& d, Step& s, int spatial, bool transposed) {
  const int x = real_of_rank(d, spatial + 2, spatial + 2);
  if (x < 0) return false;
  const int64_t channels = d[x].shape()[1];
  const int64_t groups = channels % 2 == 0 && d.chance(0.3) ? 2 : 1;
  const int64_t out = groups * d.between(1, 3);
  Shape weight = transposed ? Shape{channels, out / groups} : Shape{out, channels / groups};
  for (int n = 0; n < spatial; ++n) weight.push_back(d.between(1, 3));
  s.in = {x, d.leaf(weight, d[x].dtype())};
  if (d.chance(0.5)) s.in.push_back(d.of_shape({out}, d[x].dtype()));
  s.i = d.between(1, 2);
  s.j = d.between(0, 1);
  s.k = d.chance(0.7) ? 1 : 2;
  s.a = {groups};
  return s.in[1] >= 0 && s.in.back() >= 0;
}
bool conv1(Draw& d, Step& s) { return convolution(d, s, 1, false); }
bool conv2(Draw& d, Step& s) { return convolution(d, s, 2, false); }
bool conv1_transposed(Draw& d, Step& s) { return convolution(d, s, 1, true); }
bool conv2_transposed(Draw& d, Step& s) { return convolution(d, s, 2, true); }

bool pool(Draw& d, Step& s, int spatial) {
  const int x = real_of_rank(d, spatial + 2, spatial + 2);
  s.in = {x};
  s.i = d.between(1, 3);
  s.j = d.between(1, 2);
  s.k = s.i > 1 ? d.between(0, 1) : 0;
  return x >= 0;
}
bool pool1(Draw& d, Step& s) { return pool(d, s, 1); }
bool pool2(Draw& d, Step& s) { return pool(d, s, 2); }

bool rows(Draw& d, Step& s) {
  const int x = real_of_rank(d, 1, 4);
  if (x < 0) return false;
  s.i = last(d[x]);
  s.in = {x, d.of_shape({s.i}, d[x].dtype()), d.of_shape({s.i}, d[x].dtype())};
  return s.in[1] >= 0 && s.in[2] >= 0;
}

bool channels(Draw& d, Step& s) {
  const int x = real_of_rank(d, 3, 4);
  if (x < 0) return false;
  const int64_t n = d[x].shape()[1];
  s.i = n % 2 == 0 && d.chance(0.5) ? 2 : 1;
  s.in = {x, d.of_shape({n}, d[x].dtype()), d.of_shape({n}, d[x].dtype())};
  return s.in[1] >= 0 && s.in[2] >= 0;
}

bool targets(Draw& d, Step& s) {
  const int x = real_of_rank(d, 1, 4);
  if (x < 0) return false;
  s.in = {x, d.of_shape(to_shape(d[x].shape()), d[x].dtype())};
  return s.in[1] >= 0;
}

bool classes(Draw& d, Step& s) {
  const int x = real_of_rank(d, 2, 3);
  if (x < 0) return false;
  Shape shape = to_shape(d[x].shape());
  const int64_t n = shape[1];
  shape.erase(shape.begin() + 1);
  s.in = {x, d.leaf(shape, kI64, 0, n - 1)};
  if (n == 1) return false;
  return s.in[1] >= 0;
}

// Rows, a row of weights for each class, class numbers.
bool classes_of_product(Draw& d, Step& s) {
  const int x = real_of_rank(d, 2, 3);
  if (x < 0) return false;
  const int64_t count = d.between(2, 6);
  Shape rows = to_shape(d[x].shape());
  rows.pop_back();
  s.in = {x, d.of_shape({count, last(d[x])}, d[x].dtype()), d.leaf(rows, kI64, 0, count - 1)};
  s.i = d.between(1, 4);
  return s.in[1] >= 0 && s.in[2] >= 0;
}

bool attention(Draw& d, Step& s) {
  const int x = real_of_rank(d, 2, 4);
  if (x < 0) return false;
  Shape shape = to_shape(d[x].shape());
  if (d.chance(0.5)) shape[shape.size() - 2] = d.between(1, 6);
  s.in = {x, d.of_shape(shape, d[x].dtype()), d.of_shape(shape, d[x].dtype())};
  s.i = d.chance(0.4) && shape[shape.size() - 2] >= last(d[x], 2);
  return s.in[1] >= 0 && s.in[2] >= 0;
}

// Queries, keys and values of 16-bit floats, long enough for tensor cores.
bool halves(Draw& d, Step& s) {
  if (d.gradient()) return false;
  const DType t = d.one_of({kBF16, kF16});
  const int64_t rows = d.between(16, 40), columns = d.between(16, d.most() / rows);
  s.in = {d.leaf({rows, 16}, t), d.leaf({columns, 16}, t),
          d.leaf({columns, 8 * d.between(1, 2)}, t)};
  s.i = d.below(2);
  return std::min({s.in[0], s.in[1], s.in[2]}) >= 0;
}

// The same where a mask hides some rows of scores throughout, by a large number.
bool hidden(Draw& d, Step& s) {
  if (!halves(d, s)) return false;
  s.j = d.below(d[s.in[0]].shape()[0]);
  s.r = d.one_of({-1e4, -1e9, -1e30, -3.4e38});
  return true;
}

// A wide second operand whose rows, of odd length, are read across.
bool wide(Draw& d, Step& s) {
  if (d.gradient()) return false;
  const DType t = d.one_of({kBF16, kF16});
  const int64_t columns = 17, width = d.one_of<int64_t>({72, 80, 88});
  s.in = {d.leaf({d.between(16, 17), 16}, t), d.leaf({columns, 16}, t),
          d.leaf({width, columns}, t)};
  return std::min({s.in[0], s.in[1], s.in[2]}) >= 0;
}

bool resample(Draw& d, Step& s) {
  const int x = real_of_rank(d, 3, 3);
  s.in = {x};
  s.i = d.between(1, 7);
  return x >= 0;
}

}  // namespace

std::vector<Row> product_rows() {
  return {
      {"matmul", 12, "e", product, TINY_EXPRESSION(x.matmul(y))},
      {"linear", 4, "e", linear, TINY_EXPRESSION(x.linear(y, z))},
      {"outer", 1, "e", outer, TINY_EXPRESSION(x.outer(y))},
      {"einsum", 2, "e", einsum, TINY_EXPRESSION(Tensor::einsum("abc,acd->adb", {x, y}))},
      {"conv1d", 1, "e", conv1,
       TINY_EXPRESSION(
           conv1d(x, y, z, {.stride = i, .padding = j, .dilation = k, .groups = a[0]}))},
      {"conv2d", 4, "e", conv2,
       TINY_EXPRESSION(
           conv2d(x, y, z, {.stride = i, .padding = j, .dilation = k, .groups = a[0]}))},
      {"conv_transpose1d", 1, "e", conv1_transposed,
       TINY_EXPRESSION(conv_transpose1d(
           x, y, z,
           {.stride = i, .padding = j, .output_padding = 0, .dilation = k, .groups = a[0]}))},
      {"conv_transpose2d", 1, "e", conv2_transposed,
       TINY_EXPRESSION(conv_transpose2d(
           x, y, z,
           {.stride = i, .padding = j, .output_padding = 0, .dilation = k, .groups = a[0]}))},
  };
}

std::vector<Row> network_rows() {
  return {
      {"max_pool1d", 1, "m", pool1,
       TINY_EXPRESSION(max_pool1d(x, i, {.stride = PerAxis(j), .padding = k}))},
      {"max_pool2d", 1, "m", pool2,
       TINY_EXPRESSION(max_pool2d(x, i, {.stride = PerAxis(j), .padding = k}))},
      {"avg_pool1d", 1, "", pool1,
       TINY_EXPRESSION(avg_pool1d(x, i, {.stride = PerAxis(j), .padding = k}))},
      {"avg_pool2d", 1, "", pool2,
       TINY_EXPRESSION(avg_pool2d(x, i, {.stride = PerAxis(j), .padding = k}))},
      {"adaptive_avg_pool2d", 1, "", pool2, TINY_EXPRESSION(adaptive_avg_pool2d(x, i))},
      {"adaptive_max_pool1d", 1, "m", pool1, TINY_EXPRESSION(adaptive_max_pool1d(x, i))},
      {"interpolate", 1, "m", resample, TINY_EXPRESSION(interpolate(x, i))},
      {"interpolate_linear", 1, "", resample, TINY_EXPRESSION(interpolate(x, i, Resample::Linear))},
      {"layer_norm", 4, "", rows, TINY_EXPRESSION(layer_norm(x, {i}, y, z, 0.3))},
      {"rms_norm", 6, "", rows, TINY_EXPRESSION(rms_norm(x, {i}, y, 0.3))},
      {"rms_norm_plain", 4, "", rows, TINY_EXPRESSION(rms_norm(x, {i}, Tensor(), 0.01))},
      {"group_norm", 1, "", channels, TINY_EXPRESSION(group_norm(x, i, y, z, 0.3))},
      {"batch_norm", 1, "", channels,
       TINY_EXPRESSION(batch_norm(x, y, z, Tensor(), Tensor(), {.training = true, .eps = 0.3}).y)},
      {"mse_loss", 1, "", targets, TINY_EXPRESSION(mse_loss(x, y))},
      {"l1_loss", 1, "", targets, TINY_EXPRESSION(l1_loss(x, y))},
      {"smooth_l1_loss", 1, "", targets, TINY_EXPRESSION(smooth_l1_loss(x, y, Reduction::None))},
      {"huber_loss", 1, "", targets, TINY_EXPRESSION(huber_loss(x, y, Reduction::Sum, 0.7))},
      {"cross_entropy", 2, "", classes, TINY_EXPRESSION(cross_entropy(x, y))},
      {"linear_cross_entropy", 2, "", classes_of_product,
       TINY_EXPRESSION(linear_cross_entropy(x, y, z, {.batch_chunk_size = i}))},
      {"bce", 1, "", targets, TINY_EXPRESSION(binary_cross_entropy_with_logits(x, y.sigmoid()))},
      {"kl_div", 1, "", targets, TINY_EXPRESSION(kl_div(x.log_softmax(-1), y.softmax(-1)))},
      {"chain", 2, "", halves,
       TINY_EXPRESSION(scaled_dot_product_attention(x, y, z, {.is_causal = i != 0}))},
      {"softmax_product", 2, "", halves,
       TINY_EXPRESSION(
           (x.matmul(y.transpose(0, 1), kF32) * 0.25).softmax(-1).to(x.dtype()).matmul(z))},
      {"hidden_product", 2, "", hidden,
       TINY_EXPRESSION(
           (x.matmul(y.transpose(0, 1), kF32) * 0.25)
               .masked_fill(Tensor::arange(x.shape()[0]).unsqueeze(1) >= Tensor::full({1, 1}, j), r)
               .softmax(-1)
               .to(x.dtype())
               .matmul(z))},
      {"wide_product", 1, "", wide,
       TINY_EXPRESSION((x.matmul(y.transpose(0, 1), kF32) * 0.25)
                           .tanh()
                           .to(x.dtype())
                           .matmul(z.transpose(0, 1)))},
      {"attention", 4, "", attention,
       TINY_EXPRESSION(scaled_dot_product_attention(x, y, z, {.is_causal = i != 0}))},
  };
}

}  // namespace tiny::programs
