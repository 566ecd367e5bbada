// Normalizations and losses.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "tiny/nn/functional.h"
#include "tiny/onnx/ops/table.h"

namespace tiny::onnx {

namespace {

DType wide_dtype(DType dtype) { return dtype == kF64 ? kF64 : kF32; }

// All axes but one.
Shape other_axes(int rank, int64_t axis) {
  Shape out;
  for (int64_t i = 0; i < rank; ++i)
    if (i != axis) out.push_back(i);
  return out;
}

// In training the batch's statistics, and the running ones moved towards them, by the share that
// stays; the variance is that of the batch, not an estimate.
Tensors batch_norm_in_training(Call& c, const Tensor& x, double eps) {
  const Shape axes = other_axes(x.rank(), 1);
  const double keep = c.real("momentum", 0.9f);
  const Tensor wide = x.to(wide_dtype(x.dtype()));
  const Tensor mean = wide.mean(axes), var = wide.var(axes, false, 0);
  const Tensor centred = wide - along_axis(mean, 1, x.rank());
  const Tensor scale = c[1] / (var + eps).sqrt();
  const Tensor y = centred * along_axis(scale, 1, x.rank()) + along_axis(c[2], 1, x.rank());
  return {y.to(x.dtype()), (c[3] * keep + mean * (1 - keep)).to(c[3].dtype()),
          (c[4] * keep + var * (1 - keep)).to(c[4].dtype())};
}

Tensors batch_normalization(Call& c) {
  const Tensor& x = c[0];
  const double eps = c.real("epsilon", 1e-5f);
  // Before version 14 training is told by the number of outputs.
  const bool trains = c.opset() >= 14 ? c.integer("training_mode", 0) != 0 : c.outputs() > 1;
  if (trains) return batch_norm_in_training(c, x, eps);
  if (x.rank() >= 2 && x.dtype() == c[1].dtype() && x.dtype() == c[3].dtype())
    return {batch_norm(x, c[1], c[2], c[3], c[4], {.eps = eps}).y};
  const Tensor scale = c[1] / (c[4] + eps).sqrt(), shift = c[2] - c[3] * scale;
  const auto spread = [&](const Tensor& t) { return along_axis(t, 1, x.rank()); };
  return {(x * spread(scale) + spread(shift)).to(x.dtype())};
}

// (x - mean) / sqrt(var + eps) over the axes, in a wide dtype.
struct Normalized {
  Tensor y, mean, inverse;
};
Normalized normalized(const Tensor& x, const Shape& axes, double eps) {
  const Tensor wide = x.to(wide_dtype(x.dtype()));
  const Tensor mean = wide.mean(axes, true), centred = wide - mean;
  const Tensor inverse = (centred.square().mean(axes, true) + eps).sqrt().reciprocal();
  return {centred * inverse, mean, inverse};
}

Tensors instance_normalization(Call& c) {
  const Tensor& x = c[0];
  Shape axes(static_cast<size_t>(std::max(0, x.rank() - 2)));
  std::iota(axes.begin(), axes.end(), 2);
  const Tensor y = normalized(x, axes, c.real("epsilon", 1e-5f)).y;
  return {(y * along_axis(c[1], 1, x.rank()) + along_axis(c[2], 1, x.rank())).to(x.dtype())};
}

Tensors layer_normalization(Call& c) {
  const Tensor& x = c[0];
  const int64_t axis = axis_of(x, c.integer("axis", -1));
  Shape axes(static_cast<size_t>(x.rank() - axis));
  std::iota(axes.begin(), axes.end(), axis);
  const double eps = c.real("epsilon", 1e-5f);
  const Shape last(x.capacity().begin() + axis, x.capacity().end());
  const bool is_plain = same(c[1].shape(), last) && (!c.has(2) || same(c[2].shape(), last)) &&
                        !c.wants(1) && !c.wants(2);
  if (is_plain) return {layer_norm(x, last, c[1], c.optional(2), eps)};
  const Normalized n = normalized(x, axes, eps);
  Tensor y = n.y.to(x.dtype()) * c[1];
  if (c.has(2)) y = y + c[2];
  return {y, n.mean, n.inverse};
}

// Scale and bias have an element for each channel, before version 21 one for each group.
Tensors group_normalization(Call& c) {
  const Tensor& x = c[0];
  const int64_t groups = c.integer("num_groups", 0);
  c.require(x.rank() >= 2 && groups > 0 && x.size(1) % groups == 0, groups, " groups of ",
            to_text(x.shape()));
  const Shape shape = sizes(x);
  const Tensor y =
      normalized(x.reshape({shape[0], groups, -1}), {2}, c.real("epsilon", 1e-5f)).y.reshape(shape);
  const auto spread = [&](const Tensor& t) {
    const bool per_group = t.numel() == groups && groups != shape[1];
    return along_axis(per_group ? t.repeat_interleave(shape[1] / groups) : t, 1, x.rank());
  };
  return {(y * spread(c[1]) + spread(c[2])).to(x.dtype())};
}

// x / (bias + alpha / size * sum of squares of the neighbouring channels)^beta.
Tensors local_response_normalization(Call& c) {
  const Tensor& x = c[0];
  const int64_t size = c.integer("size", 1);
  c.require(size > 0, "size is ", size);
  std::vector<Padding> pads(static_cast<size_t>(x.rank()));
  pads[1] = {(size - 1) / 2, size / 2};
  const Tensor wide = x.to(wide_dtype(x.dtype()));
  const Tensor sums = wide.square().pad(pads).unfold(1, size, 1).sum(-1);
  const double factor = c.real("alpha", 1e-4f) / static_cast<double>(size);
  const Tensor scale = sums * factor + c.real("bias", 1);
  return {(wide / pow(scale, c.real("beta", 0.75))).to(x.dtype())};
}

// With 1e-9 added to the deviation, as the function in the standard has it.
Tensors mean_variance_normalization(Call& c) {
  const Tensor& x = c[0];
  const Shape axes = c.integers("axes", {0, 2, 3});
  const Tensor wide = x.to(wide_dtype(x.dtype()));
  const Tensor centred = wide - wide.mean(axes, true);
  return {(centred / (centred.square().mean(axes, true).sqrt() + 1e-9)).to(x.dtype())};
}

Tensors lp_normalization(Call& c) {
  const Tensor& x = c[0];
  const int64_t axis = axis_of(x, c.integer("axis", -1)), p = c.integer("p", 2);
  c.require(p == 1 || p == 2, "p is ", p, ", expected 1 or 2");
  const Tensor size = x.norm(axis, true, static_cast<double>(p));
  return {where(size == 0, 0, x / size)};
}

// --- Losses --------------------------------------------------------------------------------------

// Of log-probabilities (N, C, ...): what is ignored counts neither as loss nor as weight.
Tensor negative_log_likelihood(Call& c, const Tensor& log_prob, const Tensor& target,
                               const Tensor& weight) {
  const std::string reduction = c.text("reduction", "mean");
  c.require(reduction == "none" || reduction == "mean" || reduction == "sum", "the reduction is \"",
            reduction, "\", expected none, mean or sum");
  const int64_t classes = log_prob.size(1);
  Tensor counts = Tensor::ones(sizes(target), log_prob.dtype());
  Tensor index = target.to(kI64);
  if (c.has_attribute("ignore_index")) {
    const Tensor ignored = index == c.integer("ignore_index", 0);
    counts = where(ignored, 0, counts);
    index = where(ignored, 0, index);
  }
  index = from_front(index, classes);
  if (weight.defined())
    counts = counts * weight.index_select(0, index.reshape({index.numel()})).reshape(sizes(target));
  const Tensor found = log_prob.gather(1, index.unsqueeze(1)).squeeze(1);
  const Tensor loss = where(counts == 0, 0, -found * counts);
  if (reduction == "none") return loss;
  if (reduction == "sum") return loss.sum();
  return loss.sum() / counts.sum();
}

Tensors nll_loss_operator(Call& c) {
  return {negative_log_likelihood(c, c[0], c[1], c.optional(2))};
}

Tensors softmax_cross_entropy(Call& c) {
  const Tensor log_prob = c[0].log_softmax(1);
  return {negative_log_likelihood(c, log_prob, c[1], c.optional(2)), log_prob};
}

constexpr Operator kNormalization[] = {
    {"BatchNormalization", 1, kFloats, batch_normalization},
    {"GroupNormalization", 18, kFloats, group_normalization},
    {"InstanceNormalization", 1, kFloats, instance_normalization},
    {"LRN", 1, kFloats, local_response_normalization},
    {"LayerNormalization", 17, kFloats, layer_normalization},
    {"LpNormalization", 1, kFloats, lp_normalization},
    {"MeanVarianceNormalization", 9, kFloats, mean_variance_normalization},
    {"NegativeLogLikelihoodLoss", 12, kFloats, nll_loss_operator},
    {"SoftmaxCrossEntropyLoss", 12, kFloats, softmax_cross_entropy},
};

}  // namespace

std::span<const Operator> normalization_operators() { return kNormalization; }

}  // namespace tiny::onnx
