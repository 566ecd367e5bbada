// Pools: reductions over windows, which are views.
#include <limits>
#include <numeric>

#include "tiny/autograd/windows.h"
#include "tiny/ir/sizes.h"
#include "tiny/nn/functional.h"
#include "tiny/tensor/detail.h"

namespace tiny {

namespace {

struct Pool {
  const char* what;
  int axes;  // spatial, the last ones of the input
  Shape kernel, stride, padding, dilation;
  Shape sizes;  // spatial sizes of the result
  const Tensor& x;

  int first() const { return x.rank() - axes; }  // spatial axis
  int64_t size(int i) const { return x.capacity()[first() + i]; }
  int64_t padded(int i) const { return checked_add(what, size(i), 2 * padding[i]); }
  int64_t span(int i) const { return span_of(what, {kernel[i], 1, dilation[i]}); }
};

// The number of windows along one axis; the last one must start before the end of the padding. With
// ceil_mode it may be the only one, and reach beyond that end by less than a step.
int64_t window_count(const Pool& p, int i, bool ceil_mode) {
  const int64_t space = p.padded(i) - p.span(i), step = p.stride[i];
  const int64_t room =
      ceil_mode && p.size(i) > 0 && space > -step ? std::max<int64_t>(space, 0) : space;
  check(room >= 0, p.what, ": a kernel of ", to_text(p.kernel), " does not fit the input ",
        to_text(p.x.capacity()), " with padding ", to_text(p.padding));
  int64_t count = (ceil_mode ? ceil_div(room, step) : room / step) + 1;
  if (ceil_mode && (count - 1) * step >= p.size(i) + p.padding[i]) --count;
  return count;
}

Pool make_pool(const char* what, int axes, const Tensor& x, const PerAxis& kernel,
               const PoolOptions& o) {
  check(x.rank() == axes + 1 || x.rank() == axes + 2, what, ": takes an input with ", axes,
        " spatial axes after one or two others and not ", to_text(x.capacity()));
  Pool p{what, axes, kernel.of(what, "kernel", axes, 1), {}, {}, {}, {}, x};
  p.stride = o.stride ? o.stride->of(what, "stride", axes, 1) : p.kernel;
  p.padding = o.padding.of(what, "padding", axes, 0);
  p.dilation = o.dilation.of(what, "dilation", axes, 1);
  for (int i = 0; i < axes; ++i) {
    check(p.padding[i] <= p.kernel[i] / 2, what, ": a padding of ", to_text(p.padding),
          " is more than half of the kernel ", to_text(p.kernel));
    p.sizes.push_back(window_count(p, i, o.ceil_mode));
  }
  return p;
}

// The windows of y, which has the shape of the pool's input, padded with `fill`:
// [..., sizes..., kernel...].
Tensor windows(const Pool& p, const Tensor& y, Number fill) {
  std::vector<Padding> pads(p.first());
  std::vector<WindowArg> args;
  for (int i = 0; i < p.axes; ++i) {
    // Up to the end of the last window: more than the padding with ceil_mode, or a part of y.
    const int64_t end = (p.sizes[i] - 1) * p.stride[i] + p.span(i);
    pads.push_back({p.padding[i], end - p.padding[i] - p.size(i)});
    args.push_back({p.kernel[i], p.stride[i], p.dilation[i], p.padding[i]});
  }
  return Tensor(build::windows(y.pad(pads, PadMode::Constant, fill).node(), p.first(), args));
}

Dims kernel_dims(const Pool& p) {
  Shape dims;
  for (int i = 0; i < p.axes; ++i) dims.push_back(p.x.rank() + i);
  return dims;
}

Number lowest(DType t) {
  if (t.is_float()) return -std::numeric_limits<double>::infinity();
  return int_min(t);
}

Tensor max_pool(const char* what, int axes, const Tensor& x, const PerAxis& kernel,
                const PoolOptions& o) {
  LabelScope label(what);
  const Pool p = make_pool(what, axes, x, kernel, o);
  return windows(p, x, lowest(x.dtype())).max(kernel_dims(p));
}

// The divisor of each window along one axis, i64 [sizes[i]].
Tensor divisor(const Pool& p, int i, bool count_include_pad) {
  const Tensor begin = Tensor::arange(p.sizes[i]) * p.stride[i] - p.padding[i];
  const int64_t end = p.size(i) + (count_include_pad ? p.padding[i] : 0);
  const Tensor stop = minimum(begin + p.kernel[i], end);
  return stop - (count_include_pad ? begin : maximum(begin, 0));
}

// Whether every window lies within what counts, so that the divisor is the kernel's size.
bool all_whole(const Pool& p, bool count_include_pad) {
  for (int i = 0; i < p.axes; ++i) {
    const int64_t counted = count_include_pad ? p.padding[i] : 0;
    const int64_t end = (p.sizes[i] - 1) * p.stride[i] + p.kernel[i] - p.padding[i];
    if (p.padding[i] > counted || end > p.size(i) + counted) return false;
  }
  return true;
}

Tensor avg_pool(const char* what, int axes, const Tensor& x, const PerAxis& kernel,
                const PoolOptions& o) {
  LabelScope label(what);
  detail::require_float(what, x.dtype());
  const Pool p = make_pool(what, axes, x, kernel, o);
  for (int64_t d : p.dilation) check(d == 1, what, ": an average takes no dilation");
  const DType wide = detail::compute_dtype(x.dtype());
  Tensor y = windows(p, x.to(wide), 0).sum(kernel_dims(p));
  if (all_whole(p, o.count_include_pad))
    return (y / static_cast<double>(numel(p.kernel))).to(x.dtype());
  Tensor count = Tensor(1.0).to(wide);
  for (int i = 0; i < axes; ++i) {
    Shape lifted(axes, 1);
    lifted[i] = -1;
    count = count * divisor(p, i, o.count_include_pad).to(wide).reshape(lifted);
  }
  return (y / count).to(x.dtype());
}

// --- Adaptive pools ------------------------------------------------------------------------------

// The result's elements along one axis: a maximum or an average over [floor(i n / m),
// ceil((i + 1) n / m)).
Tensor adapt_axis(const Tensor& x, int axis, int64_t m, bool maximum) {
  const int64_t n = m == 1 ? x.capacity()[axis] : x.size(axis);
  if (n % m == 0) {
    const Tensor blocks = x.unflatten(axis, {m, n / m});
    return maximum ? blocks.max(axis + 1) : blocks.mean(axis + 1);
  }
  checked_mul("adaptive pool", m + 1, n);
  // The remainders i n mod m are the multiples of their common divisor below m; the last one makes
  // the longest window.
  const int64_t width = 1 + ceil_div(n - std::gcd(n, m), m);
  const Tensor i = Tensor::arange(m).unsqueeze(1), j = Tensor::arange(width).unsqueeze(0);
  const Tensor begin = floor_div(i * n, m), end = floor_div((i + 1) * n + (m - 1), m);
  const Tensor at = begin + j;
  Shape lifted(x.rank() + 1 - axis, 1);
  lifted[0] = m;
  lifted[1] = width;
  const Tensor inside = (at < end).reshape(lifted);
  const Tensor rows = x.index_select(axis, tiny::minimum(at, n - 1).flatten());
  const Tensor windows = rows.unflatten(axis, {m, width});
  if (maximum) return where(inside, windows, lowest(x.dtype())).max(axis + 1);
  Shape counts(x.rank() - axis, 1);
  counts[0] = m;
  return where(inside, windows, 0).sum(axis + 1) / (end - begin).to(x.dtype()).reshape(counts);
}

// Windows of several axes are products of windows, so that one axis can be done after the other.
Tensor adaptive_pool(const char* what, int axes, const Tensor& x, const PerAxis& output_size,
                     bool maximum) {
  LabelScope label(what);
  detail::require_float(what, x.dtype());
  check(x.rank() == axes + 1 || x.rank() == axes + 2, what, ": takes an input with ", axes,
        " spatial axes after one or two others and not ", to_text(x.capacity()));
  const Shape sizes = output_size.of(what, "output size", axes, 1);
  Tensor y = x.to(detail::compute_dtype(x.dtype()));
  for (int i = 0; i < axes; ++i) {
    const int axis = x.rank() - axes + i;
    check(x.capacity()[axis] > 0, what, ": nothing to choose from in ", to_text(x.capacity()));
    y = adapt_axis(y, axis, sizes[i], maximum);
  }
  return y.to(x.dtype());
}

// Whether a window lies in the padding altogether.
bool misses(const Pool& p) {
  for (int i = 0; i < p.axes; ++i)
    for (int64_t window = 0; window < p.sizes[i]; ++window) {
      // Its first element that is not before the input.
      const int64_t begin = window * p.stride[i] - p.padding[i];
      const int64_t skipped = begin < 0 ? ceil_div(-begin, p.dilation[i]) : 0;
      if (skipped >= p.kernel[i] || begin + skipped * p.dilation[i] >= p.size(i)) return true;
    }
  return false;
}

}  // namespace

WithIndices max_pool_with_indices(const Tensor& x, int axes, const PerAxis& kernel,
                                  const PoolOptions& o) {
  LabelScope label("max_pool");
  const Pool p = make_pool("max_pool", axes, x, kernel, o);
  const Tensor values = windows(p, x, lowest(x.dtype())).max(kernel_dims(p));
  const Tensor seen = windows(p, detail::in_memory(x), lowest(x.dtype()));
  // Positions as a tensor of the input's spatial axes, seen through the same windows; those of the
  // padding are out of reach.
  const Shape spatial = to_shape(x.capacity().last(axes));
  const DType t = numel(spatial) < INT32_MAX ? kI32 : kI64;
  const int64_t outside = int_max(t);
  Shape lifted(p.first(), 1);
  lifted.insert(lifted.end(), spatial.begin(), spatial.end());
  const Tensor positions = Tensor::arange(0, numel(spatial), 1, t).reshape(lifted);
  const Tensor at = windows(p, positions, outside);
  Shape ones = to_shape(values.capacity());
  ones.resize(x.rank() + axes, 1);
  Tensor hit = seen == seen.max(kernel_dims(p)).reshape(ones);
  if (x.dtype().is_float()) hit = logical_or(hit, seen.isnan());
  const Tensor place = where(hit, at, Tensor::full({}, outside, t)).min(kernel_dims(p)).to(kI64);
  return {values, misses(p) ? where(place == outside, -1, place) : place};
}

Tensor max_pool1d(const Tensor& x, const PerAxis& kernel, const PoolOptions& o) {
  return max_pool("max_pool1d", 1, x, kernel, o);
}
Tensor max_pool2d(const Tensor& x, const PerAxis& kernel, const PoolOptions& o) {
  return max_pool("max_pool2d", 2, x, kernel, o);
}
Tensor max_pool3d(const Tensor& x, const PerAxis& kernel, const PoolOptions& o) {
  return max_pool("max_pool3d", 3, x, kernel, o);
}

Tensor avg_pool1d(const Tensor& x, const PerAxis& kernel, const PoolOptions& o) {
  return avg_pool("avg_pool1d", 1, x, kernel, o);
}
Tensor avg_pool2d(const Tensor& x, const PerAxis& kernel, const PoolOptions& o) {
  return avg_pool("avg_pool2d", 2, x, kernel, o);
}
Tensor avg_pool3d(const Tensor& x, const PerAxis& kernel, const PoolOptions& o) {
  return avg_pool("avg_pool3d", 3, x, kernel, o);
}

Tensor adaptive_avg_pool1d(const Tensor& x, const PerAxis& output_size) {
  return adaptive_pool("adaptive_avg_pool1d", 1, x, output_size, false);
}
Tensor adaptive_avg_pool2d(const Tensor& x, const PerAxis& output_size) {
  return adaptive_pool("adaptive_avg_pool2d", 2, x, output_size, false);
}
Tensor adaptive_avg_pool3d(const Tensor& x, const PerAxis& output_size) {
  return adaptive_pool("adaptive_avg_pool3d", 3, x, output_size, false);
}
Tensor adaptive_max_pool1d(const Tensor& x, const PerAxis& output_size) {
  return adaptive_pool("adaptive_max_pool1d", 1, x, output_size, true);
}
Tensor adaptive_max_pool2d(const Tensor& x, const PerAxis& output_size) {
  return adaptive_pool("adaptive_max_pool2d", 2, x, output_size, true);
}
Tensor adaptive_max_pool3d(const Tensor& x, const PerAxis& output_size) {
  return adaptive_pool("adaptive_max_pool3d", 3, x, output_size, true);
}

}  // namespace tiny
