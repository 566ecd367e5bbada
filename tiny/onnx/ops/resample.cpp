// Resampling: pictures at other sizes, at points of a grid, in boxes.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "tiny/onnx/ops/table.h"

namespace tiny::onnx {

namespace {

// --- Resize --------------------------------------------------------------------------------------

// How one axis becomes `size` elements.
struct AxisChange {
  int64_t axis, from, size;
  double scale;               // size / from, but for rounding
  double roi_begin, roi_end;  // tf_crop_and_resize
};

struct ResizeMode {
  std::string kind, coordinates, nearest;
  double cubic, extrapolation;
  bool excludes_outside, antialias;
};

// Where in the input the element i of the result lies. In f32, as others compute it: which one is
// nearest depends on the last bit where two are as near.
double source_coordinate(const ResizeMode& mode, const AxisChange& a, int64_t i) {
  const auto x = static_cast<float>(i), size = static_cast<float>(a.size),
             from = static_cast<float>(a.from), scale = static_cast<float>(a.scale);
  if (mode.coordinates == "asymmetric") return x / scale;
  // The corner of a size that is no whole number, as the standard's examples have it.
  if (mode.coordinates == "align_corners")
    return a.size == 1 ? 0 : x * (from - 1) / (from * scale - 1);
  if (mode.coordinates == "pytorch_half_pixel") return a.size > 1 ? (x + 0.5f) / scale - 0.5f : 0;
  if (mode.coordinates == "tf_half_pixel_for_nn") return (x + 0.5f) / scale;
  if (mode.coordinates == "tf_crop_and_resize") {
    const auto begin = static_cast<float>(a.roi_begin), end = static_cast<float>(a.roi_end);
    return a.size > 1 ? begin * (from - 1) + x * (end - begin) * (from - 1) / (size - 1)
                      : 0.5f * (begin + end) * (from - 1);
  }
  if (mode.coordinates == "half_pixel_symmetric") {
    const float adjustment = size / (scale * from), center = from / 2;
    return center * (1 - adjustment) + (x + 0.5f) / scale - 0.5f;
  }
  return (x + 0.5f) / scale - 0.5f;
}

int64_t nearest_index(const std::string& how, double x) {
  // The very middle: a difference in the last bits decides nothing.
  if (how == "round_prefer_floor") return static_cast<int64_t>(std::ceil(x - 0.5));
  if (how == "round_prefer_ceil") return static_cast<int64_t>(std::floor(x + 0.5));
  return static_cast<int64_t>(how == "ceil" ? std::ceil(x) : std::floor(x));
}

// R. Keys, "Cubic convolution interpolation for digital image processing" (1981).
double cubic_weight(double distance, double a) {
  const double d = std::abs(distance);
  if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
  if (d < 2) return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
  return 0;
}

// The elements of the input that make one of the result, and their weights.
struct Taps {
  std::vector<int64_t> indices;
  std::vector<double> weights;
};

Taps taps_at(const ResizeMode& mode, const AxisChange& a, double x) {
  if (mode.kind == "nearest") {
    // Version 10 takes the next element where there are fewer than before.
    const std::string& how =
        mode.nearest == "simple" ? (a.scale < 1 ? "ceil" : "floor") : mode.nearest;
    return {{nearest_index(how, x)}, {1}};
  }
  const bool is_cubic = mode.kind == "cubic";
  // A smaller result is smoothed by a wider filter.
  const double stretch = mode.antialias && a.scale < 1 ? 1 / a.scale : 1;
  const double reach = (is_cubic ? 2 : 1) * stretch;
  const auto first = static_cast<int64_t>(std::floor(x - reach)) + 1;
  const auto count = static_cast<int64_t>(std::ceil(2 * reach)) + (stretch > 1 ? 1 : 0);
  Taps out;
  for (int64_t i = first; i < first + count; ++i) {
    const double distance = (x - static_cast<double>(i)) / stretch;
    const double weight =
        is_cubic ? cubic_weight(distance, mode.cubic) : std::max(0.0, 1 - std::abs(distance));
    const bool is_outside = i < 0 || i >= a.from;
    out.indices.push_back(i);
    out.weights.push_back(is_outside && mode.excludes_outside ? 0 : weight);
  }
  if (mode.excludes_outside || stretch > 1) {
    const double sum = std::accumulate(out.weights.begin(), out.weights.end(), 0.0);
    for (double& w : out.weights) w /= sum;
  }
  return out;
}

Tensor resized_axis(Call& c, const Tensor& x, const ResizeMode& mode, const AxisChange& a) {
  std::vector<Taps> all;
  std::vector<double> outside;
  for (int64_t i = 0; i < a.size; ++i) {
    const double at = source_coordinate(mode, a, i);
    all.push_back(taps_at(mode, a, at));
    outside.push_back(at < 0 || at > static_cast<double>(a.from - 1) ? 1 : 0);
  }
  const Shape shape = ones_but(x.rank(), a.axis, a.size);
  Tensor out;
  for (size_t tap = 0; tap < all[0].indices.size(); ++tap) {
    Shape indices;
    std::vector<double> weights;
    for (const Taps& taps : all) {
      indices.push_back(std::clamp<int64_t>(taps.indices[tap], 0, a.from - 1));
      weights.push_back(taps.weights[tap]);
    }
    Tensor term = x.index_select(a.axis, c.constant(indices));
    if (mode.kind != "nearest") term = term * c.constant(weights, shape, x.dtype());
    out = out.defined() ? out + term : term;
  }
  if (mode.coordinates != "tf_crop_and_resize") return out;
  return where(c.constant(outside, shape, kF32) > 0, mode.extrapolation, out);
}

ResizeMode resize_mode(Call& c) {
  const bool is_old = c.opset() < 11;
  ResizeMode mode{c.text("mode", "nearest"),
                  c.text("coordinate_transformation_mode", is_old ? "asymmetric" : "half_pixel"),
                  c.text("nearest_mode", is_old ? "simple" : "round_prefer_floor"),
                  c.real("cubic_coeff_a", -0.75),
                  c.real("extrapolation_value", 0),
                  c.integer("exclude_outside", 0) != 0,
                  c.integer("antialias", 0) != 0};
  if (mode.kind == "bilinear") mode.kind = "linear";
  c.require(mode.kind == "nearest" || mode.kind == "linear" || mode.kind == "cubic",
            "the mode is \"", mode.kind, "\", expected nearest, linear or cubic");
  return mode;
}

// The new size of each of the axes, from sizes (by a policy that keeps the picture's form) or
// scales.
std::vector<AxisChange> axis_changes(Call& c, const Shape& axes, const std::vector<double>& scales,
                                     const Shape& wanted) {
  const Tensor& x = c[0];
  std::vector<AxisChange> out;
  for (size_t i = 0; i < axes.size(); ++i) {
    const int64_t axis = axis_of(x, axes[i]), from = x.size(axis);
    const auto n = static_cast<double>(from);
    if (!wanted.empty())
      out.push_back({axis, from, wanted[i], static_cast<double>(wanted[i]) / n, 0, 1});
    else
      out.push_back({axis, from, static_cast<int64_t>(std::floor(n * scales[i])), scales[i], 0, 1});
    c.require(out.back().size > 0 && out.back().scale > 0, "axis ", axis, " gets ", out.back().size,
              " elements");
  }
  const std::string policy = c.text("keep_aspect_ratio_policy", "stretch");
  if (wanted.empty() || policy == "stretch" || out.empty()) return out;
  const auto by_scale = [](const AxisChange& a, const AxisChange& b) { return a.scale < b.scale; };
  const double scale = policy == "not_larger" ? std::ranges::min_element(out, by_scale)->scale
                                              : std::ranges::max_element(out, by_scale)->scale;
  for (AxisChange& a : out) {
    a.scale = scale;
    a.size = static_cast<int64_t>(std::floor(static_cast<double>(a.from) * scale + 0.5));
  }
  return out;
}

Tensors resize(Call& c) {
  const Tensor& x = c[0];
  const bool is_old = c.opset() < 11;  // without the region of interest
  Shape axes(static_cast<size_t>(x.rank()));
  std::iota(axes.begin(), axes.end(), 0);
  axes = c.integers("axes", axes);
  const size_t scales_at = is_old ? 1 : 2;
  Shape wanted;
  std::vector<double> scales = c.reals("scales");
  if (scales.empty() && c.has(scales_at) && c[scales_at].numel() > 0)
    scales = c.host_reals(scales_at);
  if (scales.empty() && c.has(3)) wanted = c.host_integers(3);
  c.require(std::max(scales.size(), wanted.size()) == axes.size(), scales.size(), " scales and ",
            wanted.size(), " sizes for ", axes.size(), " axes");
  const ResizeMode mode = resize_mode(c);
  auto changes = axis_changes(c, axes, scales, wanted);
  if (mode.coordinates == "tf_crop_and_resize") {
    const auto roi = c.host_reals(1);
    c.require(roi.size() == 2 * axes.size(), roi.size(), " bounds for ", axes.size(), " axes");
    for (size_t i = 0; i < axes.size(); ++i) {
      changes[i].roi_begin = roi[i];
      changes[i].roi_end = roi[i + axes.size()];
    }
  }
  const bool narrow = x.dtype().is_half() && mode.kind != "nearest";
  Tensor out = narrow ? x.to(kF32) : x;
  for (const AxisChange& a : changes) {
    const bool moves = a.size != a.from || a.scale != 1 || a.roi_begin != 0 || a.roi_end != 1;
    if (moves) out = resized_axis(c, out, mode, a);
  }
  return {narrow ? out.to(x.dtype()) : out};
}

// --- Grids ---------------------------------------------------------------------------------------

// Reflects coordinates at the bounds until they lie between them.
Tensor reflected(const Tensor& x, double low, double high) {
  const double span = high - low;
  if (span == 0) return x.full_like(low);
  const Tensor at = mod((x - low).abs(), 2 * span);
  return where(at > span, 2 * span - at, at) + low;
}

struct GridMode {
  std::string kind, padding;
  bool aligned;
};

// The coordinate as one in the input, which may become one inside by the padding.
Tensor padded_coordinate(const Tensor& x, int64_t size, const GridMode& mode) {
  const auto n = static_cast<double>(size);
  if (mode.padding == "border") return x.clamp(0.0, n - 1);
  if (mode.padding != "reflection") return x;
  return (mode.aligned ? reflected(x, 0, n - 1) : reflected(x, -0.5, n - 0.5)).clamp(0.0, n - 1);
}

// The elements of x (N, C, elements) at flat positions (N, points), 0 where `inside` is false.
Tensor values_at(const Tensor& x, const Tensor& flat, const Tensor& inside) {
  const int64_t n = x.size(0), channels = x.size(1), points = flat.size(1);
  const Tensor index = where(inside, flat, 0).reshape({n, 1, points});
  const Tensor found = x.gather(2, index.expand({n, channels, points}));
  return where(inside.reshape({n, 1, points}), found, 0);
}

// Of each axis the positions of a tap and its weight.
struct AxisTap {
  Tensor index, weight;
};

std::vector<AxisTap> grid_taps(const Tensor& x, int64_t size, const GridMode& mode) {
  if (mode.kind == "nearest")
    return {{padded_coordinate(x, size, mode).round(), Tensor::full({}, 1.0, x.dtype())}};
  const bool is_cubic = mode.kind == "cubic" || mode.kind == "bicubic";
  // Coordinates of single taps are padded where the filter reaches out, those of a line before.
  const Tensor at = is_cubic ? x : padded_coordinate(x, size, mode);
  const Tensor low = at.floor(), part = at - low;
  if (!is_cubic) return {{low, 1 - part}, {low + 1, part}};
  std::vector<AxisTap> out;
  constexpr double kA = -0.75;
  for (int tap = -1; tap <= 2; ++tap) {
    const Tensor d = (part - tap).abs();
    const Tensor near = ((kA + 2) * d - (kA + 3)) * d * d + 1;
    const Tensor far = ((kA * d - 5 * kA) * d + 8 * kA) * d - 4 * kA;
    const Tensor place = padded_coordinate(low + tap, size, mode);
    out.push_back({place.round(), where(d <= 1, near, far)});
  }
  return out;
}

Tensors grid_sample(Call& c) {
  const Tensor &x = c[0], &grid = c[1];  // (N, C, spatial...), (N, results..., axes)
  const auto axes = static_cast<size_t>(x.rank() - 2);
  c.require(x.rank() >= 3 && grid.rank() == x.rank() && grid.size(-1) == x.rank() - 2, "a grid ",
            to_text(grid.shape()), " of ", to_text(x.shape()));
  const GridMode mode{c.text("mode", "linear"), c.text("padding_mode", "zeros"),
                      c.integer("align_corners", 0) != 0};
  const Shape shape = sizes(x), points = sizes(grid);
  const int64_t n = shape[0], count = numel(Ints(points).subspan(1, axes));
  std::vector<std::vector<AxisTap>> taps;
  for (size_t i = 0; i < axes; ++i) {
    // The last axis of the input comes first in the grid.
    const auto size = static_cast<double>(shape[i + 2]);
    const Tensor at = grid.select(-1, static_cast<int64_t>(axes - 1 - i)).reshape({n, count});
    const Tensor place = mode.aligned ? (at + 1) * ((size - 1) / 2) : ((at + 1) * size - 1) / 2;
    taps.push_back(grid_taps(place, shape[i + 2], mode));
  }
  const Tensor flat_x = x.reshape({n, shape[1], -1});
  Tensor out;
  std::vector<size_t> chosen(axes, 0);
  for (bool more = true; more;) {
    Tensor flat, weight, inside;
    for (size_t i = 0; i < axes; ++i) {
      const AxisTap& tap = taps[i][chosen[i]];
      const int64_t size = shape[i + 2];
      const Tensor in = logical_and(tap.index >= 0, tap.index <= static_cast<double>(size - 1));
      const Tensor index = tap.index.to(kI64);
      flat = flat.defined() ? flat * size + index : index;
      weight = weight.defined() ? weight * tap.weight : tap.weight;
      inside = inside.defined() ? logical_and(inside, in) : in;
    }
    const Tensor found = values_at(flat_x, flat, inside).to(x.dtype());
    const Tensor by = weight.rank() == 0 ? weight : weight.reshape({n, 1, count});
    const Tensor term = mode.kind == "nearest" ? found : found * by;
    out = out.defined() ? out + term : term;
    more = false;
    for (size_t i = axes; i-- > 0 && !more;) {
      more = ++chosen[i] < taps[i].size();
      if (!more) chosen[i] = 0;
    }
  }
  Shape result = {n, shape[1]};
  result.insert(result.end(), points.begin() + 1, points.end() - 1);
  return {out.reshape(result).to(x.dtype())};
}

// theta (N, axes, axes + 1) of points in [-1, 1], last axis first.
Tensors affine_grid(Call& c) {
  const Tensor& theta = c[0];
  const Shape size = c.host_integers(1);
  const auto axes = static_cast<int64_t>(size.size()) - 2;
  const bool aligned = c.integer("align_corners", 0) != 0;
  c.require(axes >= 1 && theta.rank() == 3 && theta.size(1) == axes && theta.size(2) == axes + 1,
            "matrices ", to_text(theta.shape()), " for the size ", to_text(size));
  const Shape spatial(size.begin() + 2, size.end());
  Tensors columns;
  for (int64_t i = axes; i-- > 0;) {
    const int64_t n = spatial[i];
    std::vector<double> at;
    for (int64_t k = 0; k < n; ++k) {
      const auto step = static_cast<double>(k), count = static_cast<double>(n);
      at.push_back(aligned ? (n == 1 ? 0 : 2 * step / (count - 1) - 1)
                           : (2 * step + 1) / count - 1);
    }
    const Tensor row = c.constant(at, ones_but(static_cast<int>(axes), i, n), theta.dtype());
    columns.push_back(row.expand(spatial).reshape({numel(spatial)}));
  }
  columns.push_back(Tensor::ones({numel(spatial)}, theta.dtype()));
  const Tensor points = Tensor::stack(columns, 1);  // (points, axes + 1)
  Shape result = {theta.size(0)};
  result.insert(result.end(), spatial.begin(), spatial.end());
  result.push_back(axes);
  return {points.matmul(theta.transpose(1, 2)).reshape(result)};
}

// --- Boxes of pictures ---------------------------------------------------------------------------

// For each sample of each bin four elements of a picture and their weights, row-major: K. He et
// al., "Mask R-CNN", arXiv 1703.06870, section 3.
struct RoiSamples {
  Shape indices;
  std::vector<double> weights;
  int64_t samples = 0;  // of a bin, with weight 0 beyond those of a smaller box
};

struct RoiBox {
  double x, y, width, height;
  int64_t columns, rows;  // samples of a bin
};

struct RoiSettings {
  int64_t height, width, out_height, out_width, ratio;
  double scale, offset;
};

RoiBox roi_box(const RoiSettings& s, std::span<const double> corners) {
  RoiBox box{};
  box.x = corners[0] * s.scale - s.offset;
  box.y = corners[1] * s.scale - s.offset;
  box.width = corners[2] * s.scale - s.offset - box.x;
  box.height = corners[3] * s.scale - s.offset - box.y;
  if (s.offset == 0) {  // of the old mode at least one element
    box.width = std::max(box.width, 1.0);
    box.height = std::max(box.height, 1.0);
  }
  const auto count = [&](double size, int64_t bins) {
    return s.ratio > 0 ? s.ratio
                       : static_cast<int64_t>(std::ceil(size / static_cast<double>(bins)));
  };
  box.columns = count(box.width, s.out_width);
  box.rows = count(box.height, s.out_height);
  return box;
}

// Appends the four elements around a point.
void add_corners(const RoiSettings& s, double x, double y, RoiSamples& out) {
  const auto h = static_cast<double>(s.height), w = static_cast<double>(s.width);
  const bool is_outside = y < -1 || y > h || x < -1 || x > w;
  const double cy = std::clamp(y, 0.0, h - 1), cx = std::clamp(x, 0.0, w - 1);
  const auto y0 = static_cast<int64_t>(cy), x0 = static_cast<int64_t>(cx);
  const int64_t y1 = std::min(y0 + 1, s.height - 1), x1 = std::min(x0 + 1, s.width - 1);
  const double dy = cy - static_cast<double>(y0), dx = cx - static_cast<double>(x0);
  out.indices.insert(out.indices.end(),
                     {y0 * s.width + x0, y0 * s.width + x1, y1 * s.width + x0, y1 * s.width + x1});
  const double k = is_outside ? 0 : 1;
  out.weights.insert(out.weights.end(),
                     {k * (1 - dy) * (1 - dx), k * (1 - dy) * dx, k * dy * (1 - dx), k * dy * dx});
}

RoiSamples roi_samples(const RoiSettings& s, const std::vector<RoiBox>& boxes) {
  RoiSamples out;
  for (const RoiBox& box : boxes) out.samples = std::max(out.samples, box.columns * box.rows);
  for (const RoiBox& box : boxes)
    for (int64_t row = 0; row < s.out_height; ++row)
      for (int64_t column = 0; column < s.out_width; ++column) {
        const double bin_h = box.height / static_cast<double>(s.out_height),
                     bin_w = box.width / static_cast<double>(s.out_width);
        for (int64_t i = 0; i < box.rows * box.columns; ++i) {
          const double y = box.y + bin_h * (static_cast<double>(row) +
                                            (static_cast<double>(i / box.columns) + 0.5) /
                                                static_cast<double>(box.rows));
          const double x = box.x + bin_w * (static_cast<double>(column) +
                                            (static_cast<double>(i % box.columns) + 0.5) /
                                                static_cast<double>(box.columns));
          add_corners(s, x, y, out);
        }
        for (int64_t i = box.rows * box.columns; i < out.samples; ++i) {
          out.indices.insert(out.indices.end(), 4, 0);
          out.weights.insert(out.weights.end(), 4, 0);
        }
      }
  return out;
}

Tensors roi_align(Call& c) {
  const Tensor& x = c[0];
  const Shape shape = sizes(x);
  const std::string coordinates = c.text("coordinate_transformation_mode",
                                         c.opset() >= 16 ? "half_pixel" : "output_half_pixel");
  const RoiSettings s{shape.at(2),
                      shape.at(3),
                      c.integer("output_height", 1),
                      c.integer("output_width", 1),
                      c.integer("sampling_ratio", 0),
                      c.real("spatial_scale", 1),
                      coordinates == "half_pixel" ? 0.5 : 0};
  const auto corners = c.host_reals(1);
  const Shape pictures = c.host_integers(2);
  c.require(corners.size() == 4 * pictures.size(), corners.size(), " corners of ", pictures.size(),
            " boxes");
  std::vector<RoiBox> boxes;
  for (size_t i = 0; i < pictures.size(); ++i)
    boxes.push_back(roi_box(s, std::span(corners).subspan(4 * i, 4)));
  const RoiSamples samples = roi_samples(s, boxes);
  const auto rois = static_cast<int64_t>(boxes.size());
  const int64_t bins = s.out_height * s.out_width, each = bins * samples.samples * 4;
  const Tensor picture =
      x.index_select(0, from_front(c[2], shape[0])).reshape({rois, shape[1], -1});
  const Tensor index = c.constant(samples.indices, {rois, 1, each}).expand({rois, shape[1], each});
  const Tensor weights = c.constant(samples.weights, {rois, 1, each}, x.dtype());
  const Tensor terms =
      (picture.gather(2, index) * weights)
          .reshape({rois, shape[1], s.out_height, s.out_width, samples.samples, 4});
  if (c.text("mode", "avg") == "max") return {terms.max({-2, -1})};
  std::vector<double> counts;
  for (const RoiBox& box : boxes)
    counts.push_back(static_cast<double>(std::max<int64_t>(1, box.columns * box.rows)));
  return {terms.sum({-2, -1}) / c.constant(counts, {rois, 1, 1, 1}, x.dtype())};
}

// Of each bin of a box the elements that lie in it, as many as in the largest; of an empty one
// none.
struct BoxBins {
  std::vector<Shape> elements;
  int64_t most = 1;
};

// Corners are rounded to elements, both included, in f32 as others do; R. Girshick, "Fast R-CNN",
// arXiv 1504.08083.
BoxBins box_bins(const RoiSettings& s, const std::vector<double>& rois) {
  BoxBins out;
  const auto bound = [](float v, int64_t size) {
    return std::clamp<int64_t>(static_cast<int64_t>(v), 0, size);
  };
  for (size_t at = 0; at < rois.size(); at += 5) {
    const auto corner = [&](size_t i) {
      return std::round(static_cast<float>(rois[at + i]) * static_cast<float>(s.scale));
    };
    const float bin_w = std::max(corner(3) - corner(1) + 1, 1.0f) / static_cast<float>(s.out_width);
    const float bin_h =
        std::max(corner(4) - corner(2) + 1, 1.0f) / static_cast<float>(s.out_height);
    for (int64_t row = 0; row < s.out_height; ++row)
      for (int64_t column = 0; column < s.out_width; ++column) {
        const auto r = static_cast<float>(row), k = static_cast<float>(column);
        Shape elements;
        for (int64_t y = bound(std::floor(r * bin_h) + corner(2), s.height);
             y < bound(std::ceil((r + 1) * bin_h) + corner(2), s.height); ++y)
          for (int64_t x = bound(std::floor(k * bin_w) + corner(1), s.width);
               x < bound(std::ceil((k + 1) * bin_w) + corner(1), s.width); ++x)
            elements.push_back(y * s.width + x);
        out.most = std::max(out.most, std::ssize(elements));
        out.elements.push_back(std::move(elements));
      }
  }
  return out;
}

Tensors max_roi_pool(Call& c) {
  const Tensor& x = c[0];
  const Shape shape = sizes(x), pooled = c.integers("pooled_shape");
  c.require(shape.size() == 4 && pooled.size() == 2 && c[1].rank() == 2 && c[1].size(1) == 5,
            "bins ", to_text(pooled), " of boxes ", to_text(c[1].shape()), " in ", to_text(shape));
  const RoiSettings s{shape[2], shape[3], pooled[0], pooled[1], 0, c.real("spatial_scale", 1), 0};
  const BoxBins bins = box_bins(s, c.host_reals(1));
  const int64_t rois = c[1].size(0), each = pooled[0] * pooled[1] * bins.most;
  Shape indices;
  std::vector<double> is_empty;
  for (const Shape& elements : bins.elements) {
    is_empty.push_back(elements.empty() ? 1 : 0);
    for (int64_t i = 0; i < bins.most; ++i)  // the first one again where there are fewer
      indices.push_back(elements.empty() ? 0 : elements[i < std::ssize(elements) ? i : 0]);
  }
  const Tensor picture =
      x.index_select(0, c[1].select(1, 0).to(kI64)).reshape({rois, shape[1], -1});
  const Tensor index = c.constant(indices, {rois, 1, each}).expand({rois, shape[1], each});
  const Tensor best =
      picture.gather(2, index).reshape({rois, shape[1], pooled[0], pooled[1], bins.most}).max(-1);
  return {where(c.constant(is_empty, {rois, 1, pooled[0], pooled[1]}, kF32) > 0, 0, best)};
}

constexpr Operator kResample[] = {
    {"AffineGrid", 20, kFloats, affine_grid}, {"GridSample", 16, kFloats, grid_sample},
    {"MaxRoiPool", 1, kFloats, max_roi_pool}, {"Resize", 10, kNumbers, resize},
    {"RoiAlign", 10, kFloats, roi_align},     {"Upsample", 7, kNumbers, resize},
};

}  // namespace

std::span<const Operator> resample_operators() { return kResample; }

}  // namespace tiny::onnx
