// Convolutions and pools.
#include "tiny/onnx/ops/windows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tiny/ir/facts.h"
#include "tiny/nn/functional.h"
#include "tiny/onnx/ops/table.h"

namespace tiny::onnx {

// --- Windows -------------------------------------------------------------------------------------

bool Windows::is_symmetric() const {
  return std::ranges::all_of(pads,
                             [](const Padding& p) { return p.before == p.after && p.before >= 0; });
}

namespace {

Shape spatial_attribute(Call& c, const char* name, const Shape& otherwise) {
  Shape out = c.integers(name, otherwise);
  c.require(out.size() == otherwise.size(), name, " has ", out.size(), " values for ",
            otherwise.size(), " axes");
  return out;
}

// Padding such that there are as many windows as strides: of an odd amount more at the end (upper)
// or at the begin.
Padding same_padding(int64_t size, int64_t stride, int64_t extent, bool is_upper) {
  const int64_t windows = (size + stride - 1) / stride;
  const int64_t total = std::max<int64_t>(0, (windows - 1) * stride + extent - size);
  const int64_t less = total / 2;
  return is_upper ? Padding{less, total - less} : Padding{total - less, less};
}

std::vector<Padding> pads_of(Call& c, const Tensor& x, const Windows& w) {
  const size_t axes = w.kernel.size();
  const std::string automatic = c.text("auto_pad", "NOTSET");
  std::vector<Padding> out(axes);
  if (automatic == "VALID") return out;
  const Shape pads = c.integers("pads", Shape(2 * axes, 0));
  c.require(pads.size() == 2 * axes, "pads has ", pads.size(), " values for ", axes, " axes");
  for (size_t i = 0; i < axes; ++i) {
    const int64_t extent = (w.kernel[i] - 1) * w.dilations[i] + 1;
    const int64_t size = x.shape()[i + 2];
    if (automatic == "NOTSET")
      out[i] = {pads[i], pads[i + axes]};
    else
      out[i] = same_padding(size, w.strides[i], extent, automatic == "SAME_UPPER");
  }
  return out;
}

void require_auto_pad(Call& c) {
  const std::string automatic = c.text("auto_pad", "NOTSET");
  c.require(automatic == "NOTSET" || automatic == "VALID" || automatic == "SAME_UPPER" ||
                automatic == "SAME_LOWER",
            "auto_pad is \"", automatic, "\"");
}

}  // namespace

Windows windows_of(Call& c, const Tensor& x, const Shape& kernel) {
  c.require(x.rank() >= 3, "the input has the shape ", to_text(x.shape()),
            ", expected (N, C, spatial...)");
  require_auto_pad(c);
  const auto axes = static_cast<size_t>(x.rank() - 2);
  Windows w;
  w.kernel = c.integers("kernel_shape", kernel);
  c.require(w.kernel.size() == axes, "the kernel has ", w.kernel.size(), " axes, the input ", axes);
  w.strides = spatial_attribute(c, "strides", Shape(axes, 1));
  w.dilations = spatial_attribute(c, "dilations", Shape(axes, 1));
  for (size_t i = 0; i < axes; ++i)
    c.require(w.strides[i] > 0 && w.dilations[i] > 0 && w.kernel[i] > 0, "kernel ",
              to_text(w.kernel), ", strides ", to_text(w.strides), ", dilations ",
              to_text(w.dilations));
  w.pads = pads_of(c, x, w);
  const bool rounds_up = c.integer("ceil_mode", 0) != 0;
  for (size_t i = 0; i < axes; ++i) {
    const int64_t extent = (w.kernel[i] - 1) * w.dilations[i] + 1, size = x.shape()[i + 2];
    const int64_t room = size + w.pads[i].before + w.pads[i].after - extent;
    c.require(room >= 0, "a kernel that extends over ", extent, " of ", room + extent, " elements");
    int64_t count = (room + (rounds_up ? w.strides[i] - 1 : 0)) / w.strides[i] + 1;
    // A window has to begin in the input or in the padding before it.
    if (rounds_up && (count - 1) * w.strides[i] >= size + w.pads[i].before) --count;
    w.results.push_back(count);
    w.needed.push_back(
        {w.pads[i].before, (count - 1) * w.strides[i] + extent - size - w.pads[i].before});
  }
  return w;
}

std::vector<Padding> with_leading_axes(const std::vector<Padding>& spatial) {
  std::vector<Padding> out(2);
  out.insert(out.end(), spatial.begin(), spatial.end());
  return out;
}

namespace {

Tensor convolve(const Tensor& x, const Tensor& weight, const Tensor& bias,
                const ConvOptions& options) {
  switch (x.rank() - 2) {
    case 1: return conv1d(x, weight, bias, options);
    case 2: return conv2d(x, weight, bias, options);
    default: return conv3d(x, weight, bias, options);
  }
}

Shape before_pads(const std::vector<Padding>& pads) {
  Shape out;
  for (const Padding& p : pads) out.push_back(p.before);
  return out;
}

}  // namespace

Tensor convolved(const Tensor& x, const Tensor& weight, const Tensor& bias, const Windows& w,
                 int64_t groups) {
  ConvOptions options{.stride = w.strides, .dilation = w.dilations, .groups = groups};
  if (!w.is_symmetric()) return convolve(x.pad(with_leading_axes(w.pads)), weight, bias, options);
  options.padding = before_pads(w.pads);
  return convolve(x, weight, bias, options);
}

// --- Convolutions --------------------------------------------------------------------------------

namespace {

// The sizes of a weight's kernel.
Shape kernel_of(const Tensor& weight) {
  const Shape shape = sizes(weight);
  return {shape.begin() + std::min<int64_t>(2, std::ssize(shape)), shape.end()};
}

void require_spatial(Call& c, const Tensor& x) {
  c.require(x.rank() >= 3 && x.rank() <= 5, "the input has the shape ", to_text(x.shape()),
            ", expected (N, C, spatial...) of one to three spatial axes");
}

Tensors conv(Call& c) {
  require_spatial(c, c[0]);
  const Windows w = windows_of(c, c[0], kernel_of(c[1]));
  return {convolved(c[0], c[1], c.optional(2), w, c.integer("group", 1))};
}

Tensor transposed(const Tensor& x, const Tensor& weight, const Tensor& bias,
                  const ConvTransposeOptions& options) {
  switch (x.rank() - 2) {
    case 1: return conv_transpose1d(x, weight, bias, options);
    case 2: return conv_transpose2d(x, weight, bias, options);
    default: return conv_transpose3d(x, weight, bias, options);
  }
}

// The whole result of size (n - 1) stride + extent is cropped, or filled with zeros at its end.
Tensors conv_transpose(Call& c) {
  const Tensor &x = c[0], &weight = c[1];
  require_spatial(c, x);
  require_auto_pad(c);
  const auto axes = static_cast<size_t>(x.rank() - 2);
  const Shape kernel = kernel_of(weight), strides = spatial_attribute(c, "strides", Shape(axes, 1)),
              dilations = spatial_attribute(c, "dilations", Shape(axes, 1)),
              more = spatial_attribute(c, "output_padding", Shape(axes, 0)),
              pads = c.integers("pads", Shape(2 * axes, 0));
  Shape wanted = c.integers("output_shape");
  if (wanted.size() == axes + 2) wanted.erase(wanted.begin(), wanted.begin() + 2);
  const std::string automatic = c.text("auto_pad", "NOTSET");
  c.require(kernel.size() == axes && pads.size() == 2 * axes, "a kernel ", to_text(kernel), " and ",
            pads.size(), " pads for ", axes, " axes");
  std::vector<Padding> change(axes);
  for (size_t i = 0; i < axes; ++i) {
    const int64_t size = x.shape()[i + 2];
    const int64_t whole = (size - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1;
    Padding pad{pads[i], pads[i + axes]};
    const bool is_same = automatic == "SAME_UPPER" || automatic == "SAME_LOWER";
    if (!wanted.empty() || is_same) {
      const int64_t target = wanted.empty() ? size * strides[i] : wanted[i];
      const int64_t total = whole + more[i] - target, less = floor_div(total, 2);
      pad = automatic == "SAME_UPPER" ? Padding{less, total - less} : Padding{total - less, less};
    } else if (automatic == "VALID") {
      pad = {};
    }
    change[i] = {-pad.before, more[i] - pad.after};
  }
  const Tensor whole =
      transposed(x, weight, Tensor(),
                 {.stride = strides, .dilation = dilations, .groups = c.integer("group", 1)});
  const Tensor out = whole.pad(with_leading_axes(change));
  return {c.has(2) ? out + along_axis(c[2], 1, x.rank()) : out};
}

// Positions (N, groups of offsets, taps, places) along a spatial axis: those of a plain convolution
// and the offsets (N, groups of offsets, taps, 2, places...).
Tensor deformed_positions(const Tensor& offset, const Windows& w, size_t axis) {
  const int64_t rows = w.kernel[0], columns = w.kernel[1], height = w.results[0],
                width = w.results[1];
  const auto line = [](int64_t count, int64_t step, Shape shape) {
    return (Tensor::arange(count) * step).reshape(shape);
  };
  const Tensor taps = axis == 0 ? line(rows, w.dilations[0], {1, 1, rows, 1, 1, 1})
                                : line(columns, w.dilations[1], {1, 1, 1, columns, 1, 1});
  const Tensor places = axis == 0 ? line(height, w.strides[0], {1, 1, 1, 1, height, 1})
                                  : line(width, w.strides[1], {1, 1, 1, 1, 1, width});
  const Tensor moved = offset.select(3, static_cast<int64_t>(axis))
                           .reshape({offset.size(0), offset.size(1), rows, columns, height, width});
  return (moved + (taps + places - w.pads[axis].before).to(offset.dtype()))
      .reshape({offset.size(0), offset.size(1), rows * columns * height * width});
}

// The elements of x (N, groups, channels, height * width) at fractional positions, from the four
// around each; those outside are zero.
Tensor between_elements(const Tensor& x, const Tensor& y_at, const Tensor& x_at, Ints spatial) {
  const Tensor top = y_at.floor(), left = x_at.floor();
  const Tensor down = y_at - top, right = x_at - left;
  Tensor out;
  for (int corner = 0; corner < 4; ++corner) {
    const Tensor row = corner < 2 ? top : top + 1, column = corner % 2 == 0 ? left : left + 1;
    const Tensor weight = (corner < 2 ? 1 - down : down) * (corner % 2 == 0 ? 1 - right : right);
    const auto inside = [](const Tensor& at, int64_t size) {
      return logical_and(at >= 0, at <= static_cast<double>(size - 1));
    };
    const Tensor is_inside = logical_and(inside(row, spatial[0]), inside(column, spatial[1]));
    const Tensor flat =
        where(is_inside, row * static_cast<double>(spatial[1]) + column, 0).to(kI64);
    const Tensor index = flat.unsqueeze(2).expand({x.size(0), x.size(1), x.size(2), flat.size(2)});
    const Tensor term = x.gather(3, index) * where(is_inside, weight, 0).unsqueeze(2);
    out = out.defined() ? out + term : term;
  }
  return out;  // (N, groups, channels, positions)
}

// J. Dai et al., "Deformable convolutional networks", arXiv 1703.06211, with masks of X. Zhu et
// al., arXiv 1811.11168. Of two spatial axes.
Tensors deform_conv(Call& c) {
  const Tensor &x = c[0], &weight = c[1];
  const Shape shape = sizes(x);
  const Windows w = windows_of(c, x, kernel_of(weight));
  const int64_t groups = c.integer("group", 1), offsets = c.integer("offset_group", 1);
  c.require(shape.size() == 4 && shape[1] % offsets == 0 && shape[1] % groups == 0, offsets,
            " groups of offsets and ", groups, " of channels in ", to_text(shape));
  const int64_t taps = numel(w.kernel), places = numel(w.results), n = shape[0];
  const Tensor offset = c[2].reshape({n, offsets, taps, 2, w.results[0], w.results[1]});
  Tensor columns = between_elements(x.reshape({n, offsets, shape[1] / offsets, -1}),
                                    deformed_positions(offset, w, 0),
                                    deformed_positions(offset, w, 1), Ints(shape).subspan(2));
  if (c.has(4)) columns = columns * c[4].reshape({n, offsets, 1, taps * places});
  const int64_t in = shape[1] / groups * taps, out = weight.size(0) / groups;
  const Tensor sums = weight.reshape({groups, out, in})
                          .matmul(columns.reshape({n, groups, in, places}))
                          .reshape({n, groups * out, w.results[0], w.results[1]});
  return {c.has(3) ? sums + along_axis(c[3], 1, 4) : sums};
}

// --- Pools ---------------------------------------------------------------------------------------

// x (N, C, spatial...) as windows (N, C, results..., kernel...).
Tensor unfolded(const Tensor& x, const Windows& w) {
  Tensor out = x;
  for (size_t i = 0; i < w.kernel.size(); ++i)
    out = out.unfold(static_cast<int64_t>(i) + 2, w.kernel[i], w.strides[i], w.dilations[i]);
  return out;
}

Shape last_axes(size_t count) {
  Shape out(count);
  std::iota(out.begin(), out.end(), -static_cast<int64_t>(count));
  return out;
}

Number lowest_of(DType dtype) {
  if (dtype.is_float()) return -std::numeric_limits<double>::infinity();
  return int_min(dtype);
}

// Whether the pools of functional.h have these windows.
bool is_plain_pool(const Windows& w) {
  bool out = w.is_symmetric();
  for (size_t i = 0; i < w.kernel.size(); ++i) out = out && 2 * w.pads[i].before <= w.kernel[i];
  return out;
}

Tensor max_pooled(Call& c, const Tensor& x, const Windows& w) {
  PoolOptions options{.stride = w.strides, .dilation = w.dilations};
  Tensor from = x;
  if (is_plain_pool(w)) {
    options.padding = before_pads(w.pads);
    options.ceil_mode = c.integer("ceil_mode", 0) != 0;
  } else {
    from = x.pad(with_leading_axes(w.needed), PadMode::Constant, lowest_of(x.dtype()));
  }
  switch (x.rank() - 2) {
    case 1: return max_pool1d(from, w.kernel, options);
    case 2: return max_pool2d(from, w.kernel, options);
    default: return max_pool3d(from, w.kernel, options);
  }
}

// Positions in the whole input, from those in the padded spatial axes of each channel.
Tensor input_positions(Call& c, const Tensor& x, const Windows& w, const Tensor& padded) {
  const size_t axes = w.kernel.size();
  const Shape shape = sizes(x);
  const Ints spatial = Ints(shape).subspan(2);
  Shape whole(axes), steps(axes, 1);
  for (size_t i = 0; i < axes; ++i) whole[i] = spatial[i] + w.needed[i].before + w.needed[i].after;
  const bool is_column_major = c.integer("storage_order", 0) != 0;
  for (size_t i = 1; i < axes; ++i) {
    if (is_column_major)
      steps[i] = steps[i - 1] * spatial[i - 1];
    else
      steps[axes - 1 - i] = steps[axes - i] * spatial[axes - i];
  }
  Tensor rest = padded, out;
  for (size_t i = axes; i-- > 0;) {
    const Tensor at = (mod(rest, whole[i]) - w.needed[i].before) * steps[i];
    rest = floor_div(rest, whole[i]);
    out = out.defined() ? out + at : at;
  }
  const Tensor channel = Tensor::arange(shape[0] * shape[1]) * numel(spatial);
  Shape by_channel(axes + 2, 1);
  by_channel[0] = shape[0];
  by_channel[1] = shape[1];
  return out + channel.reshape(by_channel);
}

Tensors max_pool(Call& c) {
  const Tensor& x = c[0];
  require_spatial(c, x);
  const Windows w = windows_of(c, x);
  if (!c.wants(1)) return {max_pooled(c, x, w)};
  const Tensor padded = x.pad(with_leading_axes(w.needed), PadMode::Constant, lowest_of(x.dtype()));
  const auto best = max_pool_with_indices(padded, x.rank() - 2, w.kernel,
                                          {.stride = w.strides, .dilation = w.dilations});
  return {best.values, input_positions(c, x, w, best.indices)};
}

Tensor average_pooled(const Tensor& x, const Shape& kernel, const PoolOptions& options) {
  switch (x.rank() - 2) {
    case 1: return avg_pool1d(x, kernel, options);
    case 2: return avg_pool2d(x, kernel, options);
    default: return avg_pool3d(x, kernel, options);
  }
}

Tensors average_pool(Call& c) {
  const Tensor& x = c[0];
  require_spatial(c, x);
  const Windows w = windows_of(c, x);
  const auto axes = w.kernel.size();
  const bool counts_pads = c.integer("count_include_pad", 0) != 0;
  const bool has_gaps =
      std::ranges::any_of(w.dilations, [](int64_t dilation) { return dilation != 1; });
  if (is_plain_pool(w) && !has_gaps)
    return {average_pooled(x, w.kernel,
                           {.stride = w.strides,
                            .padding = before_pads(w.pads),
                            .ceil_mode = c.integer("ceil_mode", 0) != 0,
                            .count_include_pad = counts_pads})};
  const Shape last = last_axes(axes);
  const DType wide = x.dtype() == kF64 ? kF64 : kF32;
  const Tensor sums = unfolded(x.to(wide).pad(with_leading_axes(w.needed)), w).sum(last);
  // How many elements of each window count.
  std::vector<Padding> ones(axes), beyond = w.needed;
  Shape counted(2, 1);
  for (size_t i = 0; i < axes; ++i) {
    counted.push_back(x.shape()[i + 2]);
    if (!counts_pads) continue;
    counted.back() += w.pads[i].before + w.pads[i].after;
    beyond[i] = {0, w.needed[i].after - w.pads[i].after};
  }
  const Tensor mask = Tensor::ones(counted, wide).pad(with_leading_axes(beyond));
  const bool is_whole =
      std::ranges::all_of(beyond, [](const Padding& p) { return p.before == 0 && p.after <= 0; });
  if (is_whole) return {(sums / static_cast<double>(numel(w.kernel))).to(x.dtype())};
  return {(sums / unfolded(mask, w).sum(last)).to(x.dtype())};
}

// (sum |x|^p)^(1/p).
Tensor power_mean(const Tensor& x, const Shape& dims, double p, bool keepdim) {
  if (p == 1) return x.abs().sum(dims, keepdim);
  if (p == 2) return x.square().sum(dims, keepdim).sqrt();
  return pow(pow(x.abs(), p).sum(dims, keepdim), 1 / p);
}

Tensors lp_pool(Call& c) {
  const Tensor& x = c[0];
  const Windows w = windows_of(c, x);
  const Tensor windows = unfolded(x.pad(with_leading_axes(w.needed)), w);
  return {power_mean(windows, last_axes(w.kernel.size()), static_cast<double>(c.integer("p", 2)),
                     false)};
}

Shape spatial_axes(const Tensor& x) { return last_axes(static_cast<size_t>(x.rank() - 2)); }

Tensors global_average_pool(Call& c) { return {c[0].mean(spatial_axes(c[0]), true)}; }
Tensors global_max_pool(Call& c) { return {c[0].max(spatial_axes(c[0]), true)}; }
Tensors global_lp_pool(Call& c) {
  return {power_mean(c[0], spatial_axes(c[0]), static_cast<double>(c.integer("p", 2)), true)};
}

// Values at the positions that MaxPool gave, in a larger tensor that is zero elsewhere.
Tensors max_unpool(Call& c) {
  const Tensor& x = c[0];
  const Shape from = sizes(x);
  const Windows w = [&] {
    Windows out;
    out.kernel = c.integers("kernel_shape");
    out.strides = spatial_attribute(c, "strides", Shape(out.kernel.size(), 1));
    return out;
  }();
  const size_t axes = w.kernel.size();
  c.require(from.size() == axes + 2, "a kernel ", to_text(w.kernel), " of ", to_text(from));
  const Shape pads = c.integers("pads", Shape(2 * axes, 0));
  Shape natural = from;
  for (size_t i = 0; i < axes; ++i)
    natural[i + 2] = (from[i + 2] - 1) * w.strides[i] + w.kernel[i] - pads[i] - pads[i + axes];
  const Shape shape = c.has(2) ? c.host_integers(2) : natural;
  c.require(shape.size() == from.size(), "the output shape is ", to_text(shape));
  // Positions count in the natural shape; in a larger one elements keep their places.
  const Tensor flat = Tensor::zeros({numel(natural)}, x.dtype());
  const Tensor placed = flat.scatter(0, c[1].reshape({x.numel()}), x.reshape({x.numel()}));
  std::vector<Padding> more(from.size());
  for (size_t i = 0; i < from.size(); ++i) more[i] = {0, shape[i] - natural[i]};
  return {placed.reshape(natural).pad(more)};
}

// Columns of blocks added up at their places: the gradient of unfolding.
Tensors col2im(Call& c) {
  const Tensor& x = c[0];  // (N, C * kernel..., blocks)
  const Shape image = c.host_integers(1), kernel = c.host_integers(2);
  const size_t axes = image.size();
  const Shape strides = spatial_attribute(c, "strides", Shape(axes, 1)),
              dilations = spatial_attribute(c, "dilations", Shape(axes, 1)),
              pads = c.integers("pads", Shape(2 * axes, 0));
  c.require(kernel.size() == axes && pads.size() == 2 * axes && x.rank() == 3, "an image ",
            to_text(image), ", blocks ", to_text(kernel), " of ", to_text(x.shape()));
  const int64_t batch = x.size(0), area = numel(kernel), channels = x.size(1) / area;
  // For each element of each block where in the padded image it goes.
  Tensor place = Tensor::full({}, 0);
  Shape whole(axes), blocks(axes);
  for (size_t i = 0; i < axes; ++i) {
    whole[i] = image[i] + pads[i] + pads[i + axes];
    blocks[i] = (whole[i] - (kernel[i] - 1) * dilations[i] - 1) / strides[i] + 1;
  }
  c.require(numel(blocks) == x.size(2) && channels * area == x.size(1), numel(blocks),
            " blocks of ", area, " elements in ", to_text(x.shape()));
  for (size_t i = 0; i < axes; ++i) {
    const int rank = static_cast<int>(2 * axes);
    const auto in_kernel = static_cast<int64_t>(i), in_blocks = static_cast<int64_t>(i + axes);
    const Tensor at =
        Tensor::arange(kernel[i]).reshape(ones_but(rank, in_kernel, kernel[i])) * dilations[i] +
        Tensor::arange(blocks[i]).reshape(ones_but(rank, in_blocks, blocks[i])) * strides[i];
    place = place * whole[i] + at;
  }
  const int64_t rows = batch * channels, each = area * numel(blocks);
  const Tensor index = place.reshape({1, each}).expand({rows, each});
  const Tensor sums =
      Tensor::zeros({rows, numel(whole)}, x.dtype()).scatter_add(1, index, x.reshape({rows, each}));
  Shape shape = {batch, channels};
  shape.insert(shape.end(), whole.begin(), whole.end());
  std::vector<Padding> crop;
  for (size_t i = 0; i < axes; ++i) crop.push_back({-pads[i], -pads[i + axes]});
  return {sums.reshape(shape).pad(with_leading_axes(crop))};
}

constexpr Operator kWindows[] = {
    {"AveragePool", 1, kFloats, average_pool},
    {"Col2Im", 18, kAll, col2im},
    {"Conv", 1, kFloats, conv},
    {"ConvTranspose", 1, kFloats, conv_transpose},
    {"DeformConv", 19, kFloats, deform_conv},
    {"GlobalAveragePool", 1, kFloats, global_average_pool},
    {"GlobalLpPool", 2, kFloats, global_lp_pool},
    {"GlobalMaxPool", 1, kFloats, global_max_pool},
    {"LpPool", 2, kFloats, lp_pool},
    {"MaxPool", 1, kFloats | kBytes, max_pool},
    {"MaxUnpool", 9, kFloats, max_unpool},
};

}  // namespace

std::span<const Operator> window_operators() { return kWindows; }

}  // namespace tiny::onnx
