// Convolutions: the input's windows as a view, times the weight, summed over channels and window in
// one reduction. The scheduler sees Mul below ReduceAxis, as in a matrix product.
#include "tiny/functional.h"
#include "tiny/tensor_detail.h"
#include "tiny/windows.h"

namespace tiny {

Shape PerAxis::of(const char* what, const char* name, int axes, int64_t least) const {
  check(values_.size() == 1 || static_cast<int>(values_.size()) == axes, what, ": ", name, " ",
        to_text(values_), " for ", axes, " spatial axes");
  for (int64_t v : values_)
    check(v >= least, what, ": ", name, " ", to_text(values_), ": it is at least ", least);
  return values_.size() == 1 ? Shape(axes, values_[0]) : values_;
}

namespace {

struct Conv {
  const char* what;
  int axes;  // spatial
  Shape stride, dilation;
  int64_t groups;
};

void check_operands(const Conv& c, const Tensor& x, const Tensor& weight) {
  detail::require_float(c.what, x.dtype());
  detail::require_float(c.what, weight.dtype());
  check(x.rank() == c.axes + 2 && weight.rank() == c.axes + 2, c.what, ": takes an input and a ",
        "weight with ", c.axes, " spatial axes after two others and not ", to_text(x.shape()),
        " and ", to_text(weight.shape()));
  check(c.groups >= 1, c.what, ": ", c.groups, " groups");
}

// The windows of x, already padded: [N, C, out..., kernel...].
Tensor windows(const Conv& c, const Tensor& x, Ints kernel) {
  Node n = x.node();
  for (int i = 0; i < c.axes; ++i) {
    const int64_t span = c.dilation[i] * (kernel[i] - 1) + 1;
    check(kernel[i] > 0 && span <= n->shape()[2 + i], c.what, ": a kernel of ", to_text(kernel),
          " with dilation ", to_text(c.dilation), " does not fit the padded input ",
          to_text(x.shape()));
    n = build::windows(n, 2 + i, {kernel[i], c.stride[i], c.dilation[i]});
  }
  return Tensor(n);
}

// x (N, C, ...), padded, with weight (out, C / groups, kernel...), both in the dtype that is
// computed in.
Tensor correlate(const Conv& c, const Tensor& x, const Tensor& weight) {
  const int d = c.axes;
  const int64_t n = x.shape()[0], out = weight.shape()[0], in = weight.shape()[1], g = c.groups;
  const Shape kernel = to_shape(weight.shape().subspan(2));
  const Tensor view = windows(c, x, kernel);
  const Shape sizes = to_shape(view.shape().subspan(2, d));
  // [n, g, 1, sizes..., in, kernel...] * [1, g, out / g, 1..., in, kernel...]
  Shape split{n, g, 1, in}, order{0, 1, 2}, lifted{1, g, out / g}, result{n, out}, summed;
  for (int i = 0; i < 2 * d; ++i) split.push_back(view.shape()[2 + i]);
  for (int i = 0; i < d; ++i) {
    order.push_back(4 + i);
    lifted.push_back(1);
    result.push_back(sizes[i]);
  }
  order.push_back(3);
  lifted.push_back(in);
  for (int i = 0; i < d; ++i) {
    order.push_back(4 + d + i);
    lifted.push_back(kernel[i]);
  }
  for (int i = 0; i <= d; ++i) summed.push_back(3 + d + i);
  const Tensor products = view.reshape(split).permute(order) * weight.reshape(lifted);
  return products.sum(summed).reshape(result);
}

Tensor finish(const Conv& c, const Tensor& y, const Tensor& bias, DType t) {
  if (!bias.defined()) return y.to(t);
  check(bias.rank() == 1 && bias.shape()[0] == y.shape()[1], c.what, ": a bias of shape ",
        to_text(bias.shape()), " for ", y.shape()[1], " channels");
  Shape lifted(c.axes + 1, 1);
  lifted[0] = -1;
  return (y + bias.to(y.dtype()).reshape(lifted)).to(t);
}

Tensor conv(const char* what, int axes, const Tensor& x, const Tensor& weight, const Tensor& bias,
            const ConvOptions& o) {
  LabelScope label(what);
  const Conv c{what, axes, o.stride.of(what, "stride", axes, 1),
               o.dilation.of(what, "dilation", axes, 1), o.groups};
  check_operands(c, x, weight);
  check(x.shape()[1] == weight.shape()[1] * c.groups && weight.shape()[0] % c.groups == 0, what,
        ": an input of ", to_text(x.shape()), " with a weight of ", to_text(weight.shape()), " in ",
        c.groups, " groups: the weight is (out, ", x.shape()[1], " / groups, kernel) with ",
        "out a multiple of groups");
  const Shape padding = o.padding.of(what, "padding", axes, 0);
  std::vector<Padding> pads(2);
  for (int64_t p : padding) pads.push_back({p, p});
  const DType t = promote(x.dtype(), weight.dtype()), wide = detail::compute_dtype(t);
  return finish(c, correlate(c, x.pad(pads).to(wide), weight.to(wide)), bias, t);
}

// Puts step - 1 zeros between neighbours along an axis.
Tensor dilate(const Tensor& x, int axis, int64_t step) {
  const int64_t n = x.shape()[axis];
  if (step == 1 || n == 0) return x;
  std::vector<Padding> pads(x.rank() + 1);
  pads[axis + 1].after = step - 1;
  const Tensor spread = x.unsqueeze(axis + 1).pad(pads).flatten(axis, axis + 1);
  return spread.narrow(axis, 0, (n - 1) * step + 1);
}

// (in, out / g, kernel...) as the weight of the convolution that undoes it: (out, in / g,
// kernel...) with the kernel reversed.
Tensor transposed_weight(const Tensor& weight, int64_t groups) {
  const int64_t in = weight.shape()[0] / groups, out = weight.shape()[1];
  Shape reversed, shape{groups * out, in};
  for (int i = 2; i < weight.rank(); ++i) {
    reversed.push_back(i);
    shape.push_back(weight.shape()[i]);
  }
  return weight.flip(reversed).unflatten(0, {groups, in}).transpose(1, 2).reshape(shape);
}

Tensor conv_transpose(const char* what, int axes, const Tensor& x, const Tensor& weight,
                      const Tensor& bias, const ConvTransposeOptions& o) {
  LabelScope label(what);
  const Conv c{what, axes, Shape(axes, 1), o.dilation.of(what, "dilation", axes, 1), o.groups};
  check_operands(c, x, weight);
  check(x.shape()[1] == weight.shape()[0] && weight.shape()[0] % c.groups == 0, what,
        ": an input of ", to_text(x.shape()), " with a weight of ", to_text(weight.shape()), " in ",
        c.groups, " groups: the weight is (", x.shape()[1], ", out / groups, kernel)");
  const Shape stride = o.stride.of(what, "stride", axes, 1),
              padding = o.padding.of(what, "padding", axes, 0),
              extra = o.output_padding.of(what, "output_padding", axes, 0);
  const DType t = promote(x.dtype(), weight.dtype()), wide = detail::compute_dtype(t);
  Tensor spread = x.to(wide);
  std::vector<Padding> pads(2);
  for (int i = 0; i < axes; ++i) {
    check(extra[i] < std::max(stride[i], c.dilation[i]), what, ": output_padding ", to_text(extra),
          " must be below the stride ", to_text(stride), " or the dilation ", to_text(c.dilation));
    spread = dilate(spread, 2 + i, stride[i]);
    const int64_t reach = c.dilation[i] * (weight.shape()[2 + i] - 1) - padding[i];
    check(spread.shape()[2 + i] + 2 * reach + extra[i] >= reach + padding[i] + 1, what,
          ": nothing is left of the input ", to_text(x.shape()), " with padding ",
          to_text(padding));
    pads.push_back({reach, reach + extra[i]});
  }
  const Tensor flipped = transposed_weight(weight.to(wide), c.groups);
  return finish(c, correlate(c, spread.pad(pads), flipped), bias, t);
}

}  // namespace

Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvOptions& o) {
  return conv("conv1d", 1, x, weight, bias, o);
}
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvOptions& o) {
  return conv("conv2d", 2, x, weight, bias, o);
}
Tensor conv3d(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvOptions& o) {
  return conv("conv3d", 3, x, weight, bias, o);
}

Tensor conv_transpose1d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const ConvTransposeOptions& o) {
  return conv_transpose("conv_transpose1d", 1, x, weight, bias, o);
}
Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const ConvTransposeOptions& o) {
  return conv_transpose("conv_transpose2d", 2, x, weight, bias, o);
}
Tensor conv_transpose3d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const ConvTransposeOptions& o) {
  return conv_transpose("conv_transpose3d", 3, x, weight, bias, o);
}

}  // namespace tiny
