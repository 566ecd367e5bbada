// Convolutions: the input's windows as a view, times the weight, summed over channels and window in
// one reduction. The scheduler sees Mul below ReduceAxis, as in a matrix product.
#include <algorithm>
#include <numeric>

#include "tiny/autograd/windows.h"
#include "tiny/ir/facts.h"
#include "tiny/ir/sizes.h"
#include "tiny/nn/functional.h"
#include "tiny/tensor/detail.h"
#include "tiny/train/mixed_precision.h"

namespace tiny {

Shape PerAxis::of(const char* what, const char* name, int axes, int64_t least) const {
  check(values_.size() == 1 || static_cast<int>(values_.size()) == axes, what, ": ", name, " ",
        to_text(values_), " for ", axes, " spatial axes");
  for (int64_t v : values_)
    check(v >= least && v <= INT32_MAX, what, ": ", name, " ", to_text(values_),
          ": it is at least ", least, " and at most 2^31 - 1");
  return values_.size() == 1 ? Shape(axes, values_[0]) : values_;
}

namespace {

struct Conv {
  const char* what;
  int axes;  // spatial
  Shape stride, padding, dilation;
  int64_t groups;
  Shape phases = {};   // results of a window along each axis, one where there are none
  bool apart = false;  // phases come before all places instead of after each axis's
};

void check_operands(const Conv& c, const Tensor& x, const Tensor& weight) {
  detail::require_float(c.what, x.dtype());
  detail::require_float(c.what, weight.dtype());
  check(x.rank() == c.axes + 2 && weight.rank() == c.axes + 2, c.what, ": takes an input and a ",
        "weight with ", c.axes, " spatial axes after two others and not ", to_text(x.capacity()),
        " and ", to_text(weight.shape()));
  check(c.groups >= 1, c.what, ": ", c.groups, " groups");
}

// The windows of x, already padded: [N, C, out..., kernel...].
Tensor windows(const Conv& c, const Tensor& x, Ints kernel) {
  std::vector<WindowArg> args;
  for (int i = 0; i < c.axes; ++i) {
    args.push_back({kernel[i], c.stride[i], c.dilation[i], c.padding[i]});
    check(kernel[i] > 0 && span_of(c.what, args.back()) <= x.capacity()[2 + i], c.what,
          ": a kernel of ", to_text(kernel), " with dilation ", to_text(c.dilation),
          " does not fit the padded input ", to_text(x.capacity()));
  }
  return Tensor(build::windows(x.node(), 2, args));
}

// x (N, C, ...), padded, with weight (out, phases..., C / groups, kernel...), both in the dtype
// that is computed in: (N, out, places * phases...), or (N, out, phases..., places...) if `apart`.
Tensor correlate(const Conv& c, const Tensor& x, const Tensor& weight) {
  const int d = c.axes, phased = static_cast<int>(c.phases.size());
  const int64_t n = x.capacity()[0], out = weight.shape()[0], in = weight.shape()[1 + phased];
  const int64_t g = c.groups;
  const Shape kernel = to_shape(weight.shape().subspan(2 + phased));
  const Tensor view = windows(c, x, kernel);
  // [n, g, 1, places..., in, kernel...] * [1, g, out / g, 1..., in, kernel...], where each place
  // may be followed by a 1 and each 1 by phases, or 1s and phases come before.
  Shape split{n, g, 1, in}, order{0, 1, 2}, lifted{1, g, out / g}, result{n, out}, summed;
  if (c.apart) {
    split.insert(split.end(), phased, 1);
    lifted.insert(lifted.end(), c.phases.begin(), c.phases.end());
    result.insert(result.end(), c.phases.begin(), c.phases.end());
  }
  for (int i = 0; i < d; ++i) {
    const bool follows = phased && !c.apart;
    const int64_t places = view.capacity()[2 + i], phases = follows ? c.phases[i] : 1;
    split.push_back(places);
    lifted.push_back(1);
    if (follows) split.push_back(1);
    if (follows) lifted.push_back(phases);
    result.push_back(places * phases);
  }
  const int first = static_cast<int>(split.size());  // of the kernel's axes
  for (int i = 4; i < first; ++i) order.push_back(i);
  order.push_back(3);
  lifted.push_back(in);
  for (int i = 0; i < d; ++i) {
    split.push_back(kernel[i]);
    order.push_back(first + i);
    lifted.push_back(kernel[i]);
  }
  for (int i = 0; i <= d; ++i) summed.push_back(first - 1 + i);
  const Tensor products = view.reshape(split).permute(order) * weight.reshape(lifted);
  return products.sum(summed).reshape(result);
}

Tensor finish(const Conv& c, const Tensor& y, const Tensor& bias, DType t) {
  if (!bias.defined()) return y.to(t);
  check(bias.rank() == 1 && bias.shape()[0] == y.capacity()[1], c.what, ": a bias of shape ",
        to_text(bias.shape()), " for ", y.capacity()[1], " channels");
  Shape lifted(c.axes + 1, 1);
  lifted[0] = -1;
  return (y + bias.to(y.dtype()).reshape(lifted)).to(t);
}

Tensor conv(const char* what, int axes, const Tensor& given, const Tensor& given_weight,
            const Tensor& bias, const ConvOptions& o) {
  LabelScope label(what);
  const Tensor x = detail::autocast(given), weight = detail::autocast(given_weight);
  const Conv c{what,
               axes,
               o.stride.of(what, "stride", axes, 1),
               o.padding.of(what, "padding", axes, 0),
               o.dilation.of(what, "dilation", axes, 1),
               o.groups,
               {}};
  check_operands(c, x, weight);
  check(x.capacity()[1] == checked_mul(what, weight.shape()[1], c.groups) &&
            weight.shape()[0] % c.groups == 0,
        what, ": an input of ", to_text(x.capacity()), " with a weight of ",
        to_text(weight.shape()), " in ", c.groups, " groups: the weight is (out, ", x.capacity()[1],
        " / groups, kernel) with ", "out a multiple of groups");
  std::vector<Padding> pads(2);
  for (int64_t p : c.padding) pads.push_back({p, p});
  const DType t = promote(x.dtype(), weight.dtype()), wide = detail::compute_dtype(t);
  return finish(c, correlate(c, x.pad(pads).to(wide), weight.to(wide)), bias, t);
}

// --- Transposed ----------------------------------------------------------------------------------

// Puts step - 1 zeros after each element of an axis.
Tensor spread(const Tensor& x, int axis, int64_t step) {
  if (step == 1) return x;
  std::vector<Padding> pads(x.rank() + 1);
  pads[axis + 1].after = step - 1;
  return x.unsqueeze(axis + 1).pad(pads).flatten(axis, axis + 1);
}

// One axis of a transposed convolution. Place i of the input adds to place i * stride + k *
// dilation of the result, before padding is cut off, for each k of the kernel. With k = j * stride
// + phase that is (i + j * dilation) * stride + phase * dilation: each phase is a convolution of
// the input with every so manieth element of the kernel, in which no zeros between the elements of
// the input are multiplied. A window gives one result of each phase. They follow one another where
// the dilation is 1, as a block of the result; else a phase's results lie stride apart.
struct Axis {
  int64_t size = 0;   // of the input
  int64_t front = 0;  // zeros put before the kernel
  int64_t taps = 0, dilation = 1;
  int64_t phases = 1, block = 1;  // results of a window, elements from one window's to the next's
  int64_t factor = 1;             // factor - 1 zeros follow each result
  int64_t first = 0, places = 0;  // windows that are computed
  int64_t begin = 0, length = 0;  // the result among theirs

  // Elements from the first result to the last.
  int64_t results() const { return places * block + (phases - 1) * (dilation - 1); }
  // Zeros before and after the input.
  Padding around() const { return {(taps - 1) * dilation - first, first + places - size}; }
  // What to put before and after the results, or to cut off.
  Padding cut() const { return {-begin, begin + length - results() * factor}; }
};

struct Geometry {
  int64_t size, kernel, stride, dilation, padding, extra;
};

Axis axis_of(const char* what, const Geometry& g) {
  const int64_t taken = span_of(what, {.size = g.kernel, .dilation = g.dilation});
  const int64_t whole = checked_add(what, checked_mul(what, g.size - 1, g.stride), taken);
  Axis a{.size = g.size, .taps = g.kernel, .factor = std::gcd(g.stride, g.dilation)};
  a.dilation = g.dilation / a.factor;
  a.block = g.stride / a.factor;
  a.phases = std::min(a.block, g.kernel);
  a.taps = ceil_div(g.kernel, a.block);
  // The result begins with a block where that takes no more taps.
  const int64_t missing = floor_mod(-g.padding, g.stride);
  if (a.dilation == 1 && missing % a.factor == 0 &&
      g.kernel + missing / a.factor <= a.taps * a.phases)
    a.front = missing / a.factor;
  const int64_t step = a.block * a.factor, all = a.size + (a.taps - 1) * a.dilation;
  const int64_t from = g.padding + a.front * a.factor;
  // How many windows after its own a window's last result lies.
  const int64_t late = (a.phases - 1) * a.dilation / a.block;
  a.length = whole - 2 * g.padding + g.extra;
  a.first = std::clamp(from / step - late, int64_t{0}, all - 1);
  a.places = std::clamp(ceil_div(from + a.length, step), a.first + 1, all) - a.first;
  a.begin = from - a.first * step;
  return a;
}

// Phases (an axis) in front of places, the next axis, as they follow one another in the result,
// with zeros behind those of a window.
Tensor fill_blocks(const Tensor& y, int axis, const Axis& a) {
  std::vector<Padding> pads(y.rank());
  pads[axis + 1].after = a.block - a.phases;
  return y.transpose(axis, axis + 1).pad(pads).flatten(axis, axis + 1);
}

// The same where each phase begins by the dilation later than the one before: each element of the
// result is in one of them at most.
Tensor shift_phases(const Tensor& y, int axis, const Axis& a) {
  Tensor sum;
  for (int64_t phase = 0; phase < a.phases; ++phase) {
    std::vector<Padding> pads(y.rank() - 1);
    pads[axis].before = phase * a.dilation;
    pads[axis].after = a.results() - a.places * a.block - pads[axis].before;
    const Tensor one = spread(y.narrow(axis, phase, 1).squeeze(axis), axis, a.block).pad(pads);
    sum = phase ? sum + one : one;
  }
  return sum;
}

bool lie_apart(const Axis& a) { return a.phases > 1 && a.dilation > 1; }

// The results of windows, (N, out, phases..., places...), at their places.
Tensor place_phases(Tensor y, const std::vector<Axis>& axes) {
  const int d = static_cast<int>(axes.size());
  for (const Axis& a : axes) {
    // Its phases are the third axis, its places the one after the places of those before.
    Shape order;
    for (int i = 0; i < y.rank(); ++i)
      if (i != 2) order.push_back(i);
    order.insert(order.begin() + 1 + d, 2);
    y = y.permute(order);
    y = lie_apart(a) ? shift_phases(y, 1 + d, a) : fill_blocks(y, 1 + d, a);
  }
  return y;
}

// Blocks of phases with the zeros that follow them: (N, out, places * phases...).
Tensor fill_blocks(Tensor y, const std::vector<Axis>& axes) {
  for (int i = 0; i < static_cast<int>(axes.size()); ++i) {
    const Axis& a = axes[i];
    if (a.phases == a.block) continue;
    std::vector<Padding> pads(y.rank() + 1);
    pads[3 + i].after = a.block - a.phases;
    y = y.unflatten(2 + i, {a.places, a.phases}).pad(pads).flatten(2 + i, 3 + i);
  }
  return y;
}

// (in, out / g, kernel...) as the weight of the convolution that undoes it: (out, phases..., in /
// g, taps...) with the taps reversed.
Tensor transposed_weight(const Tensor& weight, const std::vector<Axis>& axes, int64_t groups) {
  const int64_t in = weight.shape()[0] / groups, out = weight.shape()[1];
  const int d = static_cast<int>(axes.size());
  std::vector<Padding> pads(2);
  Shape split{groups, in, out}, order{0, 2}, taps{1}, reversed, shape{groups * out};
  for (int i = 0; i < d; ++i) {
    const Axis& a = axes[i];
    pads.push_back({a.front, a.taps * a.phases - a.front - weight.shape()[2 + i]});
    split.insert(split.end(), {a.taps, a.phases});
    reversed.push_back(3 + 2 * i);
    order.push_back(4 + 2 * i);
    taps.push_back(3 + 2 * i);
    shape.push_back(a.phases);
  }
  shape.push_back(in);
  for (const Axis& a : axes) shape.push_back(a.taps);
  order.insert(order.end(), taps.begin(), taps.end());
  return weight.pad(pads).reshape(split).flip(reversed).permute(order).reshape(shape);
}

Tensor conv_transpose(const char* what, int d, const Tensor& given, const Tensor& given_weight,
                      const Tensor& bias, const ConvTransposeOptions& o) {
  LabelScope label(what);
  const Tensor x = detail::autocast(given), weight = detail::autocast(given_weight);
  const Shape stride = o.stride.of(what, "stride", d, 1),
              padding = o.padding.of(what, "padding", d, 0),
              dilation = o.dilation.of(what, "dilation", d, 1),
              extra = o.output_padding.of(what, "output_padding", d, 0);
  Conv c{what, d, Shape(d, 1), Shape(d, 0), dilation, o.groups, {}};
  check_operands(c, x, weight);
  check(x.capacity()[1] == weight.shape()[0] && weight.shape()[0] % c.groups == 0, what,
        ": an input of ", to_text(x.capacity()), " with a weight of ", to_text(weight.shape()),
        " in ", c.groups, " groups: the weight is (", x.capacity()[1], ", out / groups, kernel)");
  const DType t = promote(x.dtype(), weight.dtype()), wide = detail::compute_dtype(t);
  Tensor y = x.to(wide);
  std::vector<Axis> axes;
  std::vector<Padding> around(2), cut(2);
  for (int i = 0; i < d; ++i) {
    check(extra[i] < std::max(stride[i], dilation[i]), what, ": output_padding ", to_text(extra),
          " must be below the stride ", to_text(stride), " or the dilation ", to_text(dilation));
    axes.push_back(axis_of(what, {x.capacity()[2 + i], weight.shape()[2 + i], stride[i],
                                  dilation[i], padding[i], extra[i]}));
    const Axis& a = axes.back();
    check(x.capacity()[2 + i] > 0 && a.length > 0, what, ": nothing is left of the input ",
          to_text(x.capacity()), " with padding ", to_text(padding));
    around.push_back(a.around());
    cut.push_back(a.cut());
    c.dilation[i] = a.dilation;
    c.phases.push_back(a.phases);
    c.apart |= lie_apart(a);
  }
  y = correlate(c, y.pad(around), transposed_weight(weight.to(wide), axes, c.groups));
  y = c.apart ? place_phases(y, axes) : fill_blocks(y, axes);
  for (int i = 0; i < d; ++i) y = spread(y, 2 + i, axes[i].factor);
  return finish(c, y.pad(cut), bias, t);
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
