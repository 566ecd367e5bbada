// Normalisations: statistics over some axes, then elementwise work on the same elements, so that
// the scheduler can do both in one kernel.
#include "tiny/nn/functional.h"
#include "tiny/tensor/detail.h"

namespace tiny {

namespace {

// (x - mean) / sqrt(var + eps) over these axes, var without correction. x: f32 or f64.
Tensor standardize(const Tensor& x, const Shape& axes, double eps) {
  const Tensor centered = x - x.mean(axes, true);
  return centered * (centered.square().mean(axes, true) + eps).rsqrt();
}

// y * weight + bias, each of them where defined, in a shape that broadcasts.
Tensor affine(Tensor y, const Tensor& weight, const Tensor& bias, const Shape& shape) {
  if (weight.defined()) y = y * weight.to(y.dtype()).reshape(shape);
  if (bias.defined()) y = y + bias.to(y.dtype()).reshape(shape);
  return y;
}

void check_shape(const char* what, const char* name, const Tensor& t, const Shape& shape) {
  check(!t.defined() || same(t.shape(), shape), what, ": the ", name, " has shape ",
        t.defined() ? std::string(to_text(t.shape())) : "", " and not ", to_text(shape));
}

// The axes 1, 1, C, 1, 1 that let a vector of channels broadcast against x.
Shape channel_shape(const Tensor& x, int channel = 1) {
  Shape shape(x.rank(), 1);
  shape[channel] = x.capacity()[channel];
  return shape;
}

void check_channels(const char* what, const Tensor& x) {
  detail::require_float(what, x.dtype());
  check(x.rank() >= 2, what, ": takes (N, C, ...) and not ", to_text(x.capacity()));
}

// (1 - momentum) old + momentum now, without a gradient and in the old one's dtype.
Tensor moved(const Tensor& old, const Tensor& now, double momentum) {
  if (!old.defined()) return old;
  const Tensor target = now.detach().reshape(to_shape(old.shape())).to(old.dtype());
  return old.detach() * (1 - momentum) + target * momentum;
}

// The last axes, after a check that they are the given ones.
Shape trailing_axes(const char* what, const Tensor& x, const Shape& shape) {
  detail::require_float(what, x.dtype());
  const int count = static_cast<int>(shape.size());
  check(count >= 1 && count <= x.rank() && same(x.capacity().last(count), shape), what,
        ": the last axes of ", to_text(x.capacity()), " are not ", to_text(shape));
  Shape axes;
  for (int i = x.rank() - count; i < x.rank(); ++i) axes.push_back(i);
  return axes;
}

// Near the mean over these axes, samples first, from a few elements: sums of squares about it lose
// no digits.
Tensor rough_mean(const Tensor& x, const Shape& axes) {
  constexpr int64_t kSamples = 16;
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const int64_t size : x.capacity()) ranges.emplace_back(0, size);
  for (const int64_t axis : axes) {
    if (x.node()->length(static_cast<int>(axis))) continue;  // all of them: no part can be cut
    const int64_t size = ranges[axis].second, begin = axis == axes[0] ? 0 : size / 2;
    const int64_t wanted = axis == axes[0] ? kSamples : 1;
    ranges[axis] = {begin, std::min(size, begin + wanted)};
  }
  return x.detach().shrink(ranges).mean(axes, true);
}

// n / (n - 1) for the number n of elements of these axes.
Operand bessel(const Tensor& x, const Shape& axes) {
  double number = 1;
  Tensor lengths = Tensor::ones({}, x.dtype());
  for (const int64_t axis : axes) {
    const Node length = x.node()->length(static_cast<int>(axis));
    if (length)
      lengths = lengths * Tensor(length);
    else
      number *= static_cast<double>(x.capacity()[axis]);
  }
  if (!x.node()->lengths) return number / (number - 1);
  const Tensor n = lengths * number;
  return n / (n - 1);
}

}  // namespace

BatchNormResult batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                           const Tensor& running_mean, const Tensor& running_var,
                           const BatchNormOptions& options) {
  LabelScope label("batch_norm");
  check_channels("batch_norm", x);
  const Shape channels{x.capacity()[1]};
  check_shape("batch_norm", "weight", weight, channels);
  check_shape("batch_norm", "bias", bias, channels);
  check_shape("batch_norm", "running mean", running_mean, channels);
  check_shape("batch_norm", "running variance", running_var, channels);
  const Tensor wide = x.to(detail::compute_dtype(x.dtype()));
  if (!options.training && running_mean.defined() && running_var.defined()) {
    const Shape lifted = channel_shape(x);
    const Tensor mean = running_mean.to(wide.dtype()).reshape(lifted);
    const Tensor scale = (running_var.to(wide.dtype()).reshape(lifted) + options.eps).rsqrt();
    const Tensor y = affine((wide - mean) * scale, weight, bias, lifted);
    return {y.to(x.dtype()), running_mean, running_var};
  }
  check(options.training,
        "batch_norm: without training it takes the running mean and variance, and one of them is "
        "not defined: give both, or set training to use the batch's");
  const int64_t groups = options.groups;
  check(groups == 1 || (groups > 1 && x.size(0) % groups == 0), "batch_norm: ", groups,
        " groups of ", x.capacity()[0], " samples: their number has to be a multiple");
  int64_t least = channels[0] ? 1 : 0;  // values of a channel in each group
  for (int i = 0; i < x.rank(); ++i)
    if (i != 1) least *= x.node()->length(i) ? x.node()->length(i)->vmin : x.capacity()[i];
  check(least / groups != 1, "batch_norm: one value for each channel in ",
        groups > 1 ? "each group of " : "", to_text(x.capacity()),
        x.node()->lengths ? ", where a Variable may be so small," : "",
        " has no variance to train with");
  // (N, C, ...), or (groups, N / groups, C, ...): a batch in parts on several devices stays so.
  const int samples = groups > 1 ? 1 : 0, channel = samples + 1;
  const Tensor grouped = groups > 1 ? wide.unflatten(0, {groups, -1}) : wide;
  Shape axes{samples}, lifted = channel_shape(grouped, channel);
  if (groups > 1) lifted[0] = groups;
  for (int i = channel + 1; i < grouped.rank(); ++i) axes.push_back(i);
  const Tensor near = rough_mean(grouped, axes);
  const Tensor shifted = grouped - near;  // one pass for both sums
  // All that there is for each channel has one shape, (C) or (groups, C): one kernel computes it.
  const Tensor offset = shifted.mean(axes), mean = near.reshape(to_shape(offset.shape())) + offset;
  const Tensor spread = shifted.square().mean(axes) - offset.square();
  const Tensor var = where(spread < 0, 0, spread);
  // As one product and one sum, so that gradients need no more than the sums of g and g * shifted.
  const Tensor scale = affine((var + options.eps).rsqrt(), weight, {}, channels);
  const Tensor shift = affine((-offset) * scale, {}, bias, channels);
  const Tensor normal = shifted * scale.reshape(lifted) + shift.reshape(lifted);
  const Tensor y = (groups > 1 ? normal.flatten(0, 1) : normal).to(x.dtype());
  const auto of_all = [&](const Tensor& t) { return groups > 1 ? t.mean(0) : t; };
  return {y, moved(running_mean, of_all(mean), options.momentum),
          moved(running_var, of_all(var * bessel(grouped, axes)), options.momentum)};
}

Tensor layer_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight,
                  const Tensor& bias, double eps) {
  LabelScope label("layer_norm");
  const Shape axes = trailing_axes("layer_norm", x, normalized_shape);
  check_shape("layer_norm", "weight", weight, normalized_shape);
  check_shape("layer_norm", "bias", bias, normalized_shape);
  const Tensor y = standardize(x.to(detail::compute_dtype(x.dtype())), axes, eps);
  return affine(y, weight, bias, normalized_shape).to(x.dtype());
}

Tensor rms_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight, double eps) {
  LabelScope label("rms_norm");
  const Shape axes = trailing_axes("rms_norm", x, normalized_shape);
  check_shape("rms_norm", "weight", weight, normalized_shape);
  const Tensor wide = x.to(detail::compute_dtype(x.dtype()));
  const Tensor y = wide * (wide.square().mean(axes, true) + eps).rsqrt();
  return affine(y, weight, Tensor(), normalized_shape).to(x.dtype());
}

namespace {

// `groups` groups of channels, each normalised on its own in every sample.
Tensor normalize_groups(const char* what, const Tensor& x, int64_t groups, const Tensor& weight,
                        const Tensor& bias, double eps) {
  check_channels(what, x);
  const int64_t channels = x.capacity()[1];
  check(groups >= 1 && channels % groups == 0, what, ": ", groups, " groups of ", channels,
        " channels");
  check_shape(what, "weight", weight, {channels});
  check_shape(what, "bias", bias, {channels});
  const Tensor grouped = x.to(detail::compute_dtype(x.dtype())).unflatten(1, {groups, -1});
  Shape axes;
  for (int i = 2; i < grouped.rank(); ++i) axes.push_back(i);
  const Tensor y = standardize(grouped, axes, eps).reshape(to_shape(x.capacity()));
  return affine(y, weight, bias, channel_shape(x)).to(x.dtype());
}

}  // namespace

Tensor group_norm(const Tensor& x, int64_t num_groups, const Tensor& weight, const Tensor& bias,
                  double eps) {
  LabelScope label("group_norm");
  return normalize_groups("group_norm", x, num_groups, weight, bias, eps);
}

Tensor instance_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  LabelScope label("instance_norm");
  check_channels("instance_norm", x);
  const int64_t channels = std::max<int64_t>(x.capacity()[1], 1);
  check(numel(x.capacity().subspan(2)) != 1,
        "instance_norm: one value for each channel of a sample in ", to_text(x.capacity()),
        " has no variance: it takes more than one spatial element");
  return normalize_groups("instance_norm", x, channels, weight, bias, eps);
}

Tensor normalize(const Tensor& x, double p, int64_t dim, double eps) {
  LabelScope label("normalize");
  detail::require_float("normalize", x.dtype());
  const Tensor wide = x.to(detail::compute_dtype(x.dtype()));
  return (wide / wide.norm(dim, true, p).clamp(eps, {})).to(x.dtype());
}

Tensor cosine_similarity(const Tensor& x, const Tensor& y, int64_t dim, double eps) {
  LabelScope label("cosine_similarity");
  detail::require_float("cosine_similarity", x.dtype());
  detail::require_float("cosine_similarity", y.dtype());
  const DType t = result_type(x, y), wide = detail::compute_dtype(t);
  // Seen in the common shape first: a vector that is repeated along dim is as long as it is there.
  const auto [left, right] = detail::match("cosine_similarity", x, y, wide);
  const Tensor a(left), b(right);
  const auto length = [&](const Tensor& v) { return v.norm(dim, false, 2).clamp(eps, {}); };
  return ((a * b).sum(dim) / (length(a) * length(b))).to(t);
}

}  // namespace tiny
