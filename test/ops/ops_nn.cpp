#include "test/ops/ops.h"
#include "tiny/nn/functional.h"

namespace tiny::ops {

namespace {

#define OUT(...) [](const Inputs& in) { return Outputs{__VA_ARGS__}; }

void add_product(Cases& out, const Shape& x, const Shape& y, DType t = kF32) {
  out.push_back({cat("matmul ", to_text(x), " ", to_text(y), " ", t),
                 {{x, t}, {y, t}},
                 OUT(in[0].matmul(in[1])),
                 20});
}

struct ConvRow {
  Shape x, weight;
  ConvOptions options;
};

void add_conv(Cases& out, const ConvRow& row, DType t = kF32) {
  const auto build = [o = row.options](const Inputs& in) {
    const int axes = in[0].rank() - 2;
    return Outputs{(axes == 1 ? conv1d : axes == 2 ? conv2d : conv3d)(in[0], in[1], in[2], o)};
  };
  out.push_back({cat("conv ", to_text(row.x), " ", to_text(row.weight), " ", out.size()),
                 {{row.x, t}, {row.weight, t}, {{row.weight[0]}, t}},
                 build,
                 20});
}

struct TransposeRow {
  Shape x, weight;
  ConvTransposeOptions options;
};

void add_transpose(Cases& out, const TransposeRow& row) {
  const auto build = [o = row.options](const Inputs& in) {
    const int axes = in[0].rank() - 2;
    const auto f = axes == 1 ? conv_transpose1d : axes == 2 ? conv_transpose2d : conv_transpose3d;
    return Outputs{f(in[0], in[1], Tensor(), o)};
  };
  out.push_back({cat("conv_transpose ", to_text(row.x), " ", to_text(row.weight), " ", out.size()),
                 {{row.x}, {row.weight}},
                 build,
                 20});
}

}  // namespace

Cases matmul_cases() {
  Cases out;
  const Shape sizes[] = {{1, 1, 1},    {1, 7, 1},    {3, 5, 7},     {16, 16, 16},
                         {17, 31, 13}, {64, 64, 64}, {65, 33, 129}, {128, 1, 64},
                         {1, 128, 64}, {5, 0, 3},    {0, 4, 3}};
  for (const Shape& s : sizes) add_product(out, {s[0], s[1]}, {s[1], s[2]});
  for (DType t : {kF64, kF16, kBF16, kI32, kU8}) add_product(out, {9, 21}, {21, 10}, t);
  // Sizes that the matrix units of all GPUs take.
  for (DType t : {kF16, kBF16}) add_product(out, {48, 80}, {80, 40}, t);
  add_product(out, {128, 192}, {192, 256}, kBF16);
  for (DType t : {kI8, kF8E4M3, kF8E5M2}) {
    const auto build = [t](const Inputs& in) {
      const auto bytes = [t](const Tensor& x) { return x.to(t).contiguous(); };
      return Outputs{bytes(in[0]).matmul(bytes(in[1]), t == kI8 ? kI32 : kF32)};
    };
    out.push_back({cat("matmul of bytes ", t), {{{128, 192}, kI8}, {{192, 256}, kI8}}, build, 20});
  }
  add_product(out, {7}, {7});
  add_product(out, {7}, {7, 3});
  add_product(out, {3, 7}, {7});
  add_product(out, {2, 1, 5, 7}, {3, 7, 4});
  add_product(out, {4, 6, 11}, {4, 11, 5});
  const Input x{{9, 14}}, y{{11, 14}}, b{{11}};
  out.push_back({"linear", {x, y, b}, OUT(in[0].linear(in[1], in[2]).relu()), 20});
  out.push_back({"product of views",
                 {{{14, 9}}, y},
                 OUT(in[0].t().flip({0}).matmul(in[1].flip({1}).t())),
                 20});
  out.push_back({"product of a product", {x, y}, OUT(in[0].matmul(in[1].t()).matmul(in[1])), 60});
  out.push_back({"outer and dot", {b, b}, OUT(in[0].outer(in[1]), in[0].dot(in[1])), 20});
  out.push_back(
      {"einsum",
       {{{2, 3, 4}}, {{4, 3, 5}}},
       OUT(Tensor::einsum("bij,jik->bk", {in[0], in[1]}), Tensor::einsum("bij->jb", {in[0]})),
       20});
  return out;
}

Cases conv_cases() {
  Cases out;
  const ConvRow rows[] = {
      {{1, 1, 5}, {1, 1, 3}, {}},
      {{2, 3, 11}, {4, 3, 3}, {.stride = 2, .padding = 1}},
      {{2, 4, 12}, {6, 2, 3}, {.padding = 2, .dilation = 2, .groups = 2}},
      {{2, 4, 9}, {4, 1, 4}, {.groups = 4}},
      {{1, 1, 6, 6}, {1, 1, 3, 3}, {}},
      {{2, 3, 8, 7}, {5, 3, 3, 2}, {.stride = {2, 1}, .padding = {1, 0}}},
      {{2, 3, 8, 8}, {4, 3, 2, 2}, {.stride = 2}},
      {{2, 3, 8, 8}, {4, 3, 1, 1}, {.stride = 3}},
      {{1, 4, 9, 9}, {4, 2, 3, 3}, {.stride = 2, .padding = 2, .dilation = 2, .groups = 2}},
      {{3, 2, 7, 5}, {3, 2, 7, 5}, {}},
      {{2, 16, 13, 13}, {19, 16, 3, 3}, {.padding = 1}},
      {{1, 2, 4, 5, 6}, {3, 2, 2, 3, 2}, {.stride = {1, 2, 1}, .padding = 1}},
      {{0, 3, 5, 5}, {2, 3, 3, 3}, {}},
      {{2, 8, 16, 16}, {16, 8, 3, 3}, {.stride = 2, .padding = 1}},
      {{2, 3, 23, 18}, {4, 3, 7, 5}, {.stride = {2, 3}, .padding = {3, 1}}},
      {{2, 8, 12, 12}, {8, 1, 3, 3}, {.stride = 2, .padding = 1, .groups = 8}},
      {{1, 2, 9, 8}, {2, 2, 2, 4}, {.stride = {3, 4}, .dilation = {4, 2}}},
  };
  for (const ConvRow& row : rows) add_conv(out, row);
  for (DType t : {kF64, kF16, kBF16}) add_conv(out, rows[5], t);
  const TransposeRow transposed[] = {
      {{2, 3, 6}, {3, 2, 3}, {.stride = 2, .padding = 1, .output_padding = 1}},
      {{1, 4, 5, 4}, {4, 2, 3, 3}, {.stride = 2, .padding = 1, .groups = 2}},
      {{1, 2, 4, 4}, {2, 3, 3, 2}, {.padding = 1, .dilation = 2}},
      {{1, 2, 3, 2, 3}, {2, 2, 2, 2, 2}, {.stride = {1, 2, 3}}},
      {{2, 3, 6, 5}, {3, 2, 3, 3}, {.stride = 2, .padding = 1, .output_padding = 1}},
      {{2, 16, 9, 8}, {16, 8, 4, 4}, {.stride = 2, .padding = 1}},
      {{1, 2, 4, 3}, {2, 3, 1, 2}, {.stride = {2, 4}}},
      {{2, 2, 7}, {2, 3, 3}, {.stride = 3, .padding = 2, .output_padding = 2, .dilation = 2}},
      {{2, 2, 7}, {2, 3, 4}, {.stride = 4, .padding = 1, .dilation = 2}},
  };
  for (const TransposeRow& row : transposed) add_transpose(out, row);
  out.push_back({"conv of relu of conv",
                 {{{2, 2, 9, 9}}, {{3, 2, 3, 3}}, {{4, 3, 3, 3}}},
                 OUT(conv2d(conv2d(in[0], in[1]).relu(), in[2]).sum({2, 3})),
                 200});
  out.push_back({"conv of a view",
                 {{{9, 2, 9, 1}}, {{3, 2, 3, 3}}},
                 OUT(conv2d(in[0].permute({3, 1, 0, 2}).flip({2}), in[1])),
                 20});
  return out;
}

Cases pool_cases() {
  const Input x{{2, 3, 11}}, y{{2, 3, 8, 9}}, z{{1, 2, 5, 6, 7}};
  const PoolOptions overlapping{.stride = 2, .padding = 1, .ceil_mode = true};
  Cases out = {
      {"max_pool1d", {x}, OUT(max_pool1d(in[0], 3), max_pool1d(in[0], 3, {.stride = 1}))},
      {"max_pool2d",
       {y},
       OUT(max_pool2d(in[0], 2), max_pool2d(in[0], {3, 2}, {.padding = {1, 0}}))},
      {"max_pool2d dilated", {y}, OUT(max_pool2d(in[0], 2, {.stride = 2, .dilation = 3}))},
      {"max_pool3d", {z}, OUT(max_pool3d(in[0], 2))},
      {"avg_pool3d", {z}, OUT(avg_pool3d(in[0], {5, 6, 7}), avg_pool3d(in[0], 2)), 10},
      {"adaptive pools",
       {y},
       OUT(adaptive_avg_pool2d(in[0], {4, 3}), adaptive_avg_pool2d(in[0], 5),
           adaptive_max_pool2d(in[0], {3, 4})),
       10},
      {"interpolate",
       {y},
       OUT(interpolate(in[0], {16, 18}), interpolate(in[0], {4, 5}),
           interpolate(in[0], 7, Resample::NearestExact)),
       4},
      {"pixel_shuffle, channel_shuffle",
       {{{2, 12, 3, 5}}},
       OUT(pixel_shuffle(in[0], 2), channel_shuffle(in[0], 3)),
       0},
      {"interpolate linear",
       {y},
       OUT(interpolate(in[0], {13, 5}, Resample::Linear),
           interpolate(in[0], {5, 18}, Resample::Linear, true)),
       10},
  };
  out.push_back({"max_pool with indices", {y}, [=](const Inputs& in) {
                   const WithIndices r = max_pool_with_indices(in[0], 2, 3, overlapping);
                   return Outputs{r.values, r.indices};
                 }});
  out.push_back({"avg_pool1d",
                 {x},
                 [=](const Inputs& in) {
                   PoolOptions inside = overlapping;
                   inside.count_include_pad = false;
                   return Outputs{avg_pool1d(in[0], 3, overlapping), avg_pool1d(in[0], 3, inside)};
                 },
                 10});
  return out;
}

Cases norm_cases() {
  const Input x{{4, 6, 5}}, w{{6}}, row{{7, 33}}, rw{{33}}, positive{{6}, kF32, 0.5, 2};
  return {
      {"batch_norm in training",
       {x, w, w, w, positive},
       [](const Inputs& in) {
         const BatchNormResult r =
             batch_norm(in[0], in[1], in[2], in[3], in[4], {.training = true});
         return Outputs{r.y, r.running_mean, r.running_var};
       },
       40},
      {"batch_norm in evaluation",
       {x, w, w, w, positive},
       OUT(batch_norm(in[0], in[1], in[2], in[3], in[4]).y),
       20},
      {"layer_norm", {row, rw, rw}, OUT(layer_norm(in[0], {33}, in[1], in[2])), 40},
      {"layer_norm of two axes", {x}, OUT(layer_norm(in[0], {6, 5})), 40},
      {"layer_norm of 16-bit floats", {{{7, 33}, kF16}}, OUT(layer_norm(in[0], {33})), 8},
      {"rms_norm", {row, rw}, OUT(rms_norm(in[0], {33}, in[1])), 40},
      {"group_norm", {x, w, w}, OUT(group_norm(in[0], 3, in[1], in[2]), instance_norm(in[0])), 40},
      {"softsign, shrinking, threshold",
       {{{7, 9}}},
       OUT(softsign(in[0]), tanhshrink(in[0]), softshrink(in[0], 0.25), hardshrink(in[0], 0.25),
           threshold(in[0], 0.1, 2)),
       20},
      {"prelu, glu",
       {{{3, 6, 5}}, {{6}}, {{1}}},
       OUT(prelu(in[0], in[1]), prelu(in[0], in[2]), glu(in[0], 1)),
       20},
      {"normalize, cosine_similarity",
       {{{5, 9, 3}}, {{1, 9, 3}}},
       OUT(normalize(in[0]), normalize(in[0], 1, -1), cosine_similarity(in[0], in[1])),
       20},
      {"attention",
       {{{2, 5, 8}}, {{2, 7, 8}}, {{2, 7, 3}}},
       OUT(scaled_dot_product_attention(in[0], in[1], in[2]),
           scaled_dot_product_attention(in[0], in[1], in[2], {.is_causal = true})),
       40},
      {"grouped-query attention",
       {{{4, 5, 8}}, {{2, 5, 8}}, {{2, 5, 8}}},
       OUT(scaled_dot_product_attention(in[0], in[1], in[2], {.enable_gqa = true})),
       40},
      {"rope", {{{2, 5, 8}}, {{5, 4}}, {{5, 4}}}, OUT(rope(in[0], in[1], in[2])), 10},
      {"lstm_cell",
       {{{2, 3}}, {{2, 4}}, {{2, 4}}, {{16, 3}}, {{16, 4}}, {{16}}},
       [](const Inputs& in) {
         const LstmState s = lstm_cell(in[0], {in[1], in[2]}, {in[3], in[4], in[5]});
         return Outputs{s.h, s.c};
       },
       40},
      {"gru_cell",
       {{{2, 3}}, {{2, 4}}, {{12, 3}}, {{12, 4}}},
       OUT(gru_cell(in[0], in[1], {in[2], in[3]})),
       40},
  };
}

Cases loss_cases() {
  const Input x{{6, 10}}, t{{6}, kI64, 0, 9}, w{{10}, kF32, 0.5, 2}, y{{6, 10}};
  const Input p{{6, 10}, kF32, 0.1, 0.9};
  return {
      {"cross_entropy",
       {x, t, w},
       OUT(cross_entropy(in[0], in[1]),
           cross_entropy(in[0], in[1], {.weight = in[2], .label_smoothing = 0.1}),
           cross_entropy(in[0], in[1], {.reduction = Reduction::None, .ignore_index = 3})),
       20},
      {"linear_cross_entropy",
       {{{6, 5}}, t, {{10, 5}}, {{10}}},
       OUT(linear_cross_entropy(in[0], in[2], in[1], {.bias = in[3]}),
           linear_cross_entropy(
               in[0], in[2], in[1],
               {.loss = {.reduction = Reduction::None, .ignore_index = 3}, .batch_chunk_size = 4})),
       20},
      {"cross_entropy of images",
       {{{2, 4, 3, 5}}, {{2, 3, 5}, kI64, 0, 3}},
       OUT(cross_entropy(in[0], in[1])),
       20},
      {"cross_entropy of probabilities", {x, p}, OUT(cross_entropy(in[0], in[1])), 20},
      {"nll_loss", {x, t}, OUT(nll_loss(in[0].log_softmax(1), in[1])), 20},
      {"regression losses",
       {x, y},
       OUT(mse_loss(in[0], in[1]), l1_loss(in[0], in[1], Reduction::Sum),
           smooth_l1_loss(in[0], in[1], Reduction::Mean, 0.5), huber_loss(in[0], in[1])),
       20},
      {"triplet_margin_loss",
       {{{6, 7}}, {{6, 7}}, {{1, 7}}},
       OUT(triplet_margin_loss(in[0], in[1], in[2]),
           triplet_margin_loss(in[0], in[1], in[2],
                               {.margin = 0.5, .swap = true, .reduction = Reduction::None})),
       20},
      {"binary losses",
       {p, p, x},
       OUT(binary_cross_entropy(in[0], in[1]), binary_cross_entropy_with_logits(in[2], in[1]),
           kl_div(in[2], in[1], Reduction::BatchMean)),
       20},
      {"sigmoid_focal_loss",
       {x, p},
       OUT(sigmoid_focal_loss(in[0], in[1], 0.25, 2, Reduction::Mean),
           sigmoid_focal_loss(in[0], in[1], -1, 1.5)),
       20},
  };
}

}  // namespace tiny::ops
